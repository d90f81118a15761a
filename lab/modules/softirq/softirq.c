// SPDX-License-Identifier: GPL-2.0-only
/*
 * Competing softirqs, for tests only: work of @length_ns in one softirq vector
 * of one CPU, @rate_hz times a second. NET_RX of that CPU waits for it.
 *
 * Loading starts it, unloading stops it. Vectors that a module may raise:
 *
 *   hi, tasklet   a tasklet, scheduled by a timer in hard interrupt context
 *   hrtimer       a timer that expires in HRTIMER_SOFTIRQ
 *   timer         an ordinary timer, so at most one expiry a tick; a rate that
 *                 does not divide HZ becomes the next lower one that does
 *
 * @raised counts the times at which the softirq was asked for, @ran those at
 * which its work was done, @missed the times that passed while the one before
 * still waited or worked. More than 80 % of the CPU is refused: what is tested
 * is who waits for this work, not a machine without time.
 */
#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/jiffies.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/smp.h>
#include <linux/timer.h>

#define SIRQ_NS_PER_S_MAX 800000000ULL
#define SIRQ_RATE_HZ_MAX 100000

static unsigned int cpu = 2;
module_param(cpu, uint, 0444);
MODULE_PARM_DESC(cpu, "CPU that the work is done on");
static char *vector = "tasklet";
module_param(vector, charp, 0444);
MODULE_PARM_DESC(vector, "softirq vector: hi, tasklet, hrtimer or timer");
static unsigned int rate_hz = 500;
module_param(rate_hz, uint, 0444);
MODULE_PARM_DESC(rate_hz, "how often a second");
static unsigned int length_ns = 400000;
module_param(length_ns, uint, 0444);
MODULE_PARM_DESC(length_ns, "length of the work, nanoseconds");

/* What was done so far; written on @cpu only. */
static unsigned long raised;
module_param(raised, ulong, 0444);
static unsigned long ran;
module_param(ran, ulong, 0444);
static unsigned long missed;
module_param(missed, ulong, 0444);

#ifdef SIRQ_OLD_HRTIMER
static void hrtimer_setup(struct hrtimer *timer,
			  enum hrtimer_restart (*fn)(struct hrtimer *),
			  clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = fn;
}
#endif
#ifdef SIRQ_OLD_TIMER
#define timer_delete_sync(timer) del_timer_sync(timer)
#endif

/* How a vector is started on its CPU, and ended. */
struct sirq_vector {
	const char *name;
	void (*start)(void *unused);
	void (*end)(void);
};

static struct tasklet_struct sirq_tasklet;
static struct hrtimer sirq_hrtimer;
static struct timer_list sirq_timer;
static void (*sirq_schedule)(struct tasklet_struct *tasklet);
static const struct sirq_vector *sirq_active;

/* PAUSE gives up the turn of a virtual CPU, see docs/reference/lab.md. */
static void sirq_work(void)
{
	u64 end = ktime_get_ns() + length_ns;

	while (ktime_get_ns() < end)
		cpu_relax();
	ran++;
}

static ktime_t sirq_period(void)
{
	return ns_to_ktime(NSEC_PER_SEC / rate_hz);
}

/* Sets the timer to its next time; those that passed meanwhile are missed. */
static enum hrtimer_restart sirq_again(struct hrtimer *timer)
{
	u64 periods = hrtimer_forward_now(timer, sirq_period());

	if (periods > 1)
		missed += periods - 1;
	return HRTIMER_RESTART;
}

static void sirq_tasklet_fn(struct tasklet_struct *tasklet)
{
	sirq_work();
}

static enum hrtimer_restart sirq_raise(struct hrtimer *timer)
{
	/* Only this CPU schedules it, so the bit can't appear meanwhile. */
	if (test_bit(TASKLET_STATE_SCHED, &sirq_tasklet.state)) {
		missed++;
	} else {
		raised++;
		sirq_schedule(&sirq_tasklet);
	}
	return sirq_again(timer);
}

