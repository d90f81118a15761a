// SPDX-License-Identifier: GPL-2.0-only
/*
 * The poller thread of a CPU: when it polls, rests and sleeps; how it comes
 * and goes.
 *
 * Owns struct kbp_poller and the list of all pollers (kbp_mutex). The thread
 * is bound to its CPU; what it does next is decided in policy.c, how it polls
 * is in round.c.
 */
#include <linux/kernel_stat.h>
#include <linux/kthread.h>
#include <linux/livepatch.h>
#include <linux/rtnetlink.h>
#include <linux/sched/stat.h>
#include <linux/slab.h>
#include <uapi/linux/sched/types.h>

#include "kbp.h"

/* Empty rounds between two looks at the clock, RCU and live patching. */
#define KBP_SPINS_MAX		16

DEFINE_MUTEX(kbp_mutex);
LIST_HEAD(kbp_pollers);

static void kbp_set_state(struct kbp_poller *p, enum kbp_state state)
{
	raw_spin_lock_irq(&p->lock);
	if (!kbp_is_relieved(p))
		p->state = state;
	raw_spin_unlock_irq(&p->lock);
}

/* Have the next packet for the backlog wake the thread, where it may. */
static bool kbp_may_rest(struct kbp_poller *p, enum kbp_waker wake)
{
	if (wake == KBP_WAKE_NONE ||
	    (wake == KBP_WAKE_RT &&
	     !kbp_backlog_is_attached(p)))
		return true;
	return kbp_backlog_arm(p);
}

/* It slept: how long did it take to wake it, by a packet or at @end_ns? */
static void kbp_learn_wake(struct kbp_poller *p, u64 now_ns, u64 end_ns)
{
	/* Written before the wake-up that we come from. */
	if (p->woken_ns)
		kbp_wake_learn(&p->wake_cost, now_ns - p->woken_ns);
	else if (end_ns && now_ns >= end_ns)
		kbp_wake_learn_timed(&p->wake_cost, p->ahead_ns,
				     now_ns - end_ns);
}

/*
 * Sleep until woken by what @wake names, or until @until_ns if it isn't 0.
 * Returns at once if what may wake it is there already, and does not sleep
 * without an end when the watchdog has relieved it: no packet would wake it.
 *
 * No wake-up is lost. Who schedules an instance adds it to the list and asks for
 * p->wake under p->lock; here both are looked at and set under the same lock,
 * together with the task's state. So either we see the instance and don't sleep,
 * or it is added later, and then wake_up_process() finds p->wake and a task that
 * is no longer TASK_RUNNING, and takes it off its way to sleep.
 * kmod/tests/wake_model_test.py goes through every order of these steps.
 */
static bool kbp_sleep(struct kbp_poller *p, enum kbp_waker wake, u64 until_ns)
{
	/* Not a rest or a nap, which end in any case and soon. */
	bool idle = wake == KBP_WAKE_ANY && !p->resting;
	ktime_t until = ns_to_ktime(until_ns);
	bool pending = !kbp_may_rest(p, wake);
	bool late = until_ns && ktime_get_ns() >= until_ns;
	bool slept = false;

	raw_spin_lock_irq(&p->lock);
	pending = pending ||
		  (wake != KBP_WAKE_NONE &&
		   !list_empty(&p->todo[KBP_POLL_CLASS_RT])) ||
		  (wake == KBP_WAKE_ANY &&
		   !list_empty(&p->todo[KBP_POLL_CLASS_NORMAL])) ||
		  (idle && kbp_is_relieved(p));
	if (!pending) {
		p->wake = wake;
		p->woken_ns = 0;
		if (idle)
			kbp_watchdog_rest(p);
		/* Pairs with wake_up_process() in kbp_poller_enqueue(). */
		set_current_state(TASK_IDLE);
	}
	raw_spin_unlock_irq(&p->lock);
	/* The same pairing with who schedules an armed backlog. */
	pending = pending || (wake != KBP_WAKE_NONE &&
			      READ_ONCE(p->backlog.hold) == KBP_BACKLOG_ARMED &&
			      kbp_backlog_is_waiting(p)) ||
		  /*
		   * Pairs with wake_up_process() in kbp_backlog_set() and
		   * kbp_napi_bind().
		   */
		  (idle && (kbp_backlog_is_attached(p) || kbp_lacks(p)));

	if (!pending && !late && !kthread_should_stop()) {
		if (until_ns)
			schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
		else
			schedule();
		slept = true;
	}
	__set_current_state(TASK_RUNNING);

	raw_spin_lock_irq(&p->lock);
	p->wake = KBP_WAKE_NONE;
	raw_spin_unlock_irq(&p->lock);
	WRITE_ONCE(p->beat, p->beat + 1);
	return slept;
}

