// SPDX-License-Identifier: GPL-2.0-only
/*
 * From a poller back to softirq.
 *
 * Owns the way back of everything that a poller has: from a held device, from
 * its lists, by the watchdog, or because the poller ends. It ends in the softirq
 * of the CPU where this runs; if a stuck poller keeps that softirq from
 * running, in another CPU's. Context: interrupts off, mostly hardIRQ. Lock:
 * kbp_poller.lock.
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/smp.h>
#include <linux/workqueue.h>

#include "kbp.h"
#include "trace.h"

/* The weight of the sleeps before, against the last one. */
#define KBP_SLEEPS_MEAN		8

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
static bool kbp_has_work(const struct kbp_poller *p)
{
	return kbp_holds(p) || kbp_backlog_is_waiting(p) ||
	       kbp_has_scheduled(p);
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
	/* Pairs with the cmpxchg() in kbp_turn_held(). */
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

/* ---- to another CPU's softirq ---- */

/* On the other CPU, interrupts off. */
static void kbp_relay_arrive(void *data)
{
	struct kbp_poller *p = data;
	LIST_HEAD(relayed);

	raw_spin_lock(&p->lock);
	list_splice_init(&p->relay.list, &relayed);
	raw_spin_unlock(&p->lock);
	kbp_stock_take(&relayed);
}

static void kbp_relay_work(struct work_struct *work)
{
	struct kbp_relay *relay = container_of(work, struct kbp_relay, work);

	local_bh_disable();
	local_irq_disable();
	kbp_relay_arrive(container_of(relay, struct kbp_poller, relay));
	local_irq_enable();
	local_bh_enable();
}

/*
 * Have them arrive; an error if that CPU has gone. PREEMPT_RT does not let a
 * CPU that idles raise a softirq in the call of another.
 */
static int kbp_relay_send(struct kbp_relay *relay)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		queue_work_on(relay->cpu, system_highpri_wq, &relay->work);
		return 0;
	}
	return smp_call_function_single_async(relay->cpu, &relay->csd);
}

/* A CPU whose softirq can run: if there is any, one that nobody has reserved. */
static unsigned int kbp_relay_cpu(const struct kbp_poller *p)
{
	unsigned int cpu, found = nr_cpu_ids;

	for_each_online_cpu(cpu) {
		if (cpu == p->config.cpu)
			continue;
		found = cpu;
		if (!rcu_access_pointer(per_cpu(kbp_poller, cpu)) &&
		    housekeeping_cpu(cpu, HK_TYPE_DOMAIN))
			break;
	}
	return found;
}

/* Instances that the caller owns, to the softirq of p->relay.cpu. */
static void kbp_relay_list(struct kbp_poller *p, struct list_head *list)
{
	struct napi_struct *n;
	unsigned int count = 0;
	LIST_HEAD(left);
	int err;

	list_for_each_entry(n, list, poll_list)
		count++;
	raw_spin_lock(&p->lock);
	list_splice_tail_init(list, &p->relay.list);
	kbp_count(&p->stats, relayed_napis, count);
	raw_spin_unlock(&p->lock);
	/* -EBUSY: it is on its way, and takes the lock after us. */
	err = kbp_relay_send(&p->relay);
	if (!err || err == -EBUSY)
		return;
	/* That CPU has gone: then they wait for ours. */
	raw_spin_lock(&p->lock);
	list_splice_init(&p->relay.list, &left);
	raw_spin_unlock(&p->lock);
	kbp_stock_take(&left);
}

/**
 * kbp_relay() - give a scheduled NAPI to the softirq of another CPU
 * @p: the poller of this CPU, which is stuck with BH off
 * @n: the instance; the caller set NAPI_STATE_SCHED and owns its poll_list
 *
 * Context: interrupts off, RCU reader.
 * Return: false if there is no other CPU, or it must stay on this one.
 */
bool kbp_relay(struct kbp_poller *p, struct napi_struct *n)
{
	LIST_HEAD(one);

	if (READ_ONCE(p->relay.cpu) >= nr_cpu_ids || kbp_is_bound(n))
		return false;
	list_add(&n->poll_list, &one);
	kbp_relay_list(p, &one);
	return true;
}

