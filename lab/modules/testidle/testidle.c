// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cpuidle driver for tests only, for x86: the states POLL, C1, C3 and C6 of a
 * CPU that has only HLT. The governor, the statistics and PM QoS above it are
 * the kernel's; what a state's exit takes (@latencies_us) is really spent,
 * before the interrupt that ends it does anything.
 *
 * As HLT is left, the interrupt comes first and the code behind HLT last. So
 * entering a state leaves a debt of CPU time to this CPU, and probes of the
 * tracepoints with which the kernel's handlers of interrupts begin pay it, once,
 * with interrupts off. What an interrupt without such a tracepoint left is paid
 * behind HLT. An interrupt that was pending already costs the same.
 *
 * A state is worth entering for three times its exit latency, C1 for once. With
 * a limit of 0 us (PM QoS) the governor polls.
 *
 * Context: testidle_enter() runs in the idle loop where RCU does not watch, so
 * it may call nothing that can be traced. A debt is only touched by its CPU with
 * interrupts off.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpuidle.h>
#include <linux/interrupt.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <asm/tsc.h>

#define TESTIDLE_STATES 3
#define TESTIDLE_LATENCY_US_MAX 10000
#define TESTIDLE_LOOKS_A_PAUSE 64

static unsigned int latencies_us[TESTIDLE_STATES] = { 2, 50, 200 };
static int latencies_count = TESTIDLE_STATES;
module_param_array(latencies_us, uint, &latencies_count, 0444);
MODULE_PARM_DESC(latencies_us, "exit latencies of C1, C3 and C6, microseconds, ascending");

static const char *const testidle_names[TESTIDLE_STATES] = { "C1", "C3", "C6" };

struct testidle_cpu {
	struct cpuidle_device device;
	/* Cycles of the time stamp counter that the exit still takes. */
	u64 debt;
	unsigned long paid_in_interrupt;
	unsigned long paid_behind_hlt;
};

static DEFINE_PER_CPU(struct testidle_cpu, testidle_cpus);
/* By the index of a state; POLL, the first, costs nothing. */
static u64 testidle_cycles[TESTIDLE_STATES + 1];
static enum cpuhp_state testidle_hotplug;

/* How often an exit was paid where, on all CPUs. */
static int testidle_get_sum(char *buf, const struct kernel_param *param)
{
	size_t offset = (size_t)param->arg;
	unsigned long sum = 0;
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(unsigned long *)((char *)&per_cpu(testidle_cpus, cpu) + offset));
	return sysfs_emit(buf, "%lu\n", sum);
}

static const struct kernel_param_ops testidle_sum_ops = {
	.get = testidle_get_sum,
};
module_param_cb(paid_in_interrupt, &testidle_sum_ops,
		(void *)offsetof(struct testidle_cpu, paid_in_interrupt), 0444);
module_param_cb(paid_behind_hlt, &testidle_sum_ops,
		(void *)offsetof(struct testidle_cpu, paid_behind_hlt), 0444);

/*
 * Pays the debt. PAUSE gives up the turn of a virtual CPU, see
 * docs/reference/lab.md; it costs the host too much for every look at the clock.
 */
static __always_inline bool testidle_pay(void)
{
	u64 debt = this_cpu_read(testidle_cpus.debt);
	u64 begin = rdtsc();
	unsigned int looks = 0;

	if (!debt)
		return false;
	this_cpu_write(testidle_cpus.debt, 0);
	while (rdtsc() - begin < debt) {
		if (++looks % TESTIDLE_LOOKS_A_PAUSE == 0)
			cpu_relax();
	}
	return true;
}

/*
 * Called with interrupts off, and has to come back so. "sti" takes effect behind
 * the next instruction, so no interrupt comes between the two and is slept over.
 */
static noinstr int testidle_enter(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	this_cpu_write(testidle_cpus.debt, testidle_cycles[index]);
	asm volatile("sti; hlt; cli" ::: "memory");
	if (testidle_pay())
		this_cpu_inc(testidle_cpus.paid_behind_hlt);
	return index;
}

static struct cpuidle_driver testidle_driver = {
	.name = "kbp_testidle",
	/* No owner: each device would hold the module, which could never go. */
	.state_count = TESTIDLE_STATES + 1,
};

/* ---- where a debt is paid ---- */

static void testidle_in_interrupt(void)
{
	if (testidle_pay())
		this_cpu_inc(testidle_cpus.paid_in_interrupt);
}

static void testidle_irq_handler(void *data, int irq, struct irqaction *action)
{
	testidle_in_interrupt();
}

static void testidle_irq_vector(void *data, int vector)
{
	testidle_in_interrupt();
}

