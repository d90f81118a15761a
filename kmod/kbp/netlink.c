// SPDX-License-Identifier: GPL-2.0-only
/*
 * The generic netlink family "kbp": uapi/kbp.yaml is its specification.
 *
 * Owns nothing; checks what user space sends, says what is wrong with it, and
 * calls poller.c and napi.c. Context: thread. Locks: takes rtnl_lock or
 * cpus_read_lock, and kbp_mutex inside.
 */
#include <linux/cpu.h>
#include <linux/rtnetlink.h>
#include <net/genetlink.h>
#include <net/net_namespace.h>

#include "kbp.h"

#define KBP_WATCHDOG_MS_DEFAULT	20
#define KBP_WATCHDOG_MS_MAX	10000
#define KBP_BUDGET_DEFAULT	8
#define KBP_BUDGET_MAX		64
/* That of interrupt threads on PREEMPT_RT (docs/decisions/017). */
#define KBP_PRIORITY_DEFAULT	50
#define KBP_PRIORITY_MAX	98
#define KBP_WAKE_LATENCY_US_MAX	10000
#define KBP_CSTATE_LATENCY_US_MAX	30000

static struct genl_family kbp_family;

static const struct nla_policy kbp_poller_new_policy[KBP_A_POLLER_DEEP_EXIT_US + 1] = {
	[KBP_A_POLLER_CPU] = { .type = NLA_U32 },
	[KBP_A_POLLER_OWNS] = NLA_POLICY_MAX(NLA_U32, KBP_OWNS_MAX),
	[KBP_A_POLLER_POLICY] = NLA_POLICY_MAX(NLA_U32, KBP_POLICY_MAX),
	[KBP_A_POLLER_PRIORITY] =
		NLA_POLICY_RANGE(NLA_U32, 1, KBP_PRIORITY_MAX),
	[KBP_A_POLLER_NICE] = NLA_POLICY_RANGE(NLA_S32, MIN_NICE, MAX_NICE),
	[KBP_A_POLLER_BUDGET] = NLA_POLICY_RANGE(NLA_U32, 1, KBP_BUDGET_MAX),
	[KBP_A_POLLER_WATCHDOG_MS] =
		NLA_POLICY_RANGE(NLA_U32, 1, KBP_WATCHDOG_MS_MAX),
	[KBP_A_POLLER_BACKLOG_REQUESTED] =
		NLA_POLICY_MAX(NLA_U32, KBP_BACKLOG_MAX),
	[KBP_A_POLLER_FREQ_REQUESTED] = NLA_POLICY_MAX(NLA_U32, KBP_FREQ_MAX),
	[KBP_A_POLLER_MAX_CSTATE_LATENCY_US] =
		NLA_POLICY_MAX(NLA_U32, KBP_CSTATE_LATENCY_US_MAX),
	[KBP_A_POLLER_DEEP_EXIT_US] =
		NLA_POLICY_MAX(NLA_U32, KBP_CSTATE_LATENCY_US_MAX),
};

static const struct nla_policy kbp_poller_set_policy[KBP_A_POLLER_BACKLOG_REQUESTED + 1] = {
	[KBP_A_POLLER_CPU] = { .type = NLA_U32 },
	[KBP_A_POLLER_BACKLOG_REQUESTED] =
		NLA_POLICY_MAX(NLA_U32, KBP_BACKLOG_MAX),
};

static const struct nla_policy kbp_poller_key_policy[KBP_A_POLLER_CPU + 1] = {
	[KBP_A_POLLER_CPU] = { .type = NLA_U32 },
};

