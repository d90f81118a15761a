// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mode adaptive: when an attached device is polled with its interrupt masked,
 * and when it is left to its interrupt or a timer.
 *
 * Owns struct kbp_adaptive of an attachment: it brings the clock to window.c,
 * which decides, and says the decision as kbp_napi.armed and as the time at
 * which the poller has to be awake. Context: the poller thread, inside an RCU
 * reader; nobody else writes here.
 */
#include <linux/jiffies.h>
#include <linux/kernel_stat.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "kbp.h"
#include "trace.h"
#include "window.h"

/* A poller makes a step of a plan once in so many ticks. */
#define KBP_PLAN_TICKS	2
/* A device without packets for so long leaves its share of the budget to others. */
#define KBP_SILENCE_NS	NSEC_PER_SEC

struct kbp_adaptive {
	struct kbp_window window;
	struct kbp_window_knobs knobs;
	u64 found_ns;		/* end of the last poll that found packets */
	u64 looked_ns;		/* end of the last poll; or begin of this, if alone */
	u64 polled_ns;		/* of the gap since found_ns, polled */
	u64 quiet_ns;		/* of a gap, in which its end is unlikely */
	u64 due_ns;		/* to be polled then; 0: when its interrupt comes */
	u64 ahead_ns;		/* what was looked ahead for that */
	u64 decided_ns;		/* until then nothing changes, unless packets come */
	bool overslept;		/* it was due when it could not be claimed */
	bool timed;		/* its time has come, and it was not polled since */
	bool waited;		/* for packets, in or after a poll, since the last step */
	bool whole;		/* the last poll had as many packets as a driver's full poll */
	u32 untold;		/* packets that kbp_adaptive_tell() has not told of yet */
	u64 waited_ns;		/* packets that this poll finds, before looked_ns */
	unsigned long planned;	/* jiffies */
	struct rcu_head rcu;
};

/**
 * kbp_adaptive_new() - begin with no knowledge of a device's gaps
 * @knobs: what the user allows
 *
 * Return: what kbp_adaptive_free() takes, or NULL.
 */
struct kbp_adaptive *kbp_adaptive_new(const struct kbp_window_knobs *knobs)
{
	struct kbp_adaptive *s = kzalloc(sizeof(*s), GFP_KERNEL);
	struct kbp_wake unknown = {};
	struct kbp_window_goal goal;

	if (!s)
		return NULL;
	s->knobs = *knobs;
	goal = kbp_window_aim(knobs, &unknown, 1);
	kbp_window_init(&s->window, &goal);
	return s;
}

void kbp_adaptive_free(struct kbp_adaptive *s)
{
	if (s)
		kfree_rcu(s, rcu);
}

const struct kbp_window_knobs *kbp_adaptive_knobs(const struct kbp_adaptive *s)
{
	return &s->knobs;
}

static bool kbp_knobs_are_set(const struct kbp_window_knobs *knobs)
{
	return knobs->budget_permille || knobs->wake_ns_max;
}

/**
 * kbp_adaptive_is_free() - has nobody said how long to poll it?
 * @s: of an attachment in mode adaptive; then what sleeping saves decides, too
 */
bool kbp_adaptive_is_free(const struct kbp_adaptive *s)
{
	return !kbp_knobs_are_set(&s->knobs) && !READ_ONCE(kbp_window_us);
}

/* Is it polled at all ages up to KBP_THRIFT_SILENCE_NS, since sleeping saves too little? */
static bool kbp_is_polled_through(const struct kbp_poller *p,
				  const struct kbp_adaptive *s)
{
	return p->thrift.through && kbp_adaptive_is_free(s);
}

/* What to do with a device that found its last packets @age_ns ago. */
static struct kbp_window_next kbp_adaptive_next(const struct kbp_napi *a,
						u64 age_ns)
{
	const struct kbp_adaptive *s = a->adaptive;

	if (age_ns < KBP_THRIFT_SILENCE_NS && kbp_is_polled_through(a->poller, s))
		return (struct kbp_window_next) {
			.poll = true,
			.poll_ns = KBP_THRIFT_SILENCE_NS - age_ns,
		};
	return kbp_window_next(&s->window, age_ns);
}

