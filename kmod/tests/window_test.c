// SPDX-License-Identifier: GPL-2.0-only
/*
 * window.c on simulated traffic: against a slow model of a price's plan, and against
 * fixed windows. The seed is printed; KBP_SEED repeats a run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kbp/window.h"
#include "random.h"

/* window_put_off.c */
void test_put_off(u64 seed);

#define GAPS_MAX	40000
#define POLL_NS		500
#define WAKE_NS		8000
#define CYCLE_NS	6000

static const struct kbp_window_goal goal = {
	.wake_ns = { [0 ... KBP_SLEEP_CLASSES - 1] = WAKE_NS },
	.cycle_ns = CYCLE_NS,
	.found_permille = 995,
	.budget_permille = 250,
};

static double uniform(void)
{
	return (double)(rnd() >> 11) * 0x1p-53;
}

static double exponential(double mean)
{
	return -mean * log(1 - uniform());
}

static void fail(const char *what, const char *traffic)
{
	fprintf(stderr, "window: %s: %s\n", traffic, what);
	exit(1);
}

/* ---- traffic: gaps between packets, ns ---- */

static u64 gaps[GAPS_MAX];
static int gaps_count;

static void add(double gap_ns)
{
	if (gaps_count < GAPS_MAX)
		gaps[gaps_count++] = gap_ns < 1 ? 1 : (u64)gap_ns;
}

static void periodic(int packets, double period_ns, double jitter_ns)
{
	while (packets--)
		add(period_ns + jitter_ns * (2 * uniform() - 1));
}

static void poisson(int packets, double mean_ns)
{
	while (packets--)
		add(exponential(mean_ns));
}

/* Trains of packets, with a pause of random length after each. */
static void bursts(int trains, int packets, double gap_ns, double pause_ns)
{
	int i;

	while (trains--) {
		for (i = 1; i < packets; i++)
			add(gap_ns * (0.5 + uniform()));
		add(exponential(pause_ns));
	}
}

/* A recorded one, a gap a line; over and over. */
static void recorded(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[128];
	int i, count;

	if (!file)
		fail("can't be read", path);
	while (fgets(line, sizeof(line), file))
		if (*line != '#')
			add(strtod(line, NULL));
	fclose(file);
	count = gaps_count;
	if (count < 1000)
		fail("is too short", path);
	for (i = 0; gaps_count < GAPS_MAX; i++)
		gaps[gaps_count++] = gaps[i % count];
}

/* ---- what a window makes of it ---- */

struct outcome {
	double p99_ns;		/* what a packet waits for a wake-up */
	double cpu;		/* share of time: empty polls and wake-ups */
	double polled;		/* share of time: empty polls */
	double interrupts;	/* a packet */
	double gap_ns;		/* on average */
};

static u64 waits[GAPS_MAX];

static int compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

/* One gap, and what was spent and waited in it. */
struct spent {
	u64 polled_ns;
	u64 cycles;
	u64 wait_ns;
	bool interrupt;
};

static struct spent gap_fixed(u64 window_ns, u64 gap_ns)
{
	if (gap_ns <= window_ns)
		return (struct spent) { .polled_ns = gap_ns };
	return (struct spent) { .polled_ns = window_ns, .cycles = 1,
			       .wait_ns = WAKE_NS, .interrupt = true };
}

/* A step to its end. */
static void plan(struct kbp_window *w)
{
	int pieces = 0;

	while (kbp_window_plan(w))
		if (++pieces > 200)
			fail("a step has no end", "plan");
}

static struct spent gap_learned(struct kbp_window *w, u64 gap_ns)
{
	struct spent spent = {};
	struct kbp_window_next next;
	u64 age_ns = 0, until_ns;

	for (;;) {
		next = kbp_window_next(w, age_ns);
		if (next.poll) {
			if (gap_ns <= age_ns + POLL_NS) {
				spent.polled_ns += gap_ns > age_ns ?
						   gap_ns - age_ns : 0;
				break;
			}
			spent.polled_ns += POLL_NS;
			age_ns += POLL_NS;
			plan(w);
			continue;
		}
		spent.cycles++;
		until_ns = age_ns + next.sleep_ns;
		if (!next.sleep_ns || gap_ns <= until_ns) {
			spent.interrupt = true;
			spent.wait_ns = WAKE_NS;
			break;
		}
		age_ns = until_ns + WAKE_NS;
		if (gap_ns <= age_ns) {
			spent.wait_ns = age_ns - gap_ns;
			break;
		}
	}
	kbp_window_gap(w, gap_ns, spent.polled_ns);
	plan(w);
	return spent;
}

