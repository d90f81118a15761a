// SPDX-License-Identifier: GPL-2.0-only
/*
 * The decision of a poller after each round: poll on, stand still, rest or sleep.
 *
 * Owns nothing, takes no lock, reads no clock: everything that matters comes
 * in through struct kbp_view, or as an argument. Called by the poller thread only.
 */
#include "policy.h"

static u64 kbp_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static struct kbp_next kbp_next_of(enum kbp_step step, u64 rest_ns)
{
	struct kbp_next next = { .step = step, .rest_ns = rest_ns };

	return next;
}

static void kbp_duty_pay(struct kbp_duty *duty, u64 ns)
{
	duty->debt_ns -= duty->debt_ns < ns ? duty->debt_ns : ns;
}

/*
 * Time that the poller ran. As FIFO it owes others their share of it; what it
 * ran as SCHED_OTHER does not count for RT throttling, like a rest.
 */
static void kbp_duty_ran(struct kbp_duty *duty, u64 ns)
{
	duty->stretch_ns += ns;
	if (duty->fifo)
		duty->debt_ns += ns / KBP_RUN_PER_REST;
	else
		kbp_duty_pay(duty, ns);
}

/* All that is owed: a round may take far longer than a stretch should. */
static u64 kbp_duty_rest_ns(const struct kbp_duty *duty)
{
	if (duty->debt_ns < KBP_YIELD_NS)
		return KBP_YIELD_NS;
	return duty->debt_ns < KBP_YIELD_NS_MAX ? duty->debt_ns :
						  KBP_YIELD_NS_MAX;
}

/* A FIFO poller whose CPU others want: 90 % for it, in short stretches. */
static struct kbp_next kbp_duty_fifo(struct kbp_duty *duty,
				     const struct kbp_view *view)
{
	/* It may owe something from before they came. */
	u64 debt_ns = KBP_DEBT_NS + (view->irq_threads ? KBP_ALONE_DEBT_NS : 0);

	if (duty->stretch_ns < KBP_RUN_NS)
		return kbp_next_of(KBP_STEP_POLL, 0);
	if (!duty->napped && duty->debt_ns < debt_ns) {
		duty->napped = true;
		return kbp_next_of(KBP_STEP_NAP, KBP_NAP_NS);
	}
	return kbp_next_of(KBP_STEP_YIELD, kbp_duty_rest_ns(duty));
}

/*
 * A SCHED_OTHER poller whose CPU others want. The scheduler prefers a thread
 * that wakes to one that has been running, so it sleeps whenever there is
 * nothing to do and lets the interrupt wake it.
 */
static struct kbp_next kbp_duty_other(struct kbp_duty *duty, bool work)
{
	if (!work)
		return kbp_next_of(KBP_STEP_YIELD, KBP_SHARE_NS);
	if (duty->stretch_ns < KBP_RUN_NS)
		return kbp_next_of(KBP_STEP_POLL, 0);
	return kbp_next_of(KBP_STEP_YIELD, KBP_YIELD_NS);
}

static struct kbp_next kbp_duty_decide(struct kbp_duty *duty,
				       const struct kbp_view *view)
{
	if (view->patching)
		return kbp_next_of(KBP_STEP_YIELD, KBP_PATCH_NS);
	if (!view->work && !view->holds)
		return kbp_next_of(KBP_STEP_SLEEP, 0);
	if (view->alone) {
		duty->stretch_ns = 0;
		duty->napped = false;
		return kbp_next_of(KBP_STEP_POLL, 0);
	}
	return view->fifo ? kbp_duty_fifo(duty, view) :
			    kbp_duty_other(duty, view->work);
}

/*
 * FIFO, but not for long while it is alone. To change that costs microseconds in
 * the way of a packet, so one that polls only for a while stays FIFO; its sleep
 * pays for that. Where a thread of an interrupt would preempt it in its round, it is
 * FIFO for nine tenths of the time.
 */
static bool kbp_duty_wants_fifo(const struct kbp_duty *duty,
				const struct kbp_view *view, enum kbp_step step)
{
	if (!view->fifo || !view->alone || step != KBP_STEP_POLL)
		return view->fifo;
	if (!duty->fifo)
		return view->irq_threads && !duty->debt_ns;
	return duty->debt_ns <
	       (view->irq_threads ? KBP_ALONE_DEBT_NS : KBP_YIELD_NS);
}

/**
 * kbp_duty_next() - decide what the poller does after a round
 * @duty: what it remembers
 * @view: what it sees
 *
 * The poller calls kbp_duty_rested() when it comes back from a rest.
 *
 * Return: the step, with the length of the rest in nanoseconds and the
 * scheduling policy to run, or to wake, with.
 */