static const struct nla_policy kbp_napi_attach_policy[KBP_A_NAPI_CLASS + 1] = {
	[KBP_A_NAPI_IFINDEX] = NLA_POLICY_MIN(NLA_U32, 1),
	[KBP_A_NAPI_IFNAME] = { .type = NLA_NUL_STRING, .len = IFNAMSIZ - 1 },
	[KBP_A_NAPI_QUEUE] = { .type = NLA_U32 },
	[KBP_A_NAPI_NAPI_ID] = NLA_POLICY_MIN(NLA_U32, 1),
	[KBP_A_NAPI_CPU] = { .type = NLA_U32 },
	[KBP_A_NAPI_MODE_REQUESTED] =
		NLA_POLICY_RANGE(NLA_U32, KBP_MODE_BUSY, KBP_MODE_MAX),
	[KBP_A_NAPI_CPU_BUDGET] = NLA_POLICY_RANGE(NLA_U32, 1, 1000),
	[KBP_A_NAPI_MAX_WAKE_LATENCY_US] =
		NLA_POLICY_RANGE(NLA_U32, 1, KBP_WAKE_LATENCY_US_MAX),
	[KBP_A_NAPI_CLASS] = NLA_POLICY_MAX(NLA_U32, KBP_POLL_CLASS_MAX),
};

static const struct nla_policy kbp_napi_key_policy[KBP_A_NAPI_NAPI_ID + 1] = {
	[KBP_A_NAPI_IFINDEX] = NLA_POLICY_MIN(NLA_U32, 1),
	[KBP_A_NAPI_IFNAME] = { .type = NLA_NUL_STRING, .len = IFNAMSIZ - 1 },
	[KBP_A_NAPI_QUEUE] = { .type = NLA_U32 },
	[KBP_A_NAPI_NAPI_ID] = NLA_POLICY_MIN(NLA_U32, 1),
};

static int kbp_refuse(struct genl_info *info, int err, const char *why)
{
	if (why && info->extack)
		info->extack->_msg = why;
	return err;
}

static u32 kbp_attr_u32(const struct genl_info *info, int attr, u32 otherwise)
{
	return info->attrs[attr] ? nla_get_u32(info->attrs[attr]) : otherwise;
}

/* ---- messages ---- */

static int kbp_poller_put(struct sk_buff *skb, struct kbp_poller *p)
{
	const struct kbp_poller_config *config = &p->config;

	if (nla_put_u32(skb, KBP_A_POLLER_CPU, config->cpu) ||
	    nla_put_u32(skb, KBP_A_POLLER_OWNS, config->owns) ||
	    nla_put_u32(skb, KBP_A_POLLER_POLICY, config->policy) ||
	    nla_put_u32(skb, KBP_A_POLLER_BUDGET, config->budget) ||
	    nla_put_u32(skb, KBP_A_POLLER_WATCHDOG_MS, config->watchdog_ms) ||
	    nla_put_u32(skb, KBP_A_POLLER_STATE, READ_ONCE(p->state)) ||
	    nla_put_u32(skb, KBP_A_POLLER_PID,
			p->task ? p->task->pid : 0) ||
	    nla_put_u32(skb, KBP_A_POLLER_NAPIS, READ_ONCE(p->napis_count)) ||
	    nla_put_u32(skb, KBP_A_POLLER_BACKLOG_REQUESTED,
			READ_ONCE(p->backlog.wanted)) ||
	    nla_put_u32(skb, KBP_A_POLLER_BACKLOG_ACTIVE,
			kbp_backlog_active(p)) ||
	    nla_put_u32(skb, KBP_A_POLLER_WAKE_LATENCY_NS,
			min_t(u64, READ_ONCE(p->wake_cost.worst_ns), U32_MAX)) ||
	    nla_put_u32(skb, KBP_A_POLLER_FREQ_REQUESTED, config->freq) ||
	    nla_put_u32(skb, KBP_A_POLLER_FREQ_ACTIVE, kbp_freq_active(p)))
		return -EMSGSIZE;
	if (config->policy == KBP_POLICY_FIFO ?
	    nla_put_u32(skb, KBP_A_POLLER_PRIORITY, config->priority) :
	    nla_put_s32(skb, KBP_A_POLLER_NICE, config->nice))
		return -EMSGSIZE;
	if (config->cstate.max_us != KBP_CSTATE_ANY &&
	    (nla_put_u32(skb, KBP_A_POLLER_MAX_CSTATE_LATENCY_US,
			 config->cstate.max_us) ||
	     nla_put_u32(skb, KBP_A_POLLER_DEEP_EXIT_US,
			 config->cstate.exit_us) ||
	     nla_put_u32(skb, KBP_A_POLLER_CSTATES_LIMITED,
			 kbp_cstate_is_limited(p))))
		return -EMSGSIZE;
	return kbp_poller_stats_put(skb, p) ?: kbp_poller_waits_put(skb, p);
}

