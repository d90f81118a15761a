// SPDX-License-Identifier: GPL-2.0-only
/*
 * One poll: from a poller's list through the driver's poll function into the stack.
 *
 * Owns a NAPI instance while it is being polled: kbp_poller.cur for one from a
 * list, KBP_HOLD_POLLING for a held one. Who is polled next is in round.c. Context:
 * the poller thread, BH off. Lock: kbp_poller.lock around every step on a list,
 * never around a poll.
 */
#include <linux/hash.h>
#include <linux/interrupt.h>
#include <linux/netpoll.h>
#include <linux/rcupdate.h>
#include <trace/events/napi.h>

#include "kbp.h"
#include "trace.h"

/**
 * kbp_count_poll() - count a poll
 * @p: the poller
 * @a: the attachment, NULL if what was polled is merely owned
 * @class: of what was polled
 * @work: packets
 */
void kbp_count_poll(struct kbp_poller *p, struct kbp_napi *a,
		    enum kbp_poll_class class, int work)
{
	kbp_count(&p->stats, polls, 1);
	if (class == KBP_POLL_CLASS_NORMAL)
		kbp_count(&p->stats, normal_polls, 1);
	if (work > 0)
		kbp_count(&p->stats, packets, work);
	/* Of what is in mode adaptive kbp_adaptive_polled() tells it. */
	if (work > 0 && !(a && a->adaptive))
		kbp_thrift_others(&p->thrift, work);
	if (!a)
		return;
	kbp_count(&a->stats, polls, 1);
	if (work > 0)
		kbp_count(&a->stats, packets, work);
	else
		kbp_count(&a->stats, empty_polls, 1);
}

/*
 * GRO merges what comes in one poll. Small polls would leave it little to merge, and
 * the stack has its work with each packet. So in class normal it goes on from one to
 * the next until as many packets have come as a whole poll has, or a jiffy is over, or
 * no more come: then the driver completes, or we flush, if the device is held. Not
 * where the instance has no device of its own, whose end would wait for ours
 * (mac80211).
 */
static noinline bool kbp_goes_on_merging(struct kbp_poller *p,
					 const struct napi_struct *n,
					 int budget, int work)
{
	struct kbp_merging *m = &p->merging[hash_ptr(n, KBP_MERGING_BITS)];

	if (p->resting || n->dev->reg_state != NETREG_REGISTERED)
		return false;
	/* Nothing is known of one whose place another has taken: it is flushed. */
	if (m->napi == n && work == budget) {
		m->packets += work;
		if (m->packets < n->weight && m->since == jiffies)
			return true;
	}
	m->napi = n;
	m->packets = 0;
	m->since = jiffies;
	return false;
}

/*
 * The end of a poll that leaves its instance with us. What is not merged any more is
 * delivered in any case: so a poll is as short as its budget, and nothing is overtaken,
 * since what ends a merging comes behind it.
 */
static __always_inline void kbp_end_poll(struct kbp_poller *p,
					 struct napi_struct *n, int budget,
					 int work)
{
	/* Class rt has whole polls, and most of them find nothing. */
	if (likely(budget >= n->weight) ||
	    !kbp_goes_on_merging(p, n, budget, work))
		kbp_gro_flush(n);
	else
		kbp_gro_deliver(n);
}

/*
 * One poll of a scheduled NAPI, as __napi_poll() of net/core/dev.c does it,
 * with a budget of our choice.
 *
 * Return: true if the instance is still ours and has to be polled again.
 */
static bool kbp_poll_scheduled(struct kbp_poller *p, struct napi_struct *n,
			       int budget, int *work)
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
	kbp_end_poll(p, n, budget, *work);
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
static int kbp_poll_held(struct kbp_poller *p, struct napi_struct *n, int budget)
{
	void *have = netpoll_poll_lock(n);
	int work;

	work = n->poll(n, budget);
	trace_napi_poll(n, work, budget);
	kbp_end_poll(p, n, budget, work);
	netpoll_poll_unlock(have);
	return work;
}

/* Take the next NAPI off a list; it is then on no list, and p->cur. Under p->lock. */
static struct napi_struct *kbp_take_next(struct kbp_poller *p,
					 enum kbp_poll_class class, u64 now_ns)
{
	struct napi_struct *n;

	n = list_first_entry_or_null(&p->todo[class], struct napi_struct,
				     poll_list);
	if (n)
		kbp_take(p, n, class, now_ns);
	p->cur = n;
	return n;
}

static struct napi_struct *kbp_next_todo(struct kbp_poller *p,
					 enum kbp_poll_class class)
{
	struct napi_struct *n;

	/* A peek without the lock; what is missed now is seen in a moment. */
	if (list_empty(&p->todo[class]))
		return NULL;
	raw_spin_lock_irq(&p->lock);
	n = kbp_take_next(p, class, ktime_get_ns());
	raw_spin_unlock_irq(&p->lock);
	return n;
}