/**
 * kbp_adaptive_starts() - is the device polled on after packets?
 * @a: its attachment, in mode adaptive
 */
bool kbp_adaptive_starts(const struct kbp_napi *a)
{
	return kbp_adaptive_next(a, 0).poll;
}

/*
 * For how long have packets been there, if a poll finds some that begins now? Since
 * their interrupt; where the poller was about to poll it anyhow, perhaps for longer.
 */
static u64 kbp_adaptive_waited(const struct kbp_napi *a, u64 now_ns)
{
	const struct kbp_adaptive *s = a->adaptive;
	u64 listed_ns = 0, timed_ns = 0;

	/* The clocks of two CPUs may differ by a little. */
	if (a->listed_ns > s->looked_ns && a->listed_ns < now_ns)
		listed_ns = now_ns - a->listed_ns;
	if (s->timed)
		timed_ns = kbp_window_waited(now_ns - s->looked_ns);
	return max(listed_ns, timed_ns);
}

/**
 * kbp_adaptive_look() - a poll begins, and the last one was not just before
 * @a: the attachment
 */
void kbp_adaptive_look(struct kbp_napi *a)
{
	struct kbp_adaptive *s = a->adaptive;
	u64 now_ns = ktime_get_ns();

	s->waited_ns = kbp_adaptive_waited(a, now_ns);
	s->timed = false;
	s->looked_ns = now_ns;
	s->decided_ns = 0;
}

/**
 * kbp_adaptive_is_overdue() - is it scheduled by itself when it was to be claimed?
 * @a: its attachment, in mode adaptive
 *
 * An interrupt without packets, of what was sent, may come at the time that was set.
 */
bool kbp_adaptive_is_overdue(const struct kbp_napi *a)
{
	const struct kbp_adaptive *s = a->adaptive;

	return s->overslept &&
	       kbp_adaptive_next(a, ktime_get_ns() - s->found_ns).poll;
}

/*
 * How many devices have packets and plan, @s in any case? Of these that have no
 * budget of their own, @sharers share the poller's.
 */
static u32 kbp_adaptive_planners(const struct kbp_poller *p,
				 const struct kbp_adaptive *s, u32 *sharers)
{
	u64 now_ns = ktime_get_ns();
	u32 planners = 1;
	struct kbp_napi *a;

	*sharers = 1;
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (!kbp_is_adaptive(a) || a->adaptive == s ||
		    now_ns - a->adaptive->found_ns >= KBP_SILENCE_NS)
			continue;
		planners++;
		*sharers += !kbp_knobs_are_set(&a->adaptive->knobs);
	}
	return planners;
}

/*
 * Is it time for a step? The attachments take turns; where packets are so rare that
 * one would miss its turn again and again, it takes it all the same. What is polled
 * through needs no plan, and packets would wait for it.
 */
static bool kbp_adaptive_may_plan(const struct kbp_poller *p,
				  const struct kbp_adaptive *s)
{
	unsigned long own = KBP_PLAN_TICKS * max(p->planners, 1U);

	return !kbp_is_polled_through(p, s) &&
	       time_after_eq(jiffies, s->planned + own) &&
	       (time_after_eq(jiffies, p->planned + KBP_PLAN_TICKS) ||
		time_after_eq(jiffies, s->planned + 2 * own));
}

/* A step towards a new plan begins. */
static void kbp_adaptive_aim(struct kbp_poller *p, struct kbp_adaptive *s)
{
	u32 sharers;

	p->planners = kbp_adaptive_planners(p, s, &sharers);
	p->planned = jiffies;
	s->planned = jiffies;
	s->waited = false;
	s->window.goal = kbp_window_aim(&s->knobs, &p->wake_cost, sharers);
	s->window.goal.fixed_ns = (u64)READ_ONCE(kbp_window_us) * NSEC_PER_USEC;
}

