// SPDX-License-Identifier: GPL-2.0-only
/*
 * rtlist.c against a slow model, which knows every instance by name: instances come,
 * stay and go at random. The seed is printed; KBP_SEED repeats a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kbp/rtlist.h"
#include "random.h"

#define NAPIS	8
#define BACKLOG	NAPIS
#define ALL	(NAPIS + 1)

enum where { NOWHERE, LISTED, HELD, QUEUED };

/* An instance, and what it was given since it has wanted to be polled all the time. */
struct one {
	enum where where;
	u32 order;		/* place in the list: who has the smallest is the first */
	u32 lap;		/* in which it was polled as a held one */
	u32 polls;
	u32 others[ALL];	/* polls of each other one meanwhile */
};

static struct one all[ALL];
static struct kbp_lap lap;
static u32 order;

static void fail(const char *what)
{
	fprintf(stderr, "rtlist: %s\n", what);
	exit(1);
}

static void come(unsigned int i, enum where where)
{
	all[i] = (struct one) { .where = where, .order = ++order, .lap = all[i].lap };
}

/* What others may do with an instance at any time: schedule it, take it back. */
static void change(unsigned int i)
{
	bool wanted = rnd() % 2;

	/* Who is on the list leaves it by being polled. */
	if (all[i].where == LISTED)
		return;
	if (i == BACKLOG)
		come(i, wanted ? QUEUED : NOWHERE);
	else
		come(i, wanted ? LISTED : NOWHERE);
}

static struct kbp_normals look(void)
{
	struct kbp_normals now = { 0 };
	unsigned int i;

	for (i = 0; i < ALL; i++) {
		now.listed += all[i].where == LISTED;
		now.held += all[i].where == HELD;
		now.backlog |= all[i].where == QUEUED;
	}
	return now;
}

static int first_listed(void)
{
	int i, found = -1;

	for (i = 0; i < ALL; i++)
		if (all[i].where == LISTED &&
		    (found < 0 || all[i].order < all[found].order))
			found = i;
	return found;
}

/* As round.c looks for it. */
static int first_held(void)
{
	int i;

	for (i = 0; i < ALL; i++)
		if (all[i].where == HELD && all[i].lap != lap.number)
			return i;
	return -1;
}

static int turn(void)
{
	struct kbp_normals now = look();
	bool any = now.listed || now.held || now.backlog;

	switch (kbp_turn_next(&lap, &now)) {
	case KBP_TURN_NONE:
		if (any)
			fail("nobody is polled, though somebody could be");
		return -1;
	case KBP_TURN_LISTED:
		if (!now.listed)
			fail("the list is polled, and it is empty");
		return first_listed();
	case KBP_TURN_HELD:
		if (!now.held)
			fail("a held device is polled, and there is none");
		return first_held();
	case KBP_TURN_BACKLOG:
		if (!now.backlog)
			fail("the backlog is polled, and is not there");
		return BACKLOG;
	}
	fail("no such turn");
	return -1;
}

/* After its poll it is where @next says. */
static void poll(int i, enum where next)
{
	unsigned int j;

	for (j = 0; j < ALL; j++)
		all[j].others[i]++;
	memset(all[i].others, 0, sizeof(all[i].others));
	all[i].polls++;
	all[i].lap = lap.number;
	all[i].order = ++order;
	all[i].where = next;
}

/* It is done, or has more packets, or is held from now on. */
static enum where some_next(int i)
{
	if (rnd() % 8 == 0)
		return NOWHERE;
	if (all[i].where == LISTED && rnd() % 4 == 0)
		return HELD;
	return all[i].where;
}

/* Nobody waits for more than two polls of any other one. */
static void check_waits(void)
{
	unsigned int i, j;

	for (i = 0; i < ALL; i++)
		for (j = 0; all[i].where != NOWHERE && j < ALL; j++)
			if (j != i && all[i].others[j] > 2)
				fail("one that could be polled waits for three polls of another");
}

static void test_come_and_go(void)
{
	unsigned int step;
	int polled;

	for (step = 0; step < 20000; step++) {
		if (rnd() % 4 == 0)
			change(rnd() % ALL);
		polled = turn();
		if (polled >= 0)
			poll(polled, some_next(polled));
		check_waits();
	}
}

/* Those who stay have equal shares, wherever they are. */
static void test_equal_shares(void)
{
	u32 least = UINT32_MAX, most = 0;
	unsigned int i, step;
	int polled;

	memset(all, 0, sizeof(all));
	memset(&lap, 0, sizeof(lap));
	for (i = 0; i < ALL; i++)
		come(i, i == BACKLOG ? QUEUED : i % 2 ? LISTED : HELD);
	/* To the end of the lap that was on its way. */
	for (step = 0; step < ALL; step++) {
		polled = turn();
		poll(polled, all[polled].where);
	}
	for (i = 0; i < ALL; i++)
		all[i].polls = 0;
	for (step = 0; step < 1000 * ALL; step++) {
		polled = turn();
		if (polled < 0)
			fail("a held device has two polls in one lap");
		poll(polled, all[polled].where);
	}
	for (i = 0; i < ALL; i++) {
		least = all[i].polls < least ? all[i].polls : least;
		most = all[i].polls > most ? all[i].polls : most;
	}
	if (most - least > 1)
		fail("shares are not equal");
}

int main(void)
{
	const char *chosen = getenv("KBP_SEED");
	uint64_t seed = chosen ? strtoull(chosen, NULL, 0) : 20261124;
	int i;

	printf("rtlist: seed %llu\n", (unsigned long long)seed);
	rnd_state = seed;
	for (i = 0; i < 20; i++) {
		test_come_and_go();
		test_equal_shares();
	}
	printf("rtlist: ok\n");
	return 0;
}
