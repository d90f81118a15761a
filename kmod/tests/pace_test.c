// SPDX-License-Identifier: GPL-2.0-only
/*
 * pace.c on simulated traffic: what changes of the frequency cost, and how long a
 * silence stays fast. The seed is printed; KBP_SEED repeats a run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../kbp/pace.h"
#include "random.h"

#define US	1000ULL
#define MS	1000000ULL

static void fail(const char *what, u64 cost_ns)
{
	fprintf(stderr, "pace: %s, with %llu ns a change\n", what,
		(unsigned long long)cost_ns);
	exit(1);
}

/* A poller's sleeps, one after the other, with nothing but changes in between. */
struct life {
	struct kbp_pace pace;
	struct kbp_pace_view view;
	u64 changes;		/* there and back: two */
	u64 asks;		/* times it woke up only to ask */
	u64 slow_ns;		/* time that the CPU was slow */
	u64 fast_ns_max;	/* longest part of a sleep that it was not */
};

static void sleep_for(struct life *l, u64 gap_ns)
{
	u64 begin_ns = l->view.now_ns, end_ns = begin_ns + gap_ns, at_ns;

	kbp_pace_begin(&l->pace, begin_ns);
	while ((at_ns = kbp_pace_slow_at(&l->pace, &l->view)) && at_ns < end_ns) {
		if (at_ns <= l->view.now_ns)
			fail("asked for again at once", l->view.cost_ns);
		l->view.now_ns = at_ns;
		l->asks++;
	}
	if (at_ns) {
		if (gap_ns > l->fast_ns_max)
			l->fast_ns_max = gap_ns;
		l->view.now_ns = end_ns;
	} else {
		if (l->view.now_ns - begin_ns > l->fast_ns_max)
			l->fast_ns_max = l->view.now_ns - begin_ns;
		l->changes += 2;
		l->slow_ns += end_ns - l->view.now_ns;
		l->view.now_ns = end_ns + 2 * l->view.cost_ns;
	}
	kbp_pace_end(&l->pace, &l->view);
}

static struct life life_of(bool choosy, u64 cost_ns)
{
	struct life l = {
		.view = { .now_ns = 1 + rnd() % 1000000, .cost_ns = cost_ns,
			  .choosy = choosy },
	};

	return l;
}

static u64 exponential(u64 mean_ns)
{
	double uniform = ((rnd() >> 11) + 0.5) * 0x1p-53;

	return 1 + (u64)(-(double)mean_ns * log(uniform));
}

/* Whatever comes, changes take a bounded part of the time, and silence is slow soon. */
static void test_bounds(bool choosy)
{
	u64 cost_ns = 100 + rnd() % (1 * MS), part = choosy ? 50 : 5;
	struct life l = life_of(choosy, cost_ns);
	u64 begin_ns = l.view.now_ns, worth_ns_max, gap_ns;
	int i;

	for (i = 0; i < 20000; i++) {
		gap_ns = 1 + (rnd() >> (24 + rnd() % 40)) % (500 * MS);
		sleep_for(&l, gap_ns);
	}
	if (l.changes * cost_ns * part > l.view.now_ns - begin_ns + 2 * part * cost_ns)
		fail("changes take too much time", cost_ns);
	worth_ns_max = choosy ? 100 * cost_ns + MS : 10 * cost_ns;
	if (l.fast_ns_max > worth_ns_max + 2 * cost_ns)
		fail("a long sleep stayed fast for too long", cost_ns);
}

/* The rates of the papers: who chooses changes nothing. */
static void test_papers_rates(void)
{
	static const u64 gaps_ns[] = { 512, 4096, 6400, 12144, 51200, 151800 };
	unsigned int i, n;

	for (i = 0; i < sizeof(gaps_ns) / sizeof(*gaps_ns); i++) {
		struct life l = life_of(true, 20 * US);

		for (n = 0; n < 20000; n++)
			sleep_for(&l, n % 2 ? gaps_ns[i] : exponential(gaps_ns[i]));
		/* An exponential gap may be that long once in a while. */
		if (l.changes > 20)
			fail("it is slowed between packets that come fast", 20 * US);
	}
}