/* A piece of a step, for which a packet may have to wait. Is there more of it? */
static bool kbp_adaptive_plan(struct kbp_poller *p, struct kbp_adaptive *s)
{
	if (!kbp_window_is_planning(&s->window))
		kbp_adaptive_aim(p, s);
	return kbp_window_plan(&s->window);
}

/* Pieces of one step, until its end, an interrupt of this CPU, or @until_ns if not 0. */
static void kbp_adaptive_step(struct kbp_poller *p, struct kbp_adaptive *s,
			      u64 until_ns)
{
	unsigned long irqs = this_cpu_read(kstat.irqs_sum);
	bool more;

	do {
		more = kbp_adaptive_plan(p, s);
	} while (more && this_cpu_read(kstat.irqs_sum) == irqs &&
		 (!until_ns || ktime_get_ns() < until_ns));
}

/**
 * kbp_adaptive_think() - use the moment before a sleep, when no packet is likely
 * @p: the poller; the interrupts of its devices are armed
 * @until_ns: the end of the sleep, if it isn't 0
 */
void kbp_adaptive_think(struct kbp_poller *p, u64 until_ns)
{
	struct kbp_adaptive *s;
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		s = a->adaptive;
		if (!s || !(kbp_window_is_planning(&s->window) ||
			    kbp_adaptive_may_plan(p, s)))
			continue;
		kbp_adaptive_step(p, s, until_ns);
		break;
	}
	rcu_read_unlock();
}

/* @may_poll: it may be polled on; else it is claimed for that at the next look. */
static void kbp_adaptive_decide(struct kbp_napi *a, const struct napi_struct *n,
				u64 now_ns, bool may_poll)
{
	struct kbp_adaptive *s = a->adaptive;
	struct kbp_window_next next = kbp_adaptive_next(a, now_ns - s->found_ns);

	if (!kbp_is_adaptive(a))
		next = (struct kbp_window_next) {};
	if (next.poll && !may_poll)
		next = (struct kbp_window_next) { .sleep_ns = 1 };
	s->due_ns = next.sleep_ns ? now_ns + next.sleep_ns : 0;
	s->ahead_ns = next.ahead_ns;
	s->decided_ns = next.poll ? now_ns + next.poll_ns :
			s->due_ns ? s->due_ns : U64_MAX;
	s->overslept = false;
	/* What changes, and not each poll. */
	if (next.poll == READ_ONCE(a->armed))
		trace_kbp_window(n, now_ns - s->found_ns, next.poll,
				 next.sleep_ns);
	WRITE_ONCE(a->armed, !next.poll);
}

/*
 * Polling through begins or ends: each device decides anew with its next poll, for
 * which one that is armed has its interrupt once more. What was not spent because all
 * was polled through is no saving.
 */
static void kbp_adaptive_switch(struct kbp_poller *p)
{
	struct kbp_napi *a;

	if (p->thrift.through)
		kbp_count(&p->stats, polled_through, 1);
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (!kbp_is_thrifty(a))
			continue;
		a->adaptive->decided_ns = 0;
		a->adaptive->window.saved_ns = 0;
		kbp_window_drop(&a->adaptive->window);
	}
}

/* Packets were found: those of whole polls in a row are told with the next, or at a tick. */
static void kbp_adaptive_tell(struct kbp_poller *p, const struct kbp_napi *a,
			      u64 now_ns, u32 packets)
{
	struct kbp_adaptive *s = a->adaptive;

	packets += s->untold;
	s->untold = 0;
	if (!kbp_is_thrifty(a))
		kbp_thrift_others(&p->thrift, packets);
	else if (kbp_thrift_found(&p->thrift, now_ns, packets,
				  s->window.goal.cycle_ns, kbp_halts_through(p)))
		kbp_adaptive_switch(p);
}

