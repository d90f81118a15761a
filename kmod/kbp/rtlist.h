/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whose turn it is within class normal: a pure decision, no kernel state.
 * kmod/tests builds rtlist.c with the host's compiler.
 */
#ifndef KBP_RTLIST_H
#define KBP_RTLIST_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint32_t u32;
#endif

/* What could be polled. */
struct kbp_normals {
	u32 listed;	/* scheduled instances: the first of the list is next */
	u32 held;	/* devices whose interrupts are masked */
	bool backlog;
};

/*
 * A lap: each that could be polled when it began gets one poll, and nobody a second
 * one.
 */
struct kbp_lap {
	u32 number;
	struct kbp_normals left;
};

enum kbp_turn {
	KBP_TURN_NONE,		/* nothing could be polled */
	KBP_TURN_LISTED,	/* the first of the list; if it stays, it goes to the end */
	KBP_TURN_HELD,		/* a held device that this lap has not polled */
	KBP_TURN_BACKLOG,
};

enum kbp_turn kbp_turn_next(struct kbp_lap *lap, const struct kbp_normals *now);

#endif /* KBP_RTLIST_H */
