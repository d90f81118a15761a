// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is left of sending: packets that wait to be freed, queues that were full.
 *
 * The softirq NET_TX does that where no poller is. Context: the poller thread, BH off.
 */
#include <linux/interrupt.h>
#include <linux/skbuff.h>

#include "kbp.h"

/* Room for data in what napi_alloc_skb() gives for short packets, bytes. */
#define KBP_SHORT_ROOM		SKB_WITH_OVERHEAD(1024)
/* In one of about so many rounds what was sent is freed together, at its end. */
#define KBP_TOGETHER_ROUNDS	32

/**
 * kbp_serve_net_tx() - do what NET_TX was raised for
 * @p: the poller
 *
 * Newer kernels do that when BH is on again, older ones not while ksoftirqd is awake,
 * and that does not get on while a FIFO thread polls: senders would wait for their
 * memory. What it schedules is no next step of what is attached, see kbp_goes_on().
 */
void kbp_serve_net_tx(struct kbp_poller *p)
{
	bool serving = p->serving;

	if (likely(!(local_softirq_pending() & BIT(NET_TX_SOFTIRQ))))
		return;
	local_irq_disable();
	set_softirq_pending(local_softirq_pending() & ~BIT(NET_TX_SOFTIRQ));
	local_irq_enable();
	p->serving = false;
	kbp_net_tx_action();
	p->serving = serving;
}

/*
 * Will a packet like this be received into its head, which the kernel keeps? A guess by
 * what e1000e does: it copies what is short into a packet with such a head, and takes
 * the heads of long ones from the allocator. TCP's own packets have other heads.
 */
static bool kbp_head_is_taken_again(const struct sk_buff *skb)
{
	return skb->fclone == SKB_FCLONE_UNAVAILABLE &&
	       skb_end_offset(skb) <= KBP_SHORT_ROOM;
}

/* Does what was sent last give its memory to the next packets that are received? */
static bool kbp_sent_is_used_again(const struct softnet_data *sd)
{
	bool again;

	if (kbp_slab_has_sheaves())
		return true;
	/* An interrupt's message may be sent by netpoll, which frees what it finds. */
	local_irq_disable();
	again = sd->completion_queue && kbp_head_is_taken_again(sd->completion_queue);
	local_irq_enable();
	return again;
}

/**
 * kbp_free_sent() - free what was sent, between two polls
 * @p: the poller
 * @all_polled: about each instance of class rt was polled since the last call that said so
 *
 * The kernel keeps the heads (struct sk_buff) of the last packets that a CPU has freed,
 * for drivers that ask for them. So packets of such are freed after each poll, before
 * there are so many that half go on to the allocator. Where the driver asks the allocator
 * they go there in any case: at once, if it has sheaves, which keep them as well; else it
 * is quicker with many, and they are freed when they would be in the stock path. Where
 * such a lot begins and ends, the heads of one slab are torn apart, and in time they lie
 * scattered; so now and then those of a whole round are freed together.
 *
 * Queues wait for the end of the stretch: each may send as much as a poll receives.
 */
void kbp_free_sent(struct kbp_poller *p, bool all_polled)
{
	const struct softnet_data *sd = this_cpu_ptr(&softnet_data);

	if (!READ_ONCE(sd->completion_queue) || READ_ONCE(sd->output_queue))
		return;
	if ((all_polled && p->beat % KBP_TOGETHER_ROUNDS) || kbp_sent_is_used_again(sd))
		kbp_serve_net_tx(p);
}