/*
 * Is it awake for this one, and not because of gaps that are worth it? One that has
 * not been polled since the last tick, and is not armed, somebody else polls.
 */
static bool kbp_keeps_awake(const struct kbp_napi *a, u64 now_ns)
{
	if (!kbp_is_thrifty(a))
		return READ_ONCE(a->hold) != KBP_HOLD_FREE ||
		       kbp_napi_is_lacking(a);
	return now_ns - a->adaptive->looked_ns >= TICK_NSEC &&
	       kbp_napi_is_lacking(a);
}

/**
 * kbp_adaptive_tick() - does something else keep the poller awake?
 * @p: the poller, which is awake; once a tick
 *
 * Then nothing is seen of what sleeping would save.
 */
void kbp_adaptive_tick(struct kbp_poller *p)
{
	bool kept = kbp_backlog_is_attached(p);
	u64 now_ns = ktime_get_ns();
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		kept |= kbp_keeps_awake(a, now_ns);
		if (a->adaptive && a->adaptive->untold)
			kbp_adaptive_tell(p, a, now_ns, 0);
	}
	rcu_read_unlock();
	p->kept = kept;
	if (kept)
		kbp_thrift_spoil(&p->thrift);
}

/**
 * kbp_adaptive_quiet() - for how long is no packet likely?
 * @p: the poller, which polls its devices through
 * @now_ns: the time
 *
 * Of those that it holds, the device whose next packet is due first decides. One that
 * is silent, so that it would be armed if the poller slept, has none that is due.
 *
 * Return: nanoseconds from then on.
 */
u64 kbp_adaptive_quiet(const struct kbp_poller *p, u64 now_ns)
{
	u64 end_ns = U64_MAX;
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (READ_ONCE(a->hold) == KBP_HOLD_FREE)
			continue;
		if (!kbp_is_thrifty(a))
			end_ns = 0;
		else if (!READ_ONCE(a->armed))
			end_ns = min(end_ns, a->adaptive->found_ns +
					     a->adaptive->quiet_ns);
	}
	rcu_read_unlock();
	return end_ns > now_ns && end_ns != U64_MAX ? end_ns - now_ns : 0;
}

/* See kbp_adaptive_polled(). @whole: it may have left some, and is held. */
static noinline void kbp_adaptive_learn(struct kbp_poller *p, struct kbp_napi *a,
					const struct napi_struct *n, int work,
					int budget, bool held, bool whole, u64 now_ns)
{
	struct kbp_adaptive *s = a->adaptive;
	u64 gap_ns;

	/* An ordinary poll with fewer has found all that there were. */
	s->waited |= held ? !work : work < budget;
	if (work) {
		/*
		 * They came ->waited_ns before this poll began. The first end no gap, and
		 * what a whole poll left was there before its end.
		 */
		if (s->found_ns && !s->whole) {
			gap_ns = s->looked_ns - s->found_ns - s->waited_ns;
			kbp_window_gap(&s->window, gap_ns, s->polled_ns);
			/* Else it came before the last look, which was this one. */
			if (held)
				kbp_quiet_learn(&s->quiet_ns, gap_ns);
		}
		s->found_ns = now_ns;
		s->polled_ns = 0;
		/* A watchdog that has stepped in during this poll, or before it. */
		if (kbp_is_relieved(p))
			kbp_thrift_spoil(&p->thrift);
		kbp_adaptive_tell(p, a, now_ns, work);
	} else if (held && !a->armed && !kbp_is_polled_through(p, s)) {
		/* Who keeps the poller awake pays, each a share. */
		s->polled_ns += (now_ns - s->looked_ns) / max(p->wakeful, 1U);
	}
	s->waited_ns = 0;
	s->looked_ns = now_ns;
	s->whole = work >= n->weight;
	/* The last, ordinary poll of a window has its decision already. */
	if (whole)
		s->decided_ns = 0;
	else if (work || (held && now_ns >= s->decided_ns) || s->overslept)
		kbp_adaptive_decide(a, n, now_ns, work || held);
	/*
	 * A step begins after packets: the next are a gap away, or have come already. It
	 * goes on in empty polls, too: of each, a packet waits for one piece. Where each
	 * poll finds packets nothing is waited for, and there is nothing to plan.
	 */
	if (kbp_window_is_planning(&s->window) ||
	    (work && s->waited && kbp_adaptive_may_plan(p, s)))
		kbp_adaptive_plan(p, s);
}

