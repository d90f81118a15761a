// SPDX-License-Identifier: GPL-2.0-only
/*
 * thrift.c on simulated traffic, some of it with the windows of window.c. The seed is
 * printed; KBP_SEED repeats a run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../kbp/thrift.h"
#include "../kbp/window.h"
#include "random.h"

#define NSEC_PER_SEC	1000000000ULL
#define NSEC_PER_MSEC	1000000ULL
#define CYCLE_NS	20000
#define PAUSE_S		(KBP_THRIFT_PAUSE_NS / NSEC_PER_SEC)
#define TRIAL_NS	(KBP_THRIFT_SETTLE_NS + KBP_THRIFT_LOOK_NS)

static struct kbp_thrift thrift;
static u64 now_ns;
static bool halts;

static void fail(const char *what)
{
	fprintf(stderr, "thrift: %s at %llu ns\n", what, (unsigned long long)now_ns);
	exit(1);
}

static void start(void)
{
	thrift = (struct kbp_thrift) {};
	now_ns = 5 * NSEC_PER_SEC;
}

/* Packets were found; is it said when the decision changes? */
static void found(u32 packets)
{
	bool before = thrift.through;

	if (kbp_thrift_found(&thrift, now_ns, packets, CYCLE_NS, halts) !=
	    (thrift.through != before))
		fail("it does not say that the decision has changed");
}

/*
 * For @span_ns packets about every @gap_ns, and before each a sleep of @slept_ns as
 * long as it sleeps at all. Returns for how long it polled through.
 */
static u64 traffic(u64 span_ns, u64 gap_ns, u64 slept_ns)
{
	u64 end_ns = now_ns + span_ns, through_ns = 0, step_ns;

	while (now_ns < end_ns) {
		step_ns = gap_ns / 2 + rnd() % gap_ns;
		now_ns += step_ns;
		if (thrift.through)
			through_ns += step_ns;
		else
			kbp_thrift_slept(&thrift, slept_ns);
		found(1);
	}
	return through_ns;
}

/* Traffic in which a sleep saves a twelfth of the time: 8 us of 96. */
static u64 dense(u64 span_ns)
{
	return traffic(span_ns, 96000, CYCLE_NS + 8000);
}

static void go_through(void)
{
	start();
	dense(TRIAL_NS + 10 * NSEC_PER_MSEC);
	if (!thrift.through)
		fail("it sleeps for a twelfth of the time");
}

static void test_pays(void)
{
	start();
	/* Of a millisecond 700 us, and of 96 us 24. */
	if (traffic(30 * NSEC_PER_SEC, 1000000, CYCLE_NS + 700000) ||
	    traffic(30 * NSEC_PER_SEC, 96000, CYCLE_NS + 24000))
		fail("it polls through where sleeping saves a quarter of the time");
	/* 20 % are the border: of 100 us 21 and 19. */
	start();
	if (traffic(30 * NSEC_PER_SEC, 100000, CYCLE_NS + 21000))
		fail("it polls through where sleeping saves more than a fifth of the time");
	start();
	traffic(TRIAL_NS + 20 * NSEC_PER_MSEC, 100000, CYCLE_NS + 19000);
	if (!thrift.through)
		fail("it sleeps for less than a fifth of the time");
	/* No sleep is possible. */
	start();
	traffic(TRIAL_NS + 10 * NSEC_PER_MSEC, 15000, 0);
	if (!thrift.through)
		fail("it sleeps in a flood");
}

/* The sleep of which @saved_ns are left, with its wake-up and what halts would save paid. */
static u64 sleep_that_saves(u64 saved_ns)
{
	return 1000 * (CYCLE_NS + saved_ns) / (1000 - KBP_THRIFT_HALTS_PERMILLE);
}

/* What halts would save, too, is no reason to sleep. */
static void test_halts(void)
{
	halts = true;
	/* Most of the sleep and the wake-up are paid; a fifth of 500 us has to be left. */
	start();
	if (traffic(30 * NSEC_PER_SEC, 500000, sleep_that_saves(105000)))
		fail("it polls through where sleeping saves more than halts");
	start();
	traffic(TRIAL_NS + 20 * NSEC_PER_MSEC, 500000, sleep_that_saves(95000));
	if (!thrift.through)
		fail("it sleeps for what halts would save");
	halts = false;
	start();
	if (traffic(30 * NSEC_PER_SEC, 500000, sleep_that_saves(95000)))
		fail("it polls through without halts");
}