/* ---- to this CPU's softirq ---- */

/**
 * kbp_hand_over() - take everything that a poller has
 * @p: the poller
 * @to: a list of the caller's, who owns what is put there
 *
 * What may be polled on the poller's CPU only goes to p->home. What the thread
 * polls at this moment stays with it: a scheduled instance (p->cur) goes to
 * softirq when its poll is over, a held one is polled on, because then the
 * thread runs again.
 *
 * Context: p->lock held, interrupts off, any CPU. The loops are bounded by the
 * number of NAPI instances.
 */
static void kbp_hand_over(struct kbp_poller *p, struct list_head *to)
{
	struct napi_struct *n, *next;
	u64 now_ns = ktime_get_ns();
	unsigned int count = 0;
	enum kbp_poll_class list;
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (!kbp_unhold(a))
			continue;
		list_add_tail(&a->napi->poll_list, to);
		count++;
	}
	rcu_read_unlock();
	for (list = 0; list < KBP_POLL_CLASSES; list++) {
		list_for_each_entry_safe(n, next, &p->todo[list], poll_list) {
			/* So far it has waited for us. */
			kbp_take(p, n, list, now_ns);
			list_add_tail(&n->poll_list,
				      kbp_is_bound(n) ? &p->home : to);
			count++;
		}
	}
	kbp_count(&p->stats, handed_napis, count);
	if (count)
		trace_kbp_handback(p->config.cpu, count);
}

/* What belongs to this CPU, which is @p's, to its softirq. Interrupts off. */
static void kbp_come_home(struct kbp_poller *p)
{
	LIST_HEAD(home);

	raw_spin_lock(&p->lock);
	list_splice_init(&p->home, &home);
	raw_spin_unlock(&p->lock);
	kbp_stock_take(&home);
}

/* On the poller's CPU, or if that has gone, on any; interrupts off. */
static void kbp_drain_here(void *data)
{
	struct kbp_poller *p = data;
	LIST_HEAD(back);

	raw_spin_lock(&p->lock);
	kbp_hand_over(p, &back);
	raw_spin_unlock(&p->lock);
	kbp_stock_take(&back);
	kbp_come_home(p);
}

static long kbp_drain_call(void *data)
{
	/* So that the softirq runs here, and not in ksoftirqd. */
	local_bh_disable();
	local_irq_disable();
	kbp_drain_here(data);
	local_irq_enable();
	local_bh_enable();
	return 0;
}

/**
 * kbp_drain() - give what a poller has to the softirq of its CPU
 * @p: the poller
 *
 * Context: thread; may sleep.
 */
void kbp_drain(struct kbp_poller *p)
{
	unsigned int cpu = p->config.cpu;

	if (cpu == raw_smp_processor_id() || !cpu_online(cpu))
		kbp_drain_call(p);
	/* PREEMPT_RT: as in kbp_relay_send(). */
	else if (IS_ENABLED(CONFIG_PREEMPT_RT))
		work_on_cpu(cpu, kbp_drain_call, p);
	else if (smp_call_function_single(cpu, kbp_drain_here, p, 1))
		kbp_drain_call(p);
}

/*
 * The poller is stuck with BH off on this CPU: what its softirq has got
 * already would wait as long. The softirq itself is not at its list now. The
 * backlog must not leave its CPU.
 */
static void kbp_take_stuck(struct list_head *to)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct napi_struct *n, *next;

	list_for_each_entry_safe(n, next, &sd->poll_list, poll_list)
		if (n != &sd->backlog && !kbp_is_bound(n))
			list_move_tail(&n->poll_list, to);
}

/* ---- the watchdog ---- */

