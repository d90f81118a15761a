// SPDX-License-Identifier: GPL-2.0-only
/*
 * A round of polling: who is polled, in which order, and what of sending is done
 * between.
 *
 * One poll is in poll.c, the choice within class normal in rtlist.c. Context: the
 * poller thread; BH is off in stretches of a few polls that find packets
 * (KBP_BATCH_POLLS), so that nothing else of this CPU's receive path runs in
 * between, and others of the CPU who need BH wait for no more.
 */
#include <linux/bottom_half.h>
#include <linux/interrupt.h>
#include <linux/rcupdate.h>
#include <linux/rtnetlink.h>
#include <linux/sched.h>
#include <linux/sched/stat.h>

#include "kbp.h"

/*
 * What the stock path put on this CPU's softirq list (before the poller came,
 * or from a CPU that went) belongs to a poller that owns all. Not the backlog,
 * which must not leave its CPU: that is taken in backlog.c.
 */
static void kbp_take_softirq_list(struct kbp_poller *p)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct napi_struct *n, *next;
	u64 now_ns;

	if (p->config.owns != KBP_OWNS_ALL || list_empty(&sd->poll_list))
		return;

	raw_spin_lock_irq(&p->lock);
	now_ns = ktime_get_ns();
	if (!kbp_is_relieved(p) && !p->closing) {
		list_for_each_entry_safe(n, next, &sd->poll_list, poll_list) {
			if (n == &sd->backlog)
				continue;
			list_del_init(&n->poll_list);
			kbp_put(p, n, NULL, KBP_POLL_CLASS_NORMAL, now_ns);
			kbp_count(&p->stats, taken, 1);
		}
	}
	raw_spin_unlock_irq(&p->lock);
}

/*
 * bh_off pairs with kbp_relieve(): it is set only while softirqs can't run. On
 * PREEMPT_RT a lock of the CPU may stand behind that: who has BH off, a thread of
 * an interrupt for example, lends our priority and is waited for.
 */
static void kbp_bh_disable(struct kbp_poller *p)
{
	u64 begin_ns = IS_ENABLED(CONFIG_PREEMPT_RT) ? ktime_get_ns() : 0;

	local_bh_disable();
	WRITE_ONCE(p->bh_off, true);
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		p->bh_waits[kbp_wait_index(ktime_get_ns() - begin_ns)]++;
}

static void kbp_bh_enable(struct kbp_poller *p)
{
	kbp_serve_net_tx(p);
	WRITE_ONCE(p->bh_off, false);
	local_bh_enable();
}

/*
 * A round is an RCU reader as well: an attachment that is found lives until its end.
 * Pairs with synchronize_rcu() in kbp_napi_leave().
 */
static struct bpf_net_context *kbp_round_begin(struct kbp_poller *p,
					       struct bpf_net_context *ctx)
{
	kbp_bh_disable(p);
	rcu_read_lock();
	return bpf_net_ctx_set(ctx);
}

static void kbp_round_end(struct kbp_poller *p, struct bpf_net_context *ctx)
{
	bpf_net_ctx_clear(ctx);
	rcu_read_unlock();
	kbp_bh_enable(p);
}

/* End a stretch and begin the next, so that softirqs of others get on. */
static void kbp_stretch_break(struct kbp_poller *p)
{
	kbp_bh_enable(p);
	kbp_bh_disable(p);
}

/* The backlog's turn, if the poller has it as @wanted. Returns the packets. */
static int kbp_step_backlog(struct kbp_poller *p, enum kbp_backlog wanted,
			    int budget)
{
	int work = kbp_backlog_poll(p, wanted, budget);

	if (work)
		kbp_count_poll(p, NULL, kbp_backlog_class(wanted), work);
	return work;
}

/* Poll a held device, if nobody has taken it back. Returns the packets. */
static int kbp_turn_held(struct kbp_poller *p, struct kbp_napi *a)
{
	/* Pairs with the cmpxchg() in kbp_unhold(). */
	if (cmpxchg(&a->hold, KBP_HOLD_HELD, KBP_HOLD_POLLING) != KBP_HOLD_HELD)
		return 0;
	return kbp_step_held(p, a);
}

/* Is it held, and of class normal? */
static bool kbp_is_held_normal(const struct kbp_napi *a)
{
	return a->class == KBP_POLL_CLASS_NORMAL &&
	       READ_ONCE(a->hold) == KBP_HOLD_HELD;
}

