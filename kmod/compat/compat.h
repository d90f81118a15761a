/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Makes older kernels look like the newest one that the module is written
 * for. Included before every source file (-include). The KBP_HAVE_* come from
 * probes.mk. This folder is the only place that may tell kernels apart.
 */
#ifndef KBP_COMPAT_H
#define KBP_COMPAT_H

#include <linux/filter.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rcupdate.h>
#include <net/gro.h>
#ifdef KBP_HAVE_SKB_DEFER_NODE
#include <net/hotdata.h>
#endif
#ifdef KBP_HAVE_RX_QUEUE_H
#include <net/netdev_rx_queue.h>
#endif

/*
 * Deliver what GRO of @n does not merge any more. The kernel's gro_normal_list()
 * ends in a function that is not exported; its exported sibling
 * netif_receive_skb_list() adds one tracepoint a packet.
 */
static inline void kbp_gro_deliver(struct napi_struct *n)
{
#ifdef KBP_HAVE_GRO_NODE
	if (n->gro.rx_count) {
		netif_receive_skb_list(&n->gro.rx_list);
		INIT_LIST_HEAD(&n->gro.rx_list);
		n->gro.rx_count = 0;
	}
#else
	if (n->rx_count) {
		netif_receive_skb_list(&n->rx_list);
		INIT_LIST_HEAD(&n->rx_list);
		n->rx_count = 0;
	}
#endif
}

/* Deliver everything that GRO holds back for @n, as gro_flush_normal() does. */
static inline void kbp_gro_flush(struct napi_struct *n)
{
#ifdef KBP_HAVE_GRO_NODE
	if (n->gro.bitmask)
		__gro_flush(&n->gro, false);
#else
	if (n->gro_bitmask)
		napi_gro_flush(n, false);
#endif
	kbp_gro_deliver(n);
}

/* Note on which CPU's list @n is. */
static inline void kbp_list_owner_set(struct napi_struct *n, int cpu)
{
#ifdef KBP_HAVE_LIST_OWNER
	WRITE_ONCE(n->list_owner, cpu);
#endif
}

/* Has NET_RX to be raised for a NAPI that was put on @sd's poll list? */
static inline bool kbp_net_rx_needs_raise(struct softnet_data *sd)
{
#ifdef KBP_HAVE_IN_NET_RX_ACTION
	return !sd->in_net_rx_action;
#else
	return true;
#endif
}

/*
 * Free the packets of this CPU that other CPUs have done with and left for it
 * to free (skb_attempt_defer_free()). The kernel does so in each NET_RX softirq,
 * and asks for one when many wait. BH off.
 */
#ifdef KBP_HAVE_SKB_DEFER_NODE
static inline void kbp_defer_free_flush(void)
{
	struct skb_defer_node *of_node;
	struct sk_buff *skb, *next;
	struct llist_node *list;
	int node;

	for_each_node(node) {
		of_node = this_cpu_ptr(net_hotdata.skb_defer_nodes) + node;
		if (llist_empty(&of_node->defer_list))
			continue;
		atomic_long_set(&of_node->defer_count, 0);
		list = llist_del_all(&of_node->defer_list);
		llist_for_each_entry_safe(skb, next, list, ll_node)
			napi_consume_skb(skb, 1);
	}
}
#else
static inline void kbp_defer_free_flush(void)
{
	struct softnet_data *sd = this_cpu_ptr(&softnet_data);
	struct sk_buff *skb, *next;
	unsigned long flags;

	if (likely(!READ_ONCE(sd->defer_list)))
		return;
	spin_lock_irqsave(&sd->defer_lock, flags);
	skb = sd->defer_list;
	sd->defer_list = NULL;
	sd->defer_count = 0;
	spin_unlock_irqrestore(&sd->defer_lock, flags);
	for (; skb; skb = next) {
		next = skb->next;
		napi_consume_skb(skb, 1);
	}
}
#endif

/*
 * Has the slab allocator for each CPU an array of what that has freed last (sheaves), in
 * place of slabs of which it has some (CPU partial slabs)? A 6.18 or 6.19 that was built
 * without those is taken for one that has.
 */
static inline bool kbp_slab_has_sheaves(void)
{
#ifdef KBP_HAVE_SHEAVES
	return !IS_ENABLED(CONFIG_SLUB_CPU_PARTIAL);
#else
	return false;
#endif
}

/* The work of the softirq NET_TX. The caller has cleared its pending bit. BH off, interrupts on. */
#ifdef KBP_HAVE_SOFTIRQ_NO_ARGUMENT
void net_tx_action(void);

static inline void kbp_net_tx_action(void)
{
	net_tx_action();
}
#else
void net_tx_action(struct softirq_action *action);

static inline void kbp_net_tx_action(void)
{
	net_tx_action(NULL);
}
#endif

#ifndef KBP_HAVE_BPF_NET_CTX
struct bpf_net_context {
};

static inline struct bpf_net_context *
bpf_net_ctx_set(struct bpf_net_context *ctx)
{
	return ctx;
}

static inline void bpf_net_ctx_clear(struct bpf_net_context *ctx)
{
}
#endif

/*
 * Id of the NAPI that the driver names for receive queue @queue; 0 if it names
 * none. An older kernel knows it of drivers that support XDP. RCU reader.
 */
static inline u32 kbp_rx_queue_napi_id(struct net_device *dev, u32 queue)
{
	struct netdev_rx_queue *rxq = &dev->_rx[queue];
	u32 napi_id = 0;

#ifdef KBP_HAVE_RX_QUEUE_NAPI
	struct napi_struct *n = READ_ONCE(rxq->napi);

	if (n)
		napi_id = n->napi_id;
#endif
#ifdef KBP_HAVE_XDP_RXQ_NAPI_ID
	if (!napi_id)
		napi_id = READ_ONCE(rxq->xdp_rxq.napi_id);
#endif
	return napi_id;
}

#ifndef KBP_HAVE_HRTIMER_SETUP
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*fn)(struct hrtimer *),
				 clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = fn;
}
#endif

/* A piece of memory; the end is the first address behind it. */
struct kbp_range {
	unsigned long start;
	unsigned long end;
};

/* The pieces of a module's memory that hold data while it is being loaded. */
#ifdef KBP_HAVE_MODULE_MEM
#define KBP_MODULE_PIECES	5

static inline struct kbp_range kbp_module_piece(const struct module *mod,
						unsigned int piece)
{
	static const enum mod_mem_type types[KBP_MODULE_PIECES] = {
		MOD_DATA, MOD_RODATA, MOD_RO_AFTER_INIT, MOD_INIT_DATA,
		MOD_INIT_RODATA,
	};
	const struct module_memory *memory = &mod->mem[types[piece]];
	unsigned long start = (unsigned long)memory->base;

	return (struct kbp_range) { start, start + memory->size };
}
#else
#define KBP_MODULE_PIECES	2

static inline struct kbp_range kbp_module_piece(const struct module *mod,
						unsigned int piece)
{
	const struct module_layout *layout = piece ? &mod->init_layout :
						     &mod->core_layout;
	unsigned long base = (unsigned long)layout->base;

	return (struct kbp_range) { base + layout->text_size,
				    base + layout->size };
}
#endif

#ifndef KBP_HAVE_RCU_MOMENTARY_EQS
static inline void rcu_momentary_eqs(void)
{
	rcu_momentary_dyntick_idle();
}
#endif

#endif /* KBP_COMPAT_H */
