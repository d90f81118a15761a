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
MODULE_PARM_DESC(relax, "how often a busy poller executes PAUSE after an empty round (default 8; 0 where a hypervisor makes PAUSE slow)");

static int __init kbp_init(void)
{
	int err;

	kbp_wq = alloc_workqueue("kbp", WQ_UNBOUND, 0);
	if (!kbp_wq)
		return -ENOMEM;
	err = kbp_napi_init();
	if (err)
		goto err_wq;
	err = kbp_hotplug_init();
	if (err)
		goto err_napi;
	err = kbp_netlink_init();
	if (err)
		goto err_hotplug;
	err = klp_enable_patch(&kbp_patch);
	if (err)
		goto err_netlink;
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
