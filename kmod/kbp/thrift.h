/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Does it pay to sleep between packets? Pure decisions, no kernel state. kmod/tests
 * builds this file with the host's compiler.
 *
 * Each sleep costs the CPU a wake-up, and a packet that comes in it is late. Who
 * chose a poller for its tail does not give that for little of a CPU. Where sleeping
 * saves less than KBP_THRIFT_PERMILLE of the time, the poller polls its devices of
 * mode adaptive through, as in mode busy. Where its CPU stands still between two looks
 * then (halt.c), that saves some of the time, too, and sleeping has to save so much
 * more.
 *
 * What sleeping saves is seen only while one sleeps. So it is tried, over
 * KBP_THRIFT_LOOK_NS and not before the devices' plans had KBP_THRIFT_SETTLE_NS to
 * follow the traffic; and once it is known not to pay, it is tried again when packets
 * were rarer in two looks in a row, after a silence, or when KBP_THRIFT_PAUSE_NS have
 * gone by, then twice that, and so on up to KBP_THRIFT_PAUSE_NS_MAX: in a trial packets
 * are late. In the end trials have less than a hundredth of the time.
 */
#ifndef KBP_THRIFT_H
#define KBP_THRIFT_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
#endif

#define KBP_THRIFT_PERMILLE	200
/* Of the time of sleeps, what halts would be in their place. */
#define KBP_THRIFT_HALTS_PERMILLE 600
#define KBP_THRIFT_SETTLE_NS	400000000ULL
#define KBP_THRIFT_LOOK_NS	400000000ULL
#define KBP_THRIFT_PAUSE_NS	10000000000ULL
#define KBP_THRIFT_PAUSE_NS_MAX	(8 * KBP_THRIFT_PAUSE_NS)
/* Longer gaps are not polled through, and what follows them is another traffic. */
#define KBP_THRIFT_SILENCE_NS	200000000ULL
/* A look says nothing in which others had more than this of the time, or of the packets. */
#define KBP_THRIFT_OTHERS_PERMILLE	50

struct kbp_thrift {
	bool through;		/* the decision: poll through */
	u64 found_ns;		/* when packets came last */
	bool settling;		/* until since_ns nothing is looked at */
	u64 since_ns;		/* since when the following are counted */
	u64 slept_ns;		/* with the wake-ups */
	u64 rested_ns;		/* left to others */
	u32 sleeps;
	u64 packets;
	u64 others;		/* packets of what is not asked about */
	bool spoilt;		/* something else kept the poller awake */
	u64 rate;		/* packets a second, when it was decided to poll through */
	bool fewer;		/* the last look had fewer by more than a quarter */
	u64 until_ns;		/* when to try again, if that stays as it is */
	u64 pause_ns;		/* how long that was put off */
};

bool kbp_thrift_found(struct kbp_thrift *thrift, u64 now_ns, u32 packets,
		      u64 cycle_ns, bool halts);
void kbp_thrift_slept(struct kbp_thrift *thrift, u64 slept_ns);
void kbp_thrift_rested(struct kbp_thrift *thrift, u64 rested_ns);
void kbp_thrift_others(struct kbp_thrift *thrift, u32 packets);
void kbp_thrift_spoil(struct kbp_thrift *thrift);

#endif /* KBP_THRIFT_H */