/*
 * Each held device of class rt, once; of class normal too, if all are let go of. The
 * polls are added to @polls; where these reach a multiple of KBP_BATCH_POLLS, or step
 * over it, a stretch ends.
 *
 * Return: packets; @more is set to whether a device probably has still more.
 */
static int kbp_pass_held_rt(struct kbp_poller *p, int *polls, bool *more)
{
	u32 wakeful = kbp_backlog_is_attached(p) + p->lacking;
	int work = 0, found, done;
	u32 held_normals = 0;
	struct kbp_napi *a;

	*more = false;
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (READ_ONCE(a->hold) != KBP_HOLD_HELD)
			continue;
		found = 0;
		if (a->class == KBP_POLL_CLASS_RT || kbp_lets_all_go(p))
			found = kbp_turn_held(p, a);
		wakeful += !a->armed;
		held_normals += kbp_is_held_normal(a);
		work += found;
		*more |= found >= NAPI_POLL_WEIGHT;
		if (!found)
			continue;
		done = 1;
		/* A peek, as at a list. */
		if (READ_ONCE(p->unattached))
			done += kbp_step_sent(p, a->dev);
		*polls += done;
		if (*polls % KBP_BATCH_POLLS < done)
			kbp_stretch_break(p);
		else
			kbp_free_sent(p, false);
	}
	p->wakeful = wakeful;
	p->held_normals = held_normals;
	return work;
}

/*
 * May anybody wait for the end of this turn: something else to poll or to send, a
 * softirq, a thread? What was sent and waits to be freed is seen to in the turn. On
 * PREEMPT_RT who waits for BH is not to be seen.
 */
static bool kbp_is_waited_for(const struct kbp_poller *p)
{
	return IS_ENABLED(CONFIG_PREEMPT_RT) || p->resting || p->lacking ||
	       p->held_normals || p->due_ns || kbp_has_scheduled(p) ||
	       kbp_backlog_is_attached(p) || kbp_backlog_has_packets(p) ||
	       (READ_ONCE(p->backlog.hold) == KBP_BACKLOG_ARMED &&
		kbp_backlog_is_waiting(p)) ||
	       READ_ONCE(this_cpu_ptr(&softnet_data)->output_queue) ||
	       (local_softirq_pending() & ~BIT(NET_TX_SOFTIRQ)) ||
	       need_resched() || !single_task_running();
}

/*
 * The held devices: one pass, or more, until KBP_BATCH_POLLS polls, while one has more
 * packets than a poll takes and nobody else waits. Returns the packets.
 */
static int kbp_turn_held_rt(struct kbp_poller *p)
{
	int work = 0, polls = 0;
	bool more;

	do {
		work += kbp_pass_held_rt(p, &polls, &more);
		if (polls)
			kbp_free_sent(p, true);
	} while (more && polls < KBP_BATCH_POLLS && !kbp_is_waited_for(p));
	return work;
}

/*
 * The turn of class rt: what is held, the backlog if it is attached, and then what is
 * scheduled. Who wants a held instance back waits for the end of one poll at most, and
 * of what it has sent being freed. Returns the packets.
 */
static int kbp_turn_rt(struct kbp_poller *p)
{
	/* Who rests looks at the clock after each, and has small ones. */
	int polls = p->resting ? 1 : KBP_BATCH_POLLS;
	int budget = p->resting ? p->config.budget : NAPI_POLL_WEIGHT;
	bool backlog = kbp_backlog_is_attached(p);
	struct kbp_series series = {};
	int work, found = 0;

	p->serving = true;
	work = kbp_turn_held_rt(p);
	/*
	 * A packet of a container passes the backlog once for each veth, bridge
	 * port and tunnel on its way: all of that before what is of class normal.
	 */
	for (; polls > 0; polls--) {
		if (backlog)
			found = kbp_step_backlog(p, KBP_BACKLOG_ATTACHED, budget);
		work += found;
		series.more = polls > 1 && !backlog;
		if (kbp_step_todo(p, KBP_POLL_CLASS_RT, &series, &work))
			continue;
		if (!found)
			break;
		kbp_free_sent(p, true);
	}
	p->serving = false;
	return work;
}

/* What could be polled of class normal; what is held was counted in the turn of class rt. */
static struct kbp_normals kbp_look_for_normals(const struct kbp_poller *p)
{
	struct kbp_normals now = {
		.listed = READ_ONCE(p->listed[KBP_POLL_CLASS_NORMAL]),
		.held = p->held_normals,
		.backlog = kbp_backlog_is_open(p, KBP_BACKLOG_OWNED),
	};

