// SPDX-License-Identifier: GPL-2.0-only
/*
 * The learned window of mode adaptive: at which ages of a gap a device is polled.
 *
 * Owns nothing, takes no lock, reads no clock. Called by the poller thread only,
 * for one attachment at a time. kbp_window_gap() and kbp_window_next() are cheap;
 * the plan is made in steps of three passes over the buckets, the last may be of six,
 * and these in pieces, each in the time of an empty poll: a packet may wait for one.
 */
#include "window.h"

/* A gap's weight, and the sum at which all weights are halved. */
#define KBP_GAP_WEIGHT		64
#define KBP_GAP_TOTAL_MAX	(1024 * KBP_GAP_WEIGHT)
/* A new plan is looked for after so many gaps. */
#define KBP_PLAN_GAPS		32
/* Prices in quarters of an octave, from 1 us to 64 s. */
#define KBP_PRICE_LEVELS	104
#define KBP_PRICE_SHIFT		8
/* A piece of a pass: buckets, or stretches to fill. */
#define KBP_PIECE_BUCKETS	32
#define KBP_PIECE_FILLS		4

static u64 kbp_price_ns(u32 level)
{
	return (u64)(4 + (level & 3)) << (KBP_PRICE_SHIFT + (level >> 2));
}

static u32 kbp_gap_bucket(u64 ns)
{
	u32 octave;

	if (ns < 1ULL << KBP_GAP_SHIFT)
		return 0;
	octave = 63 - __builtin_clzll(ns) - KBP_GAP_SHIFT;
	if (octave >= KBP_GAP_OCTAVES)
		return KBP_GAP_BUCKETS - 1;
	return 1 + octave * KBP_GAP_PARTS +
	       ((ns >> (octave + KBP_GAP_SHIFT - KBP_GAP_PARTS_SHIFT)) &
		(KBP_GAP_PARTS - 1));
}

/* The age at which a bucket begins. */
static u64 kbp_bucket_start(u32 bucket)
{
	u32 octave, part;

	if (!bucket)
		return 0;
	octave = (bucket - 1) / KBP_GAP_PARTS;
	part = (bucket - 1) % KBP_GAP_PARTS;
	return (u64)(KBP_GAP_PARTS + part)
	       << (octave + KBP_GAP_SHIFT - KBP_GAP_PARTS_SHIFT);
}

static bool kbp_plan_has(const u64 *plan, u32 bucket)
{
	return plan[bucket / 64] >> (bucket % 64) & 1;
}

static void kbp_plan_add(u64 *plan, u32 bucket)
{
	plan[bucket / 64] |= 1ULL << (bucket % 64);
}

/*
 * The first bucket from @bucket on that is polled, or that isn't; KBP_GAP_BUCKETS if
 * there is none.
 */
static u32 kbp_plan_find(const u64 *plan, u32 bucket, bool polled)
{
	u64 flip = polled ? 0 : ~0ULL;
	u32 word = bucket / 64;
	u64 bits;

	if (bucket >= KBP_GAP_BUCKETS)
		return KBP_GAP_BUCKETS;
	bits = (plan[word] ^ flip) & ~0ULL << (bucket % 64);
	while (!bits) {
		if (++word == KBP_GAP_WORDS)
			return KBP_GAP_BUCKETS;
		bits = plan[word] ^ flip;
	}
	return word * 64 + __builtin_ctzll(bits);
}

/* Which sleeps take as long to wake from as one of @ns. */
static u32 kbp_sleep_class(u64 ns)
{
	u32 octave;

	if (ns < 2ULL << KBP_SLEEP_SHIFT)
		return 0;
	octave = 63 - __builtin_clzll(ns) - KBP_SLEEP_SHIFT;
	return octave < KBP_SLEEP_CLASSES ? octave : KBP_SLEEP_CLASSES - 1;
}

/* The shortest sleep of a class. */
static u64 kbp_sleep_class_start(u32 octave)
{
	return octave ? 1ULL << (KBP_SLEEP_SHIFT + octave) : 0;
}

/* How long to sleep to be awake in @ns; 0 if that saves nothing. */
static u64 kbp_sleep_before(const struct kbp_window_goal *goal, u64 ns)
{
	u64 wake_ns = goal->wake_ns[kbp_sleep_class(ns)];

	return ns < wake_ns + goal->cycle_ns ? 0 : ns - wake_ns;
}

