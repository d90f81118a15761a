// SPDX-License-Identifier: GPL-2.0-only
/*
 * The frequency of a poller's CPU: low while the poller sleeps, high while it is
 * awake (EE-KBP, section 4.2).
 *
 * Owns the cpufreq governor "kbp" and what it changes: a policy has one governor
 * at a time, so nobody else changes the same frequency, and when the user takes
 * another one, that begins where this ended. User space chooses the governor and
 * puts the former one back; while it governs a CPU whose poller does not want it,
 * or none is there, the frequency is the highest. When to go low is decided in
 * pace.c.
 *
 * Context: the poller thread before and after a sleep; the hardIRQ that wakes it,
 * where the driver can change the frequency there; cpufreq's callbacks, under
 * policy->rwsem. Locks: kbp_domain.lock for changes that sleep, inside kbp_mutex
 * and policy->rwsem, nothing of ours inside it; kbp_domain.fast_lock (raw,
 * interrupts off) for those that don't. Both for kbp_domain.policy.
 */
#include <linux/cpufreq.h>
#include <linux/smp.h>

#include "kbp.h"

/* What cpufreq calls a policy: CPUs that have one frequency. */
struct kbp_domain {
	struct mutex lock;
	raw_spinlock_t fast_lock;
	struct cpufreq_policy *policy;	/* NULL: we don't govern it */
	bool fast;			/* its driver can change it in a hardIRQ */
	u64 said_ns;			/* what a change takes, by the driver */
	u64 seen_ns;			/* the same as it was seen; 0: not yet */
	bool refused;			/* the driver did not do as it was told */
};

/*
 * @slow and @on are each written and then followed by a look at the other and at
 * @domain, in kbp_freq_say() and kbp_freq_follow(): of two that change something
 * at a time, one sees both.
 */
struct kbp_freq_cpu {
	struct kbp_domain own;		/* of the policy that is named after this CPU */
	struct kbp_domain *domain;	/* the one that governs this CPU, or NULL */
	bool on;			/* it has a poller that wants this */
	bool slow;			/* that poller sleeps, and may be woken slowly */
};

static DEFINE_PER_CPU(struct kbp_freq_cpu, kbp_freq_cpus);
static bool kbp_is_governor;

static struct kbp_freq_cpu *kbp_freq_of(const struct kbp_poller *p)
{
	return per_cpu_ptr(&kbp_freq_cpus, p->config.cpu);
}

/* May a domain be slow? Where CPUs share one, all pollers of it have to sleep. */
static bool kbp_domain_may_be_slow(const struct kbp_domain *d)
{
	const struct kbp_freq_cpu *c;
	bool slow = false;
	unsigned int cpu;

	if (READ_ONCE(d->refused))
		return false;
	for_each_cpu(cpu, d->policy->cpus) {
		c = per_cpu_ptr(&kbp_freq_cpus, cpu);
		if (!READ_ONCE(c->on))
			continue;
		if (!READ_ONCE(c->slow))
			return false;
		slow = true;
	}
	return slow;
}

static void kbp_domain_learn(struct kbp_domain *d, u64 begin_ns)
{
	u64 ns = ktime_get_ns() - begin_ns;

	if (!d->seen_ns)
		d->seen_ns = ns;
	WRITE_ONCE(d->seen_ns, d->seen_ns - d->seen_ns / 8 + ns / 8);
}

/* On a CPU of @d, interrupts off. */
static void kbp_domain_switch_fast(void *data)
{
	struct kbp_domain *d = data;
	struct cpufreq_policy *policy;
	unsigned int khz;
	u64 begin_ns;

	raw_spin_lock(&d->fast_lock);
	policy = d->policy;
	if (!policy)
		goto out;
	khz = kbp_domain_may_be_slow(d) ? policy->min : policy->max;
	if (khz == policy->cur)
		goto out;
	begin_ns = ktime_get_ns();
	if (!cpufreq_driver_fast_switch(policy, khz))
		WRITE_ONCE(d->refused, true);
	kbp_domain_learn(d, begin_ns);
out:
	raw_spin_unlock(&d->fast_lock);
}