/* Serve what woke it, for KBP_REST_SERVE_NS_MAX and one more round; is it done? */
static bool kbp_rest_serve(struct kbp_poller *p, enum kbp_waker wake)
{
	u64 end_ns = ktime_get_ns() + KBP_REST_SERVE_NS_MAX;
	bool left;

	do {
		left = wake == KBP_WAKE_ANY ? kbp_round(p) :
					      kbp_round_rt(p);
		WRITE_ONCE(p->beat, p->beat + 1);
	} while (left && ktime_get_ns() < end_ns);
	return !left;
}

/*
 * Let others run for @rest_ns in all. Whoever has its interrupt wakes the poller by
 * a packet; it serves that and rests on. In a short rest only class rt does, class
 * normal waits for the end, and a FIFO poller goes on holding what it holds: it
 * looks at that often. A card whose interrupt is armed for a tenth of a millisecond
 * has one put off from before, which comes at once for nothing, and moderation
 * then keeps the next one back for longer than the rest.
 *
 * A flood of packets can't keep it from resting: how long it serves and how often it
 * wakes are bounded, after that it sleeps undisturbed (kbp_rest_sleep_ns()).
 *
 * Return: how long it slept, nanoseconds.
 */
static u64 kbp_yield(struct kbp_poller *p, u64 rest_ns)
{
	enum kbp_waker by = rest_ns > KBP_YIELD_NS_MAX ? KBP_WAKE_ANY :
						    KBP_WAKE_RT;
	struct kbp_rest rest = { .rest_ns = rest_ns };
	u64 begin_ns, woken_ns, sleep_ns;
	bool disturbed;

	p->resting = true;
	p->released = by == KBP_WAKE_ANY ||
		      p->config.policy != KBP_POLICY_FIFO;
	kbp_set_state(p, KBP_STATE_YIELDING);
	kbp_count(&p->stats, yields, 1);
	kbp_cstate_rest(p);
	begin_ns = ktime_get_ns();
	/* What comes while the interrupts are armed would end the first sleep at once. */
	rest.done = !kbp_round_rt(p) || kbp_rest_serve(p, by);
	rest.served_ns = ktime_get_ns() - begin_ns;

	while (!kthread_should_stop()) {
		rest.masked = kbp_holds_rt(p);
		sleep_ns = kbp_rest_sleep_ns(&rest, &disturbed);
		if (!sleep_ns)
			break;
		begin_ns = ktime_get_ns();
		kbp_sleep(p, disturbed ? by : KBP_WAKE_NONE,
			  begin_ns + sleep_ns);
		woken_ns = ktime_get_ns();
		rest.slept_ns += woken_ns - begin_ns;
		rest.done = kbp_rest_serve(p, by);
		rest.served_ns += ktime_get_ns() - woken_ns;
		rest.wakes += disturbed;
	}

	kbp_count(&p->stats, busy_ns, rest.served_ns);
	p->resting = false;
	p->released = false;
	kbp_set_state(p, KBP_STATE_POLLING);
	kbp_claim_all(p);
	p->due_ns = kbp_adaptive_wake(p, ktime_get_ns());
	return rest.slept_ns;
}

/* The earlier of two times of which 0 is none. */
static u64 kbp_earlier(u64 a_ns, u64 b_ns)
{
	return a_ns && b_ns ? min(a_ns, b_ns) : a_ns + b_ns;
}

/*
 * How may the CPU spend this sleep? Returns when to ask again, or 0. The frequency
 * comes last, so that all else is done at the high one where both change.
 */
static u64 kbp_ask(struct kbp_poller *p, u64 until_ns, bool goes_on)
{
	u64 deep_ns = kbp_cstate_sleep(p, until_ns, goes_on);

	return kbp_earlier(deep_ns, kbp_freq_sleep(p, until_ns, goes_on));
}