/*
 * The time that all gaps spend in a bucket that @reach of them leave again; those
 * that end in it do so in its middle. Not for the last one, which has no end.
 */
static u64 kbp_bucket_time(const struct kbp_window *w, u32 bucket, u64 reach)
{
	u32 shift = bucket ? (bucket - 1) / KBP_GAP_PARTS +
			     KBP_GAP_SHIFT - KBP_GAP_PARTS_SHIFT : KBP_GAP_SHIFT;

	return (2 * reach + w->count[bucket]) << shift >> 1;
}

static void kbp_plan_clear(u64 *plan, u32 begin, u32 end)
{
	u32 bucket;

	for (bucket = begin; bucket < end; bucket++)
		plan[bucket / 64] &= ~(1ULL << (bucket % 64));
}

/* From the last bucket, which has no end and is never polled, down. */
static void kbp_pass_down(struct kbp_window *w, enum kbp_plan_pass pass)
{
	struct kbp_window_draft *d = &w->draft;

	d->pass = pass;
	d->bucket = KBP_GAP_BUCKETS - 1;
	d->reach = w->count[d->bucket];
}

/* The end of a piece that goes down. */
static u32 kbp_piece_end(const struct kbp_window_draft *d)
{
	return d->bucket > KBP_PIECE_BUCKETS ? d->bucket - KBP_PIECE_BUCKETS : 0;
}

/*
 * Choose the ages that are worth the price: the packets that polling there is
 * expected to find, times the price, against the time that it takes all gaps
 * that get so old.
 */
static void kbp_pass_choose(struct kbp_window *w)
{
	struct kbp_window_draft *d = &w->draft;
	u32 end = kbp_piece_end(d);
	u64 count;

	while (d->bucket > end) {
		count = w->count[--d->bucket];
		if (count && count * d->price_ns >=
			     kbp_bucket_time(w, d->bucket, d->reach))
			kbp_plan_add(d->poll, d->bucket);
		d->reach += count;
	}
	if (!d->bucket)
		d->pass = KBP_PASS_FILL;
}

/* Poll through what lies between two polled ages and is too short to sleep in. */
static void kbp_pass_fill(struct kbp_window *w)
{
	struct kbp_window_draft *d = &w->draft;
	u32 begin, end, fills;

	for (fills = 0; fills < KBP_PIECE_FILLS; fills++) {
		/* The last bucket is not polled, so there is one. */
		begin = kbp_plan_find(d->poll, d->bucket, false);
		end = kbp_plan_find(d->poll, begin, true);
		if (end == KBP_GAP_BUCKETS) {
			kbp_pass_down(w, KBP_PASS_PRUNE);
			return;
		}
		d->bucket = end;
		if (kbp_sleep_before(&w->goal, kbp_bucket_start(end) -
					       kbp_bucket_start(begin)))
			continue;
		while (begin < end)
			kbp_plan_add(d->poll, begin++);
	}
}

static void kbp_draft_keep(struct kbp_window_draft *d)
{
	d->yield.found += d->stretch.found;
	d->yield.polled += d->stretch.polled;
}

/*
 * To poll again after a sleep costs a wake-up of all gaps that get so old. Give
 * up what does not find enough packets for that, and add up the rest. What is polled
 * from the start has no wake-up.
 */
static void kbp_pass_prune(struct kbp_window *w)
{
	struct kbp_window_draft *d = &w->draft;
	u32 end = kbp_piece_end(d);

	while (d->bucket > end) {
		d->bucket--;
		if (kbp_plan_has(d->poll, d->bucket)) {
			d->end = d->end ? d->end : d->bucket + 1;
			d->stretch.found += w->count[d->bucket];
			d->stretch.polled += kbp_bucket_time(w, d->bucket,
							     d->reach);
		} else if (d->end) {
			if (d->stretch.found * d->price_ns <
			    d->stretch.polled + d->reach * w->goal.cycle_ns)
				kbp_plan_clear(d->poll, d->bucket + 1, d->end);
			else
				kbp_draft_keep(d);
			d->stretch = (struct kbp_window_yield) {};
			d->end = 0;
		}
		d->reach += w->count[d->bucket];
	}
	if (d->bucket)
		return;
	kbp_draft_keep(d);
	d->pass = KBP_PASS_NONE;
}