/* What serves the instance at this moment, not what was asked for. */
static enum kbp_mode kbp_napi_mode_active(const struct kbp_napi *a)
{
	if (!READ_ONCE(a->served) || !READ_ONCE(a->napi) ||
	    kbp_is_relieved(a->poller))
		return KBP_MODE_SOFTIRQ;
	return a->adaptive && !kbp_is_adaptive(a) ? KBP_MODE_SLEEP : a->mode;
}

static int kbp_knobs_put(struct sk_buff *skb, const struct kbp_window_knobs *knobs)
{
	u32 wake_us_max = div_u64(knobs->wake_ns_max, NSEC_PER_USEC);

	if (knobs->budget_permille &&
	    nla_put_u32(skb, KBP_A_NAPI_CPU_BUDGET, knobs->budget_permille))
		return -EMSGSIZE;
	if (wake_us_max &&
	    nla_put_u32(skb, KBP_A_NAPI_MAX_WAKE_LATENCY_US, wake_us_max))
		return -EMSGSIZE;
	return 0;
}

static int kbp_napi_put(struct sk_buff *skb, struct kbp_napi *a)
{
	if (nla_put_u32(skb, KBP_A_NAPI_IFINDEX, a->dev->ifindex) ||
	    nla_put_string(skb, KBP_A_NAPI_IFNAME, a->dev->name) ||
	    nla_put_u32(skb, KBP_A_NAPI_NAPI_ID, a->napi_id) ||
	    nla_put_u32(skb, KBP_A_NAPI_CPU, a->poller->config.cpu) ||
	    nla_put_u32(skb, KBP_A_NAPI_MODE_REQUESTED, a->mode) ||
	    nla_put_u32(skb, KBP_A_NAPI_MODE_ACTIVE, kbp_napi_mode_active(a)) ||
	    nla_put_u32(skb, KBP_A_NAPI_CLASS, a->class))
		return -EMSGSIZE;
	if (a->queue != KBP_NO_QUEUE &&
	    nla_put_u32(skb, KBP_A_NAPI_QUEUE, a->queue))
		return -EMSGSIZE;
	if (a->adaptive && kbp_knobs_put(skb, kbp_adaptive_knobs(a->adaptive)))
		return -EMSGSIZE;
	return kbp_napi_stats_put(skb, a);
}

struct kbp_message {
	u32 portid;
	u32 seq;
	int flags;
	u8 cmd;
};

static int kbp_poller_message(struct sk_buff *skb, struct kbp_poller *p,
			      const struct kbp_message *m, int event)
{
	void *hdr = genlmsg_put(skb, m->portid, m->seq, &kbp_family, m->flags,
				m->cmd);

	if (!hdr)
		return -EMSGSIZE;
	if (kbp_poller_put(skb, p) ||
	    (event >= 0 && nla_put_u32(skb, KBP_A_POLLER_EVENT, event))) {
		genlmsg_cancel(skb, hdr);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, hdr);
	return 0;
}