/* @window: NULL for a fixed one of @fixed_ns. The first tenth is for learning. */
static struct outcome play(struct kbp_window *window, u64 fixed_ns)
{
	int i, count = 0, skip = gaps_count / 10;
	double time = 0, polled = 0, cycles = 0, interrupts = 0;
	struct spent spent;

	for (i = 0; i < gaps_count; i++) {
		spent = window ? gap_learned(window, gaps[i]) :
				 gap_fixed(fixed_ns, gaps[i]);
		if (i < skip)
			continue;
		waits[count++] = spent.wait_ns;
		time += gaps[i];
		polled += spent.polled_ns;
		cycles += spent.cycles;
		interrupts += spent.interrupt;
	}
	qsort(waits, count, sizeof(*waits), compare);
	return (struct outcome) {
		.p99_ns = waits[(int)(count * 0.99)],
		.polled = polled / time,
		.cpu = (polled + cycles * CYCLE_NS) / time,
		.interrupts = interrupts / count,
		.gap_ns = time / count,
	};
}

static struct outcome learn(const char *traffic)
{
	static struct kbp_window window;
	struct outcome o;

	kbp_window_init(&window, &goal);
	o = play(&window, 0);
	printf("%-36s p99 %5.0f ns, CPU %5.1f %%, empty polls %5.1f %%, %.3f interrupts a packet\n",
	       traffic, o.p99_ns, o.cpu * 100, o.polled * 100, o.interrupts);
	return o;
}

/*
 * Packets that come when they are expected are met by polling, for a quarter of
 * the time at most, and without an interrupt.
 */
static void test_expected(const char *traffic)
{
	struct outcome o = learn(traffic);

	if (o.p99_ns > 0)
		fail("more than 1 % of the packets wait for a wake-up", traffic);
	if (o.polled > 0.25)
		fail("more than a quarter of the time is polled", traffic);
	if (o.interrupts > 0.01)
		fail("more than 1 % of the packets interrupt", traffic);
}

/* No fixed window may be better in both the 99th percentile and CPU time. */
static void test_against_fixed(const char *traffic)
{
	struct outcome o = learn(traffic), fixed;
	double window_ns;

	for (window_ns = 500; window_ns < 2e9; window_ns *= 1.1) {
		fixed = play(NULL, (u64)window_ns);
		if (fixed.p99_ns >= o.p99_ns || fixed.cpu >= o.cpu)
			continue;
		printf("%.0f ns: p99 %.0f ns, CPU %.1f %%\n", window_ns,
		       fixed.p99_ns, fixed.cpu * 100);
		fail("a fixed window is better", traffic);
	}
	/* A poll in place of a sleep costs no budget; short gaps have no room to sleep. */
	if (o.gap_ns > WAKE_NS + CYCLE_NS &&
	    o.polled > 0.26 + CYCLE_NS / o.gap_ns)
		fail("it spends more than it was given", traffic);
	if (o.gap_ns <= WAKE_NS + CYCLE_NS && (o.p99_ns > 0 || o.interrupts > 0.01))
		fail("packets wait though no sleep pays", traffic);
}

/* A device that falls silent is polled no more, however it was before. */
static void test_silence(void)
{
	static struct kbp_window window;
	u64 age_ns, polled_ns = 0;
	int i;

	kbp_window_init(&window, &goal);
	for (i = 0; i < gaps_count; i++)
		gap_learned(&window, gaps[i]);
	for (age_ns = 0; age_ns < 4000000000ULL; age_ns += 5000)
		if (kbp_window_next(&window, age_ns).poll)
			polled_ns += 5000;
	if (polled_ns > 1000000000ULL)
		fail("it polls a silent device", "silence");
	if (kbp_window_next(&window, 1ULL << 40).poll ||
	    kbp_window_next(&window, 1ULL << 40).sleep_ns)
		fail("there is no end to it", "silence");
}

