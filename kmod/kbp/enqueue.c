// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a schedule request to a poller's list, and back to softirq.
 *
 * Owns the lists of a poller: who puts a NAPI on them (hardIRQs, other CPUs,
 * the poller itself) and how everything on them goes back to softirq, by the
 * watchdog or when the poller ends. Context: interrupts off. Lock:
 * kbp_poller.lock.
 */
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include "kbp.h"
#include "trace.h"

DEFINE_PER_CPU(bool, kbp_engaged);
DEFINE_PER_CPU(struct kbp_poller __rcu *, kbp_poller);

/* Does it hold a device whose interrupt is masked? */
bool kbp_holds(const struct kbp_poller *p)
{
	const struct kbp_napi *a;
	bool holds = false;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (READ_ONCE(a->hold) != KBP_HOLD_FREE) {
			holds = true;
			break;
		}
	}
	rcu_read_unlock();
	return holds;
}

/* Is there anything that waits for the thread? Under kbp_poller.lock. */
bool kbp_has_work(const struct kbp_poller *p)
{
	return kbp_holds(p) || kbp_backlog_is_waiting(p) ||
	       !list_empty(&p->todo[KBP_LIST_ATTACHED]) ||
	       !list_empty(&p->todo[KBP_LIST_OWNED]);
}

static bool kbp_should_wake(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return p->wake == KBP_WAKE_ANY || (p->wake == KBP_WAKE_ATTACHED && a);
}

/**
 * kbp_watchdog_start() - watch over a poller that has work, or will get some
 * @p: the poller
 *
 * Context: p->lock held, interrupts off.
 */
void kbp_watchdog_start(struct kbp_poller *p)
{
	if (p->watchdog_on)
		return;
	p->watchdog_on = true;
	p->stale = 0;
	p->beat_seen = READ_ONCE(p->beat);
	hrtimer_start(&p->watchdog,
		      ms_to_ktime(p->config.watchdog_ms) / 2,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/*
 * Has the thread scheduled it, while it polls what is attached? Then it is the
 * next step of those packets (a tunnel's gro_cells) and does not wait behind
 * what is merely owned.
 */
static bool kbp_goes_on(const struct kbp_poller *p)
{
	return p->serving && current == p->task && in_task();
}

/* Put @n, whose SCHED bit the caller owns, on @p's list. Under p->lock. */
void kbp_put(struct kbp_poller *p, struct napi_struct *n, struct kbp_napi *a)
{
	enum kbp_list list = a || kbp_goes_on(p) ? KBP_LIST_ATTACHED :
						   KBP_LIST_OWNED;

	list_add_tail(&n->poll_list, &p->todo[list]);
	kbp_list_owner_set(n, p->config.cpu);
	kbp_watchdog_start(p);
}

static bool kbp_poller_enqueue(struct kbp_poller *p, struct napi_struct *n,
			       struct kbp_napi *a)
{
	bool wake;

	raw_spin_lock(&p->lock);
	if (p->closing || p->state == KBP_STATE_HANDED_BACK) {
		raw_spin_unlock(&p->lock);
		return false;
	}
	kbp_put(p, n, a);
	kbp_count(&p->stats, enqueued, 1);
	if (a)
		kbp_count(&a->stats, schedules, 1);
	wake = kbp_should_wake(p, a);
	if (wake) {
		p->wake = KBP_WAKE_NONE;
		kbp_count(&p->stats, wakeups, 1);
	}
	raw_spin_unlock(&p->lock);

	trace_kbp_enqueue(n, p->config.cpu, a, wake);
	if (wake)
		wake_up_process(p->task);
	return true;
}

/**
 * kbp_enqueue() - give a scheduled NAPI to the poller that serves it
 * @n: the instance; the caller set NAPI_STATE_SCHED and owns its poll_list
 *
 * Context: interrupts off.
 * Return: false if no poller takes it; the caller goes on with the stock path.
 */
bool kbp_enqueue(struct napi_struct *n)
{
	struct kbp_poller *p;
	struct kbp_napi *a;
	bool taken = false;

	if (likely(!__this_cpu_read(kbp_engaged)))
		return false;
	/* A backlog never leaves its CPU: backlog.c has other ways to it. */
	if (n == &this_cpu_ptr(&softnet_data)->backlog)
		return false;

	/* Pairs with synchronize_rcu() in kbp_poller_del() and kbp_napi_leave(). */
	rcu_read_lock();
	a = kbp_napi_lookup(n);
	p = a ? a->poller : rcu_dereference(*this_cpu_ptr(&kbp_poller));
	/* A NAPI that the user gave a thread of its own stays with that. */
	if (p && (a || (p->config.owns == KBP_OWNS_ALL &&
			!test_bit(NAPI_STATE_THREADED, &n->state))))
		taken = kbp_poller_enqueue(p, n, a);
	rcu_read_unlock();
	return taken;
}

/**
 * kbp_unhold() - take a held instance away from its poller
 * @a: the attachment
 *
 * Return: true if the caller owns the instance now and has to schedule it;
 * false if it was not held, or is being polled at this moment.
 */
bool kbp_unhold(struct kbp_napi *a)
{
	/* Pairs with the cmpxchg() in kbp_poll_attached(). */
	if (cmpxchg(&a->hold, KBP_HOLD_HELD, KBP_HOLD_FREE) != KBP_HOLD_HELD)
		return false;
	WRITE_ONCE(a->served, false);
	kbp_count(&a->stats, rearms, 1);
	/*
	 * As busy_poll_stop() in net/core/dev.c: an interrupt that came while
	 * the device was held has set MISSED; the poll that follows is the one
	 * it asked for.
	 */
	clear_bit(NAPI_STATE_MISSED, &a->napi->state);
	clear_bit(NAPI_STATE_IN_BUSY_POLL, &a->napi->state);
	return true;
}

/**
 * kbp_hand_over() - give everything on a poller's lists to this CPU's softirq
 * @p: the poller
 *
 * What the thread polls at this moment stays with it: a scheduled instance
 * (p->cur) goes to softirq when its poll is over, a held one is polled on,
 * because then the thread runs again.
 *
 * Context: p->lock held, interrupts off, any CPU. The loops are bounded by the
 * number of NAPI instances.
 * Return: how many instances went back; if any, the caller calls
 * kbp_stock_raise() when it has dropped the lock, interrupts still off.
 */
unsigned int kbp_hand_over(struct kbp_poller *p)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct napi_struct *n, *next_n;
	unsigned int count = 0;
	enum kbp_list list;
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (!kbp_unhold(a))
			continue;
		kbp_stock_add(sd, a->napi);
		count++;
	}
	rcu_read_unlock();
	for (list = 0; list < KBP_LISTS; list++) {
		list_for_each_entry_safe(n, next_n, &p->todo[list], poll_list) {
			list_del_init(&n->poll_list);
			kbp_stock_add(sd, n);
			count++;
		}
	}
	kbp_count(&p->stats, handed_napis, count);
	return count;
}