static void sirq_start_tasklet(void *unused)
{
	hrtimer_setup(&sirq_hrtimer, sirq_raise, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
	hrtimer_start(&sirq_hrtimer, sirq_period(),
		      HRTIMER_MODE_REL_PINNED_HARD);
}

static void sirq_end_tasklet(void)
{
	hrtimer_cancel(&sirq_hrtimer);
	tasklet_kill(&sirq_tasklet);
}

static enum hrtimer_restart sirq_hrtimer_fn(struct hrtimer *timer)
{
	raised++;
	sirq_work();
	return sirq_again(timer);
}

static void sirq_start_hrtimer(void *unused)
{
	hrtimer_setup(&sirq_hrtimer, sirq_hrtimer_fn, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_SOFT);
	hrtimer_start(&sirq_hrtimer, sirq_period(),
		      HRTIMER_MODE_REL_PINNED_SOFT);
}

static void sirq_end_hrtimer(void)
{
	hrtimer_cancel(&sirq_hrtimer);
}

static unsigned long sirq_ticks(void)
{
	return DIV_ROUND_UP(HZ, rate_hz);
}

static void sirq_timer_fn(struct timer_list *timer)
{
	unsigned long next = timer->expires + sirq_ticks();

	raised++;
	sirq_work();
	while (time_before_eq(next, jiffies)) {
		missed++;
		next += sirq_ticks();
	}
	/* It is pinned, so it stays on this CPU. */
	mod_timer(timer, next);
}

static void sirq_start_timer(void *unused)
{
	timer_setup(&sirq_timer, sirq_timer_fn, TIMER_PINNED);
	sirq_timer.expires = jiffies + sirq_ticks();
	add_timer_on(&sirq_timer, cpu);
}

static void sirq_end_timer(void)
{
	timer_delete_sync(&sirq_timer);
}

static const struct sirq_vector sirq_vectors[] = {
	{ "hi", sirq_start_tasklet, sirq_end_tasklet },
	{ "tasklet", sirq_start_tasklet, sirq_end_tasklet },
	{ "hrtimer", sirq_start_hrtimer, sirq_end_hrtimer },
	{ "timer", sirq_start_timer, sirq_end_timer },
};

static const struct sirq_vector *sirq_find(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sirq_vectors); i++) {
		if (sysfs_streq(name, sirq_vectors[i].name))
			return &sirq_vectors[i];
	}
	return NULL;
}

static bool sirq_rate_fits(void)
{
	unsigned int most = SIRQ_RATE_HZ_MAX;

	if (sirq_active->start == sirq_start_timer)
		most = HZ;
	if (!rate_hz || rate_hz > most || !length_ns) {
		pr_err("rate_hz must be 1 to %u for the vector %s, length_ns not 0\n",
		       most, sirq_active->name);
		return false;
	}
	if ((u64)rate_hz * length_ns > SIRQ_NS_PER_S_MAX) {
		pr_err("%u times %u ns a second is more than 80 %% of a CPU\n",
		       rate_hz, length_ns);
		return false;
	}
	return true;
}

static int __init sirq_init(void)
{
	sirq_active = sirq_find(vector);
	if (!sirq_active) {
		pr_err("vector must be hi, tasklet, hrtimer or timer\n");
		return -EINVAL;
	}
	if (cpu >= nr_cpu_ids || !cpu_online(cpu)) {
		pr_err("cpu must be online\n");
		return -EINVAL;
	}
	if (!sirq_rate_fits())
		return -EINVAL;

	tasklet_setup(&sirq_tasklet, sirq_tasklet_fn);
	sirq_schedule = sirq_active == &sirq_vectors[0] ?
			   tasklet_hi_schedule : tasklet_schedule;
	return smp_call_function_single(cpu, sirq_active->start, NULL, 1);
}

static void __exit sirq_exit(void)
{
	sirq_active->end();
}

module_init(sirq_init);
module_exit(sirq_exit);

MODULE_DESCRIPTION("Competing softirqs for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