/*
 * A history of long silences does not pay for traffic that goes on: its first
 * tenths of a second may, and what they took is paid back.
 */
static void test_after_silence(void)
{
	static struct kbp_window window;
	double time = 0, polled = 0;
	struct spent spent;
	int i;

	gaps_count = 0;
	poisson(10000, 100e3);
	kbp_window_init(&window, &goal);
	for (i = 0; i < 40; i++)
		gap_learned(&window, 50000000);
	for (i = 0; i < gaps_count; i++) {
		spent = gap_learned(&window, gaps[i]);
		time += gaps[i];
		polled += spent.polled_ns;
		if (time >= 600e6)
			break;
	}
	printf("0.6 s after long silences            empty polls %5.1f %%\n", polled / time * 100);
	if (polled / time > 0.45)
		fail("silences pay for more than they saved", "after silence");
}

/* ---- the plan against a slow model ---- */

/* The bucket of an age, by the definition: a sixteenth of its octave. */
static u64 model_edge(u64 ns)
{
	u64 octave = 1024;

	if (ns < 1024)
		return 0;
	while (octave * 2 <= ns)
		octave *= 2;
	return octave + (ns - octave) / (octave / 16) * (octave / 16);
}

/* How long all gaps together spend in a bucket, if each that ends in it has its middle. */
static double model_time(const struct kbp_window *w, int bucket)
{
	double width = bucket ? 64ULL << (bucket - 1) / 16 : 1024;
	double time = w->count[bucket] * width / 2;
	int older;

	for (older = bucket + 1; older < KBP_GAP_BUCKETS; older++)
		time += w->count[older] * width;
	return time;
}

/* The age at which a bucket begins. */
static double model_begin(int bucket)
{
	return bucket ? ldexp(16 + (bucket - 1) % 16, (bucket - 1) / 16 + 6) : 0;
}

/* Whether each bucket is polled for a price, the obvious way. */
static void model_plan(const struct kbp_window *w, double price_ns, bool *polled)
{
	int bucket, begin, end, older;
	double found, time, reach;

	for (bucket = 0; bucket < KBP_GAP_BUCKETS - 1; bucket++)
		polled[bucket] = w->count[bucket] &&
				 w->count[bucket] * price_ns >= model_time(w, bucket);
	polled[KBP_GAP_BUCKETS - 1] = false;
	/* Too short to sleep in. */
	for (begin = 0; begin < KBP_GAP_BUCKETS; begin = end + 1) {
		for (end = begin; end < KBP_GAP_BUCKETS && !polled[end];)
			end++;
		if (end == KBP_GAP_BUCKETS ||
		    model_begin(end) - model_begin(begin) >= WAKE_NS + CYCLE_NS)
			continue;
		memset(polled + begin, true, end - begin);
	}
	/* Not worth a wake-up; what is polled from the start needs none. */
	for (begin = 0; begin < KBP_GAP_BUCKETS; begin = end + 1) {
		found = time = reach = 0;
		for (end = begin; end < KBP_GAP_BUCKETS && polled[end]; end++) {
			found += w->count[end];
			time += model_time(w, end);
		}
		for (older = begin; older < KBP_GAP_BUCKETS; older++)
			reach += w->count[older];
		if (begin && found * price_ns < time + reach * CYCLE_NS)
			memset(polled + begin, false, end - begin);
	}
}

/* The plan of its price by the slow model, in pieces, with gaps learned between them. */
static void test_plan(void)
{
	static struct kbp_window window;
	static bool polled[KBP_GAP_BUCKETS];
	u32 fresh, pieces, plans = 0, bucket, i;

	kbp_window_init(&window, &goal);
	for (i = 0; i < 5000; i++) {
		kbp_window_gap(&window, gaps[i % gaps_count], 0);
		fresh = window.fresh;
		kbp_window_plan(&window);
		plans += window.fresh < fresh;
	}
	if (plans < 8)
		fail("no plan is made while gaps are learned", "plan");
	/* Nothing is learned from here on. */
	kbp_window_drop(&window);
	window.fresh = 1000;
	window.searching = false;
	for (i = 0; window.fresh; i++) {
		for (pieces = 1; kbp_window_plan(&window);)
			pieces++;
		if (pieces < 20 || pieces > 200 || i == 12)
			fail("a step has few large pieces, or there is no end", "plan");
	}
	/* Prices are quarters of an octave, from 1 us on. */
	model_plan(&window, ldexp(4 + window.draft.level % 4,
				  window.draft.level / 4 + 8), polled);
	for (bucket = 0; bucket < KBP_GAP_BUCKETS; bucket++)
		if ((window.poll[bucket / 64] >> bucket % 64 & 1) != polled[bucket])
			fail("it is not the plan of its price", "plan");
}

