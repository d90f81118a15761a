// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is replaced in the kernel, and by what.
 *
 * Every function here that the table names holds an inlined copy of
 * ____napi_schedule() (net/core/dev.c): it decides who polls a NAPI instance.
 * The replacement asks whether a poller wants the instance; if not it does
 * what the original does. Of the other copies enqueue_to_backlog,
 * rps_trigger_softirq and kick_defer_list_purge only ever schedule a CPU's own
 * backlog, whose state a poller keeps such that they don't get there, or wake
 * it (backlog.c); dev_cpu_dead moves what a dead CPU had left, and a poller goes
 * before its CPU does (hotplug.c). lab/napi-copies.toml has them by kernel.
 *
 * Context: interrupts off, mostly hardIRQ. Only replacements and the stock
 * path they reproduce live here.
 */
#include <linux/interrupt.h>
#include <linux/livepatch.h>
#include <linux/module.h>

#include "kbp.h"

/* May pollers exist? Written under kbp_mutex. */
static bool kbp_open;

/* Another live patch has what we replace, and we have stepped aside. */
static bool kbp_aside;

/* Is it out without our being asked? Another live patch may replace all. */
static bool kbp_was_replaced(void)
{
	return READ_ONCE(kbp_open) && !READ_ONCE(kbp_patch.enabled);
}

/* Put a NAPI on this CPU's softirq list; the caller raises NET_RX. */
void kbp_stock_add(struct softnet_data *sd, struct napi_struct *n)
{
	list_add_tail(&n->poll_list, &sd->poll_list);
	kbp_list_owner_set(n, smp_processor_id());
}

/**
 * kbp_stock_take() - give NAPI instances to this CPU's softirq
 * @list: instances that the caller owns, by poll_list; empty afterwards
 *
 * Context: interrupts off.
 */
void kbp_stock_take(struct list_head *list)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct napi_struct *n, *next;

	if (list_empty(list))
		return;
	list_for_each_entry_safe(n, next, list, poll_list) {
		list_del_init(&n->poll_list);
		kbp_stock_add(sd, n);
	}
	kbp_stock_raise();
}

/* Make this CPU's softirq look at its list. Interrupts off. */
void kbp_stock_raise(void)
{
	if (kbp_net_rx_needs_raise(this_cpu_ptr(&softnet_data)))
		raise_softirq_irqoff(NET_RX_SOFTIRQ);
}

/* Is @thread the poller of this CPU? Interrupts off. */
static bool kbp_is_poller(const struct task_struct *thread)
{
	const struct kbp_poller *p;
	bool is;

	rcu_read_lock();
	p = rcu_dereference(*this_cpu_ptr(&kbp_poller));
	is = p && p->task == thread;
	rcu_read_unlock();
	return is;
}

/* The thread that is to poll @n; NULL if that is softirq's work. */
static struct task_struct *kbp_stock_thread(struct softnet_data *sd,
					    struct napi_struct *n)
{
	struct task_struct *thread;

	if (!test_bit(NAPI_STATE_THREADED, &n->state))
		return NULL;
	/* Pairs with smp_mb__before_atomic() in dev_set_threaded(). */
	thread = READ_ONCE(n->thread);
	/*
	 * A CPU that schedules its own backlog does so in softirq even where
	 * backlog threads are configured; our poller is woken (backlog.c).
	 */
	return n != &sd->backlog || kbp_is_poller(thread) ? thread : NULL;
}

/* ____napi_schedule() as the kernel has it. Interrupts off. */
static void kbp_stock_schedule(struct napi_struct *n)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct task_struct *thread = kbp_stock_thread(sd, n);

	if (thread) {
		set_bit(NAPI_STATE_SCHED_THREADED, &n->state);
		wake_up_process(thread);
		return;
	}
	kbp_stock_add(sd, n);
	kbp_stock_raise();
}

static void kbp___napi_schedule(struct napi_struct *n)
{
	unsigned long flags;

	local_irq_save(flags);
	if (!kbp_enqueue(n))
		kbp_stock_schedule(n);
	local_irq_restore(flags);
}

static void kbp___napi_schedule_irqoff(struct napi_struct *n)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		kbp___napi_schedule(n);
		return;
	}
	if (!kbp_enqueue(n))
		kbp_stock_schedule(n);
}

static enum hrtimer_restart kbp_napi_watchdog(struct hrtimer *timer)
{
	struct napi_struct *n = container_of(timer, struct napi_struct, timer);