static int kbp_napi_message(struct sk_buff *skb, struct kbp_napi *a,
			    const struct kbp_message *m, int event)
{
	void *hdr = genlmsg_put(skb, m->portid, m->seq, &kbp_family, m->flags,
				m->cmd);

	if (!hdr)
		return -EMSGSIZE;
	if (kbp_napi_put(skb, a) ||
	    nla_put_u64_64bit(skb, KBP_A_NAPI_NETNS_COOKIE,
			      dev_net(a->dev)->net_cookie, KBP_A_NAPI_PAD) ||
	    (event >= 0 && nla_put_u32(skb, KBP_A_NAPI_EVENT, event))) {
		genlmsg_cancel(skb, hdr);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, hdr);
	return 0;
}

/* Notifications are a courtesy: who has no memory for one goes without. */
void kbp_notify_poller(struct kbp_poller *p, enum kbp_event event)
{
	struct kbp_message m = { .cmd = KBP_CMD_POLLER_NTF };
	struct sk_buff *skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);

	if (!skb)
		return;
	if (kbp_poller_message(skb, p, &m, event))
		nlmsg_free(skb);
	else
		genlmsg_multicast(&kbp_family, skb, 0, 0, GFP_KERNEL);
}

void kbp_notify_napi(struct kbp_napi *a, enum kbp_event event)
{
	struct kbp_message m = { .cmd = KBP_CMD_NAPI_NTF };
	struct sk_buff *skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);

	if (!skb)
		return;
	if (kbp_napi_message(skb, a, &m, event))
		nlmsg_free(skb);
	else
		genlmsg_multicast(&kbp_family, skb, 0, 0, GFP_KERNEL);
}

/* ---- pollers ---- */

static int kbp_config_read(struct genl_info *info,
			   struct kbp_poller_config *config)
{
	if (GENL_REQ_ATTR_CHECK(info, KBP_A_POLLER_CPU))
		return -EINVAL;
	config->cpu = nla_get_u32(info->attrs[KBP_A_POLLER_CPU]);
	config->owns = kbp_attr_u32(info, KBP_A_POLLER_OWNS, KBP_OWNS_ALL);
	config->policy = kbp_attr_u32(info, KBP_A_POLLER_POLICY,
				      KBP_POLICY_FIFO);
	config->priority = kbp_attr_u32(info, KBP_A_POLLER_PRIORITY,
					KBP_PRIORITY_DEFAULT);
	config->budget = kbp_attr_u32(info, KBP_A_POLLER_BUDGET,
				      KBP_BUDGET_DEFAULT);
	config->watchdog_ms = kbp_attr_u32(info, KBP_A_POLLER_WATCHDOG_MS,
					   KBP_WATCHDOG_MS_DEFAULT);
	config->freq = kbp_attr_u32(info, KBP_A_POLLER_FREQ_REQUESTED,
				    KBP_FREQ_OFF);
	config->cstate.max_us = kbp_attr_u32(info,
					     KBP_A_POLLER_MAX_CSTATE_LATENCY_US,
					     KBP_CSTATE_ANY);
	config->cstate.exit_us = kbp_attr_u32(info, KBP_A_POLLER_DEEP_EXIT_US,
					      0);
	if (info->attrs[KBP_A_POLLER_NICE])
		config->nice = nla_get_s32(info->attrs[KBP_A_POLLER_NICE]);

	if (config->policy == KBP_POLICY_FIFO && info->attrs[KBP_A_POLLER_NICE])
		return kbp_refuse(info, -EINVAL,
				  "a nice value goes with policy other, not fifo");
	if (config->policy == KBP_POLICY_OTHER &&
	    info->attrs[KBP_A_POLLER_PRIORITY])
		return kbp_refuse(info, -EINVAL,
				  "a priority goes with policy fifo, not other");
	return 0;
}

/*
 * Who is to serve the backlog of @cpu: who was named, or else the poller if it
 * owns all and can; kbp_mutex.
 */
static int kbp_backlog_read(struct genl_info *info, u32 cpu, enum kbp_owns owns,
			    enum kbp_backlog *wanted)
{
	struct nlattr *attr = info->attrs[KBP_A_POLLER_BACKLOG_REQUESTED];
	const char *why = kbp_backlog_refusal(cpu);

