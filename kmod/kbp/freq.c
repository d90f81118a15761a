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

/* What became of a change of the frequency. */
enum kbp_change {
	KBP_CHANGE_NONE,		/* it is as it should be */
	KBP_CHANGE_SLOWED,
	KBP_CHANGE_RAISED,
	KBP_CHANGE_REFUSED,
};

/* What cpufreq calls a policy: CPUs that have one frequency. */
struct kbp_domain {
	struct mutex lock;
	raw_spinlock_t fast_lock;
	struct cpufreq_policy *policy;	/* NULL: we don't govern it */
	bool fast;			/* its driver can change it in a hardIRQ */
	unsigned int khz;		/* asked for last; 0: what it is, is not known */
	u64 said_ns;			/* what a change takes, by the driver */
	u64 seen_ns;			/* the same as it was seen; 0: not yet */
	bool refused;			/* the driver did not do as it was told */
	unsigned long refused_at;	/* when it refused the highest, too; jiffies */
};

/* What a CPU has to say about the frequency. */
enum kbp_freq_part {
	KBP_PART_NONE,			/* it has no poller */
	KBP_PART_STEADY,		/* a poller that wants the highest */
	KBP_PART_FOLLOWS,
};

/*
 * What a CPU says is written first, and then @domain is looked at: kbp_freq_follow().
 * Who begins to govern writes @domain first, and looks at the rest then:
 * kbp_governor_start(). So of two at a time, one sees both.
 */
struct kbp_freq_cpu {
	struct kbp_domain own;		/* of the policy that is named after this CPU */
	struct kbp_domain *domain;	/* the one that governs this CPU, or NULL */
	enum kbp_freq_part part;
	bool slow;			/* its poller sleeps, and may be woken slowly */
	bool relieved;			/* softirq does its poller's work */
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
	enum kbp_freq_part part;
	bool slow = false;
	unsigned int cpu;

