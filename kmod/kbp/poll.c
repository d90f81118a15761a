// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a poller's list through the driver's poll function into the stack.
 *
 * Owns a NAPI instance while it is being polled: kbp_poller.cur for one from a
 * list, KBP_HOLD_POLLING for a held one. Context: the poller thread, BH off in
 * stretches of a few polls that find packets (KBP_BATCH_POLLS), so that nothing
 * else of this CPU's receive path runs in between. Lock: kbp_poller.lock around
 * every step on a list, never around a poll.
 */
#include <linux/bottom_half.h>
#include <linux/interrupt.h>
#include <linux/netpoll.h>
#include <linux/rcupdate.h>
#include <linux/rtnetlink.h>
#include <trace/events/napi.h>

#include "kbp.h"
#include "trace.h"

static void kbp_count_poll(struct kbp_poller *p, struct kbp_napi *a, int work)
{
	kbp_count(&p->stats, polls, 1);
	if (work > 0)
		kbp_count(&p->stats, packets, work);
	if (!a)
		return;
	kbp_count(&a->stats, polls, 1);
	if (work > 0)
		kbp_count(&a->stats, packets, work);
	else
		kbp_count(&a->stats, empty_polls, 1);
}

/*
 * One poll of a scheduled NAPI, as __napi_poll() of net/core/dev.c does it,
 * with a budget of our choice.
 *
 * Return: true if the instance is still ours and has to be polled again.
 */
static bool kbp_poll_scheduled(struct napi_struct *n, int budget, int *work)
{
	void *have = netpoll_poll_lock(n);
	bool again = false;

	*work = 0;
	/* netpoll may have polled it to the end before we got the lock. */
	if (test_bit(NAPI_STATE_SCHED, &n->state)) {
		*work = n->poll(n, budget);
		trace_napi_poll(n, *work, budget);
	}
	if (likely(*work < budget))
		goto out;

	/* Only who consumed its whole budget still owns the instance here. */
	if (unlikely(napi_disable_pending(n))) {
		napi_complete(n);
		goto out;
	}
	if (napi_prefer_busy_poll(n)) {
		if (napi_complete_done(n, *work))
			napi_schedule(n);
		goto out;
	}
	kbp_gro_flush(n);
	/* Some drivers schedule themselves before they return the budget. */
	again = list_empty(&n->poll_list);
out:
	netpoll_poll_unlock(have);
	return again;
}

/*
 * One poll of a device whose interrupt stays masked. IN_BUSY_POLL makes
 * napi_complete_done() leave everything as it is, so what it would have done
 * for GRO is done here.
 */
static int kbp_poll_held(struct napi_struct *n)
{
	void *have = netpoll_poll_lock(n);
	int work;

	work = n->poll(n, n->weight);
	trace_napi_poll(n, work, n->weight);
	kbp_gro_flush(n);
	netpoll_poll_unlock(have);
	return work;
}

/* Take the next NAPI off a list; it is then on no list, and p->cur. */
static struct napi_struct *kbp_next_todo(struct kbp_poller *p, enum kbp_list list)
{
	struct napi_struct *n;

	raw_spin_lock_irq(&p->lock);
	n = list_first_entry_or_null(&p->todo[list], struct napi_struct,
				     poll_list);
	if (n)
		list_del_init(&n->poll_list);
	p->cur = n;
	raw_spin_unlock_irq(&p->lock);
	return n;
}

/*
 * A scheduled NAPI that is not done: to the end of its list, to softirq, or to the
 * thread that the user has given it meanwhile.
 */
static void kbp_done_todo(struct kbp_poller *p, struct napi_struct *n,
			  struct kbp_napi *a, bool again)
{
	bool threaded = again && kbp_has_thread(n);
	bool relieved;

	raw_spin_lock_irq(&p->lock);
	p->cur = NULL;
	relieved = kbp_is_relieved(p) || p->closing;
	if (again && !threaded && relieved) {
		kbp_stock_add(this_cpu_ptr(&softnet_data), n);
		kbp_count(&p->stats, handed_napis, 1);
	} else if (again && !threaded) {
		kbp_put(p, n, a);
	}
	raw_spin_unlock(&p->lock);
	if (threaded)
		kbp_schedule(n);
	else if (again && relieved)
		kbp_stock_raise();
	local_irq_enable();
}