/* The next of a series, which may be taken already. */
static struct napi_struct *kbp_series_take(struct kbp_poller *p,
					   enum kbp_poll_class class,
					   struct kbp_series *series)
{
	struct napi_struct *n = series->next ?: kbp_next_todo(p, class);

	series->next = NULL;
	if (series->unpolled)
		series->unpolled--;
	else
		series->unpolled = READ_ONCE(p->listed[class]);
	return n;
}

/*
 * A scheduled NAPI was polled. If it is not done: to the end of its list, to softirq, or
 * to the thread that the user has given it meanwhile. What only sends for it is next. Of
 * a series the next is taken before, of those that wait already.
 */
static void kbp_done_todo(struct kbp_poller *p, struct napi_struct *n,
			  struct kbp_napi *a, enum kbp_poll_class class,
			  struct kbp_series *series, bool again)
{
	bool threaded = again && kbp_has_thread(n);
	bool relieved;
	u64 now_ns;

	raw_spin_lock_irq(&p->lock);
	p->cur = NULL;
	relieved = kbp_is_relieved(p) || p->closing;
	now_ns = again || !list_empty(&p->todo[class]) ? ktime_get_ns() : 0;
	if (p->unattached && a && class == KBP_POLL_CLASS_RT)
		kbp_put_sent_first(p, n->dev);
	if (series && series->more)
		series->next = kbp_take_next(p, class, now_ns);
	if (again && !threaded && relieved) {
		kbp_stock_add(this_cpu_ptr(&softnet_data), n);
		kbp_count(&p->stats, handed_napis, 1);
	} else if (again && !threaded) {
		kbp_put(p, n, a, class, now_ns);
	}
	raw_spin_unlock(&p->lock);
	if (threaded)
		kbp_schedule(n);
	else if (again && relieved)
		kbp_stock_raise();
	local_irq_enable();
}

/* How many packets a poll may take: those of class normal, and of who rests, are short. */
static int kbp_poll_budget(const struct kbp_poller *p, const struct napi_struct *n,
			   enum kbp_poll_class class)
{
	return class == KBP_POLL_CLASS_RT && !p->resting ?
	       n->weight : min_t(int, p->config.budget, n->weight);
}

/*
 * Poll a NAPI in the ordinary way once; the driver arms the interrupt when it
 * has no more packets.
 */
static int kbp_step_scheduled(struct kbp_poller *p, struct napi_struct *n,
			      struct kbp_napi *a, enum kbp_poll_class class,
			      struct kbp_series *series)
{
	int budget = kbp_poll_budget(p, n, class);
	bool again;
	int work;

	if (a)
		WRITE_ONCE(a->served, !kbp_has_thread(n));
	if (a && a->adaptive)
		kbp_adaptive_look(a);
	again = kbp_poll_scheduled(p, n, budget, &work);
	trace_kbp_poll(n, work, budget, false);
	/* That is what drivers say where they have not freed all that was sent. */
	if (!a && work == budget && kbp_sends_for_rt(p, n))
		kbp_count_poll(p, a, class, 0);
	else
		kbp_count_poll(p, a, class, work);
	if (a && a->adaptive)
		kbp_adaptive_polled(p, a, n, work, budget, false);
	if (series)
		kbp_free_sent(p, !series->unpolled);
	kbp_done_todo(p, n, a, class, series, again);
	return work;
}

/* Nobody waits for its end: not its driver, not the thread the user gave it. */
static bool kbp_is_holdable(const struct kbp_napi *a)
{
	return kbp_dev_works(a->dev) &&
	       !(READ_ONCE(a->napi->state) & (NAPIF_STATE_DISABLE |
					      NAPIF_STATE_THREADED));
}

/* What may come in any hold, see below. */
#define KBP_USUAL_IRQS		2
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
 * may be a sender's request (AF_XDP). What is counted goes on from hold to hold, for
 * in mode adaptive one may have no more than some packets; with up to two an
 * interrupt each is what a driver that masks has as well. A device that is on no bus
 * (veth) has none: MISSED there is a sender's, who wakes nobody.
 */