/*
 * HardIRQ, also when a thread of higher priority keeps the poller from its
 * CPU. A beat is a round of the thread; two periods of half the time without
 * one, with work waiting, and softirq takes over.
 */
static enum hrtimer_restart kbp_watchdog(struct hrtimer *timer)
{
	struct kbp_poller *p = container_of(timer, struct kbp_poller, watchdog);
	enum hrtimer_restart ret = HRTIMER_RESTART;
	unsigned long beat = READ_ONCE(p->beat);
	unsigned int count = 0;
	bool back = false;

	raw_spin_lock(&p->lock);
	if (beat != p->beat_seen || !kbp_has_work(p)) {
		p->beat_seen = beat;
		p->stale = 0;
	} else if (++p->stale >= 2 && !p->closing) {
		p->state = KBP_STATE_HANDED_BACK;
		kbp_count(&p->stats, handbacks, 1);
		count = kbp_hand_over(p);
		back = true;
	}
	/* An armed backlog wakes the thread without a word to us. */
	if ((p->wake == KBP_WAKE_ANY &&
	     READ_ONCE(p->backlog.hold) == KBP_BACKLOG_STOCK) ||
	    p->closing || back) {
		p->watchdog_on = false;
		ret = HRTIMER_NORESTART;
	}
	raw_spin_unlock(&p->lock);

	if (count)
		kbp_stock_raise();
	if (back) {
		kbp_backlog_send_back(p);
		trace_kbp_handback(p->config.cpu, count);
		kbp_poller_event(p, KBP_EVENT_HANDED_BACK);
	}
	if (ret == HRTIMER_RESTART)
		hrtimer_forward_now(timer,
				    ms_to_ktime(p->config.watchdog_ms) / 2);
	return ret;
}

void kbp_watchdog_init(struct kbp_poller *p)
{
	hrtimer_setup(&p->watchdog, kbp_watchdog, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
}
