// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets a virtual machine leave the processor once after each interrupt that KVM
 * injects, for the lab only: a way around an error of QEMU's emulation of SVM.
 *
 * Its VMRUN delivers the injected interrupt and leaves the vector in the
 * emulated CPU as an exception that is pending. When the turn of that CPU ends
 * before the machine's next exit, the vector is delivered once more, whatever
 * its interrupt flag says, and the handler waits for the locks of its first
 * run. An exit at once clears it: an interrupt of this CPU that is pending at
 * the VMRUN makes one.
 *
 * Costs an exit per interrupt. Unloading ends it.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/smp.h>
#include <asm/smp.h>

static DEFINE_PER_CPU(bool, injected);

static int at_inject(struct kprobe *probe, struct pt_regs *regs)
{
	this_cpu_write(injected, true);
	return 0;
}

/* With interrupts off, on the way into the machine. */
static int at_run(struct kprobe *probe, struct pt_regs *regs)
{
	if (this_cpu_read(injected)) {
		this_cpu_write(injected, false);
		/* In brackets: newer kernels have a macro of that name. */
		(smp_ops.smp_send_reschedule)(smp_processor_id());
	}
	return 0;
}

static struct kprobe inject = {
	.symbol_name = "svm_inject_irq",
	.pre_handler = at_inject,
};

static struct kprobe run = {
	.symbol_name = "svm_vcpu_run",
	.pre_handler = at_run,
};

static struct kprobe *probes[] = { &inject, &run };

static int __init svmexit_init(void)
{
	return register_kprobes(probes, ARRAY_SIZE(probes));
}

static void __exit svmexit_exit(void)
{
	unregister_kprobes(probes, ARRAY_SIZE(probes));
}

module_init(svmexit_init);
module_exit(svmexit_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("An exit after each interrupt that KVM injects (test only)");