/* Is what next() says the same within a bucket, and sensible at its end? */
static void test_next(void)
{
	static struct kbp_window window;
	struct kbp_window_next next, edge;
	u64 age_ns;
	int i;

	kbp_window_init(&window, &goal);
	for (i = 0; i < gaps_count; i++)
		gap_learned(&window, gaps[i]);
	for (i = 0; i < 20000; i++) {
		age_ns = (u64)exp(uniform() * log(2e9));
		next = kbp_window_next(&window, age_ns);
		edge = kbp_window_next(&window, model_edge(age_ns));
		if (edge.poll && !next.poll)
			fail("it stops polling within a bucket", "next");
		/* For as long as it says, and no longer. */
		if (next.poll &&
		    (!next.poll_ns ||
		     !kbp_window_next(&window, age_ns + next.poll_ns - 1).poll ||
		     !kbp_window_next(&window, age_ns + (u64)(next.poll_ns * uniform())).poll))
			fail("it polls for less long than it says", "next");
		if (next.poll || !next.sleep_ns)
			continue;
		/* The timer ends the sleep when it is time to poll. */
		if (!kbp_window_next(&window, age_ns + next.sleep_ns +
					      WAKE_NS).poll)
			fail("it wakes for nothing", "next");
		if (next.sleep_ns < CYCLE_NS)
			fail("a sleep that costs more than it saves", "next");
		/* And not later than that. */
		if (kbp_window_next(&window, age_ns + next.sleep_ns / 2).poll &&
		    next.sleep_ns / 2 > WAKE_NS + CYCLE_NS)
			fail("it sleeps through likely ages", "next");
	}
}

static void draw_traffic(void)
{
	double scale_ns = exp(log(2e3) + uniform() * log(1e4));

	gaps_count = 0;
	switch (rnd() % 4) {
	case 0:
		periodic(2000, scale_ns, scale_ns * uniform() / 4);
		break;
	case 1:
		poisson(2000, scale_ns);
		break;
	case 2:
		bursts(40, 50, scale_ns, scale_ns * 100 * uniform());
		break;
	default:
		periodic(700, scale_ns, scale_ns / 50);
		poisson(700, scale_ns * 8 * uniform());
		bursts(20, 30, scale_ns / 3, scale_ns * 30);
	}
}

/* Once by an interrupt, once at the time that was set for a sleep of 100 us. */
static void learn_wake(struct kbp_wake *wake, u64 ns)
{
	kbp_wake_learn(wake, ns);
	kbp_wake_learn_timed(wake, 100000, ns);
}

/* One long sleep says nothing of wake-ups, and what was dear once is not for ever. */
static void test_wake_outlier(void)
{
	struct kbp_wake wake = {};
	u64 high_ns, worst_ns, *const high = &wake.high_ns[2];
	int i;

	for (i = 0; i < 1000; i++)
		learn_wake(&wake, 7000 + rnd() % 2000);
	if (*high < 8000 || *high > 9000 ||
	    wake.short_ns < 7000 || wake.short_ns > 8000)
		fail("what waking up takes was not learned", "wake-ups");
	learn_wake(&wake, 1000000000);
	if (*high > 18000 || wake.short_ns > 16000)
		fail("an outlier counts too much", "wake-ups");
	for (i = 0; i < 100; i++)
		learn_wake(&wake, 1000000000);
	/* It does not sleep any more: 0.74 s, a minute, ten, a look every 4 ms. */
	kbp_wake_forget(&wake, 4000000);
	high_ns = *high;
	worst_ns = wake.worst_ns;
	for (i = 0; i < 186; i++)
		kbp_wake_forget(&wake, 4000000);
	if (*high < high_ns * 48 / 100 || *high > high_ns * 52 / 100 ||
	    wake.worst_ns < worst_ns * 97 / 100)
		fail("it is forgotten too fast, or too slowly", "wake-ups");
	for (; i < 15000; i++)
		kbp_wake_forget(&wake, 4000000);
	if (*high > 20000 || wake.short_ns > 20000 ||
	    *high < 10000 || wake.worst_ns < worst_ns / 8)
		fail("what a plan is made with is forgotten wrongly", "wake-ups");
	for (; i < 150000; i++)
		kbp_wake_forget(&wake, 4000000);
	if (wake.worst_ns > 20000)
		fail("a wake-up is dear for ever", "wake-ups");
}

