// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPUs that go and come: a poller goes before its CPU and comes back with it,
 * and so does what is attached to it.
 *
 * Owns nothing; stops and starts pollers (poller.c) and binds attachments
 * (napi.c). Meanwhile other CPUs' softirqs serve the devices. Context: the CPU
 * hotplug thread, under the kernel's CPU lock, where rtnl_lock may not be taken;
 * what needs that is done by a worker.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/rtnetlink.h>

#include "kbp.h"

static enum cpuhp_state kbp_cpuhp_state;

/* A CPU goes: its poller first, while the CPU can still finish its work. */
static int kbp_cpu_down(unsigned int cpu)
{
	struct kbp_poller *p;

	mutex_lock(&kbp_mutex);
	p = kbp_poller_find(cpu);
	if (p && p->task) {
		kbp_poller_stop(p);
		kbp_notify_poller(p, KBP_EVENT_OFFLINE);
	}
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
	if (kbp_is_open())
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

int kbp_hotplug_init(void)
{
	int ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "net/kbp:online",
					    kbp_cpu_up, kbp_cpu_down);

	if (ret < 0)
		return ret;
	kbp_cpuhp_state = ret;
	return 0;
}

void kbp_hotplug_exit(void)
{
	cpuhp_remove_state_nocalls(kbp_cpuhp_state);
	cancel_work_sync(&kbp_online);
}