/* Under d->lock. */
static void kbp_domain_switch(struct kbp_domain *d)
{
	struct cpufreq_policy *policy = d->policy;
	bool slow = kbp_domain_may_be_slow(d);
	unsigned int khz = slow ? policy->min : policy->max;
	u64 begin_ns = ktime_get_ns();

	if (khz == policy->cur)
		return;
	if (__cpufreq_driver_target(policy, khz, slow ? CPUFREQ_RELATION_L :
							CPUFREQ_RELATION_H))
		WRITE_ONCE(d->refused, true);
	kbp_domain_learn(d, begin_ns);
}

/* Have the frequency of @d be what is wanted now. May sleep. */
static void kbp_domain_follow(struct kbp_domain *d)
{
	mutex_lock(&d->lock);
	if (d->policy && d->fast)
		smp_call_function_any(d->policy->cpus, kbp_domain_switch_fast,
				      d, true);
	else if (d->policy)
		kbp_domain_switch(d);
	mutex_unlock(&d->lock);
}

static void kbp_freq_follow(struct kbp_freq_cpu *c)
{
	struct kbp_domain *d;

	/* Of kbp_freq_cpu: after what was written, before what others write. */
	smp_mb();
	d = READ_ONCE(c->domain);
	if (d)
		kbp_domain_follow(d);
}

/* Does the frequency of @c follow its poller? */
static struct kbp_domain *kbp_freq_domain(const struct kbp_freq_cpu *c)
{
	struct kbp_domain *d = READ_ONCE(c->domain);

	return READ_ONCE(c->on) && d && !READ_ONCE(d->refused) ? d : NULL;
}

/* The poller thread says what it is about to do, or has done. */
static void kbp_freq_say(struct kbp_poller *p, struct kbp_freq_cpu *c, bool slow)
{
	struct kbp_domain *d;
	bool was_refused;

	if (READ_ONCE(c->slow) == slow)
		return;
	WRITE_ONCE(c->slow, slow);
	d = kbp_freq_domain(c);
	was_refused = !d;
	kbp_freq_follow(c);
	if (was_refused)
		return;
	if (READ_ONCE(d->refused))
		kbp_count(&p->stats, freq_errors, 1);
	else if (slow)
		kbp_count(&p->stats, slowdowns, 1);
	else
		kbp_count(&p->stats, speedups, 1);
}

static struct kbp_pace_view kbp_freq_view(const struct kbp_poller *p,
					  const struct kbp_domain *d)
{
	struct kbp_pace_view view = {
		.now_ns = ktime_get_ns(),
		.cost_ns = d ? max(READ_ONCE(d->said_ns),
				   READ_ONCE(d->seen_ns)) : 0,
		.choosy = p->config.freq == KBP_FREQ_AUTO,
	};

	return view;
}

/**
 * kbp_freq_sleep() - the poller sleeps: may its CPU be slow?
 * @p: the poller
 * @goes_on: it has woken up only to ask
 *
 * Return: when to ask again; 0: not at all.
 */
u64 kbp_freq_sleep(struct kbp_poller *p, bool goes_on)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);
	struct kbp_domain *d = kbp_freq_domain(c);
	struct kbp_pace_view view = kbp_freq_view(p, d);
	u64 at_ns = 0;

	if (!goes_on)
		kbp_pace_begin(&p->pace, view.now_ns);
	/* Nobody listens, but whoever begins to has to find it as it is. */
	if (d)
		at_ns = kbp_pace_slow_at(&p->pace, &view);
	if (!at_ns)
		kbp_freq_say(p, c, true);
	return at_ns;
}

/**
 * kbp_freq_wake() - the poller is awake and has work
 * @p: the poller
 */
void kbp_freq_wake(struct kbp_poller *p)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);
	struct kbp_pace_view view = kbp_freq_view(p, kbp_freq_domain(c));

	kbp_pace_end(&p->pace, &view);
	kbp_freq_say(p, c, false);
}

/**
 * kbp_freq_kick() - somebody is about to wake the poller
 * @p: the poller
 *
 * Raises the frequency at once, where that can be done here.
 *
 * Context: interrupts off.
 */
void kbp_freq_kick(struct kbp_poller *p)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);
	struct kbp_domain *d = kbp_freq_domain(c);

	if (!d || !READ_ONCE(d->fast) || !READ_ONCE(c->slow) ||
	    p->config.cpu != smp_processor_id())
		return;
	WRITE_ONCE(c->slow, false);
	kbp_domain_switch_fast(d);
	kbp_count(&p->stats, speedups, 1);
}

/**
 * kbp_freq_start() - a poller begins
 * @p: the poller
 *
 * Context: kbp_mutex held.
 */
