// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters on their way to user space. They are declared once, in
 * uapi/kbp.yaml; KBP_POLLER_COUNTERS and KBP_NAPI_COUNTERS are generated.
 *
 * Context: any that may read; a counter is consistent in itself, the set is
 * not a snapshot. Only the waits of NAPI instances are, taken under
 * kbp_poller.lock.
 */
#include <net/netlink.h>

#include "kbp.h"

/* Stands inside the loop of a reader of u64_stats_sync. */
#define KBP_READ(field, suffix) values[i++] = u64_stats_read(&s->field);

#define KBP_POLLER_ATTR(field, suffix) KBP_A_POLLER_STATS_##suffix,
#define KBP_NAPI_ATTR(field, suffix) KBP_A_NAPI_STATS_##suffix,

static const u16 kbp_poller_attrs[] = { KBP_POLLER_COUNTERS(KBP_POLLER_ATTR) };
static const u16 kbp_napi_attrs[] = { KBP_NAPI_COUNTERS(KBP_NAPI_ATTR) };

static int kbp_stats_put(struct sk_buff *skb, int nest_attr, int pad_attr,
			 const u16 *attrs, const u64 *values, unsigned int count)
{
	struct nlattr *nest = nla_nest_start(skb, nest_attr);
	unsigned int i;

	if (!nest)
		return -EMSGSIZE;
	for (i = 0; i < count; i++) {
		if (nla_put_u64_64bit(skb, attrs[i], values[i], pad_attr)) {
			nla_nest_cancel(skb, nest);
			return -EMSGSIZE;
		}
	}
	nla_nest_end(skb, nest);
	return 0;
}

/**
 * kbp_poller_stats_put() - add a poller's counters to a message
 * @skb: the message
 * @p: the poller
 *
 * Return: 0, or -EMSGSIZE if they don't fit.
 */
int kbp_poller_stats_put(struct sk_buff *skb, const struct kbp_poller *p)
{
	const struct kbp_poller_stats *s = &p->stats;
	u64 values[ARRAY_SIZE(kbp_poller_attrs)];
	unsigned int start, i;

	do {
		i = 0;
		start = u64_stats_fetch_begin(&s->syncp);
		KBP_POLLER_COUNTERS(KBP_READ)
	} while (u64_stats_fetch_retry(&s->syncp, start));

	return kbp_stats_put(skb, KBP_A_POLLER_STATS, KBP_A_POLLER_STATS_PAD,
			     kbp_poller_attrs, values, i);
}

/**
 * kbp_poller_waits_put() - add to a message how long instances and poller waited
 * @skb: the message
 * @p: the poller
 *
 * Return: 0, or -EMSGSIZE if they don't fit.
 */
int kbp_poller_waits_put(struct sk_buff *skb, struct kbp_poller *p)
{
	static const u16 attrs[KBP_POLL_CLASSES] = {
		[KBP_POLL_CLASS_NORMAL] = KBP_A_POLLER_NORMAL_WAITS,
		[KBP_POLL_CLASS_RT] = KBP_A_POLLER_RT_WAITS,
	};
	u64 waits[KBP_POLL_CLASSES][KBP_WAITS];
	enum kbp_poll_class list;
	int err = 0;

	raw_spin_lock_irq(&p->lock);
	memcpy(waits, p->waits, sizeof(waits));
	raw_spin_unlock_irq(&p->lock);
	for (list = 0; list < KBP_POLL_CLASSES && !err; list++)
		err = nla_put(skb, attrs[list], sizeof(waits[list]),
			      waits[list]);
	if (IS_ENABLED(CONFIG_PREEMPT_RT) && !err)
		err = nla_put(skb, KBP_A_POLLER_BH_WAITS, sizeof(p->bh_waits),
			      p->bh_waits);
	return err;
}

/**
 * kbp_napi_stats_put() - add an attachment's counters to a message
 * @skb: the message
 * @a: the attachment
 *
 * Return: 0, or -EMSGSIZE if they don't fit.
 */
int kbp_napi_stats_put(struct sk_buff *skb, const struct kbp_napi *a)
{
	const struct kbp_napi_stats *s = &a->stats;
	u64 values[ARRAY_SIZE(kbp_napi_attrs)];
	unsigned int start, i;

	do {
		i = 0;
		start = u64_stats_fetch_begin(&s->syncp);
		KBP_NAPI_COUNTERS(KBP_READ)
	} while (u64_stats_fetch_retry(&s->syncp, start));

	return kbp_stats_put(skb, KBP_A_NAPI_STATS, KBP_A_NAPI_STATS_PAD,
			     kbp_napi_attrs, values, i);
}
