// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cpufreq driver for tests only: three frequencies that change nothing but
 * counters. The kernel's policies, governors and statistics above it are the
 * real ones, and each transition takes the time that it says it takes.
 *
 * Every policy has these files beside those of the kernel:
 *
 *   kbp_test_transitions    changes of the frequency through ->target_index()
 *   kbp_test_fast_switches  changes of the frequency through ->fast_switch()
 *   kbp_test_refused        requests that were refused, see @broken
 *   kbp_test_time_ns        lines of a frequency (kHz) and its time (ns)
 *
 * They begin at 0 when the module is loaded and go on over a CPU's being
 * offline. A request for the frequency that is there already is no change.
 *
 * Context: ->target_index() may sleep and has interrupts on, ->fast_switch() is
 * called by the scheduler and in interrupts. The lock of a state is innermost.
 */
#include <linux/cpu.h>
#include <linux/cpufreq.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>

#define TESTFREQ_LATENCY_US_MAX 1000000
/* No kernel has as many notifiers of transitions. */
#define TESTFREQ_NOTIFIERS_MAX 100
#define TESTFREQ_TSC_NOTIFIER "time_cpufreq_notifier"

static unsigned int latency_us = 20;
module_param(latency_us, uint, 0444);
MODULE_PARM_DESC(latency_us, "CPU time of a transition, microseconds; a fast switch takes none");
static bool fast;
module_param(fast, bool, 0444);
MODULE_PARM_DESC(fast, "offer fast switches");
static bool shared;
module_param(shared, bool, 0444);
MODULE_PARM_DESC(shared, "one policy for the CPUs 2n and 2n+1 (default: a policy for each CPU)");
static unsigned int broken;
module_param(broken, uint, 0444);
MODULE_PARM_DESC(broken, "from this transition of a policy on all are refused (0: none)");

static struct cpufreq_frequency_table testfreq_table[] = {
	{ .frequency = 800000 },
	{ .frequency = 1600000 },
	{ .frequency = 2400000 },
	{ .frequency = CPUFREQ_TABLE_END },
};
#define TESTFREQ_COUNT (ARRAY_SIZE(testfreq_table) - 1)

/* What a policy did; it belongs to the policy's first CPU. */
struct testfreq_state {
	raw_spinlock_t lock;
	unsigned int index;
	u64 since_ns;
	u64 time_ns[TESTFREQ_COUNT];
	unsigned long transitions;
	unsigned long fast_switches;
	unsigned long refused;
};

static DEFINE_PER_CPU(struct testfreq_state, testfreq_states);

static unsigned int testfreq_first_cpu(unsigned int cpu)
{
	return shared ? cpu & ~1U : cpu;
}

static struct testfreq_state *testfreq_state_of(unsigned int cpu)
{
	return &per_cpu(testfreq_states, testfreq_first_cpu(cpu));
}

/* PAUSE gives up the turn of a virtual CPU, see docs/reference/lab.md. */
static void testfreq_spin(void)
{
	u64 end = ktime_get_ns() + (u64)latency_us * NSEC_PER_USEC;

	while (ktime_get_ns() < end)
		cpu_relax();
}

/* Books the time at the frequency until now. */
static void testfreq_account(struct testfreq_state *state)
{
	u64 now = ktime_get_ns();

	lockdep_assert_held(&state->lock);
	state->time_ns[state->index] += now - state->since_ns;
	state->since_ns = now;
}

/* Changes the frequency and counts it, or refuses. */
static int testfreq_change(struct testfreq_state *state, unsigned int index, bool is_fast)
{
	unsigned long flags;
	int err = 0;

	raw_spin_lock_irqsave(&state->lock, flags);
	if (index == state->index)
		goto out;
	if (broken && state->transitions + state->fast_switches + 1 >= broken) {
		state->refused++;
		err = -EIO;
		goto out;
	}
	testfreq_account(state);
	state->index = index;
	if (is_fast)
		state->fast_switches++;
	else
		state->transitions++;
out:
	raw_spin_unlock_irqrestore(&state->lock, flags);
	return err;
}

static int testfreq_target_index(struct cpufreq_policy *policy, unsigned int index)
{
	testfreq_spin();
	return testfreq_change(testfreq_state_of(policy->cpu), index, false);
}

/* Returns the frequency that is there now, 0 when there was none to be had. */
static unsigned int testfreq_fast_switch(struct cpufreq_policy *policy, unsigned int target_khz)
{
	unsigned int index = 0;

	while (index < TESTFREQ_COUNT - 1 && testfreq_table[index].frequency < target_khz)
		index++;
	if (testfreq_change(testfreq_state_of(policy->cpu), index, true))
		return 0;
	return testfreq_table[index].frequency;
}

static unsigned int testfreq_get(unsigned int cpu)
{
	/* It may be old by the time it is used, so no lock makes it better. */
	return testfreq_table[READ_ONCE(testfreq_state_of(cpu)->index)].frequency;
}

static int testfreq_policy_init(struct cpufreq_policy *policy)
{
	unsigned int first = testfreq_first_cpu(policy->cpu);

	cpumask_set_cpu(first, policy->cpus);
	if (shared && first + 1 < nr_cpu_ids && cpu_present(first + 1))
		cpumask_set_cpu(first + 1, policy->cpus);
	policy->shared_type = CPUFREQ_SHARED_TYPE_ANY;
	policy->freq_table = testfreq_table;
	policy->cpuinfo.transition_latency = latency_us * NSEC_PER_USEC;
	policy->fast_switch_possible = fast;
	policy->dvfs_possible_from_any_cpu = true;
	return 0;
}