	if (attr)
		*wanted = nla_get_u32(attr);
	else
		*wanted = owns == KBP_OWNS_ALL && !why ? KBP_BACKLOG_OWNED :
							 KBP_BACKLOG_SOFTIRQ;
	if (why && *wanted != KBP_BACKLOG_SOFTIRQ)
		return kbp_refuse(info, -EOPNOTSUPP, why);
	if (owns == KBP_OWNS_ATTACHED && *wanted == KBP_BACKLOG_OWNED)
		return kbp_refuse(info, -EINVAL,
				  "this poller owns only what is attached; attach the backlog");
	return 0;
}

static int kbp_nl_poller_new(struct sk_buff *skb, struct genl_info *info)
{
	struct kbp_poller_config config = {};
	int err = kbp_config_read(info, &config);

	if (err)
		return err;
	cpus_read_lock();
	mutex_lock(&kbp_mutex);
	if (!kbp_is_open())
		err = kbp_refuse(info, -EAGAIN, kbp_why_closed());
	else if (kbp_is_suspended())
		err = kbp_refuse(info, -EAGAIN, "the machine goes to sleep");
	else if (config.cpu >= nr_cpu_ids || !cpu_active(config.cpu))
		err = kbp_refuse(info, -ENODEV, "no such CPU is online");
	else if (kbp_poller_find(config.cpu))
		err = kbp_refuse(info, -EEXIST,
				 "this CPU has a poller; delete it first");
	else
		err = kbp_backlog_read(info, config.cpu, config.owns,
				       &config.backlog) ?:
		      kbp_poller_new(&config);
	mutex_unlock(&kbp_mutex);
	cpus_read_unlock();
	return err;
}

/* The poller that a request names; kbp_mutex. */
static struct kbp_poller *kbp_named_poller(struct genl_info *info, int attr)
{
	struct kbp_poller *p;

	if (GENL_REQ_ATTR_CHECK(info, attr))
		return ERR_PTR(-EINVAL);
	p = kbp_poller_find(nla_get_u32(info->attrs[attr]));
	if (!p)
		return ERR_PTR(kbp_refuse(info, -ENXIO,
					  "this CPU has no poller"));
	return p;
}

static int kbp_nl_poller_del(struct sk_buff *skb, struct genl_info *info)
{
	struct kbp_poller *p;
	int err = 0;

	mutex_lock(&kbp_mutex);
	p = kbp_named_poller(info, KBP_A_POLLER_CPU);
	if (IS_ERR(p))
		err = PTR_ERR(p);
	else
		kbp_poller_del(p);
	mutex_unlock(&kbp_mutex);
	return err;
}

static int kbp_nl_poller_set(struct sk_buff *skb, struct genl_info *info)
{
	enum kbp_backlog wanted;
	struct kbp_poller *p;
	int err;

	if (GENL_REQ_ATTR_CHECK(info, KBP_A_POLLER_BACKLOG_REQUESTED))
		return -EINVAL;
	mutex_lock(&kbp_mutex);
	p = kbp_named_poller(info, KBP_A_POLLER_CPU);
	if (IS_ERR(p))
		err = PTR_ERR(p);
	else
		err = kbp_backlog_read(info, p->config.cpu, p->config.owns,
				       &wanted);
	if (!err) {
		kbp_backlog_set(p, wanted);
		kbp_notify_poller(p, KBP_EVENT_CHANGED);
	}
	mutex_unlock(&kbp_mutex);
	return err;
}

static int kbp_nl_poller_get(struct sk_buff *skb, struct genl_info *info)
{
	struct kbp_message m = { .portid = info->snd_portid,
				 .seq = info->snd_seq,
				 .cmd = KBP_CMD_POLLER_GET };
	struct sk_buff *reply = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	struct kbp_poller *p;
	int err;

	if (!reply)
		return -ENOMEM;
	mutex_lock(&kbp_mutex);
	p = kbp_named_poller(info, KBP_A_POLLER_CPU);
	err = IS_ERR(p) ? PTR_ERR(p) : kbp_poller_message(reply, p, &m, -1);
	mutex_unlock(&kbp_mutex);
	if (err) {
		nlmsg_free(reply);
		return err;
	}
	return genlmsg_reply(reply, info);
}