/* The exit of a deep state, which only long sleeps are let into, is theirs alone. */
static void test_wake_classes(void)
{
	const struct kbp_window_knobs knobs = {};
	struct kbp_window_goal aim;
	struct kbp_wake wake = {};
	u64 asked_ns;
	int i;

	for (i = 0; i < 2000; i++) {
		asked_ns = (u64)exp(log(5e3) + uniform() * log(1e4));
		kbp_wake_learn_timed(&wake, asked_ns,
				     asked_ns < 600000 ? 8000 : 208000);
		kbp_wake_learn(&wake, 8000);
		kbp_wake_forget(&wake, 4000000);
	}
	aim = kbp_window_aim(&knobs, &wake, 1);
	for (i = 0; i < KBP_SLEEP_CLASSES; i++)
		if (i < 5 ? aim.wake_ns[i] > 10000 : aim.wake_ns[i] < 100000)
			fail("a sleep's length makes no difference", "classes");
	if (aim.cycle_ns < 15000 || aim.cycle_ns > 17000)
		fail("the exit of an idle state is taken for CPU time", "classes");
	if (kbp_window_aim(&knobs, &wake, 5).budget_permille * 5 !=
	    aim.budget_permille)
		fail("the budget is not shared", "classes");
}

/*
 * From what is looked up to what is learned: whatever the period and whatever waking
 * takes, the timer is not late for most packets.
 */
static void test_timer(u64 wake_ns)
{
	static struct kbp_window window;
	const struct kbp_window_knobs knobs = {};
	struct kbp_window_next next;
	struct kbp_wake wake;
	u64 period_ns, gap_ns, age_ns, woken_ns;
	int i, late;

	for (period_ns = 70000; period_ns < 5000000; period_ns += period_ns / 64) {
		wake = (struct kbp_wake) {};
		window.goal = kbp_window_aim(&knobs, &wake, 1);
		kbp_window_init(&window, &window.goal);
		late = 0;
		for (i = 0; i < 3000; i++) {
			gap_ns = period_ns + rnd() % 2000;
			kbp_wake_learn(&wake, 8000);
			/* The sleep begins a little after the decision. */
			age_ns = 8000;
			next = kbp_window_next(&window, 0);
			if (next.poll && next.poll_ns < gap_ns) {
				age_ns += next.poll_ns;
				next = kbp_window_next(&window, next.poll_ns);
			}
			if (!next.poll && next.sleep_ns) {
				woken_ns = age_ns - 8000 + next.sleep_ns + wake_ns;
				late += i >= 2000 && woken_ns > gap_ns;
				kbp_wake_learn_timed(&wake, next.ahead_ns, wake_ns);
			}
			kbp_wake_forget(&wake, 4000000);
			window.goal = kbp_window_aim(&knobs, &wake, 1);
			kbp_window_gap(&window, gap_ns, 0);
			plan(&window);
		}
		if (late > 500) {
			fprintf(stderr, "period %llu, wake-up %llu\n",
				(unsigned long long)period_ns,
				(unsigned long long)wake_ns);
			fail("the timer is late", "timer");
		}
	}
}