/*
 * Sleep until woken, or until @until_ns if that isn't 0. Where its CPU may be slow
 * or sleep deeply only later, it wakes up for that.
 *
 * Return: false if there was something to do already.
 */
static bool kbp_sleep_slowly(struct kbp_poller *p, u64 until_ns)
{
	u64 ask_ns = kbp_ask(p, until_ns, false);
	bool slept = false;

	while (ask_ns && (!until_ns || ask_ns < until_ns)) {
		slept |= kbp_sleep(p, KBP_WAKE_ANY, ask_ns);
		if (p->woken_ns || ktime_get_ns() < ask_ns)
			return slept;
		ask_ns = kbp_ask(p, until_ns, true);
	}
	slept |= kbp_sleep(p, KBP_WAKE_ANY, until_ns);
	return slept;
}

/* Nothing to poll, until @until_ns if that isn't 0. */
static void kbp_idle(struct kbp_poller *p, u64 until_ns)
{
	u64 begin_ns, now_ns;
	bool slept;

	kbp_set_state(p, KBP_STATE_IDLE);
	/* A backlog that is merely owned does not keep anybody awake. */
	kbp_backlog_leave(p);
	kbp_adaptive_think(p, until_ns);
	begin_ns = ktime_get_ns();
	slept = kbp_sleep_slowly(p, until_ns);
	kbp_freq_wake(p);
	kbp_cstate_wake(p);
	now_ns = ktime_get_ns();
	/* Of rests nothing is learned: they are taken for others, and end when they let them. */
	if (slept) {
		kbp_count(&p->stats, sleeps, 1);
		kbp_learn_wake(p, now_ns, until_ns);
		kbp_thrift_slept(&p->thrift, now_ns - begin_ns);
		kbp_watchdog_learn(p, now_ns - begin_ns);
	}
	p->due_ns = kbp_adaptive_wake(p, now_ns);
	kbp_set_state(p, KBP_STATE_POLLING);
}

static int kbp_set_scheduler(struct task_struct *task, bool fifo, u32 priority,
			     s32 nice)
{
	struct sched_attr attr = { .size = sizeof(attr) };

	if (fifo) {
		attr.sched_policy = SCHED_FIFO;
		attr.sched_priority = priority;
	} else {
		attr.sched_policy = SCHED_NORMAL;
		attr.sched_nice = nice;
	}
	return sched_setattr_nocheck(task, &attr);
}

/* FIFO while others compete for the CPU; see policy.h for why not always. */
static void kbp_follow_policy(struct kbp_poller *p, bool fifo)
{
	if (likely(fifo == p->fifo))
		return;
	p->fifo = fifo;
	WARN_ON_ONCE(kbp_set_scheduler(current, fifo, p->config.priority,
				       MIN_NICE));
}

/* Do what was decided; the time of a rest is not the poller's. */
static void kbp_do(struct kbp_poller *p, struct kbp_next next, bool work)
{
	u64 slept_ns = U64_MAX, now_ns;

	if (p->config.policy == KBP_POLICY_FIFO)
		kbp_follow_policy(p, next.fifo);
	switch (next.step) {
	case KBP_STEP_POLL:
		return;
	case KBP_STEP_NAP:
		kbp_count(&p->stats, naps, 1);
		kbp_cstate_rest(p);
		kbp_sleep(p, KBP_WAKE_NONE, ktime_get_ns() + next.rest_ns);
		break;
	case KBP_STEP_YIELD:
		if (work)
			kbp_count(&p->stats, forced_yields, 1);
		slept_ns = kbp_yield(p, next.rest_ns);
		break;
	case KBP_STEP_SLEEP:
		kbp_idle(p, next.until_ns);
		break;
	}
	now_ns = ktime_get_ns();
	if (next.step != KBP_STEP_SLEEP)
		kbp_thrift_rested(&p->thrift, now_ns - p->last_ns);
	p->last_ns = now_ns;
	kbp_duty_rested(&p->duty, now_ns, slept_ns);
}

/* See KBP_WAITER_NS. */
static void kbp_look_for_waiter(struct kbp_poller *p)
{
	u64 now_ns = ktime_get_ns();

	/* After a sleep nothing is known of the time between. */
	if (!rtnl_is_locked() || now_ns - p->looked_ns > KBP_LET_GO_NS)
		p->unlocked_ns = now_ns;
	p->looked_ns = now_ns;
	p->letting_go = kbp_lets_go(now_ns - p->unlocked_ns);
}

