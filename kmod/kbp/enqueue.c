// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a schedule request to a poller's list.
 *
 * Owns how a NAPI comes onto the lists of a poller: from hardIRQs, from other
 * CPUs, from the poller itself. The way back is in handback.c. Context:
 * interrupts off. Lock: kbp_poller.lock.
 */
#include <linux/hash.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include "kbp.h"
#include "trace.h"

/* One of class normal that waits for longer is counted. */
#define KBP_OVERDUE_NS	(10 * NSEC_PER_MSEC)
/* So far into a list is looked for what only sends, with interrupts off. */
#define KBP_SENT_LOOK	16

DEFINE_PER_CPU(bool, kbp_engaged);
DEFINE_PER_CPU(struct kbp_poller __rcu *, kbp_poller);

static bool kbp_should_wake(const struct kbp_poller *p, const struct kbp_napi *a)
{
	return p->wake == KBP_WAKE_ANY ||
	       (p->wake == KBP_WAKE_RT && a && a->class == KBP_POLL_CLASS_RT);
}

/*
 * Has the thread scheduled it, while it polls what is of class rt? Then it is the
 * next step of those packets (a tunnel's gro_cells) and does not wait behind what is
 * of class normal.
 */
static bool kbp_goes_on(const struct kbp_poller *p)
{
	return p->serving && current == p->task && in_task();
}

/**
 * kbp_sends_for_rt() - does an instance only see to what a device of class rt sends?
 * @p: the poller
 * @n: the instance, which is not attached
 *
 * Were that of class normal, such a device could not send as much as it receives: a
 * poll frees so many packets at most, and of class normal is one in a round.
 *
 * Return: whether it does.
 */
bool kbp_sends_for_rt(const struct kbp_poller *p, const struct napi_struct *n)
{
	const struct kbp_napi *a;
	bool found = false;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (a->dev == n->dev && a->class == KBP_POLL_CLASS_RT) {
			found = kbp_napi_only_sends(n);
			break;
		}
	}
	rcu_read_unlock();
	return found;
}

/* What is merely owned is of class normal, but for these two. */
static enum kbp_poll_class kbp_class_of(const struct kbp_poller *p,
					const struct napi_struct *n,
					const struct kbp_napi *a)
{
	if (a)
		return a->class;
	return kbp_goes_on(p) || kbp_sends_for_rt(p, n) ?
	       KBP_POLL_CLASS_RT : KBP_POLL_CLASS_NORMAL;
}

/*
 * It is listed @now_ns. An instance that nobody attached has no place of its own for
 * that; two with the same hash are one wait not counted.
 */
static void kbp_wait_begin(struct kbp_poller *p, const struct napi_struct *n,
			   u64 now_ns)
{
	unsigned int slot = hash_ptr(n, KBP_WAITING_BITS);

	p->waiting[slot].napi = n;
	p->waiting[slot].since_ns = now_ns;
}

static void kbp_wait_end(struct kbp_poller *p, const struct napi_struct *n,
			 enum kbp_poll_class class, u64 now_ns)
{
	unsigned int slot = hash_ptr(n, KBP_WAITING_BITS);
	u64 wait_ns;

	if (p->waiting[slot].napi != n)
		return;
	wait_ns = now_ns - p->waiting[slot].since_ns;
	p->waits[class][kbp_wait_index(wait_ns)]++;
	if (class == KBP_POLL_CLASS_NORMAL && wait_ns > KBP_OVERDUE_NS)
		kbp_count(&p->stats, normal_overdue, 1);
}

/**
 * kbp_put() - put an instance on a poller's list
 * @p: the poller
 * @n: the instance; the caller owns its SCHED bit
 * @a: its attachment to this poller, or NULL
 * @class: whose list, of what is not attached
 * @now_ns: the time
 *
 * Context: p->lock held, interrupts off, RCU reader.
 */
void kbp_put(struct kbp_poller *p, struct napi_struct *n, struct kbp_napi *a,
	     enum kbp_poll_class class, u64 now_ns)
{
	if (a) {
		a->listed_ns = now_ns;
		class = a->class;
	} else if (class == KBP_POLL_CLASS_RT) {
		WRITE_ONCE(p->unattached, true);
	}
	list_add_tail(&n->poll_list, &p->todo[class]);
	WRITE_ONCE(p->listed[class], p->listed[class] + 1);
	kbp_wait_begin(p, n, now_ns);
	kbp_list_owner_set(n, p->config.cpu);
	kbp_watchdog_start(p);
}

