// SPDX-License-Identifier: GPL-2.0-only
/*
 * Properties of policy.c on simulated time, against random lives of a poller.
 * The seed is printed; KBP_SEED repeats a run.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../kbp/policy.h"
#include "random.h"

#define ROUNDS		200000
#define LIVES		50
#define NSEC_PER_SEC	1000000000ULL

static void fail(const char *what, u64 now_ns)
{
	fprintf(stderr, "policy: %s at %llu ns\n", what,
		(unsigned long long)now_ns);
	exit(1);
}

/* What the scheduler sees, kept the obvious way. */
struct ledger {
	u64 contended_ns;	/* time in which others wanted the CPU */
	u64 rested_ns;		/* of it, time they got */
	u64 stretch_ns;		/* how long the poller has run since */
	u64 window_end_ns;	/* RT throttling: a period of a second */
	u64 window_fifo_ns;	/* FIFO time in it */
	bool fifo;
};

/* RT throttling stops a CPU's FIFO threads at 950 ms a second. */
static void check_throttle(struct ledger *l, u64 now_ns, u64 ran_ns)
{
	if (now_ns >= l->window_end_ns) {
		l->window_end_ns = now_ns + NSEC_PER_SEC;
		l->window_fifo_ns = 0;
	}
	if (l->fifo)
		l->window_fifo_ns += ran_ns;
	if (l->window_fifo_ns > 940000000ULL)
		fail("RT throttling would stop the poller", now_ns);
}

static void check_step(const struct kbp_view *view, const struct kbp_next *next)
{
	u64 now_ns = view->now_ns;

	if (view->patching) {
		if (next->step != KBP_STEP_YIELD)
			fail("a live patch waits, no rest", now_ns);
		return;
	}
	if ((next->step == KBP_STEP_SLEEP) != (!view->work && !view->holds))
		fail("sleep must mean: nothing to poll", now_ns);
	if (view->alone && next->step != KBP_STEP_POLL &&
	    next->step != KBP_STEP_SLEEP)
		fail("a rest that nobody asked for", now_ns);
	if (next->step == KBP_STEP_NAP && !view->fifo)
		fail("a nap of a SCHED_OTHER poller", now_ns);
	if (next->fifo && !view->fifo)
		fail("FIFO that nobody asked for", now_ns);
	if (view->fifo && !view->alone && !next->fifo)
		fail("others compete and the poller is not FIFO", now_ns);
}

/*
 * A rest in a flood: whatever it looks at has packets already, or soon, and to serve
 * them takes up to @serve_ns. The others get their rest all the same, and packets
 * wait for no more than a part of it.
 */
static struct kbp_rest flood_rest(u64 rest_ns, u64 serve_ns)
{
	struct kbp_rest rest = { .rest_ns = rest_ns };
	bool disturbed;
	u64 ns;

	while ((ns = kbp_rest_sleep_ns(&rest, &disturbed))) {
		if (!disturbed && ns > KBP_REST_SLEEP_NS)
			fail("packets wait for the whole rest", rest.slept_ns);
		if (disturbed && rest.masked && ns > KBP_NAP_NS)
			fail("packets that wake nobody wait", rest.slept_ns);
		if (disturbed && rest.wakes == KBP_REST_WAKES_MAX)
			fail("disturbed too often", rest.slept_ns);
		rest.slept_ns += disturbed ? 1 + rnd() % 2000 : ns;
		rest.served_ns += 1 + rnd() % serve_ns;
		rest.done = rnd() & 1;
		rest.masked = rnd() & 1;
		rest.wakes += disturbed;
	}
	if (rest.slept_ns < rest_ns)
		fail("a rest that was none", rest.slept_ns);
	if (rest.served_ns > KBP_REST_SERVED_NS_MAX + rest_ns +
			     (rest_ns / KBP_REST_SLEEP_NS + 2) * serve_ns)
		fail("packets kept the rest from going on", rest.served_ns);
	return rest;
}

/*
 * One decision, and what it does to time; packets come in its rests, and take up to
 * @serve_ns, if that isn't 0.
 */
static void live_round(struct kbp_duty *duty, struct kbp_view *view,
		       struct ledger *l, u64 poll_ns_max, u64 serve_ns)
{
	u64 poll_ns = 100 + rnd() % poll_ns_max, slept_ns;
	struct kbp_next next;
	struct kbp_rest rest;