/* Trials come seldom, and more and more so. */
static void test_trials(void)
{
	static const u64 pauses_s[] = {
		PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S, 8 * PAUSE_S,
	};
	u64 through_ns, pause_ns;
	unsigned int i;

	go_through();
	for (i = 0; i < sizeof(pauses_s) / sizeof(*pauses_s); i++) {
		through_ns = 0;
		while (thrift.through)
			through_ns += dense(10 * NSEC_PER_MSEC);
		pause_ns = pauses_s[i] * NSEC_PER_SEC;
		if (through_ns + 20 * NSEC_PER_MSEC < pause_ns ||
		    through_ns > pause_ns + 2 * KBP_THRIFT_LOOK_NS)
			fail("a trial at another time than it should be");
		if (dense(TRIAL_NS - 10 * NSEC_PER_MSEC))
			fail("a trial is too short");
		dense(20 * NSEC_PER_MSEC);
		if (!thrift.through)
			fail("a trial does not end");
	}
	/* What has shown that sleeping pays is forgotten as a failure. */
	while (thrift.through)
		dense(10 * NSEC_PER_MSEC);
	if (traffic(10 * NSEC_PER_SEC, 96000, 96000))
		fail("a trial shows that sleeping pays, and it polls through");
	dense(2 * TRIAL_NS);
	through_ns = dense(2 * PAUSE_S * NSEC_PER_SEC);
	if (through_ns > (PAUSE_S + 10) * NSEC_PER_SEC)
		fail("trials are put off as if none had been of use");
}

/* Packets that become rarer are looked at soon, some fluctuation is not, nor is a pause. */
static void test_rarer(void)
{
	go_through();
	if (traffic(5 * NSEC_PER_SEC, 96000 * 10 / 8, CYCLE_NS + 8000) < 5 * NSEC_PER_SEC)
		fail("a trial because a fifth fewer packets came");
	go_through();
	for (int pauses = 0; pauses < 8; pauses++) {
		now_ns += KBP_THRIFT_SILENCE_NS - 10 * NSEC_PER_MSEC;
		if (dense(2 * KBP_THRIFT_LOOK_NS) < 2 * KBP_THRIFT_LOOK_NS)
			fail("a trial because of a pause");
	}
	traffic(3 * KBP_THRIFT_LOOK_NS + 10 * NSEC_PER_MSEC, 96000 * 10 / 7, 0);
	if (thrift.through)
		fail("no trial with three tenths fewer packets");
	/* Then the next trial that fails is a first one. */
	dense(TRIAL_NS + 20 * NSEC_PER_MSEC);
	if (!thrift.through || thrift.pause_ns != KBP_THRIFT_PAUSE_NS)
		fail("trials are put off for long though the traffic is another");
	/* Polls find more packets each when they come faster. */
	go_through();
	while (now_ns < 12 * NSEC_PER_SEC) {
		now_ns += 150000;
		found(3);
		if (!thrift.through)
			fail("a trial because polls, and not packets, became fewer");
	}
}

/* After a silence it tries to sleep, and a device's few packets end none of another's. */
static void test_silence(void)
{
	u64 end_ns;

	go_through();
	now_ns += KBP_THRIFT_SILENCE_NS;
	found(1);
	if (thrift.through)
		fail("it polls through after a silence");
	dense(TRIAL_NS + 20 * NSEC_PER_MSEC);
	if (!thrift.through || thrift.pause_ns != KBP_THRIFT_PAUSE_NS)
		fail("trials are put off for long though there was a silence");

	/* One that has a few beside the many of another changes nothing. */
	go_through();
	for (end_ns = now_ns + 5 * NSEC_PER_SEC; now_ns < end_ns;) {
		if (dense(70 * NSEC_PER_MSEC) < 70 * NSEC_PER_MSEC)
			fail("a trial because of another device's few packets");
		found(1);
	}

	/* The packets of a device that has a few: every 100 ms. */
	go_through();
	for (end_ns = now_ns + NSEC_PER_SEC; now_ns < end_ns;) {
		now_ns += 100 * NSEC_PER_MSEC;
		found(1);
	}
	if (thrift.through)
		fail("it polls through for a few packets a second");

	/* 50 ms of traffic, and 300 ms of none. */
	start();
	while (now_ns < 60 * NSEC_PER_SEC) {
		if (dense(50 * NSEC_PER_MSEC))
			fail("it polls through bursts that have silences between them");
		now_ns += 300 * NSEC_PER_MSEC;
		kbp_thrift_slept(&thrift, 300 * NSEC_PER_MSEC);
	}
	/* The silences are too short to be any. */
	start();
	while (now_ns < 60 * NSEC_PER_SEC) {
		if (dense(50 * NSEC_PER_MSEC))
			fail("it polls through where a half is silence");
		now_ns += 50 * NSEC_PER_MSEC;
		kbp_thrift_slept(&thrift, 50 * NSEC_PER_MSEC);
	}
}