static void kbp_look_for_interrupt(struct kbp_napi *a, int work)
{
	bool found = work || a->held_found;

	if (!a->dev->dev.parent)
		return;
	a->held_found = work;
	if (likely(!test_bit(NAPI_STATE_MISSED, &a->napi->state))) {
		if (!work || ++a->held_quiet < KBP_QUIET_POLLS)
			return;
		a->noisy = 0;
	} else {
		clear_bit(NAPI_STATE_MISSED, &a->napi->state);
		kbp_count(&a->stats, held_interrupts, 1);
		if (!found || ++a->irqs_of_hold <= KBP_USUAL_IRQS ||
		    ++a->unusual_irqs < KBP_NOISY_IRQS)
			return;
		a->noisy++;
	}
	a->unusual_irqs = 0;
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

/**
 * kbp_is_awake() - is the poller awake in any case, and not for this device?
 * @p: the poller
 * @a: the device's attachment
 *
 * For another device or the backlog, or, seen from class rt, for what waits of class
 * normal. Then nothing is saved by an interrupt.
 */
bool kbp_is_awake(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return p->wakeful ||
	       (a->class == KBP_POLL_CLASS_RT &&
		(!list_empty(&p->todo[KBP_POLL_CLASS_NORMAL]) ||
		 kbp_backlog_has_packets(p)));
}

/* Does it wait for its interrupt? */
static bool kbp_is_let_sleep(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return a->armed && !(kbp_is_adaptive(a) && kbp_is_awake(p, a));
}

/**
 * kbp_step_held() - poll a held instance
 * @p: the poller
 * @a: the attachment, which we set POLLING
 *
 * Afterwards it is held again, or, if somebody wants it back, released.
 *
 * Return: packets.
 */
int kbp_step_held(struct kbp_poller *p, struct kbp_napi *a)
{
	struct napi_struct *n = a->napi;
	int work = 0, budget;

	if (likely(kbp_is_holdable(a) && !READ_ONCE(a->leaving) &&
		   !kbp_is_let_sleep(p, a) && !kbp_lets_all_go(p))) {
		budget = kbp_poll_budget(p, n, a->class);
		work = kbp_poll_held(p, n, budget);
		trace_kbp_poll(n, work, budget, true);
		kbp_count_poll(p, a, a->class, work);
		if (a->adaptive)
			kbp_adaptive_polled(p, a, n, work, budget, true);
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
	return kbp_step_scheduled(p, n, a, a->class, NULL);
}

/* Is it polled with its interrupt masked, now that it is scheduled? */
static bool kbp_wants_hold(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return !kbp_is_let_sleep(p, a) ||
	       (kbp_is_adaptive(a) && (kbp_adaptive_starts(a) ||
				       kbp_adaptive_is_overdue(a)));
}

/* May the device's interrupt stay masked while the poller polls it? */
static bool kbp_may_hold(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return a && kbp_wants_hold(p, a) && !kbp_lets_all_go(p) &&
	       !kbp_is_relieved(p) && !READ_ONCE(a->leaving) &&
	       kbp_is_holdable(a);
}

/* From now on the instance is ours and its device polled, not waited for. */
static void kbp_hold(struct kbp_poller *p, struct kbp_napi *a)
{
	set_bit(NAPI_STATE_IN_BUSY_POLL, &a->napi->state);
	WRITE_ONCE(a->served, true);
	WRITE_ONCE(a->armed, false);
	a->irqs_of_hold = 0;
	a->held_found = false;
	/* This is its poll of the lap. */
	a->lap = p->lap.number;
	if (a->adaptive)
		kbp_adaptive_look(a);
	raw_spin_lock_irq(&p->lock);
	WRITE_ONCE(a->hold, KBP_HOLD_POLLING);
	p->cur = NULL;
	raw_spin_unlock_irq(&p->lock);
}

/**
 * kbp_step_sent() - see to what a held device has sent
 * @p: the poller
 * @dev: the device, of class rt, which has just been polled
 *
 * Where an instance that is not attached does that, which can't become held: what this
 * frees, the next poll receives into.
 *
 * Return: polls, 0 or 1.
 */
int kbp_step_sent(struct kbp_poller *p, const struct net_device *dev)
{
	int sent = 0;
	bool next;

	raw_spin_lock_irq(&p->lock);
	next = kbp_put_sent_first(p, dev);
	raw_spin_unlock_irq(&p->lock);
	return next && kbp_step_todo(p, KBP_POLL_CLASS_RT, NULL, &sent);
}

/**
 * kbp_step_todo() - poll the next NAPI of a list
 * @p: the poller
 * @class: whose list
 * @series: which polls follow; NULL: none
 * @work: what is added to by its packets
 *
 * Of a series, what was sent is freed before the next is taken, which waits for it.
 *
 * Return: false if there is none.
 */
bool kbp_step_todo(struct kbp_poller *p, enum kbp_poll_class class,
		   struct kbp_series *series, int *work)
{
	struct napi_struct *n;
	struct kbp_napi *a;

	n = series ? kbp_series_take(p, class, series) : kbp_next_todo(p, class);
	if (!n)
		return false;
	a = kbp_napi_lookup(n);
	if (a && a->poller != p)
		a = NULL;
	if (kbp_may_hold(p, a)) {
		kbp_hold(p, a);
		*work += kbp_step_held(p, a);
		p->wakeful += !a->armed;
		if (series)
			kbp_free_sent(p, !series->unpolled);
	} else {
		*work += kbp_step_scheduled(p, n, a, class, series);
	}
	return true;
}