	if (READ_ONCE(d->refused))
		return false;
	for_each_cpu(cpu, d->policy->cpus) {
		c = per_cpu_ptr(&kbp_freq_cpus, cpu);
		part = READ_ONCE(c->part);
		if (part == KBP_PART_NONE)
			continue;
		if (part == KBP_PART_STEADY || !READ_ONCE(c->slow) ||
		    READ_ONCE(c->relieved))
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

/*
 * Under d->fast_lock where the driver is fast, else under d->lock. What was asked
 * for counts, not policy->cur: some drivers change the frequency without it.
 */
static enum kbp_change kbp_domain_change(struct kbp_domain *d)
{
	struct cpufreq_policy *policy = d->policy;
	bool slow = kbp_domain_may_be_slow(d), done;
	unsigned int khz = slow ? policy->min : policy->max;
	u64 begin_ns;

	if (khz == d->khz)
		return KBP_CHANGE_NONE;
	begin_ns = ktime_get_ns();
	if (d->fast)
		done = cpufreq_driver_fast_switch(policy, khz);
	else
		done = !__cpufreq_driver_target(policy, khz,
						slow ? CPUFREQ_RELATION_L :
						       CPUFREQ_RELATION_H);
	kbp_domain_learn(d, begin_ns);
	WRITE_ONCE(d->khz, done ? khz : 0);
	if (!done) {
		if (d->refused)
			WRITE_ONCE(d->refused_at, jiffies);
		WRITE_ONCE(d->refused, true);
		return KBP_CHANGE_REFUSED;
	}
	return slow ? KBP_CHANGE_SLOWED : KBP_CHANGE_RAISED;
}

/* On a CPU of @d, interrupts off. */
static enum kbp_change kbp_domain_change_fast(struct kbp_domain *d)
{
	enum kbp_change change = KBP_CHANGE_NONE;

	raw_spin_lock(&d->fast_lock);
	/* The governor may have begun anew, with a driver that sleeps. */
	if (d->policy && d->fast)
		change = kbp_domain_change(d);
	raw_spin_unlock(&d->fast_lock);
	return change;
}

struct kbp_change_request {
	struct kbp_domain *domain;
	enum kbp_change change;
};

static void kbp_domain_called(void *data)
{
	struct kbp_change_request *request = data;

	request->change = kbp_domain_change_fast(request->domain);
}

/* Under d->lock. */
static enum kbp_change kbp_domain_change_any(struct kbp_domain *d)
{
	struct kbp_change_request request = { .domain = d };

	if (!d->policy)
		return KBP_CHANGE_NONE;
	if (!d->fast)
		return kbp_domain_change(d);
	smp_call_function_any(d->policy->cpus, kbp_domain_called, &request, true);
	return request.change;
}

/* Have the frequency of @d be what is wanted now. May sleep. */
static enum kbp_change kbp_domain_follow(struct kbp_domain *d)
{
	enum kbp_change change;

	mutex_lock(&d->lock);
	change = kbp_domain_change_any(d);
	/* From now on it is to be the highest. */
	if (change == KBP_CHANGE_REFUSED)
		kbp_domain_change_any(d);
	mutex_unlock(&d->lock);
	return change;
}

static enum kbp_change kbp_freq_follow(struct kbp_freq_cpu *c)
{
	struct kbp_domain *d;

	/* See kbp_freq_cpu. */
	smp_mb();
	d = READ_ONCE(c->domain);
	return d ? kbp_domain_follow(d) : KBP_CHANGE_NONE;
}

/* Does the frequency of @c follow its poller? */
static struct kbp_domain *kbp_freq_domain(const struct kbp_freq_cpu *c)
{
	struct kbp_domain *d = READ_ONCE(c->domain);

	return READ_ONCE(c->part) == KBP_PART_FOLLOWS && d &&
	       !READ_ONCE(d->refused) ? d : NULL;
}

static void kbp_freq_count(struct kbp_poller *p, enum kbp_change change)
{
	switch (change) {
	case KBP_CHANGE_NONE:
		break;
	case KBP_CHANGE_SLOWED:
		kbp_count(&p->stats, slowdowns, 1);
		break;
	case KBP_CHANGE_RAISED:
		kbp_count(&p->stats, speedups, 1);
		break;
	case KBP_CHANGE_REFUSED:
		kbp_count(&p->stats, freq_errors, 1);
		break;
	}
}

/*
 * The driver has refused: there is nothing to say, but where it did not do the highest
 * either. Then it is asked again, which takes its time, once a second.
 */
static bool kbp_freq_asks_again(const struct kbp_domain *d)
{
	return !READ_ONCE(d->khz) &&
	       time_after_eq(jiffies, READ_ONCE(d->refused_at) + HZ);
}

/* The poller thread says what it is about to do, or has done. */
static void kbp_freq_say(struct kbp_poller *p, struct kbp_freq_cpu *c, bool slow)
{
	bool says = READ_ONCE(c->slow) != slow;
	const struct kbp_domain *d;

	WRITE_ONCE(c->slow, slow);
	/* See kbp_freq_cpu. */
	smp_mb();
	d = READ_ONCE(c->domain);
	if (d && READ_ONCE(d->refused))
		says = kbp_freq_asks_again(d);
	if (says)
		kbp_freq_count(p, kbp_freq_follow(c));
}

static struct kbp_pace_view kbp_freq_view(const struct kbp_poller *p,
					  const struct kbp_domain *d,
					  u64 until_ns)
{
	struct kbp_pace_view view = {
		.now_ns = ktime_get_ns(),
		.until_ns = until_ns,
		.cost_ns = d ? max(READ_ONCE(d->said_ns),
				   READ_ONCE(d->seen_ns)) : 0,
		.choosy = p->config.freq == KBP_FREQ_AUTO,
	};

	return view;
}

/**
 * kbp_freq_sleep() - the poller sleeps: may its CPU be slow?
 * @p: the poller
 * @until_ns: when this sleep ends in any case; 0: not known
 * @goes_on: it has woken up only to ask
 *
 * Return: when to ask again; 0: not at all.
 */
u64 kbp_freq_sleep(struct kbp_poller *p, u64 until_ns, bool goes_on)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);
	struct kbp_domain *d = kbp_freq_domain(c);
	struct kbp_pace_view view = kbp_freq_view(p, d, until_ns);
	u64 at_ns = 0;