	view->now_ns += poll_ns;
	check_throttle(l, view->now_ns, poll_ns);
	l->stretch_ns = view->alone ? 0 : l->stretch_ns + poll_ns;
	if (!view->alone)
		l->contended_ns += poll_ns;

	next = kbp_duty_next(duty, view);
	check_step(view, &next);
	if (next.step == KBP_STEP_POLL &&
	    l->stretch_ns > KBP_RUN_NS + 100000 + poll_ns_max)
		fail("the poller ran on while others waited", view->now_ns);
	l->fifo = next.fifo;
	if (next.step == KBP_STEP_POLL)
		return;
	if (next.step != KBP_STEP_SLEEP && !next.rest_ns)
		fail("a rest of no length", view->now_ns);
	slept_ns = next.rest_ns;
	if (next.step == KBP_STEP_YIELD && serve_ns) {
		rest = flood_rest(next.rest_ns, serve_ns);
		slept_ns = rest.slept_ns;
		view->now_ns += rest.served_ns;
		check_throttle(l, view->now_ns, rest.served_ns);
		l->contended_ns += view->alone ? 0 : rest.served_ns;
	}
	if (!view->alone) {
		l->contended_ns += slept_ns;
		l->rested_ns += slept_ns;
	}
	view->now_ns += slept_ns;
	kbp_duty_rested(duty, view->now_ns, slept_ns);
	l->stretch_ns = 0;
}

/* Others wait all the time: they get a tenth of it, and nobody is forced. */
static void test_share(bool fifo, u64 poll_ns_max, u64 serve_ns)
{
	struct kbp_view view = { .now_ns = rnd() % NSEC_PER_SEC, .work = true,
				 .holds = true, .fifo = fifo };
	struct kbp_duty duty = { .last_ns = view.now_ns };
	struct ledger l = {};
	int i;

	for (i = 0; i < ROUNDS; i++)
		live_round(&duty, &view, &l, poll_ns_max, serve_ns);
	if (l.rested_ns * 100 < l.contended_ns * 8)
		fail("others got less than 8 %", view.now_ns);
	if (l.rested_ns * 100 > l.contended_ns * 15)
		fail("a busy poller gave away more than 15 %", view.now_ns);
}

/*
 * Somebody needs a few microseconds, over and over: a nap is all that each
 * needs, and yet the naps must not add up to RT throttling.
 */
static void test_short_tasks(bool irq_threads)
{
	struct kbp_view view = { .holds = true, .fifo = true,
				 .irq_threads = irq_threads };
	struct kbp_duty duty = {};
	struct ledger l = {};
	u64 until_ns = 5 * NSEC_PER_SEC;
	bool rested = false;

	while (view.now_ns < until_ns) {
		view.alone = rested;
		rested = false;
		live_round(&duty, &view, &l, 2000, 0);
		rested = l.stretch_ns == 0 && !view.alone;
	}
}

/* Somebody needs a few microseconds now and then, and it is alone otherwise: it naps. */
static void test_seldom_tasks(bool irq_threads)
{
	struct kbp_view view = { .holds = true, .fifo = true,
				 .irq_threads = irq_threads };
	u64 until_ns = 5 * NSEC_PER_SEC, next_ns = 0;
	struct kbp_duty duty = { .fifo = true };
	struct kbp_next next;

	while (view.now_ns < until_ns) {
		view.now_ns += 100 + rnd() % 2000;
		view.alone = view.now_ns < next_ns;
		next = kbp_duty_next(&duty, &view);
		if (next.step == KBP_STEP_POLL)
			continue;
		if (next.step != KBP_STEP_NAP)
			fail("a rest where a nap would do", view.now_ns);
		view.now_ns += next.rest_ns;
		kbp_duty_rested(&duty, view.now_ns, next.rest_ns);
		next_ns = view.now_ns + 2000000 + rnd() % 4000000;
	}
}

/*
 * It is alone, sleeps and wakes: no change of the scheduling policy stands between
 * an interrupt and its packet. Unless it hardly ever sleeps, which would be RT
 * throttling.
 */
