// SPDX-License-Identifier: GPL-2.0-only
/*
 * Deep idle states are kept from a poller's CPU while packets are to be expected:
 * who wakes a CPU out of one waits for its exit. In a silence they are let in.
 *
 * Owns the limit of a poller (PM QoS, resume latency of its CPU), which ends with
 * the poller. When it is lifted is decided in pace.c; which state the CPU enters
 * then is the kernel's decision.
 *
 * Context: the poller thread before and after a sleep, with nothing held; PM QoS
 * takes a mutex. A limit that was lifted is set again before the next sleep or rest
 * and not on waking, because the CPU is not idle in between.
 */
#include <linux/cpu.h>
#include <linux/pm_qos.h>

#include "kbp.h"

static struct kbp_pace_view kbp_cstate_view(const struct kbp_poller *p,
					    u64 until_ns)
{
	struct kbp_pace_view view = {
		.now_ns = ktime_get_ns(),
		.until_ns = until_ns,
		.cost_ns = (u64)p->config.cstate.exit_us * NSEC_PER_USEC,
		.choosy = true,
	};

	return view;
}

static void kbp_cstate_limit(struct kbp_poller *p, bool lift)
{
	struct kbp_cstate *c = &p->cstate;

	if (lift == c->lifted)
		return;
	c->lifted = lift;
	dev_pm_qos_update_request(&c->request, lift ?
				  PM_QOS_RESUME_LATENCY_NO_CONSTRAINT :
				  (s32)p->config.cstate.max_us);
}

/**
 * kbp_cstate_rest() - the poller lets others run, and packets are to be expected
 * @p: the poller
 */
void kbp_cstate_rest(struct kbp_poller *p)
{
	if (kbp_cstate_is_limited(p))
		kbp_cstate_limit(p, false);
}

/**
 * kbp_cstate_sleep() - the poller sleeps: may its CPU sleep deeply?
 * @p: the poller
 * @until_ns: when this sleep ends in any case; 0: not known
 * @goes_on: it has woken up only to ask
 *
 * Return: when to ask again; 0: not at all.
 */
u64 kbp_cstate_sleep(struct kbp_poller *p, u64 until_ns, bool goes_on)
{
	struct kbp_pace_view view = kbp_cstate_view(p, until_ns);
	struct kbp_cstate *c = &p->cstate;
	u64 at_ns;

	if (!kbp_cstate_is_limited(p) || (goes_on && c->lifted))
		return 0;
	if (!goes_on)
		kbp_pace_begin(&c->pace, view.now_ns);
	at_ns = kbp_pace_slow_at(&c->pace, &view);
	kbp_cstate_limit(p, !at_ns);
	if (!at_ns)
		kbp_count(&p->stats, deep_sleeps, 1);
	return at_ns;
}

/**
 * kbp_cstate_wake() - the poller is awake and has work
 * @p: the poller
 */
void kbp_cstate_wake(struct kbp_poller *p)
{
	struct kbp_pace_view view = kbp_cstate_view(p, 0);

	kbp_pace_end(&p->cstate.pace, &view);
}

/**
 * kbp_cstate_is_limited() - does PM QoS know of a limit of this poller?
 * @p: the poller
 *
 * A kernel without power management takes requests and does nothing with them.
 */
bool kbp_cstate_is_limited(struct kbp_poller *p)
{
	return dev_pm_qos_request_active(&p->cstate.request);
}

/**
 * kbp_cstate_start() - a poller begins, and expects packets
 * @p: the poller
 *
 * Without the memory for it the poller goes without, and says so: see
 * kbp_cstate_is_limited().
 *
 * Context: kbp_mutex held, before its thread runs.
 */
void kbp_cstate_start(struct kbp_poller *p)
{
	struct kbp_cstate *c = &p->cstate;
	int err;

	memset(c, 0, sizeof(*c));
	if (p->config.cstate.max_us == KBP_CSTATE_ANY)
		return;
	err = dev_pm_qos_add_request(get_cpu_device(p->config.cpu), &c->request,
				     DEV_PM_QOS_RESUME_LATENCY,
				     (s32)p->config.cstate.max_us);
	if (err < 0)
		pr_warn("kbp: idle states of CPU %u can't be limited: error %d\n",
			p->config.cpu, err);
}

/**
 * kbp_cstate_stop() - a poller's thread has ended; its CPU is limited no more
 * @p: the poller
 *
 * Context: thread; once more does no harm.
 */
void kbp_cstate_stop(struct kbp_poller *p)
{
	if (kbp_cstate_is_limited(p))
		dev_pm_qos_remove_request(&p->cstate.request);
}