/**
 * kbp_adaptive_polled() - learn from a poll, and decide what comes next
 * @p: the poller
 * @a: the attachment; a->armed says afterwards whether to arm its interrupt
 * @n: its instance; p->cur or its hold keeps it from being freed
 * @work: packets
 * @budget: how many it might have found
 * @held: its interrupt was masked, and is
 *
 * A whole poll of what is held may have left some: then the next one decides. From whole
 * polls in a row nothing is learned.
 */
void kbp_adaptive_polled(struct kbp_poller *p, struct kbp_napi *a,
			 const struct napi_struct *n, int work, int budget,
			 bool held)
{
	struct kbp_adaptive *s = a->adaptive;
	bool whole = held && work >= n->weight && !a->armed && !s->overslept;
	u64 now_ns = ktime_get_ns();

	if (whole && s->whole && !kbp_window_is_planning(&s->window) &&
	    !kbp_is_relieved(p)) {
		s->found_ns = now_ns;
		s->looked_ns = now_ns;
		s->untold += work;
		return;
	}
	kbp_adaptive_learn(p, a, n, work, budget, held, whole, now_ns);
}

/**
 * kbp_adaptive_let_go() - its interrupt is armed, before its time or at it
 * @p: the poller
 * @a: the attachment; if somebody else wants the device, or the CPU, it is polled on
 *     as soon as that is possible
 */
void kbp_adaptive_let_go(const struct kbp_poller *p, struct kbp_napi *a)
{
	if (a->armed && !kbp_is_awake(p, a))
		return;
	a->adaptive->due_ns = ktime_get_ns();
	WRITE_ONCE(a->armed, true);
}

/**
 * kbp_adaptive_wake() - begin to poll what is due
 * @p: the poller
 * @now_ns: the time
 *
 * Not while rtnl_lock is taken, see kbp_claim_all(), and not what a socket polls:
 * then its interrupt wakes it.
 *
 * Return: when the next is due, for which p->ahead_ns was looked ahead; 0: none is.
 */
u64 kbp_adaptive_wake(struct kbp_poller *p, u64 now_ns)
{
	struct kbp_adaptive *s;
	struct kbp_napi *a;
	u64 first_ns = 0;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		s = a->adaptive;
		/* What is polled while another keeps us awake needs no time. */
		if (!kbp_is_adaptive(a) || !s->due_ns || !READ_ONCE(a->armed) ||
		    READ_ONCE(a->hold) != KBP_HOLD_FREE)
			continue;
		if (s->due_ns > now_ns) {
			if (!first_ns || s->due_ns < first_ns) {
				first_ns = s->due_ns;
				p->ahead_ns = s->ahead_ns;
			}
			continue;
		}
		s->due_ns = 0;
		/* If it can't be claimed, its next poll has to decide anew. */
		s->overslept = true;
		if (rtnl_is_locked())
			continue;
		WRITE_ONCE(a->armed, false);
		if (kbp_napi_claim(a)) {
			s->overslept = false;
			s->timed = true;
			kbp_count(&a->stats, timed_polls, 1);
		} else {
			/* Its interrupt came while this thread woke up, or others have it. */
			s->timed = a->listed_ns > s->looked_ns;
			WRITE_ONCE(a->armed, true);
		}
	}
	rcu_read_unlock();
	return first_ns;
}
