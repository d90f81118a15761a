// SPDX-License-Identifier: GPL-2.0-only
/*
 * window.c with a card that puts its interrupts off: packets lie there when the poller
 * wakes by its timer. What it learns of them must not keep the timer late.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../kbp/window.h"
#include "random.h"

#define PACKETS		6000
#define WAKE_NS		10000
#define PACKET_NS	8000
#define ANSWER_NS	20000
#define PLAN_NS		8000000

static struct kbp_window window;
static struct kbp_wake wake;

/* A packet's way: when it came and interrupts at the earliest, and how it was met. */
struct packet {
	u64 come_ns, interrupt_ns;
	u64 looked_ns, unseen_ns, polled_ns;
};

/* From the last packets, found at @found_ns, to the look that finds the next. */
static void meet(struct packet *p, u64 found_ns)
{
	struct kbp_window_next next;
	u64 now_ns = found_ns, until_ns;

	p->looked_ns = found_ns;
	while (p->come_ns > p->looked_ns) {
		next = kbp_window_next(&window, now_ns - found_ns);
		p->unseen_ns = 0;
		if (next.poll) {
			until_ns = now_ns + next.poll_ns;
			if (until_ns > p->come_ns)
				until_ns = p->come_ns;
			p->polled_ns += until_ns - now_ns;
			now_ns = until_ns;
		} else if (!next.sleep_ns ||
			   p->interrupt_ns <= now_ns + next.sleep_ns) {
			if (now_ns < p->interrupt_ns)
				now_ns = p->interrupt_ns;
			now_ns += WAKE_NS;
			kbp_wake_learn(&wake, WAKE_NS);
		} else {
			p->unseen_ns = next.sleep_ns + WAKE_NS;
			now_ns += p->unseen_ns;
			kbp_wake_learn_timed(&wake, next.ahead_ns, WAKE_NS);
		}
		p->looked_ns = now_ns;
	}
}

static void plan(void)
{
	const struct kbp_window_knobs knobs = {};
	bool more = true;

	kbp_wake_forget(&wake, PLAN_NS);
	window.goal = kbp_window_aim(&knobs, &wake, 1);
	while (more)
		more = kbp_window_plan(&window);
}

/*
 * Packets every @gap_ns, in bursts of 100 if there is a pause, and for each the answer's
 * interrupt, from which on the card puts the next off.
 */
static void play(u64 gap_ns, u64 put_off_ns, u64 pause_ns)
{
	u64 found_ns = 0, sent_ns = 0, planned_ns = 0, come_ns = 0, polled_ns = 0;
	int i, late = 0;

	wake = (struct kbp_wake) {};
	window.goal = kbp_window_aim(&(struct kbp_window_knobs) {}, &wake, 1);
	kbp_window_init(&window, &window.goal);
	for (i = 0; i < PACKETS; i++) {
		struct packet p = {};

		come_ns += gap_ns + rnd() % 1000 + (i % 100 ? 0 : pause_ns);
		p.come_ns = come_ns;
		p.interrupt_ns = sent_ns + put_off_ns;
		if (p.interrupt_ns < come_ns)
			p.interrupt_ns = come_ns;
		meet(&p, found_ns);
		kbp_window_gap(&window, p.looked_ns - found_ns -
					kbp_window_unseen(p.unseen_ns), p.polled_ns);
		found_ns = p.looked_ns + PACKET_NS;
		sent_ns = found_ns + ANSWER_NS;
		if (i >= PACKETS / 2) {
			late += p.looked_ns > come_ns + 2000;
			polled_ns += p.polled_ns;
		}
		if (found_ns - planned_ns < PLAN_NS)
			continue;
		planned_ns = found_ns;
		plan();
	}
	printf("every %4llu us, put off by %3llu us        %d of %d late, polled %.1f us a packet\n",
	       (unsigned long long)gap_ns / 1000, (unsigned long long)put_off_ns / 1000,
	       late, PACKETS / 2, (double)polled_ns / (PACKETS / 2) / 1000);
	if (late > PACKETS / 2 / 100) {
		fprintf(stderr, "window: interrupts that are put off keep the timer late\n");
		exit(1);
	}
	if (polled_ns / (PACKETS / 2) > (gap_ns + pause_ns / 100) / 4) {
		fprintf(stderr, "window: more than a quarter of the time is polled\n");
		exit(1);
	}
}

/*
 * Called by window_test.c. An interrupt that is put off by as long as the gaps are, or
 * longer, stands for several packets, and nothing is said of these.
 */
void test_put_off(void)
{
	u64 put_off_ns;

	for (put_off_ns = 0; put_off_ns <= 250000; put_off_ns += 10000) {
		if (put_off_ns < 100000) {
			play(100000, put_off_ns, 0);
			play(100000, put_off_ns, 40000000);
		}
		play(300000, put_off_ns, 0);
		play(1000000, put_off_ns, 0);
	}
}