static void test_wakes(u64 poll_ns_max, u64 sleep_ns, bool may_change)
{
	struct kbp_view view = { .alone = true, .fifo = true };
	struct kbp_duty duty = { .fifo = true };
	struct ledger l = { .fifo = true };
	int i, changes = 0;
	bool fifo = true;

	for (i = 0; i < ROUNDS; i++) {
		view.work = rnd() % 4 != 0;
		view.due_ns = view.now_ns + sleep_ns;
		live_round(&duty, &view, &l, poll_ns_max, 0);
		if (view.due_ns > view.now_ns && !view.work) {
			view.now_ns = view.due_ns;
			kbp_duty_rested(&duty, view.now_ns, sleep_ns);
		}
		changes += l.fifo != fifo;
		fifo = l.fifo;
	}
	if (changes && !may_change)
		fail("the policy changed for a short stretch", view.now_ns);
}

/*
 * It is alone, holds devices, and interrupts are threads: it is FIFO for most of the
 * time, so that few of them preempt it, and seldom changes.
 */
static void test_irq_threads(u64 poll_ns_max)
{
	struct kbp_view view = { .holds = true, .alone = true, .fifo = true,
				 .irq_threads = true };
	u64 begin_ns, fifo_ns = 0, until_ns = 5 * NSEC_PER_SEC;
	struct kbp_duty duty = { .fifo = true };
	struct ledger l = { .fifo = true };
	int changes = 0;
	bool fifo = true;

	while (view.now_ns < until_ns) {
		begin_ns = view.now_ns;
		live_round(&duty, &view, &l, poll_ns_max, 0);
		if (fifo)
			fifo_ns += view.now_ns - begin_ns;
		changes += l.fifo != fifo;
		fifo = l.fifo;
	}
	if (fifo_ns * 100 < view.now_ns * 85)
		fail("threads of interrupts may preempt it too often", view.now_ns);
	if (changes > 1100 * 5)
		fail("the policy changes too often", view.now_ns);
}

static void test_life(void)
{
	struct kbp_view view = { .now_ns = rnd() % NSEC_PER_SEC };
	struct kbp_duty duty = { .last_ns = view.now_ns };
	struct ledger l = {};
	int i;

	view.fifo = rnd() & 1;
	view.irq_threads = rnd() & 1;
	for (i = 0; i < ROUNDS / LIVES; i++) {
		view.work = rnd() % 3 == 0;
		view.holds = rnd() % 8 != 0;
		/* Others come and go now and then, not every round. */
		if (rnd() % 16 == 0)
			view.alone = rnd() & 1;
		if (rnd() % 256 == 0)
			view.patching = rnd() % 8 == 0;
		live_round(&duty, &view, &l, 100000, 20000);
	}
}

/* Against a clock that is looked at every millisecond: armed for 25 ms after each 100. */
static void test_letting_go(void)
{
	u64 held_ns = 0, armed_ns = 0, now_ns;

	if (kbp_lets_go(0))
		fail("lets go though nobody waits", 0);
	for (now_ns = 0; now_ns < 10000000000ULL; now_ns += 1000000) {
		if (!kbp_lets_go(now_ns)) {
			if (armed_ns && armed_ns < KBP_LET_GO_NS)
				fail("armed for too short a time", now_ns);
			armed_ns = 0;
			held_ns += 1000000;
		} else {
			if (held_ns && held_ns != KBP_WAITER_NS)
				fail("held for another time", now_ns);
			held_ns = 0;
			armed_ns += 1000000;
		}
	}
}

/* Of 100 halts each @every-th is very late; the others end a little late, as they do. */
static bool gives_up(int every)
{
	u64 halt_ns = 4000, late_ns = 0;
	int i;

	for (i = 1; i <= 100; i++)
		if (kbp_halts_are_late(&late_ns, halt_ns,
				       i % every ? halt_ns / 8 : NSEC_PER_SEC))
			return true;
	return false;
}

static void test_late_halts(void)
{
	u64 late_ns = 0;
	int i;

	if (gives_up(60))
		fail("one very late halt is too many", 0);
	if (!gives_up(16))
		fail("two very late halts of sixteen are not too many", 0);
	for (i = 0; i < 1000; i++)
		if (kbp_halts_are_late(&late_ns, 4000, 3900))
			fail("halts that end in time are too late", 0);
	for (i = 0; i < 100; i++)
		if (kbp_halts_are_late(&late_ns, 4000, 4400))
			return;
	fail("halts that end late are not noticed", 0);
}

/* What gaps cost: looks that found nothing, and how late packets were. */
struct halts {
	u64 looks, late_ns, packets, very_late;
};

#define HALT_NS		4000
#define LOOK_NS		1200
#define HALT_GAPS	5000

