// SPDX-License-Identifier: GPL-2.0-only
/*
 * The backlog of a poller's CPU: who owns it, and how a poller polls it.
 *
 * Owns the step between stock and us, and back. A sender (enqueue_to_backlog()
 * in net/core/dev.c) puts its packet on the queue and, if NAPI_STATE_SCHED is
 * not set, schedules the backlog: on this CPU at once, from another one by an
 * interrupt (RPS). So nothing of the sender is replaced:
 *
 *   held   SCHED is ours and stays set. Senders of all CPUs only queue: no
 *          softirq, no interrupt. The poller looks at the length of the queue.
 *   armed  SCHED is clear; NAPI_STATE_THREADED is set and napi->thread is the
 *          poller thread. The first sender schedules as for threaded NAPI:
 *          SCHED_THREADED is set and the thread woken, in place of a softirq.
 *   stock  as if we were not here.
 *
 * Context: every step between them runs on the backlog's own CPU with
 * interrupts off, where an RPS interrupt can't be half way. Lock: the queue's,
 * under which senders touch SCHED (with plain writes); kbp_poller.lock is not
 * taken inside it.
 */
#include <linux/netdevice.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <trace/events/napi.h>

#include "kbp.h"
#include "trace.h"

/* The lock is a sleeping one on PREEMPT_RT, and without RPS there is none. */
#define KBP_BACKLOG_POSSIBLE	(IS_ENABLED(CONFIG_RPS) && \
				 !IS_ENABLED(CONFIG_PREEMPT_RT))

static struct softnet_data *kbp_backlog_sd(const struct kbp_poller *p)
{
	return &per_cpu(softnet_data, p->config.cpu);
}

static unsigned int kbp_backlog_queued(const struct kbp_poller *p)
{
	const struct softnet_data *sd = kbp_backlog_sd(p);

	return skb_queue_len_lockless(&sd->input_pkt_queue) +
	       skb_queue_len_lockless(&sd->process_queue);
}

/* Does a thread that is not @p's serve the backlog of this CPU? */
static bool kbp_backlog_has_thread(const struct napi_struct *n,
				   const struct kbp_poller *p)
{
	const struct task_struct *thread = READ_ONCE(n->thread);

	return test_bit(NAPI_STATE_THREADED, &n->state) && thread &&
	       !(p && p->task == thread);
}

/**
 * kbp_backlog_refusal() - may the poller of a CPU serve its backlog?
 * @cpu: the CPU
 *
 * Context: kbp_mutex held.
 * Return: NULL, or the sentence that says why not.
 */
const char *kbp_backlog_refusal(u32 cpu)
{
	if (!KBP_BACKLOG_POSSIBLE)
		return "this kernel (PREEMPT_RT, or without RPS) can't leave its backlog to a poller";
	if (kbp_backlog_has_thread(&per_cpu(softnet_data, cpu).backlog,
				   kbp_poller_find(cpu)))
		return "the kernel serves the backlogs in threads of its own (boot parameter thread_backlog_napi)";
	return NULL;
}

/* Is the instance scheduled, and the poller the one that was told? */
static bool kbp_backlog_is_due(const struct napi_struct *n)
{
	return test_bit(NAPI_STATE_SCHED_THREADED, &n->state);
}

/*
 * Scheduled on this CPU and waiting for its softirq? Softirq keeps it for as
 * long as the queue does not drain, so we don't wait for that. The thread has BH
 * off, so no softirq is half way through the list.
 */
static bool kbp_backlog_is_listed(const struct napi_struct *n)
{
	/* It has no list before it was scheduled for the first time. */
	return n->poll_list.next && !list_empty(&n->poll_list);
}

/* Make the instance ours, if nobody else is at it. Under the queue's lock. */
static bool kbp_backlog_claim(struct kbp_poller *p, struct napi_struct *n)
{
	bool scheduled = test_bit(NAPI_STATE_SCHED, &n->state);

	if (p->backlog.hold == KBP_BACKLOG_ARMED) {
		/* By another CPU, whose interrupt has not come: not ours yet. */
		if (scheduled && !kbp_backlog_is_due(n))
			return false;
		if (scheduled)
			kbp_count(&p->stats, backlog_wakes, 1);
	} else {
		if (kbp_backlog_has_thread(n, NULL) ||
		    (scheduled && !kbp_backlog_is_listed(n)))
			return false;
		if (scheduled)
			list_del_init(&n->poll_list);
		WRITE_ONCE(n->thread, p->task);
		__set_bit(NAPI_STATE_THREADED, &n->state);
	}
	__clear_bit(NAPI_STATE_SCHED_THREADED, &n->state);
	__set_bit(NAPI_STATE_SCHED, &n->state);
	return true;
}

