// SPDX-License-Identifier: GPL-2.0-only
/*
 * A competing network device, for tests only: bursts of packets that cost CPU
 * time on one CPU, handed out by budget as a driver does it.
 *
 * Loading starts it, unloading stops it. Every @period_ms on average (uniform
 * between half and one and a half of it, from @seed) @burst packets become
 * ready for each of its @napis instances; the poll function spends @pkt_ns on
 * each. No packet enters the stack: what is tested is who waits for this work.
 */
#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/prandom.h>
#include <linux/smp.h>

static unsigned int cpu = 2;
module_param(cpu, uint, 0444);
MODULE_PARM_DESC(cpu, "CPU that the packets arrive on");
static unsigned int burst = 3200;
module_param(burst, uint, 0444);
MODULE_PARM_DESC(burst, "packets in a burst");
static unsigned int pkt_ns = 3100;
module_param(pkt_ns, uint, 0444);
MODULE_PARM_DESC(pkt_ns, "CPU time of a packet, nanoseconds");
static unsigned int period_ms = 20;
module_param(period_ms, uint, 0444);
MODULE_PARM_DESC(period_ms, "mean time between two bursts, milliseconds");
static unsigned int seed = 1;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "seed of the times between bursts");

#define STORM_NAPIS_MAX	8
static unsigned int napis = 1;
module_param(napis, uint, 0444);
MODULE_PARM_DESC(napis, "NAPI instances, each with its own packets, up to 8");

/* What was done so far; written on @cpu only. */
static unsigned long bursts;
module_param(bursts, ulong, 0444);
static unsigned long packets;
module_param(packets, ulong, 0444);
static unsigned long polls;
module_param(polls, ulong, 0444);
/* Packets of each instance. */
static unsigned long served[STORM_NAPIS_MAX];
module_param_array(served, ulong, NULL, 0444);

#ifdef STORM_OLD_HRTIMER
static void hrtimer_setup(struct hrtimer *timer,
			  enum hrtimer_restart (*fn)(struct hrtimer *),
			  clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = fn;
}
#endif

static struct net_device *storm_dev;
static struct storm_one {
	struct napi_struct napi;
	atomic_t ready;
} storm_all[STORM_NAPIS_MAX];
static struct hrtimer storm_timer;
static struct rnd_state storm_rnd;

/* PAUSE gives up the turn of a virtual CPU, see docs/reference/lab.md. */
static void storm_spin(u64 ns)
{
	u64 end = ktime_get_ns() + ns;

	while (ktime_get_ns() < end)
		cpu_relax();
}

static int storm_poll(struct napi_struct *napi, int budget)
{
	struct storm_one *one = container_of(napi, struct storm_one, napi);
	int work = min(budget, atomic_read(&one->ready));

	polls++;
	if (work > 0) {
		storm_spin((u64)work * pkt_ns);
		atomic_sub(work, &one->ready);
		packets += work;
		served[one - storm_all] += work;
	}
	if (work < budget && napi_complete_done(napi, work) &&
	    atomic_read(&one->ready))
		napi_schedule(napi);
	return work;
}

static u64 storm_next_ns(void)
{
	u32 mean_us = period_ms * 1000;
	u32 us = mean_us / 2 + prandom_u32_state(&storm_rnd) % (mean_us + 1);

	return us * 1000ULL;
}

static enum hrtimer_restart storm_arrive(struct hrtimer *timer)
{
	unsigned int i;

	bursts++;
	for (i = 0; i < napis; i++) {
		atomic_add(burst, &storm_all[i].ready);
		napi_schedule_irqoff(&storm_all[i].napi);
	}
	hrtimer_forward_now(timer, ns_to_ktime(storm_next_ns()));
	return HRTIMER_RESTART;
}

static void storm_start(void *unused)
{
	hrtimer_start(&storm_timer, ns_to_ktime(storm_next_ns()),
		      HRTIMER_MODE_REL_PINNED_HARD);
}

static netdev_tx_t storm_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb_any(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops storm_ops = {
	.ndo_start_xmit = storm_xmit,
};

static void storm_setup(struct net_device *dev)
{
	dev->netdev_ops = &storm_ops;
	dev->flags = IFF_NOARP;
}

static void storm_del_napis(void)
{
	unsigned int i;

	for (i = 0; i < napis; i++)
		netif_napi_del(&storm_all[i].napi);
}

static int __init storm_init(void)
{
	unsigned int i;
	int err;

	if (!burst || !pkt_ns || !period_ms || cpu >= nr_cpu_ids ||
	    !cpu_online(cpu)) {
		pr_err("burst, pkt_ns and period_ms must not be 0, and cpu must be online\n");
		return -EINVAL;
	}
	if (!napis || napis > STORM_NAPIS_MAX) {
		pr_err("napis must be from 1 to %d\n", STORM_NAPIS_MAX);
		return -EINVAL;
	}
	storm_dev = alloc_netdev(0, "storm%d", NET_NAME_ENUM, storm_setup);
	if (!storm_dev)
		return -ENOMEM;
	for (i = 0; i < napis; i++)
		netif_napi_add(storm_dev, &storm_all[i].napi, storm_poll);
	err = register_netdev(storm_dev);
	if (err) {
		storm_del_napis();
		free_netdev(storm_dev);
		return err;
	}
	for (i = 0; i < napis; i++)
		napi_enable(&storm_all[i].napi);

	prandom_seed_state(&storm_rnd, seed);
	hrtimer_setup(&storm_timer, storm_arrive, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
	smp_call_function_single(cpu, storm_start, NULL, 1);
	return 0;
}

static void __exit storm_exit(void)
{
	unsigned int i;

	hrtimer_cancel(&storm_timer);
	for (i = 0; i < napis; i++)
		napi_disable(&storm_all[i].napi);
	storm_del_napis();
	unregister_netdev(storm_dev);
	free_netdev(storm_dev);
}

module_init(storm_init);
module_exit(storm_exit);

MODULE_DESCRIPTION("Competing receive work for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
