// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load and unload: the order in which the parts of the module come and go.
 *
 * Loading enables the live patch and changes nothing for any packet: CPUs get
 * pollers when user space asks for them. The kernel removes the module only
 * after the live patch was disabled, and that stops all pollers first (klp.c).
 */
#include <linux/livepatch.h>
#include <linux/module.h>

#include "kbp.h"

struct workqueue_struct *kbp_wq;

unsigned int kbp_relax = 8;
module_param_named(relax, kbp_relax, uint, 0444);
MODULE_PARM_DESC(relax, "how often a busy poller executes PAUSE after an empty round; after one with packets once (default 8; 0: never, where a hypervisor makes PAUSE slow)");

unsigned int kbp_window_us;
module_param_named(window_us, kbp_window_us, uint, 0644);
MODULE_PARM_DESC(window_us, "mode adaptive polls for so long after each packet, microseconds, and not as it has learned; for comparisons (default 0: as learned)");

unsigned int kbp_halt_us = 4;
module_param_named(halt_us, kbp_halt_us, uint, 0644);
MODULE_PARM_DESC(halt_us, "where mode adaptive polls through since sleeping saves too little, the CPU stands still between two looks at empty rings, for so many microseconds usually, up to three times as many where no packet is likely, 100 at most (default 4; 0: it polls at once)");

bool kbp_enable = true;
module_param_named(enable, kbp_enable, bool, 0444);
MODULE_PARM_DESC(enable, "0, also as kbp.enable=0 on the kernel command line: the module does nothing (default 1)");

/* The live patch, if this kernel is fit for it. */
static int __init kbp_enable_patch(void)
{
	int err;

	if (!kbp_enable) {
		pr_notice("kbp: does nothing, because of enable=0\n");
		return 0;
	}
	err = kbp_verify();
	if (err)
		return err;
	err = kbp_conflict_init();
	if (err)
		return err;
	err = klp_enable_patch(&kbp_patch);
	if (err)
		kbp_conflict_exit();
	return err;
}

static int __init kbp_init(void)
{
	int err;

	kbp_wq = alloc_workqueue("kbp", WQ_UNBOUND, 0);
	if (!kbp_wq)
		return -ENOMEM;
	kbp_freq_init();
	err = kbp_napi_init();
	if (err)
		goto err_wq;
	err = kbp_hotplug_init();
	if (err)
		goto err_napi;
	err = kbp_netlink_init();
	if (err)
		goto err_hotplug;
	err = kbp_enable_patch();
	if (err)
		goto err_netlink;
	if (kbp_enable)
		kbp_freq_register();
	return 0;

err_netlink:
	kbp_netlink_exit();
err_hotplug:
	kbp_hotplug_exit();
err_napi:
	kbp_napi_exit();
err_wq:
	destroy_workqueue(kbp_wq);
	return err;
}

static void __exit kbp_exit(void)
{
	/* A live patch that replaced ours has called no callback of ours. */
	kbp_close();
	kbp_freq_exit();
	if (kbp_enable)
		kbp_conflict_exit();
	kbp_netlink_exit();
	kbp_hotplug_exit();
	kbp_napi_exit();
	destroy_workqueue(kbp_wq);
	/* Attachments are freed by RCU callbacks of this module's memory. */
	rcu_barrier();
}

module_init(kbp_init);
module_exit(kbp_exit);

MODULE_DESCRIPTION("KBP: poller threads for chosen NAPI instances of a stock kernel");
MODULE_VERSION("0.1.0");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