/**
 * kbp_put_sent_first() - poll next what only sends for a device, if it is on the list
 * @p: the poller
 * @dev: the device, of which an instance of class rt was just polled
 *
 * What is on that list without being attached only sends, but for a tunnel's next step and
 * for what was detached just now, which may come first without harm. It sends what that
 * poll received, if this goes out where it came in, and what it frees is received into.
 * Where interrupts come while it is on the list, or is polled, it never leaves the list
 * for long, so that its place there would hang on chance. No device of class rt waits for
 * ever: each that is let in comes behind a poll of one. If there is none for any device,
 * p->unattached says so afterwards.
 *
 * Context: p->lock held, interrupts off, RCU reader.
 * Return: whether there is one.
 */
bool kbp_put_sent_first(struct kbp_poller *p, const struct net_device *dev)
{
	struct list_head *todo = &p->todo[KBP_POLL_CLASS_RT];
	bool unattached = false;
	struct napi_struct *n;
	int looked = 0;

	list_for_each_entry(n, todo, poll_list) {
		if (!kbp_napi_lookup(n)) {
			if (n->dev == dev) {
				list_move(&n->poll_list, todo);
				return true;
			}
			unattached = true;
		}
		if (++looked == KBP_SENT_LOOK)
			return false;
	}
	WRITE_ONCE(p->unattached, unattached);
	return false;
}

/**
 * kbp_take() - take an instance off the list, to poll it or to hand it back
 * @p: the poller
 * @n: the instance
 * @class: whose list it is on
 * @now_ns: the time
 *
 * Context: p->lock held, interrupts off.
 */
void kbp_take(struct kbp_poller *p, struct napi_struct *n,
	      enum kbp_poll_class class, u64 now_ns)
{
	list_del_init(&n->poll_list);
	WRITE_ONCE(p->listed[class], p->listed[class] - 1);
	kbp_wait_end(p, n, class, now_ns);
}

static bool kbp_poller_enqueue(struct kbp_poller *p, struct napi_struct *n,
			       struct kbp_napi *a)
{
	enum kbp_poll_class class = kbp_class_of(p, n, a);
	bool wake;

	raw_spin_lock(&p->lock);
	if (p->closing || kbp_is_relieved(p)) {
		raw_spin_unlock(&p->lock);
		return false;
	}
	kbp_put(p, n, a, class, ktime_get_ns());
	kbp_count(&p->stats, enqueued, 1);
	if (a)
		kbp_count(&a->stats, schedules, 1);
	wake = kbp_should_wake(p, a);
	if (wake) {
		p->wake = KBP_WAKE_NONE;
		p->woken_ns = ktime_get_ns();
		kbp_count(&p->stats, wakeups, 1);
	}
	raw_spin_unlock(&p->lock);

	trace_kbp_enqueue(n, p->config.cpu, a, wake);
	if (wake) {
		kbp_freq_kick(p);
		wake_up_process(p->task);
	}
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
	bool taken = false, threaded;
	struct kbp_poller *p, *local;
	struct kbp_napi *a;

	if (likely(!__this_cpu_read(kbp_engaged)))
		return false;
	/* A backlog never leaves its CPU: backlog.c has other ways to it. */
	if (n == &this_cpu_ptr(&softnet_data)->backlog)
		return false;

	/* Pairs with synchronize_rcu() in kbp_poller_stop() and kbp_napi_leave(). */
	rcu_read_lock();
	local = rcu_dereference(*this_cpu_ptr(&kbp_poller));
	a = kbp_napi_lookup(n);
	p = a ? a->poller : local;
	threaded = kbp_has_thread(n);
	if (unlikely(threaded && a))
		WRITE_ONCE(a->served, false);
	if (p && !threaded && (a || p->config.owns == KBP_OWNS_ALL))
		taken = kbp_poller_enqueue(p, n, a);
	if (!taken && local && unlikely(READ_ONCE(local->stuck)) && !threaded)
		taken = kbp_relay(local, n);
	rcu_read_unlock();
	return taken;
}