/* The mean of all gaps that were learned. */
static u64 kbp_gap_ns_mean(const struct kbp_window *w)
{
	return w->time / (w->total + 1);
}

/* Is every other gap, or more of them, shorter than @ns? */
static bool kbp_gaps_are_shorter(const struct kbp_window *w, u64 ns)
{
	u32 end = kbp_gap_bucket(ns), bucket, shorter = 0;

	for (bucket = 0; bucket < end; bucket++)
		shorter += w->count[bucket];
	return 2 * shorter > w->total;
}

/*
 * What a packet that is not polled for costs: a sleep and a wake-up. Where most gaps
 * are too short to sleep and be awake before their end, that end would be waited for,
 * too.
 */
static u64 kbp_instead_ns(const struct kbp_window *w)
{
	const struct kbp_window_goal *goal = &w->goal;
	u32 octave = kbp_sleep_class(goal->cycle_ns + goal->wake_ns[0]);
	u64 timed_ns = goal->cycle_ns + goal->wake_ns[octave];

	return kbp_gaps_are_shorter(w, timed_ns) ? timed_ns : goal->cycle_ns;
}

static u64 kbp_saved_ns_max(const struct kbp_window_goal *goal)
{
	return KBP_SAVING_NS / 1000 * goal->budget_permille;
}

/*
 * What may be spent now, in thousandths of the time: the budget, and up to all of
 * the time with all that may be saved, but not more of it than is there until the
 * next plan. In debt it is less than the budget, and nothing with as much debt as
 * could be saved.
 */
static u64 kbp_spend_permille(const struct kbp_window *w)
{
	u64 plan_ns = kbp_gap_ns_mean(w) * KBP_PLAN_GAPS;
	u32 budget = w->goal.budget_permille;
	u64 max_ns = kbp_saved_ns_max(&w->goal);
	u64 saved_ns, more, there;

	if (w->saved_ns < 0) {
		saved_ns = -w->saved_ns;
		/* The budget may be less than when it was spent. */
		return saved_ns < max_ns ?
		       budget - budget * saved_ns / max_ns : 0;
	}
	saved_ns = w->saved_ns;
	if (saved_ns > max_ns)
		saved_ns = max_ns;
	more = (1000 - budget) * saved_ns / max_ns;
	there = saved_ns / (plan_ns / 1000 + 1);
	return budget + (more < there ? more : there);
}

static bool kbp_draft_is_cheap(const struct kbp_window_draft *d)
{
	return d->yield.polled <= d->yield.found * d->instead_ns;
}

/* Does it cost more than may be spent, and more than sleeping would have cost? */
static bool kbp_draft_is_dear(const struct kbp_window *w)
{
	const struct kbp_window_draft *d = &w->draft;

	return !kbp_draft_is_cheap(d) &&
	       d->yield.polled / (w->time / 1000 + 1) >= kbp_spend_permille(w);
}

/* Of the gaps that its last pass has seen: more may have been learned meanwhile. */
static bool kbp_draft_is_enough(const struct kbp_window *w)
{
	return w->draft.yield.found * 1000 >=
	       w->draft.reach * w->goal.found_permille;
}

/* Poll at all ages below @end_ns and at no other. */
static void kbp_plan_until(struct kbp_window *w, u64 end_ns)
{
	u32 bucket;

	for (bucket = 0; bucket < KBP_GAP_WORDS; bucket++)
		w->poll[bucket] = 0;
	for (bucket = 0; bucket < KBP_GAP_BUCKETS - 1 &&
	     kbp_bucket_start(bucket) < end_ns; bucket++)
		kbp_plan_add(w->poll, bucket);
	w->searching = false;
	w->draft.pass = KBP_PASS_NONE;
	w->cheap = true;
	/* Another goal begins to plan at once. */
	w->fresh = KBP_PLAN_GAPS;
}

/* ---- what it is to achieve ---- */

/* Before the first wake-up was seen. */
#define KBP_WAKE_NS		10000
/* One packet in 200 may wait for a wake-up: the 99th percentile does not see them. */
#define KBP_FOUND_PERMILLE	995
#define KBP_BUDGET_PERMILLE	200