/* cb->args[0]: how many were sent already. */
static int kbp_nl_poller_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct kbp_message m = { .portid = NETLINK_CB(cb->skb).portid,
				 .seq = cb->nlh->nlmsg_seq,
				 .flags = NLM_F_MULTI,
				 .cmd = KBP_CMD_POLLER_GET };
	struct kbp_poller *p;
	long index = 0;

	mutex_lock(&kbp_mutex);
	list_for_each_entry(p, &kbp_pollers, link) {
		if (index++ < cb->args[0])
			continue;
		if (kbp_poller_message(skb, p, &m, -1))
			break;
		cb->args[0] = index;
	}
	mutex_unlock(&kbp_mutex);
	return skb->len;
}

/* ---- NAPI instances ---- */

static struct net_device *kbp_named_dev(struct genl_info *info)
{
	struct net *net = genl_info_net(info);
	struct nlattr **attrs = info->attrs;
	struct net_device *dev = NULL;

	if (attrs[KBP_A_NAPI_IFINDEX])
		dev = __dev_get_by_index(net, nla_get_u32(attrs[KBP_A_NAPI_IFINDEX]));
	else if (attrs[KBP_A_NAPI_IFNAME])
		dev = __dev_get_by_name(net, nla_data(attrs[KBP_A_NAPI_IFNAME]));
	else if (attrs[KBP_A_NAPI_NAPI_ID])
		dev = kbp_dev_by_napi_id(net, nla_get_u32(attrs[KBP_A_NAPI_NAPI_ID]));
	return dev;
}

/* What a request names; rtnl_lock. */
static int kbp_key_read(struct genl_info *info, struct kbp_napi_key *key)
{
	struct nlattr **attrs = info->attrs;

	if (!attrs[KBP_A_NAPI_IFINDEX] && !attrs[KBP_A_NAPI_IFNAME] &&
	    !attrs[KBP_A_NAPI_NAPI_ID])
		return kbp_refuse(info, -EINVAL,
				  "name an interface or a NAPI id");
	if (attrs[KBP_A_NAPI_QUEUE] && attrs[KBP_A_NAPI_NAPI_ID])
		return kbp_refuse(info, -EINVAL,
				  "name a queue or a NAPI id, not both");
	key->dev = kbp_named_dev(info);
	if (!key->dev)
		return kbp_refuse(info, -ENODEV,
				  "no such interface or NAPI id in this network namespace");
	key->napi_id = kbp_attr_u32(info, KBP_A_NAPI_NAPI_ID, 0);
	key->queue = kbp_attr_u32(info, KBP_A_NAPI_QUEUE, 0);
	if (key->napi_id)
		key->queue = KBP_NO_QUEUE;
	else if (key->queue == KBP_NO_QUEUE)
		return kbp_refuse(info, -EINVAL,
				  "the interface has no such receive queue");
	return 0;
}

static int kbp_napi_config_read(struct genl_info *info,
				struct kbp_napi_config *config)
{
	struct nlattr *budget = info->attrs[KBP_A_NAPI_CPU_BUDGET];
	struct nlattr *wake = info->attrs[KBP_A_NAPI_MAX_WAKE_LATENCY_US];