/* Once a tick: tell RCU that this thread, which never blocks, holds nothing. */
static void kbp_quiescent(struct kbp_poller *p)
{
	if (likely(p->last_qs == jiffies))
		return;
	p->last_qs = jiffies;
	preempt_disable();
	rcu_momentary_eqs();
	preempt_enable();
	cond_resched_tasks_rcu_qs();
	kbp_look_for_replacement();
	kbp_look_for_waiter(p);
	kbp_wake_forget(&p->wake_cost, TICK_NSEC);
	kbp_freq_tick(p);
	kbp_adaptive_tick(p);
	if (READ_ONCE(p->napis_count))
		kbp_napi_look();
}

/* It runs again after the watchdog relieved it: take everything back. */
static void kbp_resume(struct kbp_poller *p)
{
	raw_spin_lock_irq(&p->lock);
	p->state = KBP_STATE_POLLING;
	WRITE_ONCE(p->stuck, false);
	/* It stopped when it relieved us, and a held backlog starts nothing. */
	kbp_watchdog_start(p);
	raw_spin_unlock_irq(&p->lock);
	kbp_thrift_spoil(&p->thrift);
	kbp_poller_event(p, KBP_EVENT_RESUMED);
	kbp_claim_all(p);
}

static void kbp_look(struct kbp_poller *p, bool work, struct kbp_view *view)
{
	view->now_ns = ktime_get_ns();
	p->due_ns = kbp_adaptive_wake(p, view->now_ns);
	view->due_ns = p->due_ns;
	p->lacking = kbp_lacks(p);
	view->holds = kbp_holds(p) || kbp_backlog_is_attached(p) || p->lacking;
	/* Who waits for interrupts has to look again only at what they have added. */
	view->work = (work && view->holds) || kbp_backlog_has_packets(p) ||
		     kbp_has_scheduled(p);
	view->alone = single_task_running();
	view->fifo = p->config.policy == KBP_POLICY_FIFO;
	view->irq_threads = IS_ENABLED(CONFIG_PREEMPT_RT);
	view->patching = klp_patch_pending(current);
	kbp_count(&p->stats, busy_ns,
		  view->now_ns - p->last_ns - kbp_halt_take(p));
	p->last_ns = view->now_ns;
}

/*
 * PREEMPT_RT: an interrupt has come, and its thread has our priority and waits for us.
 * It has its turn here, between two rounds. On most kernels it could not do more if it
 * ran at once: it would wait for BH, lend us its priority, and be switched to twice.
 */
static void kbp_let_interrupts(struct kbp_poller *p)
{
	unsigned long irqs;

	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		return;
	irqs = this_cpu_read(kstat.irqs_sum);
	if (likely(irqs == p->irqs_seen))
		return;
	p->irqs_seen = irqs;
	if (p->fifo)
		yield();
}

/*
 * Between two looks at an empty ring: leave the core to its other hardware thread, or
 * the host's CPU to other virtual ones. After packets once, for those whom they woke: on
 * the lab's clock PAUSE ends a CPU's turn. Not where more of class normal waits.
 */
static void kbp_pause(struct kbp_poller *p, bool work)
{
	unsigned int i, times = kbp_relax;

	if (!work && kbp_halt(p))
		return;
	if (work)
		times = list_empty(&p->todo[KBP_POLL_CLASS_NORMAL]) ?
			min(kbp_relax, 1U) : 0;
	for (i = 0; i < times; i++)
		cpu_relax();
}

/*
 * Nothing has changed since the last look: no packet, nobody else on this CPU,
 * nothing that is due at a set time, and still something that keeps it from
 * sleeping. Then the next round follows at once; every KBP_SPINS_MAX rounds we
 * look all the same.
 */
static bool kbp_may_spin(struct kbp_poller *p, bool work)
{
	return !work && p->wakeful && !p->due_ns &&
	       (++p->spins % KBP_SPINS_MAX) && !need_resched() && single_task_running() &&
	       READ_ONCE(p->state) == KBP_STATE_POLLING;
}

/*
 * The thread ends. If nobody of us told it to, that is a bug, and everything
 * goes back to softirq now instead of when the watchdog sees it.
 */