void kbp_freq_start(struct kbp_poller *p)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);

	memset(&p->pace, 0, sizeof(p->pace));
	WRITE_ONCE(c->slow, false);
	WRITE_ONCE(c->on, p->config.freq != KBP_FREQ_OFF);
	kbp_freq_follow(c);
}

/**
 * kbp_freq_stop() - a poller has ended; its CPU does not go slow any more
 * @p: the poller
 *
 * Context: kbp_mutex held.
 */
void kbp_freq_stop(struct kbp_poller *p)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);

	WRITE_ONCE(c->on, false);
	kbp_freq_follow(c);
}

/**
 * kbp_freq_active() - does the frequency follow this poller?
 * @p: the poller
 */
enum kbp_freq kbp_freq_active(const struct kbp_poller *p)
{
	return kbp_freq_domain(kbp_freq_of(p)) ? p->config.freq : KBP_FREQ_OFF;
}

/* ---- the governor ---- */

static int kbp_governor_init(struct cpufreq_policy *policy)
{
	/* Each CPU is in one policy, so no other one is named after it. */
	policy->governor_data = &per_cpu_ptr(&kbp_freq_cpus, policy->cpu)->own;
	cpufreq_enable_fast_switch(policy);
	return 0;
}

static void kbp_governor_exit(struct cpufreq_policy *policy)
{
	cpufreq_disable_fast_switch(policy);
	policy->governor_data = NULL;
}

static void kbp_domain_set(struct kbp_domain *d, struct cpufreq_policy *policy)
{
	u64 said_ns;

	mutex_lock(&d->lock);
	raw_spin_lock_irq(&d->fast_lock);
	d->policy = policy;
	WRITE_ONCE(d->fast, policy && policy->fast_switch_enabled);
	/* Drivers that don't know say so with all bits set. */
	said_ns = policy ? policy->cpuinfo.transition_latency : 0;
	WRITE_ONCE(d->said_ns, said_ns < U32_MAX ? said_ns : 0);
	WRITE_ONCE(d->seen_ns, 0);
	WRITE_ONCE(d->refused, false);
	raw_spin_unlock_irq(&d->fast_lock);
	mutex_unlock(&d->lock);
}

static int kbp_governor_start(struct cpufreq_policy *policy)
{
	struct kbp_domain *d = policy->governor_data;
	unsigned int cpu;

	kbp_domain_set(d, policy);
	for_each_cpu(cpu, policy->cpus)
		WRITE_ONCE(per_cpu_ptr(&kbp_freq_cpus, cpu)->domain, d);
	/* See kbp_freq_cpu; the first look is kbp_governor_limits(). */
	smp_mb();
	return 0;
}

static void kbp_governor_stop(struct cpufreq_policy *policy)
{
	unsigned int cpu;

	for_each_cpu(cpu, policy->cpus)
		WRITE_ONCE(per_cpu_ptr(&kbp_freq_cpus, cpu)->domain, NULL);
	kbp_domain_set(policy->governor_data, NULL);
}

static void kbp_governor_limits(struct cpufreq_policy *policy)
{
	kbp_domain_follow(policy->governor_data);
}

static struct cpufreq_governor kbp_governor = {
	.name = "kbp",
	.flags = CPUFREQ_GOV_DYNAMIC_SWITCHING,
	.init = kbp_governor_init,
	.exit = kbp_governor_exit,
	.start = kbp_governor_start,
	.stop = kbp_governor_stop,
	.limits = kbp_governor_limits,
	.owner = THIS_MODULE,
};

/* A kernel without frequencies, or another governor of this name, is no reason to fail. */
void kbp_freq_init(void)
{
	struct kbp_domain *d;
	unsigned int cpu;
	int err;

	for_each_possible_cpu(cpu) {
		d = &per_cpu_ptr(&kbp_freq_cpus, cpu)->own;
		mutex_init(&d->lock);
		raw_spin_lock_init(&d->fast_lock);
	}
	err = cpufreq_register_governor(&kbp_governor);
	kbp_is_governor = !err;
	if (err && err != -ENODEV)
		pr_warn("kbp: there is no governor 'kbp' of frequencies: error %d\n",
			err);
}

void kbp_freq_exit(void)
{
	if (kbp_is_governor)
		cpufreq_unregister_governor(&kbp_governor);
}