/* As long as waking up takes longer than allowed, nothing but a second of silence lets it sleep. */
static void test_wake_limit(void)
{
	const struct kbp_window_knobs knobs = { .wake_ns_max = 50000 };
	struct kbp_wake wake = {};
	struct kbp_window window;
	struct kbp_window_goal aim;
	u64 age_ns;
	int i;

	for (i = 0; i < 100; i++)
		kbp_wake_learn(&wake, 80000);
	aim = kbp_window_aim(&knobs, &wake, 1);
	kbp_window_init(&window, &aim);
	plan(&window);
	for (age_ns = 0; age_ns < 1000000000; age_ns = age_ns * 9 / 8 + 500)
		if (!kbp_window_next(&window, age_ns).poll)
			fail("it sleeps though waking up takes too long", "limit");
	if (kbp_window_next(&window, 2000000000).poll)
		fail("it never sleeps", "limit");
	for (i = 0; i < 500; i++)
		kbp_wake_learn(&wake, 20000);
	window.goal = kbp_window_aim(&knobs, &wake, 1);
	for (i = 0; i < 40; i++) {
		kbp_window_gap(&window, 5000000, 0);
		plan(&window);
	}
	if (kbp_window_next(&window, 1000000).poll)
		fail("it polls though waking up is quick enough", "limit");
}

static void test_all_against_fixed(void)
{
	static const double means_ns[] = { 20e3, 50e3, 100e3, 300e3, 1e6, 10e6 };
	/*
	 * Table 2 of paper 001: 64, 512 and 1518 bytes at 1 Gbit/s, then at 80 Mbit/s, with
	 * preamble and gap.
	 */
	static const double paper_ns[] = { 672, 4256, 12304, 6720, 53200, 153800 };
	char name[64];
	unsigned int i;

	for (i = 0; i < sizeof(means_ns) / sizeof(*means_ns); i++) {
		gaps_count = 0;
		poisson(GAPS_MAX, means_ns[i]);
		snprintf(name, sizeof(name), "Poisson, %.0f us on average",
			 means_ns[i] / 1e3);
		test_against_fixed(name);
	}
	for (i = 0; i < sizeof(paper_ns) / sizeof(*paper_ns); i++) {
		gaps_count = 0;
		periodic(GAPS_MAX, paper_ns[i], paper_ns[i] / 20);
		snprintf(name, sizeof(name), "Table 2, a packet every %.2f us",
			 paper_ns[i] / 1e3);
		test_against_fixed(name);
	}
	gaps_count = 0;
	bursts(600, 50, 20e3, 5e6);
	test_against_fixed("bursts of 50 packets");
	gaps_count = 0;
	recorded("../../lab/traces/services.txt");
	test_against_fixed("recorded, of services");
	gaps_count = 0;
	for (i = 0; i < 8; i++) {
		periodic(2000, 1e6, 5e3);
		poisson(1000, 100e3);
		bursts(40, 50, 20e3, 5e6);
	}
	test_against_fixed("one after the other");
}

int main(void)
{
	const char *chosen = getenv("KBP_SEED");
	u64 seed = chosen ? strtoull(chosen, NULL, 0) : 20261122;
	int i;

	printf("window: seed %llu\n", (unsigned long long)seed);
	rnd_state = seed;
	/* Paper 001, table 2: 512 and 1518 bytes at 80 Mbps; and slower ones. */
	gaps_count = 0;
	periodic(20000, 53200, 1000);
	test_expected("a packet every 53.2 us");
	gaps_count = 0;
	periodic(20000, 153800, 1000);
	test_expected("a packet every 153.8 us");
	gaps_count = 0;
	periodic(10000, 1e6, 20e3);
	test_expected("a packet every ms");
	gaps_count = 0;
	for (i = 0; i < 5000; i++) {
		periodic(2, 30e3, 1e3);
		periodic(1, 20e6, 50e3);
	}
	test_expected("three packets every 20 ms");
	gaps_count = 0;
	bursts(100, 300, 20e3, 30e6);
	test_expected("bursts of 300 packets");
	test_all_against_fixed();
	for (i = 0; i < 50; i++) {
		draw_traffic();
		test_next();
		test_plan();
		test_silence();
	}
	test_after_silence();
	test_wake_outlier();
	test_wake_classes();
	test_timer(20000);
	test_timer(50000);
	test_timer(200000);
	test_wake_limit();
	test_put_off(seed);
	printf("window: ok\n");
	return 0;
}
