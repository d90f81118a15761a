// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether mode adaptive sleeps between packets at all.
 *
 * Owns nothing, takes no lock, reads no clock. Called by the poller thread only, for
 * all its devices together: they keep it awake, or let it sleep, together.
 */
#include "thrift.h"

static void kbp_thrift_begin(struct kbp_thrift *t, u64 since_ns)
{
	t->since_ns = since_ns;
	t->slept_ns = 0;
	t->rested_ns = 0;
	t->sleeps = 0;
	t->packets = 0;
	t->others = 0;
	t->spoilt = false;
}

/* Sleep, and look what it saves when the plans have followed. */
static void kbp_thrift_try(struct kbp_thrift *t, u64 now_ns)
{
	t->through = false;
	t->settling = true;
	t->fewer = false;
	t->since_ns = now_ns + KBP_THRIFT_SETTLE_NS;
}

/* Of the time of a look, what sleeps have saved, wake-ups paid, and over halts. */
static bool kbp_thrift_saves(const struct kbp_thrift *t, u64 span_ns, u64 cycle_ns,
			     bool halts)
{
	u64 cost_ns = t->sleeps * cycle_ns;

	if (halts)
		cost_ns += t->slept_ns / 1000 * KBP_THRIFT_HALTS_PERMILLE;
	return t->slept_ns > cost_ns &&
	       t->slept_ns - cost_ns >= span_ns / 1000 * KBP_THRIFT_PERMILLE;
}

/* Put the next trial off, for longer each time it has shown the same. */
static void kbp_thrift_give_up(struct kbp_thrift *t, u64 now_ns, u64 rate)
{
	u64 pause_ns = t->pause_ns ? 2 * t->pause_ns : KBP_THRIFT_PAUSE_NS;

	t->pause_ns = pause_ns < KBP_THRIFT_PAUSE_NS_MAX ?
		      pause_ns : KBP_THRIFT_PAUSE_NS_MAX;
	t->until_ns = now_ns + t->pause_ns;
	t->rate = rate;
	t->through = true;
}

static bool kbp_thrift_is_void(const struct kbp_thrift *t, u64 span_ns)
{
	return t->spoilt ||
	       t->rested_ns > span_ns / 1000 * KBP_THRIFT_OTHERS_PERMILLE ||
	       t->others * 1000 > t->packets * KBP_THRIFT_OTHERS_PERMILLE;
}

/* A look of @span_ns is over. */
static void kbp_thrift_decide(struct kbp_thrift *t, u64 now_ns, u64 span_ns,
			      u64 cycle_ns, bool halts)
{
	u64 rate = t->packets * 1000 / (span_ns / 1000000);
	bool fewer = 4 * rate < 3 * t->rate;

	if (t->through) {
		/* After a pause one look has fewer, and not the next. */
		bool rarer = fewer && t->fewer;

		t->fewer = fewer;
		if (rarer)
			t->pause_ns = 0;
		if (rarer || now_ns >= t->until_ns)
			kbp_thrift_try(t, now_ns);
		else
			kbp_thrift_begin(t, now_ns);
		return;
	}
	if (!kbp_thrift_is_void(t, span_ns)) {
		if (kbp_thrift_saves(t, span_ns, cycle_ns, halts))
			t->pause_ns = 0;
		else
			kbp_thrift_give_up(t, now_ns, rate);
	} else if (t->pause_ns) {
		/* A trial has shown nothing: what was known before it stands. */
		t->until_ns = now_ns + t->pause_ns;
		t->through = true;
	}
	kbp_thrift_begin(t, now_ns);
}

/**
 * kbp_thrift_found() - packets were found; from time to time, decide
 * @thrift: what is known of what sleeping saves
 * @now_ns: the time
 * @packets: how many
 * @cycle_ns: CPU time that one sleep and wake-up costs
 * @halts: if it polls through, its CPU stands still between two looks
 *
 * Return: whether ->through is another than before.
 */
bool kbp_thrift_found(struct kbp_thrift *thrift, u64 now_ns, u32 packets,
		      u64 cycle_ns, bool halts)
{
	bool through = thrift->through;

	if (now_ns - thrift->found_ns >= KBP_THRIFT_SILENCE_NS) {
		thrift->pause_ns = 0;
		kbp_thrift_try(thrift, now_ns);
	}
	thrift->found_ns = now_ns;
	thrift->packets += packets;
	if (thrift->settling) {
		if (now_ns >= thrift->since_ns) {
			thrift->settling = false;
			kbp_thrift_begin(thrift, now_ns);
		}
	} else if (now_ns - thrift->since_ns >= KBP_THRIFT_LOOK_NS) {
		kbp_thrift_decide(thrift, now_ns, now_ns - thrift->since_ns,
				  cycle_ns, halts);
	}
	return thrift->through != through;
}

/**
 * kbp_thrift_slept() - the poller has slept, with nothing to poll
 * @thrift: what is known of what sleeping saves
 * @slept_ns: from before it to after the wake-up
 */
void kbp_thrift_slept(struct kbp_thrift *thrift, u64 slept_ns)
{
	thrift->slept_ns += slept_ns;
	thrift->sleeps++;
}

/**
 * kbp_thrift_rested() - the poller has let others have the CPU
 * @thrift: what is known of what sleeping saves
 * @rested_ns: for how long
 */
void kbp_thrift_rested(struct kbp_thrift *thrift, u64 rested_ns)
{
	thrift->rested_ns += rested_ns;
}

/**
 * kbp_thrift_others() - the poller had packets of what this does not ask about
 * @thrift: what is known of what sleeping saves
 * @packets: how many
 */
void kbp_thrift_others(struct kbp_thrift *thrift, u32 packets)
{
	thrift->others += packets;
}

/**
 * kbp_thrift_spoil() - something else than these devices keeps the poller awake
 * @thrift: what is known of what sleeping saves; this look says nothing of it
 */
void kbp_thrift_spoil(struct kbp_thrift *thrift)
{
	thrift->spoilt = true;
}