/* Between two looks. */
static u64 kbp_watchdog_period_ns(const struct kbp_poller *p)
{
	return (u64)p->config.watchdog_ms * NSEC_PER_MSEC / 2;
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
		      ns_to_ktime(kbp_watchdog_period_ns(p)),
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/*
 * An oops has ended the thread, perhaps in the middle of a poll: what it was
 * polling is lost to us, because nobody knows what state the driver is in. (It was
 * freeing what was sent, perhaps: that is not told apart.)
 * Under p->lock.
 */
static void kbp_bury(struct kbp_poller *p)
{
	struct kbp_napi *a;

	p->state = KBP_STATE_DEAD;
	p->cur = NULL;
	/* The task's count went with it; but not the lock that RT has for it. */
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		WRITE_ONCE(p->bh_off, false);
	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		if (cmpxchg(&a->hold, KBP_HOLD_POLLING, KBP_HOLD_FREE) ==
		    KBP_HOLD_POLLING)
			pr_err("kbp: the poller of CPU %u died in a poll of %s\n",
			       p->config.cpu, a->dev->name);
	}
	rcu_read_unlock();
}

/**
 * kbp_look_for_death() - has the thread been ended by an oops?
 * @p: the poller, which is about to be stopped
 *
 * Context: kbp_mutex held.
 */
void kbp_look_for_death(struct kbp_poller *p)
{
	raw_spin_lock_irq(&p->lock);
	if (p->state != KBP_STATE_DEAD && READ_ONCE(p->task->exit_state))
		kbp_bury(p);
	raw_spin_unlock_irq(&p->lock);
}

/*
 * The poller does not come round. Under p->lock.
 *
 * Return: whether that is news.
 */
static bool kbp_relieve(struct kbp_poller *p, struct list_head *back)
{
	enum kbp_state before = p->state;

	if (READ_ONCE(p->task->exit_state))
		kbp_bury(p);
	else
		p->state = KBP_STATE_HANDED_BACK;
	p->stale = 0;
	if (p->state != before)
		kbp_count(&p->stats, handbacks, 1);
	/* Pairs with kbp_bh_disable() and kbp_bh_enable(). */
	if (READ_ONCE(p->bh_off)) {
		WRITE_ONCE(p->relay.cpu, kbp_relay_cpu(p));
		WRITE_ONCE(p->stuck, true);
	}
	kbp_hand_over(p, back);
	return p->state != before;
}

/* The same on the poller's own CPU, as an interrupt. */
static void kbp_relieve_ipi(void *data)
{
	struct kbp_poller *p = data;
	LIST_HEAD(stuck);

	kbp_backlog_give_back(p);
	kbp_come_home(p);
	if (!READ_ONCE(p->stuck) || READ_ONCE(p->relay.cpu) >= nr_cpu_ids)
		return;
	kbp_take_stuck(&stuck);
	if (!list_empty(&stuck))
		kbp_relay_list(p, &stuck);
}

/* What a relieved poller had goes on elsewhere. Interrupts off, any CPU. */
static void kbp_go_on(struct kbp_poller *p, struct list_head *back)
{
	/* Here, or if that is where it is stuck, from here by the call below. */
	kbp_stock_take(back);
	/* -EBUSY: it is on its way already. */
	smp_call_function_single_async(p->config.cpu, &p->relieve_csd);
}

/*
 * Where interrupts are handled by threads, none of those gets on while the
 * poller keeps softirqs off, so that a device that is attached could not ask
 * for a poll: it gets one at each tick. Under p->lock.
 */
static void kbp_sweep(struct kbp_poller *p, struct list_head *back)
{
	struct napi_struct *n;
	struct kbp_napi *a;

	rcu_read_lock();
	list_for_each_entry_rcu(a, &p->napis, link) {
		n = READ_ONCE(a->napi);
		if (n && kbp_dev_works(a->dev) && kbp_napi_listed(a->dev, n) &&
		    !kbp_has_thread(n) && napi_schedule_prep(n))
			list_add_tail(&n->poll_list, back);
	}
	rcu_read_unlock();
}

/*
 * Has the watchdog to go on? A relieved poller may come round far enough to have
 * something again, and then be kept from the CPU. Under p->lock.
 */