/*
 * Poll a NAPI in the ordinary way once; the driver arms the interrupt when it
 * has no more packets.
 */
static int kbp_step_scheduled(struct kbp_poller *p, struct napi_struct *n,
			      struct kbp_napi *a)
{
	int budget = a && !p->resting ? n->weight :
					min_t(int, p->config.budget, n->weight);
	bool again;
	int work;

	if (a)
		WRITE_ONCE(a->served, !kbp_has_thread(n));
	if (a && a->adaptive)
		kbp_adaptive_look(a->adaptive);
	again = kbp_poll_scheduled(n, budget, &work);
	trace_kbp_poll(n, work, budget, false);
	kbp_count_poll(p, a, work);
	if (a && a->adaptive)
		kbp_adaptive_polled(p, a, n, work, false);
	kbp_done_todo(p, n, a, again);
	return work;
}

/* Nobody waits for its end: not its driver, not the thread the user gave it. */
static bool kbp_is_holdable(const struct kbp_napi *a)
{
	return kbp_dev_works(a->dev) &&
	       !(READ_ONCE(a->napi->state) & (NAPIF_STATE_DISABLE |
					      NAPIF_STATE_THREADED));
}

/* Interrupts that show that a held device is not masked; polls that show that it is. */
#define KBP_NOISY_IRQS		8
#define KBP_QUIET_POLLS		32
/* How often that has to be so, in a row. */
#define KBP_NOISY_MAX		8

/*
 * Look for an interrupt in a hold, whose handler has set MISSED. One or two are
 * usual in a hold that began without: nothing has masked it before, most drivers
 * mask in its handler, and moderation may have put off another. A driver that does
 * not mask, or unmasks when it finds the instance taken (e1000), shows one beside
 * nearly each packet. Then holding the device saves no interrupt: mode adaptive is
 * served as sleep, and mode busy polls on. MISSED without packets is no sign, it
 * may be a sender's request (AF_XDP).
 */
static void kbp_look_for_interrupt(struct kbp_napi *a, int work)
{
	bool found = work || a->held_found;

	a->held_found = work;
	if (likely(!test_bit(NAPI_STATE_MISSED, &a->napi->state))) {
		if (!work || ++a->held_quiet < KBP_QUIET_POLLS)
			return;
		a->noisy = 0;
	} else {
		clear_bit(NAPI_STATE_MISSED, &a->napi->state);
		kbp_count(&a->stats, held_interrupts, 1);
		if (!found || ++a->held_irqs < KBP_NOISY_IRQS)
			return;
		a->noisy++;
	}
	a->held_irqs = 0;
	a->held_quiet = 0;
	if (a->noisy < KBP_NOISY_MAX || a->unmasked)
		return;
	WRITE_ONCE(a->unmasked, true);
	pr_notice("kbp: %s: interrupts come while they are masked%s\n",
		  netdev_name(a->dev),
		  a->adaptive ? ", so it is served as in mode sleep" : "");
	if (a->adaptive)
		WRITE_ONCE(a->armed, true);
}

/*
 * Does it wait for its interrupt? If the poller is awake in any case, for another
 * device or the backlog, nothing would be saved by that.
 */
static bool kbp_is_let_sleep(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return a->armed && !(kbp_is_adaptive(a) && p->wakeful);
}

/*
 * Poll a held instance that we set POLLING. Afterwards it is held again, or,
 * if somebody wants it back, released.
 */
static int kbp_step_held(struct kbp_poller *p, struct kbp_napi *a)
{
	struct napi_struct *n = a->napi;
	int work = 0;

	if (likely(kbp_is_holdable(a) && !READ_ONCE(a->leaving) &&
		   !kbp_is_let_sleep(p, a) && !p->resting && !p->letting_go)) {
		work = kbp_poll_held(n);
		trace_kbp_poll(n, work, n->weight, true);
		kbp_count_poll(p, a, work);
		if (a->adaptive)
			kbp_adaptive_polled(p, a, n, work, true);
		kbp_look_for_interrupt(a, work);
		/* Pairs with the cmpxchg() in kbp_unhold(). */
		smp_store_release(&a->hold, KBP_HOLD_HELD);
		return work;
	}
	/*
	 * Let the device have its interrupt again, by a last ordinary poll. As
	 * in busy_poll_stop(): that poll serves what MISSED stands for.
	 */
	raw_spin_lock_irq(&p->lock);
	p->cur = n;
	WRITE_ONCE(a->hold, KBP_HOLD_FREE);
	raw_spin_unlock_irq(&p->lock);
	clear_bit(NAPI_STATE_MISSED, &n->state);
	clear_bit(NAPI_STATE_IN_BUSY_POLL, &n->state);
	kbp_count(&a->stats, rearms, 1);
	if (a->adaptive)
		kbp_adaptive_let_go(p, a);
	return kbp_step_scheduled(p, n, a);
}