	if (GENL_REQ_ATTR_CHECK(info, KBP_A_NAPI_MODE_REQUESTED))
		return -EINVAL;
	*config = (struct kbp_napi_config) {
		.mode = nla_get_u32(info->attrs[KBP_A_NAPI_MODE_REQUESTED]),
		.class = kbp_attr_u32(info, KBP_A_NAPI_CLASS, KBP_POLL_CLASS_RT),
	};
	if ((budget || wake) && config->mode != KBP_MODE_ADAPTIVE)
		return kbp_refuse(info, -EINVAL,
				  "a CPU budget or a wake-up latency goes with mode adaptive");
	if (budget && wake)
		return kbp_refuse(info, -EINVAL,
				  "name a CPU budget or a wake-up latency, not both");
	if (budget)
		config->knobs.budget_permille = nla_get_u32(budget);
	if (wake)
		config->knobs.wake_ns_max =
			(u64)nla_get_u32(wake) * NSEC_PER_USEC;
	return 0;
}

static int kbp_attach_locked(struct genl_info *info, struct sk_buff *reply)
{
	struct kbp_message m = { .portid = info->snd_portid,
				 .seq = info->snd_seq,
				 .cmd = KBP_CMD_NAPI_ATTACH };
	struct kbp_napi_config config;
	struct kbp_napi_key key;
	const char *why = NULL;
	struct kbp_poller *p;
	struct kbp_napi *a;
	int err;

	if (!kbp_is_open())
		return kbp_refuse(info, -EAGAIN, kbp_why_closed());
	err = kbp_key_read(info, &key);
	if (err)
		return err;
	p = kbp_named_poller(info, KBP_A_NAPI_CPU);
	if (IS_ERR(p))
		return PTR_ERR(p);
	if (!p->task)
		return kbp_refuse(info, -ENODEV,
				  "the CPU of this poller is offline");
	if (READ_ONCE(p->state) == KBP_STATE_DEAD)
		return kbp_refuse(info, -ENODEV,
				  "the thread of this poller has ended; delete the poller and add it anew");
	err = kbp_napi_config_read(info, &config);
	if (err)
		return err;
	err = kbp_napi_attach(&key, p, &config, &a, &why);
	if (err)
		return kbp_refuse(info, err, why);
	return kbp_napi_message(reply, a, &m, -1);
}

static int kbp_nl_napi_attach(struct sk_buff *skb, struct genl_info *info)
{
	struct sk_buff *reply = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	int err;

	if (!reply)
		return -ENOMEM;
	rtnl_lock();
	mutex_lock(&kbp_mutex);
	err = kbp_attach_locked(info, reply);
	mutex_unlock(&kbp_mutex);
	rtnl_unlock();
	if (err) {
		nlmsg_free(reply);
		return err;
	}
	return genlmsg_reply(reply, info);
}

/* The attachment that a request names; rtnl_lock, kbp_mutex. */
static struct kbp_napi *kbp_named_napi(struct genl_info *info)
{
	struct kbp_napi_key key;
	struct kbp_napi *a;
	int err = kbp_key_read(info, &key);

	if (err)
		return ERR_PTR(err);
	a = kbp_napi_find(&key);
	if (!a)
		return ERR_PTR(kbp_refuse(info, -ENOENT,
					  "this NAPI instance is not attached"));
	return a;
}

static int kbp_nl_napi_detach(struct sk_buff *skb, struct genl_info *info)
{
	struct kbp_napi *a;
	int err = 0;

	rtnl_lock();
	mutex_lock(&kbp_mutex);
	a = kbp_named_napi(info);
	if (IS_ERR(a))
		err = PTR_ERR(a);
	else
		kbp_napi_detach(a, KBP_EVENT_REMOVED);
	mutex_unlock(&kbp_mutex);
	rtnl_unlock();
	return err;
}

static int kbp_nl_napi_get(struct sk_buff *skb, struct genl_info *info)
{
	struct kbp_message m = { .portid = info->snd_portid,
				 .seq = info->snd_seq,
				 .cmd = KBP_CMD_NAPI_GET };
	struct sk_buff *reply = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	struct kbp_napi *a;
	int err;

	if (!reply)
		return -ENOMEM;
	rtnl_lock();
	mutex_lock(&kbp_mutex);
	a = kbp_named_napi(info);
	err = IS_ERR(a) ? PTR_ERR(a) : kbp_napi_message(reply, a, &m, -1);
	mutex_unlock(&kbp_mutex);
	rtnl_unlock();
	if (err) {
		nlmsg_free(reply);
		return err;
	}
	return genlmsg_reply(reply, info);
}