/*
 * @of and 1/@part of what @ns is away from it, but never more than as much again: a
 * thread that was once kept from its CPU for a second says nothing of wake-ups.
 */
static u64 kbp_wake_towards(u64 of, u64 ns, u32 part)
{
	u64 step;

	if (ns <= of)
		return of - (of - ns) / part;
	step = (ns - of) / part;
	return of + (step < of ? step : of);
}

/* What is not known yet. */
static u64 kbp_wake_known(u64 ns)
{
	return ns ? ns : KBP_WAKE_NS;
}

static u64 kbp_wake_towards_high(u64 of, u64 ns)
{
	of = kbp_wake_known(of);
	return kbp_wake_towards(of, ns, ns > of ? 8 : 64);
}

static u64 kbp_wake_towards_low(u64 of, u64 ns)
{
	of = kbp_wake_known(of);
	return kbp_wake_towards(of, ns, ns < of ? 8 : 64);
}

/**
 * kbp_wake_learn() - learn how long it took an interrupt to wake the thread
 * @wake: what is known of it
 * @ns: from the interrupt's handler, which the exit of an idle state comes before
 */
void kbp_wake_learn(struct kbp_wake *wake, u64 ns)
{
	wake->short_ns = kbp_wake_towards_low(wake->short_ns, ns);
	wake->worst_ns = kbp_wake_towards_high(wake->worst_ns, ns);
	wake->learned |= 1U << KBP_SLEEP_CLASSES;
}

/**
 * kbp_wake_learn_timed() - learn how long it took to wake up at a set time
 * @wake: what is known of it
 * @ahead_ns: of which sleep, as kbp_window_next() told it
 * @ns: from the time that was set to the thread, the exit of an idle state included
 */
void kbp_wake_learn_timed(struct kbp_wake *wake, u64 ahead_ns, u64 ns)
{
	u32 octave = kbp_sleep_class(ahead_ns);

	wake->high_ns[octave] = kbp_wake_towards_high(wake->high_ns[octave], ns);
	wake->worst_ns = kbp_wake_towards_high(wake->worst_ns, ns);
	wake->learned |= 1U << octave;
}

/* Half of what exceeds what is taken for unknown in 0.7 * 2^@shift ns. */
static u64 kbp_wake_fade(u64 of, u64 ns, u32 shift)
{
	return of > KBP_WAKE_NS ? of - ((of - KBP_WAKE_NS) * ns >> shift) : of;
}

/**
 * kbp_wake_forget() - time goes by without a wake-up to learn from
 * @wake: what is known of it
 * @ns: the time since the last call, far less than a second
 *
 * Who does not sleep because waking up is dear would never see that it is no
 * longer. What a plan is made with is halved in 0.7 s. What the user's limit is held
 * against is halved in half a minute, because each look at it costs late packets.
 * What something was learned of since the last call is not forgotten, and while
 * something else is learned the rest is halved in 12 s: it may come seldom.
 */
void kbp_wake_forget(struct kbp_wake *wake, u64 ns)
{
	u32 octave, shift = wake->learned ? 34 : 30;
	u64 step_ns = wake->worst_ns * ns >> 35;

	for (octave = 0; octave < KBP_SLEEP_CLASSES; octave++) {
		if (wake->learned & 1U << octave)
			continue;
		wake->high_ns[octave] = kbp_wake_fade(wake->high_ns[octave], ns,
						      shift);
	}
	if (!(wake->learned & 1U << KBP_SLEEP_CLASSES))
		wake->short_ns = kbp_wake_fade(wake->short_ns, ns, shift);
	if (!wake->learned)
		wake->worst_ns -= step_ns || !wake->worst_ns ? step_ns : 1;
	wake->learned = 0;
}

/**
 * kbp_window_aim() - what is to be achieved
 * @knobs: what the user allows
 * @wake: what is known of waking up
 * @sharers: devices that share what a poller may spend where nobody said so, with
 *           this one
 *
 * To fall asleep costs the CPU about as much as to wake up. Where waking up takes
 * longer than the user allows, all gaps are polled through, for their first second.
 */