/* Is it polled with its interrupt masked, now that it is scheduled? */
static bool kbp_wants_hold(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return !kbp_is_let_sleep(p, a) ||
	       (kbp_is_adaptive(a) && kbp_adaptive_starts(a->adaptive));
}

/* May the device's interrupt stay masked while the poller polls it? */
static bool kbp_may_hold(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return a && kbp_wants_hold(p, a) && !p->resting && !p->letting_go &&
	       !kbp_is_relieved(p) && !READ_ONCE(a->leaving) &&
	       kbp_is_holdable(a);
}

/* From now on the instance is ours and its device polled, not waited for. */
static void kbp_hold(struct kbp_poller *p, struct kbp_napi *a)
{
	set_bit(NAPI_STATE_IN_BUSY_POLL, &a->napi->state);
	WRITE_ONCE(a->served, true);
	WRITE_ONCE(a->armed, false);
	a->held_irqs = 0;
	a->held_quiet = 0;
	a->held_found = false;
	if (a->adaptive)
		kbp_adaptive_look(a->adaptive);
	raw_spin_lock_irq(&p->lock);
	WRITE_ONCE(a->hold, KBP_HOLD_POLLING);
	p->cur = NULL;
	raw_spin_unlock_irq(&p->lock);
}

/* The next NAPI of a list, if there is one. Returns false if there is none. */
static bool kbp_step_todo(struct kbp_poller *p, enum kbp_list list, int *work)
{
	struct napi_struct *n;
	struct kbp_napi *a;

	/* A peek without the lock; what is missed now is seen in a moment. */
	if (list_empty(&p->todo[list]))
		return false;
	n = kbp_next_todo(p, list);
	if (!n)
		return false;
	/*
	 * BH is off, which is an RCU reader: the attachment lives until the end
	 * of the stretch. Pairs with synchronize_rcu() in kbp_napi_leave().
	 */
	rcu_read_lock();
	a = kbp_napi_lookup(n);
	if (a && a->poller != p)
		a = NULL;
	if (kbp_may_hold(p, a)) {
		kbp_hold(p, a);
		*work += kbp_step_held(p, a);
		p->wakeful += !a->armed;
	} else {
		*work += kbp_step_scheduled(p, n, a);
	}
	rcu_read_unlock();
	return true;
}

/*
 * What the stock path put on this CPU's softirq list (before the poller came,
 * or from a CPU that went) belongs to a poller that owns all. Not the backlog,
 * which must not leave its CPU: that is taken in backlog.c.
 */
static void kbp_take_softirq_list(struct kbp_poller *p)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct napi_struct *n, *next;

	if (p->config.owns != KBP_OWNS_ALL || list_empty(&sd->poll_list))
		return;

	raw_spin_lock_irq(&p->lock);
	if (!kbp_is_relieved(p) && !p->closing) {
		list_for_each_entry_safe(n, next, &sd->poll_list, poll_list) {
			if (n == &sd->backlog)
				continue;
			list_del_init(&n->poll_list);
			kbp_put(p, n, NULL);
			kbp_count(&p->stats, taken, 1);
		}
	}
	raw_spin_unlock_irq(&p->lock);
}

/* bh_off pairs with kbp_relieve(): it is set only while softirqs can't run. */
static void kbp_bh_disable(struct kbp_poller *p)
{
	local_bh_disable();
	WRITE_ONCE(p->bh_off, true);
}

/*
 * What is left of sending: packets to be freed, queues that were full. Newer kernels
 * do that when BH is on again, older ones not while ksoftirqd is awake, and that
 * does not get on while a FIFO thread polls: senders would wait for their memory.
 * What it schedules is no next step of what is attached, see kbp_goes_on().
 */