/* The first network namespace sees every attachment, others their own. */
static bool kbp_may_see(const struct net *net, const struct kbp_napi *a)
{
	return net_eq(net, &init_net) || net_eq(net, dev_net(a->dev));
}

/* cb->args[0]: how many were sent or passed over already. */
static int kbp_nl_napi_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct kbp_message m = { .portid = NETLINK_CB(cb->skb).portid,
				 .seq = cb->nlh->nlmsg_seq,
				 .flags = NLM_F_MULTI,
				 .cmd = KBP_CMD_NAPI_GET };
	const struct net *net = sock_net(skb->sk);
	struct kbp_poller *p;
	struct kbp_napi *a;
	long index = 0;

	rtnl_lock();
	mutex_lock(&kbp_mutex);
	list_for_each_entry(p, &kbp_pollers, link) {
		list_for_each_entry(a, &p->napis, link) {
			if (index++ < cb->args[0])
				continue;
			if (kbp_may_see(net, a) &&
			    kbp_napi_message(skb, a, &m, -1))
				goto full;
			cb->args[0] = index;
		}
	}
full:
	mutex_unlock(&kbp_mutex);
	rtnl_unlock();
	return skb->len;
}

#define KBP_OP(name, rights, call, rules)				\
	{ .cmd = KBP_CMD_##name, .flags = rights, .doit = call,		\
	  .policy = rules, .maxattr = ARRAY_SIZE(rules) - 1 }

static const struct genl_ops kbp_ops[] = {
	KBP_OP(POLLER_NEW, GENL_ADMIN_PERM, kbp_nl_poller_new,
	       kbp_poller_new_policy),
	KBP_OP(POLLER_DEL, GENL_ADMIN_PERM, kbp_nl_poller_del,
	       kbp_poller_key_policy),
	KBP_OP(POLLER_SET, GENL_ADMIN_PERM, kbp_nl_poller_set,
	       kbp_poller_set_policy),
	{ .cmd = KBP_CMD_POLLER_GET, .doit = kbp_nl_poller_get,
	  .dumpit = kbp_nl_poller_dump, .policy = kbp_poller_key_policy,
	  .maxattr = ARRAY_SIZE(kbp_poller_key_policy) - 1 },
	KBP_OP(NAPI_ATTACH, GENL_ADMIN_PERM, kbp_nl_napi_attach,
	       kbp_napi_attach_policy),
	KBP_OP(NAPI_DETACH, GENL_ADMIN_PERM, kbp_nl_napi_detach,
	       kbp_napi_key_policy),
	{ .cmd = KBP_CMD_NAPI_GET, .doit = kbp_nl_napi_get,
	  .dumpit = kbp_nl_napi_dump, .policy = kbp_napi_key_policy,
	  .maxattr = ARRAY_SIZE(kbp_napi_key_policy) - 1 },
};

static const struct genl_multicast_group kbp_groups[] = {
	{ .name = KBP_MCGRP_STATE },
};

static struct genl_family kbp_family = {
	.name = KBP_FAMILY_NAME,
	.version = KBP_FAMILY_VERSION,
	.module = THIS_MODULE,
	.netnsok = true,
	.parallel_ops = true,
	.ops = kbp_ops,
	.n_ops = ARRAY_SIZE(kbp_ops),
	.resv_start_op = KBP_CMD_MAX + 1,
	.mcgrps = kbp_groups,
	.n_mcgrps = ARRAY_SIZE(kbp_groups),
};

int kbp_netlink_init(void)
{
	return genl_register_family(&kbp_family);
}

void kbp_netlink_exit(void)
{
	genl_unregister_family(&kbp_family);
}
