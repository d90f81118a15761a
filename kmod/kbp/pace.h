/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When the CPU of a sleeping poller goes slow, or sleeps deeply: pure decisions, no
 * kernel state.
 * kmod/tests builds this file with the host's compiler.
 */
#ifndef KBP_PACE_H
#define KBP_PACE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
#endif

/*
 * A sleep is worth two changes of the frequency if it takes many times as long as
 * one of them. Before each sleep, as the paper has it (EE-KBP, section 4.2), this
 * bounds what changes may take of the time; its traffic of 64 bytes at 80 Mbit/s
 * woke the thread so often that they delayed packets by milliseconds.
 */
#define KBP_PACE_PAYS		10
/* Who chooses wants to see nothing of it where packets are to be expected. */
#define KBP_PACE_PAYS_CHOSEN	100
#define KBP_PACE_CHOSEN_NS_MIN	1000000ULL
/* What a slow driver may ask for. */
#define KBP_PACE_NS_MAX		100000000ULL
/* A sleep counts as at most so many of those that are worth it. */
#define KBP_PACE_LONG		4
/* How many sleeps the usual one is learned from, about. */
#define KBP_PACE_SLEEPS		4

/* What is remembered from one sleep to the next. */
struct kbp_pace {
	u64 asleep_ns;		/* when it began to sleep */
	u64 slow_ns;		/* when the CPU was slowed last; 0: never */
	u64 usual_ns;		/* how long a sleep takes */
};

/* What the user and the machine say. */
struct kbp_pace_view {
	u64 now_ns;
	u64 until_ns;		/* when the sleep ends in any case; 0: not known */
	u64 cost_ns;		/* what a change of the frequency takes, or an exit */
	bool choosy;		/* only sleeps that are likely to be long */
};

void kbp_pace_begin(struct kbp_pace *pace, u64 now_ns);
u64 kbp_pace_slow_at(struct kbp_pace *pace, const struct kbp_pace_view *view);
void kbp_pace_end(struct kbp_pace *pace, const struct kbp_pace_view *view);

#endif /* KBP_PACE_H */