static void kbp_serve_net_tx(struct kbp_poller *p)
{
	bool serving = p->serving;

	if (likely(!(local_softirq_pending() & BIT(NET_TX_SOFTIRQ))))
		return;
	local_irq_disable();
	set_softirq_pending(local_softirq_pending() & ~BIT(NET_TX_SOFTIRQ));
	local_irq_enable();
	p->serving = false;
	kbp_net_tx_action();
	p->serving = serving;
}

static void kbp_bh_enable(struct kbp_poller *p)
{
	kbp_serve_net_tx(p);
	WRITE_ONCE(p->bh_off, false);
	local_bh_enable();
}

static struct bpf_net_context *kbp_stretch_begin(struct kbp_poller *p,
						 struct bpf_net_context *ctx)
{
	kbp_bh_disable(p);
	return bpf_net_ctx_set(ctx);
}

static void kbp_stretch_end(struct kbp_poller *p, struct bpf_net_context *ctx)
{
	bpf_net_ctx_clear(ctx);
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
		kbp_count_poll(p, NULL, work);
	return work;
}

/*
 * Poll each held device once, the backlog if it is attached, and then what is
 * scheduled. Whoever wants an instance back waits for the end of one poll at
 * most. Returns the packets.
 */
static int kbp_poll_attached(struct kbp_poller *p)
{
	/* Who rests looks at the clock after each, and has small ones. */
	int polls, polls_max = p->resting ? 1 : KBP_BATCH_POLLS;
	int budget = p->resting ? p->config.budget : NAPI_POLL_WEIGHT;
	int work = 0, found, busy_polls = 0;
	u32 wakeful = kbp_backlog_is_attached(p) + p->lacking;
	struct kbp_napi *a;

	p->serving = true;
	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		/* Pairs with the cmpxchg() in kbp_unhold(). */
		if (cmpxchg(&a->hold, KBP_HOLD_HELD, KBP_HOLD_POLLING) !=
		    KBP_HOLD_HELD)
			continue;
		found = kbp_step_held(p, a);
		wakeful += !a->armed;
		work += found;
		if (found && ++busy_polls % KBP_BATCH_POLLS == 0)
			kbp_stretch_break(p);
	}
	rcu_read_unlock();
	p->wakeful = wakeful;

	/*
	 * A packet of a container passes the backlog once for each veth, bridge
	 * port and tunnel on its way: all of that before what is merely owned.
	 */
	for (polls = 0; polls < polls_max; polls++) {
		found = kbp_step_backlog(p, KBP_BACKLOG_ATTACHED, budget);
		work += found;
		if (!kbp_step_todo(p, KBP_LIST_ATTACHED, &work) && !found)
			break;
	}
	p->serving = false;
	return work;
}

/**
 * kbp_round() - one round of polling: what is attached, then one owned NAPI
 * @p: the poller
 *
 * What is attached waits for one poll of what is merely owned at most, and
 * that takes p->config.budget packets.
 *
 * Return: whether there was work, or is some left.
 */
bool kbp_round(struct kbp_poller *p)
{
	struct bpf_net_context store, *ctx;
	int work = 0;
	bool busy;

	ctx = kbp_stretch_begin(p, &store);
	busy = kbp_poll_attached(p) > 0;
	kbp_take_softirq_list(p);
	busy |= kbp_step_todo(p, KBP_LIST_OWNED, &work);
	busy |= kbp_step_backlog(p, KBP_BACKLOG_OWNED, p->config.budget) > 0;
	kbp_defer_free_flush();
	kbp_stretch_end(p, ctx);
	return busy;
}

/**
 * kbp_round_attached() - poll only what is attached
 * @p: the poller, which rests otherwise
 *
 * Return: whether attached NAPIs are left on the list.
 */
bool kbp_round_attached(struct kbp_poller *p)
{
	struct bpf_net_context store, *ctx;

	ctx = kbp_stretch_begin(p, &store);
	kbp_poll_attached(p);
	kbp_stretch_end(p, ctx);
	return !list_empty_careful(&p->todo[KBP_LIST_ATTACHED]) ||
	       (kbp_backlog_is_attached(p) && kbp_backlog_has_packets(p));
}

/**
 * kbp_release_all() - arm the interrupts of all held devices
 * @p: the poller; p->resting is set, so nothing is held again
 *
 * Return: whether all are armed; those with too many packets have to be polled
 * again first.
 */
bool kbp_release_all(struct kbp_poller *p)
{
	return !kbp_round_attached(p);
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
