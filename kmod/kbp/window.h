/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long to poll an attached device after its last packet, and when again:
 * pure decisions, no kernel state. kmod/tests builds this file with the host's
 * compiler.
 *
 * A gap is the time from one poll that found packets to the next packet. What a
 * device's gaps have been like says at which age of a gap its end is likely.
 * There we poll; at all other ages the interrupt is armed and the thread sleeps,
 * until the interrupt, or until a timer a little before the next likely age. So
 * bursts are polled through, periodic packets are met on time, and a silent
 * device costs nothing.
 *
 * What polling is worth is a price: nanoseconds of empty polling that one packet
 * found by it may cost. It is never less than what a sleep and a wake-up cost
 * the CPU, because up to there polling is the cheaper way to wait. Above that it
 * is the lowest price that finds as many packets as were asked for, within the
 * CPU time that was given for it. What was given and not used is saved, for a
 * fifth of a second: a burst may spend what the silence before it left. What was
 * spent beyond that is paid back, up to as much.
 */
#ifndef KBP_WINDOW_H
#define KBP_WINDOW_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

/* What may be saved: the budget of this time. */
#define KBP_SAVING_NS		200000000ULL

/* Gaps are told apart by a sixteenth of their octave, from 1 us to 1 s. */
#define KBP_GAP_SHIFT		10
#define KBP_GAP_OCTAVES		20
#define KBP_GAP_PARTS_SHIFT	4
#define KBP_GAP_PARTS		(1 << KBP_GAP_PARTS_SHIFT)
/* The first has all shorter gaps, the last all longer ones. */
#define KBP_GAP_BUCKETS		(KBP_GAP_OCTAVES * KBP_GAP_PARTS + 2)
#define KBP_GAP_WORDS		((KBP_GAP_BUCKETS + 63) / 64)

/*
 * Sleeps are told apart by the octave of their length, wake-up included, from 32 us
 * to 2 ms: the kernel chooses an idle state by it, and waking takes its exit.
 */
#define KBP_SLEEP_SHIFT		14
#define KBP_SLEEP_CLASSES	8

/* What the window is to achieve. */
struct kbp_window_goal {
	u64 wake_ns[KBP_SLEEP_CLASSES]; /* latency of a wake-up at a set time */
	u64 cycle_ns;		/* CPU time that one sleep and wake-up costs */
	u32 found_permille;	/* packets to be found by polling */
	u32 budget_permille;	/* time for empty polls, where sleeping costs less */
	u64 fixed_ns;		/* poll for so long after each packet; 0: as learned */
};

/* What the user allows; 0 is not set. Not both. */
struct kbp_window_knobs {
	u32 budget_permille;
	u64 wake_ns_max;	/* as long as waking takes no longer, sleep */
};

/* How long waking up takes, learned from each time; 0: not known. */
struct kbp_wake {
	u64 high_ns[KBP_SLEEP_CLASSES];	/* nearly the longest of the last, timed ones */
	u64 short_ns;		/* nearly the shortest, by an interrupt: no exit in it */
	u64 worst_ns;		/* nearly the longest of all, not forgotten so soon */
	u32 learned;		/* since it was last asked to forget: a bit a class */
};

/* What a price buys. */
struct kbp_window_yield {
	u64 found;		/* weight of the gaps whose end is polled */
	u64 polled;		/* weight x ns: the time that is polled */
};

/* What is left to do for the plan of one price, each in pieces. */
enum kbp_plan_pass {
	KBP_PASS_NONE,		/* no plan is being made */
	KBP_PASS_CHOOSE,	/* the ages that are worth the price */
	KBP_PASS_FILL,		/* what is too short to sleep in between them */
	KBP_PASS_PRUNE,		/* what finds too little for a wake-up; and what is found */
};

/* The plan of one price, in the making. */
struct kbp_window_draft {
	enum kbp_plan_pass pass;
	bool last;		/* no lower price is tried after it */
	u32 level;		/* of the price */
	u64 price_ns;
	u64 instead_ns;		/* what a packet costs that is not polled for */
	u64 poll[KBP_GAP_WORDS];
	u32 bucket;		/* where the pass is */
	u64 reach;		/* weight of the gaps that get older than that */
	u32 end;		/* of the polled stretch that it is in; 0: in none */
	struct kbp_window_yield stretch;
	struct kbp_window_yield yield;
};

struct kbp_window {
	struct kbp_window_goal goal;
	u32 count[KBP_GAP_BUCKETS];	/* weight, halved now and then */
	u32 total;
	u64 time;			/* weight x ns */
	u32 fresh;			/* gaps since the plan was made */
	s64 saved_ns;			/* CPU time that was given and not used, or debt */
	u64 poll[KBP_GAP_WORDS];	/* the plan: a bit for each bucket */
	bool cheap;			/* it costs no more than sleeping would */
	/*
	 * The search for the next price: levels below low are too cheap, from
	 * high on they are enough or too dear.
	 */
	bool searching;
	u32 low;
	u32 high;
	struct kbp_window_draft draft;
};

struct kbp_window_next {
	bool poll;
	u64 poll_ns;		/* for so long, unless packets come */
	u64 sleep_ns;		/* if it doesn't poll; 0: until the interrupt */
	u64 ahead_ns;		/* what is to be polled begins then: sleep and wake-up */
};

void kbp_wake_learn(struct kbp_wake *wake, u64 ns);
void kbp_wake_learn_timed(struct kbp_wake *wake, u64 ahead_ns, u64 ns);
void kbp_wake_forget(struct kbp_wake *wake, u64 ns);
struct kbp_window_goal kbp_window_aim(const struct kbp_window_knobs *knobs,
				      const struct kbp_wake *wake, u32 sharers);
void kbp_window_init(struct kbp_window *w, const struct kbp_window_goal *goal);
void kbp_window_gap(struct kbp_window *w, u64 gap_ns, u64 polled_ns);
bool kbp_window_is_planning(const struct kbp_window *w);
void kbp_window_drop(struct kbp_window *w);
bool kbp_window_plan(struct kbp_window *w);
struct kbp_window_next kbp_window_next(const struct kbp_window *w, u64 age_ns);

/*
 * As long as cards usually put an interrupt off: 20,000 a second, as drivers of Intel's
 * set it. What was put off for longer is found in some steps.
 */
#define KBP_PUT_OFF_NS		50000

/**
 * kbp_window_waited() - for how long have packets been there that a timer found?
 * @unseen_ns: from the last look at the device to the one that found them
 *
 * A card puts its interrupt off for some time after the last one, so who is woken by a
 * timer does not know since when they have been there. To take them for new would let
 * the timer be as late the next time, and for ever.
 *
 * Return: half of that, or of KBP_PUT_OFF_NS if that is less. Where it was more, or less,
 *         the next packets are found earlier, or polled for.
 */
static inline u64 kbp_window_waited(u64 unseen_ns)
{
	return (unseen_ns < KBP_PUT_OFF_NS ? unseen_ns : KBP_PUT_OFF_NS) / 2;
}

#endif /* KBP_WINDOW_H */