static struct testidle_probe {
	const char *name;
	void *function;
	struct tracepoint *tracepoint;
} testidle_probes[] = {
	{ "irq_handler_entry", testidle_irq_handler },
	{ "local_timer_entry", testidle_irq_vector },
	{ "reschedule_entry", testidle_irq_vector },
	{ "call_function_entry", testidle_irq_vector },
	{ "call_function_single_entry", testidle_irq_vector },
	{ "irq_work_entry", testidle_irq_vector },
};

static void testidle_find_probe(struct tracepoint *tracepoint, void *unused)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(testidle_probes); i++) {
		if (!strcmp(tracepoint->name, testidle_probes[i].name))
			testidle_probes[i].tracepoint = tracepoint;
	}
}

/* Takes away the first @count probes; none of them runs any more afterwards. */
static void testidle_unprobe(unsigned int count)
{
	while (count--)
		tracepoint_probe_unregister(testidle_probes[count].tracepoint,
					    testidle_probes[count].function, NULL);
	tracepoint_synchronize_unregister();
}

static int testidle_probe_all(void)
{
	unsigned int i;
	int err;

	for_each_kernel_tracepoint(testidle_find_probe, NULL);
	for (i = 0; i < ARRAY_SIZE(testidle_probes); i++) {
		if (!testidle_probes[i].tracepoint) {
			pr_err("the kernel has no tracepoint %s\n", testidle_probes[i].name);
			err = -ENOENT;
			goto err_probes;
		}
		err = tracepoint_probe_register(testidle_probes[i].tracepoint,
						testidle_probes[i].function, NULL);
		if (err)
			goto err_probes;
	}
	return 0;

err_probes:
	testidle_unprobe(i);
	return err;
}

/* ---- states and CPUs ---- */

static bool testidle_latencies_fit(void)
{
	unsigned int i;

	if (latencies_count != TESTIDLE_STATES)
		return false;
	for (i = 0; i < TESTIDLE_STATES; i++) {
		if (latencies_us[i] > TESTIDLE_LATENCY_US_MAX ||
		    latencies_us[i] <= (i ? latencies_us[i - 1] : 0))
			return false;
	}
	return true;
}

static void testidle_states_init(void)
{
	unsigned int i;

	cpuidle_poll_state_init(&testidle_driver);
	for (i = 0; i < TESTIDLE_STATES; i++) {
		struct cpuidle_state *state = &testidle_driver.states[i + 1];

		strscpy(state->name, testidle_names[i], sizeof(state->name));
		strscpy(state->desc, "HLT and a spent exit latency", sizeof(state->desc));
		state->exit_latency = latencies_us[i];
		state->target_residency = latencies_us[i] * (i ? 3 : 1);
		state->enter = testidle_enter;
		testidle_cycles[i + 1] = div_u64((u64)latencies_us[i] * tsc_khz, 1000);
	}
}

static int testidle_online(unsigned int cpu)
{
	struct cpuidle_device *device = &per_cpu(testidle_cpus, cpu).device;

	device->cpu = cpu;
	return cpuidle_register_device(device);
}

/*
 * This runs in a thread on that very CPU, so its idle loop is not in
 * testidle_enter() now, and never will be again.
 */
static int testidle_offline(unsigned int cpu)
{
	cpuidle_unregister_device(&per_cpu(testidle_cpus, cpu).device);
	return 0;
}

static int __init testidle_init(void)
{
	int err;

	if (!testidle_latencies_fit()) {
		pr_err("latencies_us must be %u ascending numbers from 1 to %u\n",
		       TESTIDLE_STATES, TESTIDLE_LATENCY_US_MAX);
		return -EINVAL;
	}
	if (!tsc_khz) {
		pr_err("the rate of the time stamp counter is not known\n");
		return -ENODEV;
	}
	testidle_states_init();
	err = testidle_probe_all();
	if (err)
		return err;
	err = cpuidle_register_driver(&testidle_driver);
	if (err) {
		pr_err("there is another cpuidle driver, or none is possible: %d\n", err);
		goto err_driver;
	}
	err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "lab/testidle:online",
				testidle_online, testidle_offline);
	if (err < 0)
		goto err_hotplug;
	testidle_hotplug = err;
	return 0;

err_hotplug:
	cpuidle_unregister_driver(&testidle_driver);
err_driver:
	testidle_unprobe(ARRAY_SIZE(testidle_probes));
	return err;
}

static void __exit testidle_exit(void)
{
	cpuhp_remove_state(testidle_hotplug);
	cpuidle_unregister_driver(&testidle_driver);
	testidle_unprobe(ARRAY_SIZE(testidle_probes));
}

module_init(testidle_init);
module_exit(testidle_exit);

MODULE_DESCRIPTION("A cpuidle driver whose exit latencies are spent, for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
