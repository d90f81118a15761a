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
#define PACKET_NS	8000
#define ANSWER_NS	20000
#define PLAN_NS		8000000

static const struct kbp_window_knobs knobs;
static struct kbp_window window;
static struct kbp_wake wake;

/* The traffic, the card, and what waking up takes. */
struct setting {
	u64 gap_ns, pause_ns;	/* between packets, and after 100 of them */
	u64 put_off_ns;		/* an interrupt, after that of an answer */
	u64 interrupt_wake_ns, timer_wake_ns;
};

/* A packet: when it came, when it interrupts who sleeps, and how it was met. */
struct packet {
	u64 come_ns, interrupt_ns;
	u64 looked_ns, waited_ns, polled_ns;
};

/* From the last packets, found at @found_ns, to the look that finds the next. */
static void meet(const struct setting *s, struct packet *p, u64 found_ns)
{
	struct kbp_window_next next;
	u64 now_ns = found_ns, until_ns;

	p->looked_ns = found_ns;
	while (p->come_ns > p->looked_ns) {
		next = kbp_window_next(&window, now_ns - found_ns);
		p->waited_ns = 0;
		if (next.poll) {
			until_ns = now_ns + next.poll_ns;
			if (until_ns > p->come_ns)
				until_ns = p->come_ns;
			p->polled_ns += until_ns - now_ns;
			now_ns = until_ns;
		} else if (!next.sleep_ns ||
			   p->interrupt_ns <= now_ns + next.sleep_ns) {
			now_ns = p->interrupt_ns;
			p->waited_ns = s->interrupt_wake_ns;
			now_ns += s->interrupt_wake_ns;
			kbp_wake_learn(&wake, s->interrupt_wake_ns);
		} else {
			/* Also if it interrupts meanwhile: whose timer it was looks first. */
			until_ns = now_ns + next.sleep_ns + s->timer_wake_ns;
			p->waited_ns = kbp_window_waited(until_ns - now_ns);
			now_ns = until_ns;
			kbp_wake_learn_timed(&wake, next.ahead_ns, s->timer_wake_ns);
		}
		p->looked_ns = now_ns;
	}
}

static void plan(void)
{
	bool more = true;

	kbp_wake_forget(&wake, PLAN_NS);
	window.goal = kbp_window_aim(&knobs, &wake, 1);
	while (more)
		more = kbp_window_plan(&window);
}

static void play(const struct setting *s)
{
	u64 found_ns = 0, sent_ns = 0, planned_ns = 0, come_ns = 0, polled_ns = 0;
	u64 gap_ns = s->gap_ns + s->pause_ns / 100;
	int i, late = 0, late_heads = 0;

	wake = (struct kbp_wake) {};
	window.goal = kbp_window_aim(&knobs, &wake, 1);
	kbp_window_init(&window, &window.goal);
	for (i = 0; i < PACKETS; i++) {
		struct packet p = {};

		come_ns += s->gap_ns + rnd() % 1000 + (i % 100 ? 0 : s->pause_ns);
		p.come_ns = come_ns;
		p.interrupt_ns = sent_ns + s->put_off_ns;
		if (p.interrupt_ns < come_ns)
			p.interrupt_ns = come_ns;
		meet(s, &p, found_ns);
		kbp_window_gap(&window, p.looked_ns - found_ns - p.waited_ns,
			       p.polled_ns);
		found_ns = p.looked_ns + PACKET_NS;
		sent_ns = found_ns + ANSWER_NS;
		if (i >= PACKETS / 2) {
			late += p.looked_ns > come_ns + 2000;
			late_heads += i % 100 == 0 && p.looked_ns > come_ns + 2000;
			polled_ns += p.polled_ns;
		}
		if (found_ns - planned_ns < PLAN_NS)
			continue;
		planned_ns = found_ns;
		plan();
	}
	if (late <= PACKETS / 2 / 100 && polled_ns / (PACKETS / 2) <= gap_ns / 4 &&
	    late_heads <= PACKETS / 2 / 100 / 10)
		return;
	fprintf(stderr, "window: every %llu us, pauses of %llu, interrupts put off by %llu, wake-ups of %llu and %llu: %d of %d late, %d of them the first of bursts, polled %llu ns a packet\n",
		(unsigned long long)s->gap_ns / 1000, (unsigned long long)s->pause_ns / 1000,
		(unsigned long long)s->put_off_ns / 1000,
		(unsigned long long)s->interrupt_wake_ns / 1000,
		(unsigned long long)s->timer_wake_ns / 1000, late, PACKETS / 2, late_heads,
		(unsigned long long)polled_ns / (PACKETS / 2));
	exit(1);
}

/*
 * Called by window_test.c. Interrupts that are put off by as long as the gaps are stand for
 * several packets each, and nothing is said of these.
 */
void test_put_off(u64 seed)
{
	static const u64 gaps_ns[] = { 100000, 200000, 300000 };
	struct setting s = {};
	unsigned int i, step, waking;

	rnd_state = seed;
	for (i = 0; i < sizeof(gaps_ns) / sizeof(*gaps_ns); i++) {
		s.gap_ns = gaps_ns[i];
		for (step = 0; step < 20; step++) {
			s.put_off_ns = s.gap_ns * step / 20;
			for (waking = 0; waking < 4; waking++) {
				s.interrupt_wake_ns = waking & 1 ? 15000 : 8000;
				s.timer_wake_ns = waking & 2 ? 20000 : 10000;
				s.pause_ns = 0;
				play(&s);
				s.pause_ns = 40000000;
				play(&s);
			}
		}
	}
}
