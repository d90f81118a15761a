/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a poller does next: pure decisions, no kernel state. kmod/tests builds
 * this file with the host's compiler.
 */
#ifndef KBP_POLICY_H
#define KBP_POLICY_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
#endif

/*
 * While other threads wait for its CPU, a FIFO poller runs at most
 * KBP_RUN_NS at a stretch, and to the end of its round, and then sleeps for
 * KBP_YIELD_NS, or longer for what it owes beyond that. The share of the
 * others, 10 %, is twice what the scheduler would take by force: 5 % by RT
 * throttling, the same by the fair server that followed it. Both take their
 * share in one piece of 50 ms, which is the tail that we are here to avoid.
 *
 * RT throttling (before 6.12) stops a FIFO thread even if nobody else wants
 * the CPU. A poller that is alone therefore runs as SCHED_OTHER, with the
 * highest weight, after KBP_RUN_NS of FIFO without a rest, and turns FIFO when
 * somebody comes. Where interrupts are threads (PREEMPT_RT) it is FIFO until it owes
 * KBP_ALONE_DEBT_NS, and again as soon as that is paid.
 */
#define KBP_RUN_NS		900000ULL
#define KBP_YIELD_NS		100000ULL
#define KBP_RUN_PER_REST	9	/* KBP_RUN_NS / KBP_YIELD_NS */

/*
 * Most of what wants the CPU (a kworker's housekeeping) needs microseconds.
 * The first rest is as short as what an interrupt and a wake-up cost and is
 * taken with the devices' interrupts still masked.
 */
#define KBP_NAP_NS		20000ULL

/* Naps are less than the others' share; this much may be owed to them. */
#define KBP_DEBT_NS		(2 * KBP_YIELD_NS)

/* What a FIFO poller that is alone may owe where interrupts are threads. */
#define KBP_ALONE_DEBT_NS	(2 * KBP_YIELD_NS)

/* The longest rest that it takes at once for what it owes. */
#define KBP_YIELD_NS_MAX	(5 * KBP_YIELD_NS)

/*
 * Packets may wake it from a rest, KBP_REST_WAKES_MAX times at most, and are
 * served for KBP_REST_SERVE_NS_MAX then. In all they may keep it from resting on
 * for KBP_REST_SERVED_NS_MAX more than it has slept: a sleep that finds packets
 * there already is none. After that it sleeps undisturbed, KBP_REST_SLEEP_NS at a
 * time. Where it holds devices it looks at them every KBP_NAP_NS.
 */
#define KBP_REST_WAKES_MAX	32
#define KBP_REST_SERVE_NS_MAX	50000ULL
#define KBP_REST_SERVED_NS_MAX	200000ULL
#define KBP_REST_SLEEP_NS	50000ULL

/* Length of a rest while a live patch waits for the poller to stand still. */
#define KBP_PATCH_NS		10000000ULL

/* How long a SCHED_OTHER poller that shares its CPU sleeps at most. */
#define KBP_SHARE_NS		1000000ULL

/*
 * A driver that starts its card anew may wait until nobody polls it, with the
 * kernel's lock of all network configuration held, and without a word to us. If
 * that lock has been taken for KBP_WAITER_NS, held devices get their interrupts
 * back for KBP_LET_GO_NS, long enough for somebody who looks every few
 * milliseconds; and so on until it is free.
 */
#define KBP_WAITER_NS		100000000ULL
#define KBP_LET_GO_NS		25000000ULL

/*
 * Halts: one has this share in the mean of how late they end, and counts as no later
 * than so many times its length. So one that is very late is not too many, and two of
 * sixteen are.
 */
#define KBP_HALT_LATE_SHARE	16
#define KBP_HALT_LATE_MAX	12

/* The longest halt, in usual lengths; the shortest, as a share of one. */
#define KBP_HALT_LONGEST	3
#define KBP_HALT_SHORTEST	4
/* So many usual lengths of what long halts have saved are kept for short ones. */
#define KBP_HALT_SAVED_MAX	8

/*
 * The age up to which the next packet is unlikely: for one that is earlier it is less by
 * the first share, for one that is not it is more by the second, and by a bit, so that it
 * gets off the ground. So one gap of 60 (of 5 us) to 200 (of 60 us) ends before.
 */
#define KBP_QUIET_DOWN		4
#define KBP_QUIET_UP		1024
#define KBP_QUIET_UP_NS		16

enum kbp_step {
	KBP_STEP_POLL,		/* poll on */
	KBP_STEP_NAP,		/* rest, interrupts stay masked */
	KBP_STEP_YIELD,		/* rest, interrupts armed, a packet wakes */
	KBP_STEP_SLEEP,		/* nothing to poll: sleep until woken, or until due */
};

/* What the poller sees after a round of polling. */
struct kbp_view {
	u64 now_ns;
	bool work;		/* the round found packets or left NAPIs on a list */
	bool holds;		/* it holds NAPIs whose interrupts are masked */
	bool alone;		/* no other thread wants this CPU */
	bool fifo;		/* scheduling policy that was asked for */
	bool irq_threads;	/* interrupts are threads, which preempt SCHED_OTHER */
	bool patching;		/* a live patch waits for it */
	u64 due_ns;		/* when packets are likely; 0: no such time */
};

/* What it remembers between two decisions. */
struct kbp_duty {
	u64 last_ns;		/* when time was last accounted for */
	u64 stretch_ns;		/* run since it last rested or was alone */
	u64 debt_ns;		/* rest that is owed to others */
	bool napped;		/* a nap did not suffice */
	bool fifo;		/* it runs as SCHED_FIFO */
};

struct kbp_next {
	enum kbp_step step;
	u64 rest_ns;		/* for KBP_STEP_NAP and KBP_STEP_YIELD */
	u64 until_ns;		/* for KBP_STEP_SLEEP; 0: without an end */
	bool fifo;		/* run as SCHED_FIFO from now on */
};

/* A rest, so far. */
struct kbp_rest {
	u64 rest_ns;		/* to be slept in all */
	u64 slept_ns;
	u64 served_ns;		/* spent with packets in between */
	u32 wakes;		/* sleeps that packets could end */
	bool done;		/* none of them are left */
	bool masked;		/* packets of some devices wake nobody */
};

bool kbp_lets_go(u64 locked_ns);
bool kbp_halts_are_late(u64 *late_ns, u64 usual_ns, u64 this_ns);
u64 kbp_halt_length(u64 usual_ns, u64 quiet_ns, u64 *saved_ns);
void kbp_quiet_learn(u64 *quiet_ns, u64 gap_ns);
u64 kbp_rest_sleep_ns(const struct kbp_rest *rest, bool *disturbed);
struct kbp_next kbp_duty_next(struct kbp_duty *duty,
			      const struct kbp_view *view);
void kbp_duty_rested(struct kbp_duty *duty, u64 now_ns, u64 slept_ns);

#endif /* KBP_POLICY_H */