	/* Not napi_schedule_prep(): no device asked, so MISSED is not set. */
	if (!napi_disable_pending(n) &&
	    !test_and_set_bit(NAPI_STATE_SCHED, &n->state)) {
		clear_bit(NAPI_STATE_PREFER_BUSY_POLL, &n->state);
		kbp___napi_schedule_irqoff(n);
	}
	return HRTIMER_NORESTART;
}

/**
 * kbp_schedule() - schedule a NAPI instance as an interrupt would
 * @n: the instance; the caller set NAPI_STATE_SCHED
 */
void kbp_schedule(struct napi_struct *n)
{
	kbp___napi_schedule(n);
}

static struct klp_func kbp_funcs[] = {
	{ .old_name = "__napi_schedule", .new_func = kbp___napi_schedule },
	{ .old_name = "__napi_schedule_irqoff",
	  .new_func = kbp___napi_schedule_irqoff },
	{ .old_name = "napi_watchdog", .new_func = kbp_napi_watchdog },
	{ }
};

/* The first moment at which no other live patch can come in between. */
static int kbp_pre_patch(struct klp_object *obj)
{
	return kbp_conflict_check();
}

/* Every task has gone over to the replacements: pollers may be made. */
static void kbp_post_patch(struct klp_object *obj)
{
	mutex_lock(&kbp_mutex);
	kbp_open = true;
	mutex_unlock(&kbp_mutex);
}

/* Before the first task goes back, everything is softirq's again. */
static void kbp_pre_unpatch(struct klp_object *obj)
{
	kbp_close();
}

static struct klp_object kbp_objs[] = {
	{
		/* name NULL: the kernel itself */
		.funcs = kbp_funcs,
		.callbacks = {
			.pre_patch = kbp_pre_patch,
			.post_patch = kbp_post_patch,
			.pre_unpatch = kbp_pre_unpatch,
		},
	},
	{ }
};

struct klp_patch kbp_patch = {
	.mod = THIS_MODULE,
	.objs = kbp_objs,
};

/**
 * kbp_is_open() - may pollers and attachments be made?
 *
 * Context: kbp_mutex held.
 * Return: false while the live patch is not, or not completely, in effect.
 */
bool kbp_is_open(void)
{
	return kbp_open && !kbp_is_aside();
}

/**
 * kbp_why_closed() - the sentence for who asks while it is not open
 */
const char *kbp_why_closed(void)
{
	if (!kbp_enable)
		return "the module does nothing, because of kbp.enable=0";
	if (kbp_is_aside())
		return "another live patch has replaced this one; unload the module and load it again";
	return "the live patch is still in transition, or being removed";
}

/**
 * kbp_replaces() - does our live patch replace a function of the kernel?
 * @function: its name
 */
bool kbp_replaces(const char *function)
{
	const struct klp_func *func;

	for (func = kbp_funcs; func->old_name; func++)
		if (!strcmp(func->old_name, function))
			return true;
	return false;
}

/**
 * kbp_close() - stop all pollers and refuse new ones
 *
 * Context: may sleep.
 */
void kbp_close(void)
{
	struct kbp_poller *p, *next;

	mutex_lock(&kbp_mutex);
	kbp_open = false;
	list_for_each_entry_safe(p, next, &kbp_pollers, link)
		kbp_poller_del(p);
	mutex_unlock(&kbp_mutex);
}

static void kbp_aside_work(struct work_struct *work)
{
	kbp_aside = true;
	kbp_close();
}

static DECLARE_WORK(kbp_aside_request, kbp_aside_work);

/**
 * kbp_step_aside() - give everything back, for good, and soon
 *
 * Context: any.
 */
void kbp_step_aside(void)
{
	queue_work(kbp_wq, &kbp_aside_request);
}

/**
 * kbp_is_aside() - has another live patch the kernel's schedule functions?
 */
bool kbp_is_aside(void)
{
	return READ_ONCE(kbp_aside) || kbp_was_replaced();
}

/**
 * kbp_look_for_replacement() - step aside if our live patch is out
 *
 * A live patch that replaces all others tells nobody. Context: a poller thread,
 * now and then.
 */
void kbp_look_for_replacement(void)
{
	if (likely(!kbp_was_replaced()))
		return;
	pr_warn_once("kbp: another live patch has replaced ours; softirq serves everything\n");
	kbp_step_aside();
}

MODULE_INFO(livepatch, "Y");
/* For `kbp check`: what the table above replaces. */
MODULE_INFO(kbp_replaces, "__napi_schedule");
MODULE_INFO(kbp_replaces, "__napi_schedule_irqoff");
MODULE_INFO(kbp_replaces, "napi_watchdog");