static bool kbp_is_watched(const struct kbp_poller *p)
{
	if (READ_ONCE(p->stuck))
		return true;
	if (kbp_is_relieved(p))
		return kbp_has_work(p);
	/* An armed backlog wakes the thread without a word to us. */
	return p->wake != KBP_WAKE_ANY ||
	       READ_ONCE(p->backlog.hold) != KBP_BACKLOG_STOCK;
}

/**
 * kbp_watchdog_rest() - nobody to watch over: the poller sleeps until a packet comes
 * @p: the poller
 *
 * The watchdog would see that for itself, but wake an idle CPU for it. Where sleeps
 * are short it goes on, because one that stays costs a packet less than one that is
 * stopped and started. A single silence is enough to stop it.
 *
 * Context: p->lock held, interrupts off, the poller's thread.
 */
void kbp_watchdog_rest(struct kbp_poller *p)
{
	if (!p->watchdog_on || kbp_is_watched(p) ||
	    p->usual_ns < kbp_watchdog_period_ns(p))
		return;
	/* Below 0: it runs on another CPU, and sees for itself. */
	if (hrtimer_try_to_cancel(&p->watchdog) >= 0)
		p->watchdog_on = false;
}

/**
 * kbp_watchdog_learn() - a sleep has ended
 * @p: the poller, whose thread calls
 * @slept_ns: how long it took
 */
void kbp_watchdog_learn(struct kbp_poller *p, u64 slept_ns)
{
	/* So that traffic after a silence is soon seen as such. */
	slept_ns = min(slept_ns, kbp_watchdog_period_ns(p) * KBP_SLEEPS_MEAN);
	p->usual_ns -= p->usual_ns / KBP_SLEEPS_MEAN;
	p->usual_ns += slept_ns / KBP_SLEEPS_MEAN;
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
	bool go_on = false, news = false;
	LIST_HEAD(back);

	raw_spin_lock(&p->lock);
	if (beat != p->beat_seen || !kbp_has_work(p)) {
		p->beat_seen = beat;
		p->stale = 0;
	} else if (++p->stale >= 2 && !p->closing) {
		news = kbp_relieve(p, &back);
		go_on = true;
	}
	if (READ_ONCE(p->stuck))
		kbp_sweep(p, &back);
	if (p->closing || !kbp_is_watched(p)) {
		p->watchdog_on = false;
		ret = HRTIMER_NORESTART;
	}
	raw_spin_unlock(&p->lock);

	if (go_on || !list_empty(&back))
		kbp_go_on(p, &back);
	if (news)
		kbp_poller_event(p, READ_ONCE(p->state) == KBP_STATE_DEAD ?
				    KBP_EVENT_DIED : KBP_EVENT_HANDED_BACK);
	if (ret == HRTIMER_RESTART)
		hrtimer_forward_now(timer,
				    ns_to_ktime(kbp_watchdog_period_ns(p)));
	return ret;
}

void kbp_handback_init(struct kbp_poller *p)
{
	INIT_LIST_HEAD(&p->home);
	INIT_LIST_HEAD(&p->relay.list);
	INIT_CSD(&p->relay.csd, kbp_relay_arrive, p);
	INIT_WORK(&p->relay.work, kbp_relay_work);
	INIT_CSD(&p->relieve_csd, kbp_relieve_ipi, p);
	p->relay.cpu = nr_cpu_ids;
	hrtimer_setup(&p->watchdog, kbp_watchdog, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

static void kbp_csd_wait(const call_single_data_t *csd)
{
	while (READ_ONCE(csd->node.u_flags) & CSD_FLAG_LOCK)
		usleep_range(50, 100);
}

/**
 * kbp_handback_exit() - wait for interrupts that are on their way
 * @p: the poller, whose thread and watchdog have ended and which nobody finds
 *
 * Context: may sleep.
 */
void kbp_handback_exit(struct kbp_poller *p)
{
	/* In this order: the first may start the second. */
	kbp_csd_wait(&p->relieve_csd);
	/* The flag is cleared just before the function runs. */
	synchronize_rcu();
	kbp_csd_wait(&p->relay.csd);
	flush_work(&p->relay.work);
	synchronize_rcu();
}
