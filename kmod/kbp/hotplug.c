// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPUs that go and come, and machines that sleep and restart: a poller goes
 * before its CPU does and comes back with it, and so does what is attached to
 * it. Before a suspend all go, because drivers may free their NAPIs on the way
 * without a word; before a restart (kexec too) all go for good.
 *
 * Owns nothing; stops and starts pollers (poller.c) and binds attachments
 * (napi.c). Meanwhile softirqs serve the devices. Context: thread; the CPU
 * hotplug thread runs under the kernel's CPU lock, where rtnl_lock may not be
 * taken; what needs that is done by a worker.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/reboot.h>
#include <linux/rtnetlink.h>
#include <linux/suspend.h>

#include "kbp.h"

/* How long a restart of the machine waits for the end of all pollers. */
#define KBP_CLOSE_JIFFIES_MAX	(2 * HZ)

static enum cpuhp_state kbp_cpuhp_state;
static bool kbp_suspended;		/* kbp_mutex */

/**
 * kbp_is_suspended() - is the machine about to sleep, or not yet back?
 *
 * Context: kbp_mutex held.
 */
bool kbp_is_suspended(void)
{
	return kbp_suspended;
}

/* kbp_mutex is held. */
static void kbp_poller_offline(struct kbp_poller *p)
{
	if (!p->task)
		return;
	kbp_poller_stop(p);
	kbp_notify_poller(p, KBP_EVENT_OFFLINE);
}

/* A CPU goes: its poller first, while the CPU can still finish its work. */
static int kbp_cpu_down(unsigned int cpu)
{
	struct kbp_poller *p;

	mutex_lock(&kbp_mutex);
	p = kbp_poller_find(cpu);
	if (p)
		kbp_poller_offline(p);
	mutex_unlock(&kbp_mutex);
	return 0;
}

/* rtnl_lock, cpus_read_lock and kbp_mutex are held. */
static void kbp_poller_online(struct kbp_poller *p)
{
	struct kbp_napi *a;
	int err = kbp_poller_start(p);

	if (err) {
		pr_warn("kbp: the poller of CPU %u did not come back with its CPU: error %d\n",
			p->config.cpu, err);
		return;
	}
	kbp_notify_poller(p, KBP_EVENT_ONLINE);
	list_for_each_entry(a, &p->napis, link)
		if (netif_running(a->dev))
			kbp_napi_up(a);
}

static void kbp_online_work(struct work_struct *work)
{
	struct kbp_poller *p;

	rtnl_lock();
	cpus_read_lock();
	mutex_lock(&kbp_mutex);
	if (kbp_is_open() && !kbp_suspended)
		list_for_each_entry(p, &kbp_pollers, link)
			if (!p->task && cpu_active(p->config.cpu))
				kbp_poller_online(p);
	mutex_unlock(&kbp_mutex);
	cpus_read_unlock();
	rtnl_unlock();
}

static DECLARE_WORK(kbp_online, kbp_online_work);

static int kbp_cpu_up(unsigned int cpu)
{
	/* Not before devices are back from a suspend. */
	queue_work(system_freezable_wq, &kbp_online);
	return 0;
}

static int kbp_pm_event(struct notifier_block *nb, unsigned long event,
			void *unused)
{
	bool suspend = event == PM_SUSPEND_PREPARE ||
		       event == PM_HIBERNATION_PREPARE ||
		       event == PM_RESTORE_PREPARE;
	struct kbp_poller *p;

	if (!suspend && event != PM_POST_SUSPEND &&
	    event != PM_POST_HIBERNATION && event != PM_POST_RESTORE)
		return NOTIFY_DONE;
	mutex_lock(&kbp_mutex);
	kbp_suspended = suspend;
	if (suspend)
		list_for_each_entry(p, &kbp_pollers, link)
			kbp_poller_offline(p);
	mutex_unlock(&kbp_mutex);
	if (!suspend)
		queue_work(system_freezable_wq, &kbp_online);
	return NOTIFY_DONE;
}

static struct notifier_block kbp_pm_nb = {
	.notifier_call = kbp_pm_event,
};

static DECLARE_COMPLETION(kbp_closed);

static void kbp_close_work(struct work_struct *work)
{
	kbp_close();
	complete_all(&kbp_closed);
}

static DECLARE_WORK(kbp_close_request, kbp_close_work);

/* A driver that does not let go must not keep the machine from restarting. */
static int kbp_reboot_event(struct notifier_block *nb, unsigned long event,
			    void *unused)
{
	queue_work(kbp_wq, &kbp_close_request);
	if (!wait_for_completion_timeout(&kbp_closed, KBP_CLOSE_JIFFIES_MAX))
		pr_warn("kbp: pollers did not end in time for the restart\n");
	return NOTIFY_DONE;
}

static struct notifier_block kbp_reboot_nb = {
	.notifier_call = kbp_reboot_event,
};

int kbp_hotplug_init(void)
{
	int ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "net/kbp:online",
					    kbp_cpu_up, kbp_cpu_down);

	if (ret < 0)
		return ret;
	kbp_cpuhp_state = ret;
	ret = register_pm_notifier(&kbp_pm_nb);
	if (ret)
		goto err_cpuhp;
	ret = register_reboot_notifier(&kbp_reboot_nb);
	if (ret)
		goto err_pm;
	return 0;

err_pm:
	unregister_pm_notifier(&kbp_pm_nb);
err_cpuhp:
	cpuhp_remove_state_nocalls(kbp_cpuhp_state);
	return ret;
}

void kbp_hotplug_exit(void)
{
	unregister_reboot_notifier(&kbp_reboot_nb);
	unregister_pm_notifier(&kbp_pm_nb);
	cpuhp_remove_state_nocalls(kbp_cpuhp_state);
	cancel_work_sync(&kbp_online);
}