struct kbp_next kbp_duty_next(struct kbp_duty *duty,
			      const struct kbp_view *view)
{
	struct kbp_next next;

	kbp_duty_ran(duty, view->now_ns - duty->last_ns);
	duty->last_ns = view->now_ns;

	next = kbp_duty_decide(duty, view);
	if (next.step == KBP_STEP_SLEEP)
		next.until_ns = view->due_ns;
	next.fifo = kbp_duty_wants_fifo(duty, view, next.step);
	duty->fifo = next.fifo;
	return next;
}

/**
 * kbp_duty_rested() - note the end of a rest
 * @duty: what the poller remembers
 * @now_ns: the time, of the clock that struct kbp_view carries
 * @slept_ns: how much of the time since the decision it slept; U64_MAX: all
 */
void kbp_duty_rested(struct kbp_duty *duty, u64 now_ns, u64 slept_ns)
{
	u64 gone_ns = now_ns - duty->last_ns;

	if (slept_ns > gone_ns)
		slept_ns = gone_ns;
	kbp_duty_ran(duty, gone_ns - slept_ns);
	kbp_duty_pay(duty, slept_ns);
	duty->stretch_ns = 0;
	duty->last_ns = now_ns;
}

/**
 * kbp_rest_sleep_ns() - how long to sleep on in a rest
 * @rest: what has become of it
 * @disturbed: set to whether packets may end that sleep
 *
 * Return: nanoseconds; 0: it is over.
 */
u64 kbp_rest_sleep_ns(const struct kbp_rest *rest, bool *disturbed)
{
	u64 left_ns, sleep_ns;

	*disturbed = rest->done && rest->wakes < KBP_REST_WAKES_MAX &&
		     rest->served_ns < KBP_REST_SERVED_NS_MAX + rest->slept_ns;
	if (rest->slept_ns >= rest->rest_ns)
		return 0;
	left_ns = rest->rest_ns - rest->slept_ns;
	sleep_ns = !*disturbed ? KBP_REST_SLEEP_NS :
		   rest->masked ? KBP_NAP_NS : left_ns;
	return sleep_ns < left_ns ? sleep_ns : left_ns;
}

/**
 * kbp_lets_go() - should held devices have their interrupts for a moment?
 * @locked_ns: for how long the lock has been taken whenever we looked; 0: it is free
 */
bool kbp_lets_go(u64 locked_ns)
{
	return locked_ns % (KBP_WAITER_NS + KBP_LET_GO_NS) >= KBP_WAITER_NS;
}

/**
 * kbp_halts_are_late() - a halt is over: do they end later than they are to last?
 * @late_ns: how late they end on average; forgotten when that is so
 * @usual_ns: how long they are to last usually
 * @this_ns: how late this one ended
 */
bool kbp_halts_are_late(u64 *late_ns, u64 usual_ns, u64 this_ns)
{
	u64 most_ns = KBP_HALT_LATE_MAX * usual_ns;

	*late_ns -= *late_ns / KBP_HALT_LATE_SHARE;
	*late_ns += kbp_min(this_ns, most_ns) / KBP_HALT_LATE_SHARE;
	if (*late_ns <= usual_ns)
		return false;
	*late_ns = 0;
	return true;
}

/**
 * kbp_halt_length() - how long the next halt lasts
 * @usual_ns: what they last where nothing is known of gaps
 * @quiet_ns: for so long no packet is likely
 * @saved_ns: by how much earlier ones were longer, what shorter ones took deducted
 *
 * A packet waits for the end of a halt. So they are long where none is likely, and
 * shorter where one is, each by half of what the long ones have left: there are hardly
 * more than if all were of the usual length.
 *
 * Return: nanoseconds.
 */
u64 kbp_halt_length(u64 usual_ns, u64 quiet_ns, u64 *saved_ns)
{
	u64 max_ns = KBP_HALT_SAVED_MAX * usual_ns;
	u64 ns;

	if (quiet_ns >= usual_ns) {
		ns = kbp_min(quiet_ns, KBP_HALT_LONGEST * usual_ns);
		*saved_ns = kbp_min(*saved_ns + ns - usual_ns, max_ns);
		return ns;
	}
	ns = usual_ns - kbp_min(*saved_ns / 2,
				usual_ns - usual_ns / KBP_HALT_SHORTEST);
	if (ns < quiet_ns)
		ns = quiet_ns;
	*saved_ns -= usual_ns - ns;
	return ns;
}

/**
 * kbp_quiet_learn() - a gap between packets has ended
 * @quiet_ns: up to which age that was unlikely
 * @gap_ns: its length, or less: its age at the look before the one that found them
 */
void kbp_quiet_learn(u64 *quiet_ns, u64 gap_ns)
{
	if (gap_ns < *quiet_ns)
		*quiet_ns -= *quiet_ns / KBP_QUIET_DOWN;
	else
		*quiet_ns += *quiet_ns / KBP_QUIET_UP + KBP_QUIET_UP_NS;
}