struct kbp_window_goal kbp_window_aim(const struct kbp_window_knobs *knobs,
				      const struct kbp_wake *wake, u32 sharers)
{
	struct kbp_window_goal goal = {
		.cycle_ns = 2 * kbp_wake_known(wake->short_ns),
		.found_permille = KBP_FOUND_PERMILLE,
		.budget_permille = KBP_BUDGET_PERMILLE / (sharers ? sharers : 1),
	};
	u32 octave;

	for (octave = 0; octave < KBP_SLEEP_CLASSES; octave++)
		goal.wake_ns[octave] = kbp_wake_known(wake->high_ns[octave]);
	if (!goal.budget_permille)
		goal.budget_permille = 1;
	if (knobs->budget_permille) {
		goal.budget_permille = knobs->budget_permille;
	} else if (knobs->wake_ns_max) {
		bool late = kbp_wake_known(wake->worst_ns) > knobs->wake_ns_max;

		goal.found_permille = late ? 1000 : 1;
		goal.budget_permille = late ? 1000 : 1;
	}
	return goal;
}

/* ---- the plan ---- */

/**
 * kbp_window_init() - begin with no knowledge of a device's gaps
 * @w: the window
 * @goal: what it is to achieve; permilles from 1 to 1000
 */
void kbp_window_init(struct kbp_window *w, const struct kbp_window_goal *goal)
{
	*w = (struct kbp_window) { .goal = *goal };
	/* As long as little is known: as long as a sleep would cost. */
	kbp_plan_until(w, goal->cycle_ns);
	w->fresh = 0;
}

/* The budget's income of a gap, and what was spent where sleeping costs less. */
static void kbp_window_pay(struct kbp_window *w, u64 gap_ns, u64 polled_ns)
{
	s64 max_ns = kbp_saved_ns_max(&w->goal);

	w->saved_ns += gap_ns / 1000 * w->goal.budget_permille;
	if (!w->cheap)
		w->saved_ns -= polled_ns;
	if (w->saved_ns > max_ns)
		w->saved_ns = max_ns;
	if (w->saved_ns < -max_ns)
		w->saved_ns = -max_ns;
}

/**
 * kbp_window_gap() - learn a gap, when its end has been seen
 * @w: the window
 * @gap_ns: from the last poll that found packets to these packets
 * @polled_ns: of it, the time in which the device was polled
 */
void kbp_window_gap(struct kbp_window *w, u64 gap_ns, u64 polled_ns)
{
	u64 end_ns = kbp_bucket_start(KBP_GAP_BUCKETS - 1);
	u32 bucket;

	kbp_window_pay(w, gap_ns, polled_ns);
	w->count[kbp_gap_bucket(gap_ns)] += KBP_GAP_WEIGHT;
	w->total += KBP_GAP_WEIGHT;
	w->time += (gap_ns < end_ns ? gap_ns : end_ns) * KBP_GAP_WEIGHT;
	w->fresh++;
	if (w->total < KBP_GAP_TOTAL_MAX)
		return;
	w->total = 0;
	w->time /= 2;
	for (bucket = 0; bucket < KBP_GAP_BUCKETS; bucket++) {
		w->count[bucket] /= 2;
		w->total += w->count[bucket];
	}
	/* What a pass has added up of them is of another scale: once more. */
	w->draft.pass = KBP_PASS_NONE;
}

/* The lowest level whose price is @ns or more. */
static u32 kbp_level_of(u64 ns)
{
	u32 level = 0;

	while (level < KBP_PRICE_LEVELS - 1 && kbp_price_ns(level) < ns)
		level++;
	return level;
}

static void kbp_draft_begin(struct kbp_window *w, u32 level, u64 instead_ns,
			    bool last)
{
	w->draft = (struct kbp_window_draft) {
		.last = last,
		.level = level,
		.price_ns = kbp_price_ns(level),
		.instead_ns = instead_ns,
	};
	kbp_pass_down(w, KBP_PASS_CHOOSE);
}

static void kbp_draft_adopt(struct kbp_window *w)
{
	u32 word;

	for (word = 0; word < KBP_GAP_WORDS; word++)
		w->poll[word] = w->draft.poll[word];
	w->cheap = kbp_draft_is_cheap(&w->draft);
	w->searching = false;
	w->fresh = 0;
}