/* Looks that something else has spoilt say nothing. */
static void test_others(void)
{
	u64 i;

	start();
	for (i = 0; i < 1000; i++) {
		if (dense(10 * NSEC_PER_MSEC))
			fail("it polls through because something else kept it awake");
		if (i % 10 == 0)
			kbp_thrift_spoil(&thrift);
	}
	start();
	for (i = 0; i < 1000; i++) {
		if (dense(10 * NSEC_PER_MSEC))
			fail("it polls through because others had its CPU");
		kbp_thrift_rested(&thrift, 800000);
	}
	start();
	for (i = 0; i < 1000; i++) {
		if (dense(10 * NSEC_PER_MSEC))
			fail("it polls through because of other packets");
		kbp_thrift_others(&thrift, 10);
	}
	kbp_thrift_spoil(&thrift);
	dense(2 * KBP_THRIFT_LOOK_NS + 10 * NSEC_PER_MSEC);
	if (!thrift.through)
		fail("it sleeps for a twelfth of the time when the others have gone");
	/* A trial that they spoil changes nothing. */
	while (thrift.through)
		dense(10 * NSEC_PER_MSEC);
	dense(TRIAL_NS - 20 * NSEC_PER_MSEC);
	kbp_thrift_spoil(&thrift);
	dense(40 * NSEC_PER_MSEC);
	if (!thrift.through)
		fail("a trial that has shown nothing ends polling through");
}

/* ---- with the windows ---- */

#define POLL_NS		2000
#define WORK_NS		15000
#define WAKE_NS		8000
#define GAP_NS		50e3
/* A step of a plan, of two devices at 250 ticks a second. */
#define STEP_NS		16000000

static double exponential(double mean)
{
	return -mean * log(1 - (double)(rnd() >> 11) * 0x1p-53);
}

static u64 planned_ns;

/* One gap of a device: where it sleeps and polls, by its window, or polled through. */
static void gap(struct kbp_window *w, u64 gap_ns)
{
	u64 begin_ns = now_ns, end_ns = begin_ns + gap_ns, polled_ns = 0, slept_ns;
	struct kbp_window_next next;
	bool more;

	while (now_ns < end_ns && !thrift.through) {
		next = kbp_window_next(w, now_ns - begin_ns);
		if (next.poll) {
			now_ns += POLL_NS;
			polled_ns += POLL_NS;
			continue;
		}
		slept_ns = end_ns - now_ns;
		if (next.sleep_ns && next.sleep_ns < slept_ns)
			slept_ns = next.sleep_ns;
		slept_ns += WAKE_NS;
		now_ns += slept_ns;
		kbp_thrift_slept(&thrift, slept_ns);
	}
	if (now_ns < end_ns)
		now_ns = end_ns;
	kbp_window_gap(w, gap_ns, polled_ns);
	if (!thrift.through && now_ns - planned_ns >= STEP_NS) {
		do {
			more = kbp_window_plan(w);
		} while (more);
		planned_ns = now_ns;
	}
	if (kbp_thrift_found(&thrift, now_ns, 1, w->goal.cycle_ns, halts))
		w->saved_ns = 0;
	now_ns += WORK_NS;
}

/*
 * Random traffic of 15,000 packets a second leaves two fifths of the CPU asleep with the
 * budget that it has. It is not polled through, also if something was before it whose
 * trials had shown nothing.
 */
static void test_random(void)
{
	static const struct kbp_window_goal goal = {
		.wake_ns = { [0 ... KBP_SLEEP_CLASSES - 1] = WAKE_NS },
		.cycle_ns = 2 * WAKE_NS,
		.found_permille = 995,
		.budget_permille = 200,
	};
	static struct kbp_window window;
	u64 end_ns, through_ns, step_ns;

	kbp_window_init(&window, &goal);
	start();
	planned_ns = now_ns;
	for (end_ns = now_ns + 20 * NSEC_PER_SEC; now_ns < end_ns;) {
		gap(&window, (u64)exponential(GAP_NS));
		if (thrift.through)
			fail("random traffic is polled through");
	}
	go_through();
	through_ns = 0;
	for (end_ns = now_ns + 40 * NSEC_PER_SEC; now_ns < end_ns;) {
		step_ns = now_ns;
		gap(&window, (u64)exponential(GAP_NS));
		if (thrift.through)
			through_ns += now_ns - step_ns;
	}
	if (through_ns > KBP_THRIFT_PAUSE_NS + 2 * KBP_THRIFT_LOOK_NS)
		fail("random traffic is polled through for good");
}

int main(void)
{
	const char *chosen = getenv("KBP_SEED");
	uint64_t seed = chosen ? strtoull(chosen, NULL, 0) : 1;

	rnd_state = seed;
	printf("thrift: seed %llu\n", (unsigned long long)seed);
	test_pays();
	test_halts();
	test_trials();
	test_rarer();
	test_silence();
	test_others();
	test_random();
	puts("thrift: ok");
	return 0;
}