/* Stock or armed -> held, where it is wanted. The thread, BH off. */
static bool kbp_backlog_take(struct kbp_poller *p, enum kbp_backlog wanted)
{
	struct softnet_data *sd = kbp_backlog_sd(p);
	bool taken = false;

	local_irq_disable();
	spin_lock(&sd->input_pkt_queue.lock);
	/* Asked again here: kbp_backlog_recall() comes before this or after. */
	if (kbp_backlog_wanted(p) == wanted && !kbp_is_relieved(p))
		taken = kbp_backlog_claim(p, &sd->backlog);
	if (taken)
		WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_HELD);
	spin_unlock(&sd->input_pkt_queue.lock);
	if (taken) {
		raw_spin_lock(&p->lock);
		kbp_watchdog_start(p);
		raw_spin_unlock(&p->lock);
	}
	local_irq_enable();
	return taken;
}

/**
 * kbp_backlog_arm() - let the next packet for the backlog wake the poller
 * @p: the poller
 *
 * Context: the thread, about to rest.
 * Return: false if packets wait already.
 */
bool kbp_backlog_arm(struct kbp_poller *p)
{
	struct softnet_data *sd = kbp_backlog_sd(p);
	bool empty = true;

	if (READ_ONCE(p->backlog.hold) != KBP_BACKLOG_HELD)
		return true;
	local_irq_disable();
	spin_lock(&sd->input_pkt_queue.lock);
	if (p->backlog.hold == KBP_BACKLOG_HELD) {
		empty = !kbp_backlog_queued(p);
		if (empty) {
			__clear_bit(NAPI_STATE_SCHED_THREADED,
				    &sd->backlog.state);
			__clear_bit(NAPI_STATE_SCHED, &sd->backlog.state);
			WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_ARMED);
		}
	}
	spin_unlock(&sd->input_pkt_queue.lock);
	local_irq_enable();
	return empty;
}

/**
 * kbp_backlog_give_back() - to stock, from wherever it is
 * @p: the poller
 *
 * What is queued goes to softirq. If a sender has scheduled it and its
 * interrupt has not come yet, that interrupt finds THREADED clear and does what
 * stock does.
 *
 * Context: the poller's CPU, interrupts off.
 */
void kbp_backlog_give_back(struct kbp_poller *p)
{
	struct softnet_data *sd = kbp_backlog_sd(p);
	struct napi_struct *n = &sd->backlog;
	bool ours;

	/* No thread that has died comes back from its poll. */
	if (p->backlog.hold == KBP_BACKLOG_POLLING &&
	    READ_ONCE(p->state) == KBP_STATE_DEAD)
		WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_HELD);
	/* The thread gives back itself what it polls at this moment. */
	if (p->backlog.hold == KBP_BACKLOG_STOCK ||
	    p->backlog.hold == KBP_BACKLOG_POLLING)
		return;
	spin_lock(&sd->input_pkt_queue.lock);
	ours = p->backlog.hold == KBP_BACKLOG_HELD || kbp_backlog_is_due(n);
	__clear_bit(NAPI_STATE_SCHED_THREADED, &n->state);
	__clear_bit(NAPI_STATE_THREADED, &n->state);
	WRITE_ONCE(n->thread, NULL);
	if (ours && !kbp_backlog_queued(p)) {
		__clear_bit(NAPI_STATE_SCHED, &n->state);
		ours = false;
	}
	WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_STOCK);
	spin_unlock(&sd->input_pkt_queue.lock);
	if (ours) {
		kbp_stock_add(sd, n);
		kbp_stock_raise();
	}
}

static void kbp_backlog_ipi(void *data)
{
	kbp_backlog_give_back(data);
}

/**
 * kbp_backlog_recall() - give the backlog back to softirq
 * @p: the poller, which does not want it any more: kbp_backlog_wanted()
 *
 * Context: may sleep, as long as one poll lasts.
 */
void kbp_backlog_recall(struct kbp_poller *p)
{
	while (!smp_call_function_single(p->config.cpu, kbp_backlog_ipi, p, 1) &&
	       READ_ONCE(p->backlog.hold) != KBP_BACKLOG_STOCK)
		usleep_range(50, 100);
}

/**
 * kbp_backlog_leave() - give the backlog back to softirq
 * @p: the poller
 *
 * Context: the thread.
 */
void kbp_backlog_leave(struct kbp_poller *p)
{
	if (READ_ONCE(p->backlog.hold) == KBP_BACKLOG_STOCK)
		return;
	local_bh_disable();
	local_irq_disable();
	kbp_backlog_give_back(p);
	local_irq_enable();
	/* Here its softirq runs, and not in ksoftirqd. */
	local_bh_enable();
}