	if (goes_on && READ_ONCE(c->slow))
		return 0;
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
	struct kbp_pace_view view = kbp_freq_view(p, kbp_freq_domain(c), 0);

	kbp_pace_end(&p->pace, &view);
	kbp_freq_say(p, c, false);
}

/**
 * kbp_freq_tick() - the poller is awake, once a tick
 * @p: the poller
 *
 * One that does not sleep has no other moment to ask a driver again that has refused.
 */
void kbp_freq_tick(struct kbp_poller *p)
{
	kbp_freq_say(p, kbp_freq_of(p), false);
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
	enum kbp_change change;

	if (!d || !READ_ONCE(d->fast) || !READ_ONCE(c->slow) ||
	    p->config.cpu != smp_processor_id())
		return;
	WRITE_ONCE(c->slow, false);
	change = kbp_domain_change_fast(d);
	kbp_freq_count(p, change);
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
	WRITE_ONCE(c->relieved, false);
	WRITE_ONCE(c->part, p->config.freq == KBP_FREQ_OFF ? KBP_PART_STEADY :
							     KBP_PART_FOLLOWS);
	kbp_freq_follow(c);
}

/**
 * kbp_freq_relieve() - softirq does the work of a poller, or does not any more
 * @p: the poller
 * @relieved: it does: at the highest frequency, however the poller fell asleep
 *
 * Context: thread.
 */
void kbp_freq_relieve(struct kbp_poller *p, bool relieved)
{
	struct kbp_freq_cpu *c = kbp_freq_of(p);

	if (READ_ONCE(c->relieved) == relieved)
		return;
	WRITE_ONCE(c->relieved, relieved);
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

	WRITE_ONCE(c->part, KBP_PART_NONE);
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
	WRITE_ONCE(d->refused_at, jiffies - HZ);
	WRITE_ONCE(d->khz, 0);
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
	struct kbp_domain *d = policy->governor_data;

	/* Whatever was asked for before, the driver is to hear of them. */
	mutex_lock(&d->lock);
	raw_spin_lock_irq(&d->fast_lock);
	WRITE_ONCE(d->khz, 0);
	raw_spin_unlock_irq(&d->fast_lock);
	mutex_unlock(&d->lock);
	kbp_domain_follow(d);
}

static struct cpufreq_governor kbp_governor = {
	.name = "kbp",
	.flags = CPUFREQ_GOV_STRICT_TARGET,
	.init = kbp_governor_init,
	.exit = kbp_governor_exit,
	.start = kbp_governor_start,
	.stop = kbp_governor_stop,
	.limits = kbp_governor_limits,
	.owner = THIS_MODULE,
};

/**
 * kbp_freq_init() - make ready what pollers and the governor use
 */
void kbp_freq_init(void)
{
	struct kbp_domain *d;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		d = &per_cpu_ptr(&kbp_freq_cpus, cpu)->own;
		mutex_init(&d->lock);
		raw_spin_lock_init(&d->fast_lock);
	}
}

/**
 * kbp_freq_register() - let the governor be chosen
 *
 * Once the module is sure to stay: who takes it in a module that fails to load
 * would be left with its memory. A kernel without frequencies, or with another
 * governor of this name, is no reason to fail.
 */
void kbp_freq_register(void)
{
	int err = cpufreq_register_governor(&kbp_governor);

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