static ssize_t show_kbp_test_transitions(struct cpufreq_policy *policy, char *buf)
{
	return sysfs_emit(buf, "%lu\n", testfreq_state_of(policy->cpu)->transitions);
}
cpufreq_freq_attr_ro(kbp_test_transitions);

static ssize_t show_kbp_test_fast_switches(struct cpufreq_policy *policy, char *buf)
{
	return sysfs_emit(buf, "%lu\n", testfreq_state_of(policy->cpu)->fast_switches);
}
cpufreq_freq_attr_ro(kbp_test_fast_switches);

static ssize_t show_kbp_test_refused(struct cpufreq_policy *policy, char *buf)
{
	return sysfs_emit(buf, "%lu\n", testfreq_state_of(policy->cpu)->refused);
}
cpufreq_freq_attr_ro(kbp_test_refused);

static ssize_t show_kbp_test_time_ns(struct cpufreq_policy *policy, char *buf)
{
	struct testfreq_state *state = testfreq_state_of(policy->cpu);
	u64 time_ns[TESTFREQ_COUNT];
	unsigned long flags;
	unsigned int i;
	int n = 0;

	raw_spin_lock_irqsave(&state->lock, flags);
	testfreq_account(state);
	memcpy(time_ns, state->time_ns, sizeof(time_ns));
	raw_spin_unlock_irqrestore(&state->lock, flags);

	for (i = 0; i < TESTFREQ_COUNT; i++)
		n += sysfs_emit_at(buf, n, "%u %llu\n", testfreq_table[i].frequency, time_ns[i]);
	return n;
}
cpufreq_freq_attr_ro(kbp_test_time_ns);

static struct freq_attr *testfreq_attr[] = {
#ifdef TESTFREQ_LIST
	&cpufreq_freq_attr_scaling_available_freqs,
#endif
	&kbp_test_transitions,
	&kbp_test_fast_switches,
	&kbp_test_refused,
	&kbp_test_time_ns,
	NULL
};

static struct cpufreq_driver testfreq_driver = {
	.name = "kbp_testfreq",
	.flags = CPUFREQ_CONST_LOOPS,
	.init = testfreq_policy_init,
	.verify = cpufreq_generic_frequency_table_verify,
	.target_index = testfreq_target_index,
	.get = testfreq_get,
	.attr = testfreq_attr,
};

/* ---- the kernel's idea that a time stamp counter goes with the frequency ---- */

/*
 * Where the processor does not say that its counter is constant, as QEMU's does
 * not, the kernel hears of each transition, takes the counter for unstable and
 * changes to another clock; and while anything hears of transitions, governors
 * get no fast switches. This driver changes no counter, so the kernel's
 * notifier is taken away as long as the module is there.
 */
static struct notifier_block *testfreq_tsc;

static int testfreq_first_notified(struct notifier_block *nb, unsigned long event, void *freqs)
{
	return NOTIFY_DONE;
}

/* The chain has no other way in than being its first. */
static struct notifier_block testfreq_first = {
	.notifier_call = testfreq_first_notified,
	.priority = INT_MAX,
};

static struct notifier_block *testfreq_find_tsc(void)
{
	struct notifier_block *nb = testfreq_first.next;
	/* A longer name is cut, and is not the one that is looked for. */
	char name[sizeof(TESTFREQ_TSC_NOTIFIER) + 1];
	unsigned int i;

	for (i = 0; nb && i < TESTFREQ_NOTIFIERS_MAX; i++, nb = nb->next) {
		snprintf(name, sizeof(name), "%ps", nb->notifier_call);
		if (!strcmp(name, TESTFREQ_TSC_NOTIFIER))
			return nb;
	}
	return NULL;
}

static int testfreq_tsc_take(void)
{
	int err = cpufreq_register_notifier(&testfreq_first, CPUFREQ_TRANSITION_NOTIFIER);

	if (err)
		return err;
	testfreq_tsc = testfreq_find_tsc();
	cpufreq_unregister_notifier(&testfreq_first, CPUFREQ_TRANSITION_NOTIFIER);
	if (!testfreq_tsc)
		return 0;
	return cpufreq_unregister_notifier(testfreq_tsc, CPUFREQ_TRANSITION_NOTIFIER);
}

static void testfreq_tsc_give_back(void)
{
	if (testfreq_tsc &&
	    cpufreq_register_notifier(testfreq_tsc, CPUFREQ_TRANSITION_NOTIFIER))
		pr_err("the clock's notifier of transitions could not be given back\n");
}

static int __init testfreq_init(void)
{
	unsigned int cpu;
	int err;

	if (latency_us > TESTFREQ_LATENCY_US_MAX) {
		pr_err("latency_us must be at most %u\n", TESTFREQ_LATENCY_US_MAX);
		return -EINVAL;
	}
	for_each_possible_cpu(cpu) {
		struct testfreq_state *state = &per_cpu(testfreq_states, cpu);

		raw_spin_lock_init(&state->lock);
		state->index = TESTFREQ_COUNT - 1;
		state->since_ns = ktime_get_ns();
	}
	if (fast)
		testfreq_driver.fast_switch = testfreq_fast_switch;

	err = testfreq_tsc_take();
	if (err)
		return err;
	err = cpufreq_register_driver(&testfreq_driver);
	if (err) {
		pr_err("there is another cpufreq driver, or none is possible: %d\n", err);
		testfreq_tsc_give_back();
	}
	return err;
}

static void __exit testfreq_exit(void)
{
	cpufreq_unregister_driver(&testfreq_driver);
	testfreq_tsc_give_back();
}

module_init(testfreq_init);
module_exit(testfreq_exit);

MODULE_DESCRIPTION("A cpufreq driver that counts, for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