static void kbp_ended(struct kbp_poller *p)
{
	bool died;

	raw_spin_lock_irq(&p->lock);
	died = !p->closing;
	if (died)
		p->state = KBP_STATE_DEAD;
	raw_spin_unlock_irq(&p->lock);
	if (!died)
		return;
	kbp_drain(p);
	kbp_backlog_leave(p);
	kbp_poller_event(p, KBP_EVENT_DIED);
}

static int kbp_thread(void *data)
{
	struct kbp_poller *p = data;
	struct kbp_view view;
	bool work;

	p->last_ns = ktime_get_ns();
	kbp_halt_take(p);
	p->duty.last_ns = p->last_ns;
	p->looked_ns = p->last_ns;
	p->unlocked_ns = p->last_ns;
	while (!kthread_should_stop()) {
		if (unlikely(READ_ONCE(p->state) == KBP_STATE_HANDED_BACK))
			kbp_resume(p);
		do {
			work = kbp_round(p);
			WRITE_ONCE(p->beat, p->beat + 1);
			kbp_let_interrupts(p);
			if (unlikely(p->lacking) && !p->letting_go)
				kbp_claim_all(p);
			if (!work)
				kbp_count(&p->stats, empty_rounds, 1);
			kbp_pause(p, work);
		} while (kbp_may_spin(p, work));
		kbp_quiescent(p);
		cond_resched();
		kbp_look(p, work, &view);
		kbp_do(p, kbp_duty_next(&p->duty, &view), view.work);
	}
	kbp_ended(p);
	return 0;
}

static void kbp_event_work(struct work_struct *work)
{
	struct kbp_poller *p = container_of(work, struct kbp_poller, event_work);
	enum kbp_event event;

	for (event = 0; event <= KBP_EVENT_MAX; event++)
		if (test_and_clear_bit(event, &p->events)) {
			/* Handed back or resumed, it sends an event of it. */
			kbp_freq_relieve(p, kbp_is_relieved(p));
			if (READ_ONCE(p->state) == KBP_STATE_DEAD)
				kbp_cstate_stop(p);
			kbp_notify_poller(p, event);
		}
}

/**
 * kbp_poller_event() - tell user space what happened to a poller
 * @p: the poller
 * @event: what happened
 *
 * Context: any, hardIRQs included; the message is sent from a worker.
 */
void kbp_poller_event(struct kbp_poller *p, enum kbp_event event)
{
	set_bit(event, &p->events);
	queue_work(kbp_wq, &p->event_work);
}

/**
 * kbp_poller_find() - the poller of a CPU
 * @cpu: the CPU
 *
 * Context: kbp_mutex held.
 * Return: the poller, or NULL.
 */
struct kbp_poller *kbp_poller_find(u32 cpu)
{
	struct kbp_poller *p;

	list_for_each_entry(p, &kbp_pollers, link)
		if (p->config.cpu == cpu)
			return p;
	return NULL;
}

static struct kbp_poller *kbp_poller_alloc(const struct kbp_poller_config *config)
{
	struct kbp_poller *p = kzalloc(sizeof(*p), GFP_KERNEL);
	enum kbp_poll_class list;

	if (!p)
		return NULL;
	raw_spin_lock_init(&p->lock);
	for (list = 0; list < KBP_POLL_CLASSES; list++)
		INIT_LIST_HEAD(&p->todo[list]);
	INIT_LIST_HEAD(&p->napis);
	u64_stats_init(&p->stats.syncp);
	INIT_WORK(&p->event_work, kbp_event_work);
	p->config = *config;
	p->backlog.wanted = config->backlog;
	kbp_handback_init(p);
	kbp_halt_init(p);
	return p;
}

/**
 * kbp_poller_start() - give a poller its thread
 * @p: the poller, new, or stopped by kbp_poller_stop()
 *
 * Context: cpus_read_lock and kbp_mutex held; its CPU is online.
 * Return: 0 or a negative errno; then nothing has changed.
 */