/* @learning: or all halts are of the usual length. */
static void play_halts(u64 (*gap_ns)(u64 usual_ns), u64 usual_ns, bool learning,
		       struct halts *h)
{
	u64 quiet_ns = 0, saved_ns = 0, halt_ns, age_ns, end_ns, late_ns;
	int i;

	for (i = 0; i < HALT_GAPS; i++) {
		end_ns = gap_ns(usual_ns);
		halt_ns = 0;
		for (age_ns = 0; age_ns < end_ns; age_ns += halt_ns + LOOK_NS) {
			h->looks++;
			halt_ns = !learning ? HALT_NS :
				kbp_halt_length(HALT_NS, quiet_ns > age_ns ?
						quiet_ns - age_ns : 0, &saved_ns);
			if (halt_ns < HALT_NS / KBP_HALT_SHORTEST ||
			    halt_ns > HALT_NS * KBP_HALT_LONGEST)
				fail("a halt of another length", halt_ns);
		}
		late_ns = age_ns - end_ns;
		h->late_ns += late_ns;
		h->very_late += late_ns > HALT_NS + LOOK_NS;
		h->packets++;
		/* The look before is all that is known of its end. */
		kbp_quiet_learn(&quiet_ns, age_ns - halt_ns - LOOK_NS);
	}
}

static u64 even_gap_ns(u64 usual_ns)
{
	return usual_ns + rnd() % 1000;
}

/* One of fifty gaps is short. */
static u64 uneven_gap_ns(u64 usual_ns)
{
	return rnd() % 50 ? even_gap_ns(usual_ns) : 1 + rnd() % usual_ns;
}

static u64 any_gap_ns(u64 usual_ns)
{
	return 1 + rnd() % (2 * usual_ns);
}

/*
 * Hardly more looks than with halts of one length, and hardly one of a hundred packets
 * waits for more than one of those and a look.
 */
static void test_halts_of(u64 (*gap_ns)(u64 usual_ns), u64 late_percent)
{
	struct halts even = {}, learnt = {};
	u64 usual_ns;

	for (usual_ns = 5000; usual_ns < 30000; usual_ns += 300) {
		play_halts(gap_ns, usual_ns, false, &even);
		play_halts(gap_ns, usual_ns, true, &learnt);
	}
	if (learnt.looks > even.looks + even.looks / 100)
		fail("more looks than with halts of one length", learnt.looks);
	if (learnt.late_ns * 100 > even.late_ns * late_percent)
		fail("later than with halts of one length", learnt.late_ns);
	if (learnt.very_late * 100 > learnt.packets)
		fail("too many packets wait for a long halt", learnt.very_late);
}

/* Packets become fifty times as frequent: a few of them wait for long halts. */
static void test_halts_adapt(void)
{
	u64 quiet_ns = 0, i;

	for (i = 0; i < 20000; i++)
		kbp_quiet_learn(&quiet_ns, 500000);
	if (quiet_ns < 100000)
		fail("even gaps are not learned", quiet_ns);
	for (i = 0; i < 20; i++)
		kbp_quiet_learn(&quiet_ns, 10000);
	if (quiet_ns > 2 * 10000)
		fail("shorter gaps are not learned", quiet_ns);
}

static void test_halts(void)
{
	test_halts_of(even_gap_ns, 65);
	test_halts_of(uneven_gap_ns, 100);
	test_halts_of(any_gap_ns, 101);
	test_halts_adapt();
}

int main(void)
{
	const char *chosen = getenv("KBP_SEED");
	u64 seed = chosen ? strtoull(chosen, NULL, 0) : 20261121;
	int life;

	printf("policy: seed %llu\n", (unsigned long long)seed);
	rnd_state = seed;
	test_share(true, 100000, 0);
	test_share(false, 100000, 0);
	/* A flood: a round of eight polls, and small ones in rests. */
	test_share(true, 1000000, 20000);
	test_share(true, 2000000, 130000);
	test_short_tasks(false);
	test_short_tasks(true);
	test_seldom_tasks(false);
	test_seldom_tasks(true);
	test_wakes(20000, 20000, false);
	test_wakes(200000, 100, true);
	test_irq_threads(2000);
	test_irq_threads(100000);
	test_letting_go();
	test_late_halts();
	test_halts();
	for (life = 0; life < LIVES; life++)
		flood_rest(KBP_PATCH_NS, 130000);
	for (life = 0; life < LIVES; life++)
		test_life();
	printf("policy: ok\n");
	return 0;
}