	return now;
}

/* The next held device of class normal that this lap has not polled. */
static int kbp_turn_held_normal(struct kbp_poller *p)
{
	struct kbp_napi *a;

	list_for_each_entry_rcu(a, &p->napis, link) {
		if (!kbp_is_held_normal(a) || a->lap == p->lap.number)
			continue;
		a->lap = p->lap.number;
		return kbp_turn_held(p, a);
	}
	return 0;
}

/*
 * The turn of class normal: one poll. Returns whether there was work, or is some
 * left.
 */
static bool kbp_turn_normal(struct kbp_poller *p)
{
	struct kbp_normals now = kbp_look_for_normals(p);
	int work = 0;

	switch (kbp_turn_next(&p->lap, &now)) {
	case KBP_TURN_NONE:
		return false;
	case KBP_TURN_LISTED:
		return kbp_step_todo(p, KBP_POLL_CLASS_NORMAL, NULL, &work);
	case KBP_TURN_HELD:
		work = kbp_turn_held_normal(p);
		break;
	case KBP_TURN_BACKLOG:
		work = kbp_step_backlog(p, KBP_BACKLOG_OWNED, p->config.budget);
		break;
	}
	return work || !list_empty(&p->todo[KBP_POLL_CLASS_NORMAL]);
}

/**
 * kbp_round() - one round of polling: class rt, then one poll of class normal
 * @p: the poller
 *
 * So what is of class rt waits for one poll of class normal at most, and that takes
 * p->config.budget packets; and class normal has one poll whatever comes in class rt
 * (paper 003, 3.1). Which one is decided in rtlist.c.
 *
 * Return: whether there was work, or is some left.
 */
bool kbp_round(struct kbp_poller *p)
{
	struct bpf_net_context store, *ctx;
	bool busy;

	ctx = kbp_round_begin(p, &store);
	busy = kbp_turn_rt(p) > 0;
	kbp_take_softirq_list(p);
	busy |= kbp_turn_normal(p);
	kbp_defer_free_flush();
	kbp_round_end(p, ctx);
	return busy;
}

/**
 * kbp_round_rt() - poll only what is of class rt
 * @p: the poller, which rests otherwise; if p->released is set, this arms the
 *     interrupts of all that it holds
 *
 * Return: whether some of that is left on its list: a device with too many packets
 * has to be polled again before its interrupt is armed.
 */
bool kbp_round_rt(struct kbp_poller *p)
{
	struct bpf_net_context store, *ctx;

	ctx = kbp_round_begin(p, &store);
	kbp_turn_rt(p);
	kbp_round_end(p, ctx);
	return !list_empty_careful(&p->todo[KBP_POLL_CLASS_RT]) ||
	       (kbp_backlog_is_attached(p) && kbp_backlog_has_packets(p));
}

/**
 * kbp_holds_rt() - is there a device of class rt whose packets wake nobody?
 * @p: the poller
 */
bool kbp_holds_rt(const struct kbp_poller *p)
{
	const struct kbp_napi *a;
	bool holds = false;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (a->class == KBP_POLL_CLASS_RT &&
		    READ_ONCE(a->hold) == KBP_HOLD_HELD) {
			holds = true;
			break;
		}
	}
	rcu_read_unlock();
	return holds;
}

/**
 * kbp_lacks() - is a device attached that somebody else polls, or nobody?
 * @p: the poller
 *
 * A socket that busy-polls takes an instance where the poller lets go of it, for a
 * rest, and where interrupts are put off, none ever comes for us. So a poller that
 * lacks one does not sleep: kbp_claim_all().
 */
bool kbp_lacks(const struct kbp_poller *p)
{
	const struct kbp_napi *a;
	bool lacks = false;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (kbp_napi_is_lacking(a)) {
			lacks = true;
			break;
		}
	}
	rcu_read_unlock();
	return lacks;
}

/**
 * kbp_claim_all() - hold every attached device that nobody polls at this moment
 * @p: the poller
 *
 * A socket lets go of the instance between two calls of its program; the poller
 * asks in each of its rounds, which are far shorter than those calls. Not while
 * rtnl_lock is taken: a driver that has waited for the end of our polls may be at
 * its rings. Then a device has to ask itself, by its interrupt.
 */
void kbp_claim_all(struct kbp_poller *p)
{
	struct kbp_napi *a;

	if (rtnl_is_locked())
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link)
		kbp_napi_claim(a);
	rcu_read_unlock();
}