/* Few packets: each silence is slow from its begin, without a wake-up of its own. */
static void test_silence(void)
{
	struct life l = life_of(true, 20 * US);
	u64 asks, slow_ns, begin_ns;
	int n;

	for (n = 0; n < 20; n++)
		sleep_for(&l, 100 * MS);
	asks = l.asks;
	slow_ns = l.slow_ns;
	begin_ns = l.view.now_ns;
	for (n = 0; n < 100; n++)
		sleep_for(&l, 100 * MS);
	if (l.asks != asks)
		fail("it wakes up in a silence that was to be foreseen", 20 * US);
	if ((l.slow_ns - slow_ns) * 100 < (l.view.now_ns - begin_ns) * 99)
		fail("silence is not slow", 20 * US);
}

/* After packets that came fast, silence is slow again, and they find it fast again. */
static void test_on_and_off(void)
{
	struct life l = life_of(true, 20 * US);
	int burst, n;

	for (burst = 0; burst < 200; burst++) {
		for (n = 0; n < 500; n++)
			sleep_for(&l, 50 * US);
		sleep_for(&l, 500 * MS);
	}
	if (l.slow_ns < 200 * 495 * MS)
		fail("the silence between bursts is not slow", 20 * US);
	if (l.changes > 200 * 2 * 4)
		fail("the frequency changes within bursts", 20 * US);
}

/*
 * The end of a sleep is known, from a timer: who chooses is slow in it from its begin
 * if it is long enough, and not at all if it isn't, whatever sleeps were like before.
 */
static void test_known_end(void)
{
	static const u64 worth_ns = 100 * 20 * US;
	struct life l = life_of(true, 20 * US);
	u64 at_ns, gap_ns, before_ns;
	int n;

	for (n = 0; n < 2000; n++) {
		before_ns = rnd() % 2 ? 100 * MS : 50 * US;
		sleep_for(&l, before_ns);
		gap_ns = 1 + rnd() % (2 * worth_ns);
		kbp_pace_begin(&l.pace, l.view.now_ns);
		l.view.until_ns = l.view.now_ns + gap_ns;
		at_ns = kbp_pace_slow_at(&l.pace, &l.view);
		if (gap_ns < worth_ns && at_ns != l.view.until_ns)
			fail("slow in a sleep that ends too soon", 20 * US);
		/* Not too soon after the last one, but before this one's end. */
		if (gap_ns >= worth_ns && before_ns == 100 * MS && at_ns &&
		    at_ns != l.pace.slow_ns + worth_ns && l.pace.usual_ns >= worth_ns)
			fail("fast in a sleep that is known to be long", 20 * US);
		l.view.now_ns = l.view.until_ns;
		l.view.until_ns = 0;
		kbp_pace_end(&l.pace, &l.view);
	}
	/* Without a choice it makes no difference. */
	l = life_of(false, 20 * US);
	kbp_pace_begin(&l.pace, l.view.now_ns);
	l.view.until_ns = l.view.now_ns + 1;
	if (kbp_pace_slow_at(&l.pace, &l.view))
		fail("who does not choose looked at the end", 20 * US);
}

int main(void)
{
	const char *chosen = getenv("KBP_SEED");
	u64 seed = chosen ? strtoull(chosen, NULL, 0) : 20261122;
	int i;

	printf("pace: seed %llu\n", (unsigned long long)seed);
	rnd_state = seed;
	for (i = 0; i < 200; i++) {
		test_bounds(true);
		test_bounds(false);
	}
	test_papers_rates();
	test_silence();
	test_on_and_off();
	test_known_end();
	printf("pace: ok\n");
	return 0;
}