/* Does anything still want the poller to have it? The thread. */
static bool kbp_backlog_is_wanted(const struct kbp_poller *p)
{
	return kbp_backlog_wanted(p) != KBP_BACKLOG_SOFTIRQ &&
	       !kbp_is_relieved(p);
}

/**
 * kbp_backlog_poll() - poll the backlog once, if the poller has it
 * @p: the poller
 * @wanted: as what it has it
 * @budget: packets
 *
 * process_backlog() ends its own turn, and with it our hold, only when it finds
 * the queue empty. It is asked for no more than what is queued, and nobody else
 * takes packets away while BH is off, so it never does.
 *
 * Context: the thread, BH off.
 * Return: packets.
 */
int kbp_backlog_poll(struct kbp_poller *p, enum kbp_backlog wanted, int budget)
{
	struct napi_struct *n = &kbp_backlog_sd(p)->backlog;
	int work = 0;

	if (kbp_backlog_wanted(p) != wanted)
		return 0;
	if (READ_ONCE(p->backlog.hold) != KBP_BACKLOG_HELD &&
	    !kbp_backlog_take(p, wanted))
		return 0;
	budget = min_t(int, budget, kbp_backlog_queued(p));
	if (!budget)
		return 0;

	WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_POLLING);
	work = n->poll(n, budget);
	trace_napi_poll(n, work, budget);
	trace_kbp_poll(n, work, budget, true);
	if (likely(work == budget))
		WRITE_ONCE(p->backlog.hold, KBP_BACKLOG_HELD);
	else	/* It ended its turn after all: it has done with SCHED. */
		WRITE_ONCE(p->backlog.hold,
			   test_bit(NAPI_STATE_THREADED, &n->state) ?
			   KBP_BACKLOG_ARMED : KBP_BACKLOG_STOCK);
	kbp_count(&p->stats, backlog_packets, work);
	if (unlikely(!kbp_backlog_is_wanted(p)))
		kbp_backlog_leave(p);
	return work;
}

/**
 * kbp_backlog_is_open() - may a poll of the backlog find packets?
 * @p: the poller
 * @wanted: as what it has it
 *
 * Context: the thread.
 * Return: true also while it has to be taken first.
 */
bool kbp_backlog_is_open(const struct kbp_poller *p, enum kbp_backlog wanted)
{
	return kbp_backlog_wanted(p) == wanted &&
	       (READ_ONCE(p->backlog.hold) != KBP_BACKLOG_HELD ||
		kbp_backlog_queued(p));
}

/**
 * kbp_backlog_has_packets() - do packets wait that the poller is to take?
 * @p: the poller
 *
 * Context: any; the answer may be old.
 */
bool kbp_backlog_has_packets(const struct kbp_poller *p)
{
	return READ_ONCE(p->backlog.hold) == KBP_BACKLOG_HELD &&
	       kbp_backlog_queued(p);
}

/**
 * kbp_backlog_is_waiting() - has the thread to run because of the backlog?
 * @p: the poller
 *
 * While it is held no sender says anything, so a held one waits always.
 *
 * Context: any; the answer may be old.
 */
bool kbp_backlog_is_waiting(const struct kbp_poller *p)
{
	switch (READ_ONCE(p->backlog.hold)) {
	case KBP_BACKLOG_STOCK:
		return false;
	case KBP_BACKLOG_ARMED:
		return kbp_backlog_is_due(&kbp_backlog_sd(p)->backlog);
	case KBP_BACKLOG_HELD:
	case KBP_BACKLOG_POLLING:
		break;
	}
	return true;
}

/**
 * kbp_backlog_set() - say who is to serve the backlog of a poller's CPU
 * @p: the poller
 * @wanted: who; checked by kbp_backlog_refusal()
 *
 * Context: kbp_mutex held, may sleep.
 */
void kbp_backlog_set(struct kbp_poller *p, enum kbp_backlog wanted)
{
	WRITE_ONCE(p->backlog.wanted, wanted);
	if (!p->task)
		return;
	if (wanted == KBP_BACKLOG_SOFTIRQ)
		kbp_backlog_recall(p);
	else
		wake_up_process(p->task);
}

/**
 * kbp_backlog_active() - who serves the backlog of a poller's CPU now
 * @p: the poller
 */
enum kbp_backlog kbp_backlog_active(const struct kbp_poller *p)
{
	if (READ_ONCE(p->backlog.hold) == KBP_BACKLOG_STOCK ||
	    kbp_is_relieved(p))
		return KBP_BACKLOG_SOFTIRQ;
	return kbp_backlog_wanted(p);
}
