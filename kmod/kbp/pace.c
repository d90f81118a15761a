// SPDX-License-Identifier: GPL-2.0-only
/*
 * When the CPU of a sleeping poller goes slow, or sleeps deeply, and when it does
 * not pay. "Slow" is either below, and a "change" what it takes to be awake again.
 *
 * Owns nothing, takes no lock, reads no clock: everything comes in through
 * struct kbp_pace_view. Called by the poller thread only.
 *
 * A sleep that is expected to be long begins slow. One that is expected to be
 * short becomes slow when it has taken as long as would have paid, so that a
 * silence is never fast for longer than that, and traffic whose gaps are shorter
 * never changes the frequency.
 */
#include "pace.h"

/* How long a sleep has to be to be worth a change there and back. */
static u64 kbp_pace_worth_ns(const struct kbp_pace_view *view)
{
	u64 cost_ns = view->cost_ns < KBP_PACE_NS_MAX ? view->cost_ns :
							KBP_PACE_NS_MAX;
	u64 ns = cost_ns * KBP_PACE_PAYS;

	if (view->choosy) {
		ns = cost_ns * KBP_PACE_PAYS_CHOSEN;
		if (ns < KBP_PACE_CHOSEN_NS_MIN)
			ns = KBP_PACE_CHOSEN_NS_MIN;
	}
	return ns < KBP_PACE_NS_MAX ? ns : KBP_PACE_NS_MAX;
}

/**
 * kbp_pace_begin() - the poller is about to sleep
 * @pace: what is remembered
 * @now_ns: the time
 */
void kbp_pace_begin(struct kbp_pace *pace, u64 now_ns)
{
	pace->asleep_ns = now_ns;
}

/**
 * kbp_pace_slow_at() - may the CPU be slow for the rest of this sleep?
 * @pace: what is remembered
 * @view: what is known
 *
 * Return: 0 if it may from now on, and that is noted; else when to ask again.
 */
u64 kbp_pace_slow_at(struct kbp_pace *pace, const struct kbp_pace_view *view)
{
	u64 worth_ns = kbp_pace_worth_ns(view);
	u64 at_ns = pace->slow_ns ? pace->slow_ns + worth_ns : 0;

	/* A sleep of which the end is known is long enough, or it is not. */
	if (view->choosy && view->until_ns &&
	    view->until_ns < view->now_ns + worth_ns)
		return view->until_ns;
	if (view->choosy && pace->usual_ns < worth_ns &&
	    at_ns < pace->asleep_ns + worth_ns)
		at_ns = pace->asleep_ns + worth_ns;
	if (at_ns > view->now_ns)
		return at_ns;
	pace->slow_ns = view->now_ns;
	return 0;
}

/**
 * kbp_pace_end() - the poller has work again
 * @pace: what is remembered
 * @view: what is known
 */
void kbp_pace_end(struct kbp_pace *pace, const struct kbp_pace_view *view)
{
	u64 longest_ns = kbp_pace_worth_ns(view) * KBP_PACE_LONG;
	u64 slept_ns = view->now_ns - pace->asleep_ns;

	if (slept_ns > longest_ns)
		slept_ns = longest_ns;
	pace->usual_ns -= pace->usual_ns / KBP_PACE_SLEEPS;
	pace->usual_ns += slept_ns / KBP_PACE_SLEEPS;
}