int kbp_poller_start(struct kbp_poller *p)
{
	const struct kbp_poller_config *config = &p->config;
	struct task_struct *task;
	int err;

	task = kthread_create_on_cpu(kbp_thread, p, config->cpu, "kbp/%u");
	if (IS_ERR(task))
		return PTR_ERR(task);
	/* It stays while its CPU goes, until kbp_cpu_down() has stopped it. */
	kthread_set_per_cpu(task, config->cpu);
	p->fifo = config->policy == KBP_POLICY_FIFO;
	err = kbp_set_scheduler(task, p->fifo, config->priority, config->nice);
	if (err) {
		kthread_stop(task);
		return err;
	}
	/* Outlives the thread, which may end before it is told to. */
	p->task = get_task_struct(task);
	memset(&p->duty, 0, sizeof(p->duty));
	kbp_freq_start(p);
	kbp_cstate_start(p);
	raw_spin_lock_irq(&p->lock);
	p->closing = false;
	p->state = KBP_STATE_POLLING;
	raw_spin_unlock_irq(&p->lock);
	rcu_assign_pointer(per_cpu(kbp_poller, config->cpu), p);
	kbp_engage_update();
	wake_up_process(p->task);
	return 0;
}

/* Wait for the thread's end. One that has ended by itself can't be told to. */
static void kbp_thread_join(struct kbp_poller *p)
{
	if (READ_ONCE(p->state) != KBP_STATE_DEAD) {
		kthread_stop(p->task);
		return;
	}
	while (!READ_ONCE(p->task->exit_state))
		usleep_range(1000, 2000);
}

/**
 * kbp_poller_stop() - end a poller's thread; everything it served is softirq's
 * @p: the poller; what is attached to it stays so, without being served
 *
 * Context: kbp_mutex held, may sleep.
 */
void kbp_poller_stop(struct kbp_poller *p)
{
	struct kbp_napi *a;

	if (!p->task)
		return;
	kbp_look_for_death(p);
	list_for_each_entry(a, &p->napis, link)
		kbp_napi_leave(a);
	raw_spin_lock_irq(&p->lock);
	p->closing = true;
	raw_spin_unlock_irq(&p->lock);
	/* At once: the thread may not run before a good while has passed. */
	kbp_backlog_recall(p);
	RCU_INIT_POINTER(per_cpu(kbp_poller, p->config.cpu), NULL);
	kbp_engage_update();
	/* Pairs with rcu_read_lock() in kbp_enqueue(): nobody adds from now on. */
	synchronize_rcu();
	kbp_drain(p);

	kbp_thread_join(p);
	hrtimer_cancel(&p->watchdog);
	kbp_halt_exit(p);
	/* It describes the thread. */
	flush_work(&p->event_work);
	kbp_backlog_recall(p);
	kbp_freq_stop(p);
	kbp_cstate_stop(p);
	kbp_handback_exit(p);
	put_task_struct(p->task);
	p->task = NULL;
	kbp_drain(p);
	kbp_engage_update();
	/* Nobody else is left who writes these. */
	p->watchdog_on = false;
	p->wake = KBP_WAKE_NONE;
	p->resting = false;
	p->released = false;
	p->stuck = false;
	p->state = KBP_STATE_OFFLINE;
}

/**
 * kbp_poller_new() - create and start the poller of a CPU
 * @config: what was asked for, checked by the caller
 *
 * Context: cpus_read_lock and kbp_mutex held; the CPU is online and has none.
 * Return: 0 or a negative errno; then nothing has changed.
 */
int kbp_poller_new(const struct kbp_poller_config *config)
{
	struct kbp_poller *p = kbp_poller_alloc(config);
	int err;

	if (!p)
		return -ENOMEM;
	list_add_tail(&p->link, &kbp_pollers);
	err = kbp_poller_start(p);
	if (err) {
		list_del(&p->link);
		kfree(p);
		return err;
	}
	kbp_notify_poller(p, KBP_EVENT_ADDED);
	return 0;
}

/**
 * kbp_poller_del() - stop a poller; everything it served is softirq's again
 * @p: the poller; gone afterwards
 *
 * Context: kbp_mutex held, may sleep.
 */
void kbp_poller_del(struct kbp_poller *p)
{
	struct kbp_napi *a, *next;

	kbp_poller_stop(p);
	list_for_each_entry_safe(a, next, &p->napis, link)
		kbp_napi_detach(a, KBP_EVENT_REMOVED);
	cancel_work_sync(&p->event_work);
	list_del(&p->link);
	kbp_notify_poller(p, KBP_EVENT_REMOVED);
	kfree(p);
}