/* A step begins, if it is time for one: the search, or what it comes to. */
static void kbp_step_begin(struct kbp_window *w)
{
	u64 instead_ns;
	u32 level;

	if (!w->searching && w->fresh < KBP_PLAN_GAPS)
		return;
	instead_ns = kbp_instead_ns(w);
	if (!w->searching) {
		w->searching = true;
		/* The price of a sleep and a wake-up is worth it in any case. */
		w->low = kbp_level_of(instead_ns);
		w->high = KBP_PRICE_LEVELS;
	}
	/* That of the end of the search, if low is high. */
	level = (w->low + w->high) / 2;
	if (level == KBP_PRICE_LEVELS)
		level--;
	kbp_draft_begin(w, level, instead_ns, false);
}

/* A step ends. Where the search ended, its level finds enough, or costs too much. */
static void kbp_step_end(struct kbp_window *w)
{
	const struct kbp_window_draft *d = &w->draft;
	bool dear = kbp_draft_is_dear(w);

	if (w->low < w->high) {
		if (dear || kbp_draft_is_enough(w))
			w->high = d->level;
		else
			w->low = d->level + 1;
	} else if (dear && !d->last && d->level > kbp_level_of(d->instead_ns)) {
		kbp_draft_begin(w, d->level - 1, d->instead_ns, true);
	} else {
		kbp_draft_adopt(w);
	}
}

/**
 * kbp_window_is_planning() - is a step begun and not done?
 * @w: the window
 */
bool kbp_window_is_planning(const struct kbp_window *w)
{
	return w->draft.pass != KBP_PASS_NONE;
}

/**
 * kbp_window_drop() - give up the step that is begun; the next begins where it did
 * @w: the window
 */
void kbp_window_drop(struct kbp_window *w)
{
	w->draft.pass = KBP_PASS_NONE;
}

/**
 * kbp_window_plan() - do a piece of a step towards a new plan, if it is time for one
 * @w: the window
 *
 * Looks for the lowest price that finds enough packets, or else the highest that
 * the budget allows: what is found and what it costs both grow with the price. A
 * plan takes eight steps. A gap that is learned during a step may be missing from
 * passes that have gone by its bucket.
 *
 * Return: whether the step is not done yet.
 */
bool kbp_window_plan(struct kbp_window *w)
{
	/* If nothing is to be missed, until the last bucket, which has no end. */
	if (w->goal.fixed_ns || w->goal.found_permille >= 1000) {
		kbp_plan_until(w, w->goal.fixed_ns ? w->goal.fixed_ns : ~0ULL);
		return false;
	}
	switch (w->draft.pass) {
	case KBP_PASS_NONE:
		kbp_step_begin(w);
		break;
	case KBP_PASS_CHOOSE:
		kbp_pass_choose(w);
		break;
	case KBP_PASS_FILL:
		kbp_pass_fill(w);
		break;
	case KBP_PASS_PRUNE:
		kbp_pass_prune(w);
		if (!kbp_window_is_planning(w))
			kbp_step_end(w);
		break;
	}
	return kbp_window_is_planning(w);
}

/**
 * kbp_window_next() - poll now, or sleep
 * @w: the window
 * @age_ns: time since the last poll that found packets
 *
 * Return: what to do, and for how long, if nothing comes.
 */
struct kbp_window_next kbp_window_next(const struct kbp_window *w, u64 age_ns)
{
	struct kbp_window_next next = { .poll = false };
	u32 bucket = kbp_gap_bucket(age_ns), likely, octave;

	if (kbp_plan_has(w->poll, bucket)) {
		next.poll = true;
		/* The last bucket is never polled, so there is one that isn't. */
		bucket = kbp_plan_find(w->poll, bucket, false);
		next.poll_ns = kbp_bucket_start(bucket) - age_ns;
		return next;
	}
	likely = kbp_plan_find(w->poll, bucket, true);
	if (likely == KBP_GAP_BUCKETS)
		return next;
	next.ahead_ns = kbp_bucket_start(likely) - age_ns;
	next.sleep_ns = kbp_sleep_before(&w->goal, next.ahead_ns);
	if (!next.sleep_ns) {
		next.poll = true;
		/* Of less to sleep it may be quicker to wake. */
		octave = kbp_sleep_class(next.ahead_ns);
		next.poll_ns = next.ahead_ns - kbp_sleep_class_start(octave) + 1;
		if (next.poll_ns > next.ahead_ns)
			next.poll_ns = next.ahead_ns;
	}
	return next;
}
