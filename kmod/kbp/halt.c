// SPDX-License-Identifier: GPL-2.0-only
/*
 * The CPU of a poller stands still between two looks at empty rings.
 *
 * Where packets come faster than one can sleep in between, mode adaptive polls
 * through, and most of its polls find nothing. A halt is shorter than a sleep: the
 * thread stays the one that runs, and nothing is scheduled. The timer that is set
 * for its end, or any other interrupt, ends it.
 *
 * Owns struct kbp_halt of a poller. Context: the poller thread, with nothing held.
 */
#include <linux/irqflags.h>
#include <linux/jiffies.h>
#include <linux/sched/stat.h>
#include <asm/processor.h>

#include "kbp.h"

/* The longest that can be asked for. */
#define KBP_HALT_US_MAX		100U
/* It ends the halt by being an interrupt. */
static enum hrtimer_restart kbp_halt_end(struct hrtimer *timer)
{
	struct kbp_halt *h = container_of(timer, struct kbp_halt, timer);

	h->ended_ns = ktime_get_ns();
	return HRTIMER_NORESTART;
}

/* What a halt lasts usually; 0: none is wanted. */
static u64 kbp_halt_ns(void)
{
	return (u64)min(READ_ONCE(kbp_halt_us), KBP_HALT_US_MAX) * NSEC_PER_USEC;
}

/*
 * Does this machine's timer end a halt in time? A coarse one does at the next tick,
 * and the local one of some old processors (E400) stops in it.
 */
static bool kbp_halts_end(u64 halt_ns)
{
	return hrtimer_resolution <= halt_ns &&
	       !boot_cpu_has_bug(X86_BUG_AMD_APIC_C1E);
}

/*
 * Who allows no idle state on this CPU, or boots with idle=poll, wants no halt either.
 */
static bool kbp_halts_are_possible(const struct kbp_poller *p, u64 halt_ns)
{
	return halt_ns && kbp_halts_end(halt_ns) && p->config.cstate.max_us &&
	       boot_option_idle_override != IDLE_POLL;
}

/**
 * kbp_halts_through() - would the CPU stand still where all is polled through?
 * @p: its poller
 *
 * Return: true also where that was not tried yet.
 */
bool kbp_halts_through(const struct kbp_poller *p)
{
	return !p->halt.in_vain && kbp_halts_are_possible(p, kbp_halt_ns());
}

/*
 * May it stand still? Only where it polls through, for nobody but devices in mode
 * adaptive, and where nothing is due at a set time.
 */
static bool kbp_may_halt(const struct kbp_poller *p, u64 halt_ns)
{
	return p->thrift.through && p->wakeful && !p->kept && !p->due_ns &&
	       READ_ONCE(p->state) == KBP_STATE_POLLING &&
	       time_after_eq(jiffies, p->halt.again) &&
	       kbp_halts_are_possible(p, halt_ns);
}

/* Has something come since the round that found nothing, or somebody for the CPU? */
static bool kbp_is_wanted(const struct kbp_poller *p)
{
	return need_resched() || !single_task_running() ||
	       kbp_backlog_has_packets(p) || kbp_has_scheduled(p);
}

/*
 * Where halts end late (a hypervisor that gives the CPU to others, a slow idle state),
 * packets wait for that: then none is made for a second, and none counts on them before
 * they were in time for a second. One that another interrupt has ended says nothing, and
 * what handlers take once it has ended is no lateness.
 */
static void kbp_halt_learn(struct kbp_halt *h, u64 usual_ns, u64 due_ns)
{
	if (h->ended_ns <= due_ns)
		return;
	if (kbp_halts_are_late(&h->late_ns, usual_ns, h->ended_ns - due_ns)) {
		h->again = jiffies + HZ;
		h->in_vain = true;
	} else if (h->in_vain && time_after_eq(jiffies, h->again + HZ)) {
		h->in_vain = false;
	}
}

/* One that another interrupt has ended was shorter than it was to be. */
static void kbp_halt_cut(struct kbp_halt *h, u64 halt_ns, u64 took_ns)
{
	if (took_ns < halt_ns)
		h->saved_ns -= min(h->saved_ns, halt_ns - took_ns);
}

/*
 * With preemption and interrupts off until the CPU stands still: what comes from then
 * on ends the halt by its interrupt. A thread that is to run at the next tick only
 * (PREEMPT_LAZY) waits for that.
 *
 * Return: how long it stood still, nanoseconds; 0: not at all.
 */
static u64 kbp_halt_for(struct kbp_poller *p, u64 usual_ns)
{
	u64 begin_ns, halt_ns, took_ns = 0;

	preempt_disable();
	local_irq_disable();
	if (kbp_is_wanted(p)) {
		local_irq_enable();
	} else {
		p->halt.ended_ns = 0;
		begin_ns = ktime_get_ns();
		halt_ns = kbp_halt_length(usual_ns,
					  kbp_adaptive_quiet(p, begin_ns),
					  &p->halt.saved_ns);
		hrtimer_start(&p->halt.timer, ns_to_ktime(halt_ns),
			      HRTIMER_MODE_REL_PINNED_HARD);
		safe_halt();
		took_ns = ktime_get_ns() - begin_ns;
		kbp_halt_cut(&p->halt, halt_ns, took_ns);
		kbp_halt_learn(&p->halt, usual_ns, begin_ns + halt_ns);
	}
	preempt_enable();
	return took_ns;
}

/**
 * kbp_halt() - nothing was found: stand still for a moment, where that is allowed
 * @p: the poller
 *
 * Return: whether it did.
 */
bool kbp_halt(struct kbp_poller *p)
{
	u64 usual_ns = kbp_halt_ns();
	u64 took_ns;

	if (!kbp_may_halt(p, usual_ns))
		return false;
	took_ns = kbp_halt_for(p, usual_ns);
	if (!took_ns)
		return false;
	p->halt.halted_ns += took_ns;
	kbp_count(&p->stats, halts, 1);
	kbp_count(&p->stats, halted_ns, took_ns);
	return true;
}

/**
 * kbp_halt_take() - the time that it stood still since this was asked last
 * @p: the poller
 *
 * Return: nanoseconds, which are not time spent polling.
 */
u64 kbp_halt_take(struct kbp_poller *p)
{
	u64 halted_ns = p->halt.halted_ns;

	p->halt.halted_ns = 0;
	return halted_ns;
}

void kbp_halt_init(struct kbp_poller *p)
{
	p->halt.again = jiffies;
	hrtimer_setup(&p->halt.timer, kbp_halt_end, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/**
 * kbp_halt_exit() - the thread is gone
 * @p: its poller
 */
void kbp_halt_exit(struct kbp_poller *p)
{
	hrtimer_cancel(&p->halt.timer);
}
