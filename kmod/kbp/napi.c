// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attachments: which NAPI instance belongs to which poller, and what becomes
 * of that when its interface goes down, comes up or disappears, or when its
 * driver makes its instances anew.
 *
 * Owns the table that schedule requests look into (RCU; written under
 * kbp_mutex). The kernel frees a NAPI instance when the driver likes, between
 * down and up for example. An attachment therefore touches its instance only
 * while it owns its SCHED bit, or inside an RCU reader after finding it in
 * the device's list.
 */
#include <linux/hashtable.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#include "kbp.h"

/* How soon an attachment follows a driver that says nothing. */
#define KBP_FOLLOW_EVERY	HZ

static DEFINE_HASHTABLE(kbp_napi_table, 6);
static u32 kbp_napi_table_count;	/* kbp_mutex */

static void kbp_follow_work(struct work_struct *work);
/* No CPU is woken for it: pollers that are awake see to it, kbp_napi_look(). */
static DECLARE_DEFERRABLE_WORK(kbp_follow, kbp_follow_work);
static struct workqueue_struct *kbp_follow_wq;
static unsigned long kbp_followed;	/* jiffies */

/**
 * kbp_napi_lookup() - the attachment of a NAPI instance
 * @n: the instance, used as a key only
 *
 * Context: RCU reader; any.
 * Return: the attachment, or NULL.
 */
struct kbp_napi *kbp_napi_lookup(const struct napi_struct *n)
{
	struct kbp_napi *a;

	hash_for_each_possible_rcu(kbp_napi_table, a, hash, (unsigned long)n)
		if (a->napi == n)
			return a;
	return NULL;
}

/**
 * kbp_engage_update() - tell each CPU whether schedule requests concern us
 *
 * A CPU asks if it has a poller, or if any NAPI is attached somewhere: its
 * interrupt may come to any CPU. Context: kbp_mutex held.
 */
void kbp_engage_update(void)
{
	bool any = kbp_napi_table_count > 0;
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu(kbp_engaged, cpu),
			   any || rcu_access_pointer(per_cpu(kbp_poller, cpu)));
}

/* Is @n, an instance that @dev had, still one of its instances? RCU reader. */
bool kbp_napi_listed(struct net_device *dev, const struct napi_struct *n)
{
	struct napi_struct *pos;

	list_for_each_entry_rcu(pos, &dev->napi_list, dev_list)
		if (pos == n)
			return true;
	return false;
}

/* Place of @n among those that may be attached, the first added being 0. */
static u32 kbp_napi_index(struct net_device *dev, const struct napi_struct *n)
{
	struct napi_struct *pos;
	u32 index = 0;
	bool after = false;

	/* The list has the newest first. */
	list_for_each_entry_rcu(pos, &dev->napi_list, dev_list) {
		if (after && !kbp_is_bound(pos))
			index++;
		if (pos == n)
			after = true;
	}
	return index;
}

static struct napi_struct *kbp_napi_by_index(struct net_device *dev, u32 index)
{
	struct napi_struct *pos;

	list_for_each_entry_rcu(pos, &dev->napi_list, dev_list)
		if (!kbp_is_bound(pos) && kbp_napi_index(dev, pos) == index)
			return pos;
	return NULL;
}

/**
 * kbp_napi_only_sends() - does an instance of a card serve no receive queue?
 * @n: the instance, which is scheduled
 *
 * Where the driver does not say which serves one, those do that it has added first.
 *
 * Context: RCU reader; any.
 * Return: whether it serves none.
 */
bool kbp_napi_only_sends(const struct napi_struct *n)
{
	u32 queue, queues = READ_ONCE(n->dev->real_num_rx_queues), napi_id;
	bool said = false;

	if (kbp_is_bound(n))
		return true;
	for (queue = 0; queue < queues; queue++) {
		napi_id = kbp_rx_queue_napi_id(n->dev, queue);
		if (napi_id && napi_id == n->napi_id)
			return false;
		said |= napi_id != 0;
	}
	return said || kbp_napi_index(n->dev, n) >= queues;
}

static struct napi_struct *kbp_napi_by_id(struct net_device *dev, u32 napi_id)
{
	struct napi_struct *pos;

	list_for_each_entry_rcu(pos, &dev->napi_list, dev_list)
		if (pos->napi_id == napi_id)
			return pos;
	return NULL;
}

/*
 * The instance that serves a receive queue. Where the driver does not say, it
 * has added one instance a queue, in order.
 */
static struct napi_struct *kbp_napi_by_queue(struct net_device *dev, u32 queue)
{
	struct napi_struct *n;
	u32 napi_id;

	if (queue >= dev->real_num_rx_queues)
		return NULL;
	napi_id = kbp_rx_queue_napi_id(dev, queue);
	n = napi_id ? kbp_napi_by_id(dev, napi_id) : NULL;
	return n ?: kbp_napi_by_index(dev, queue);
}

/**
 * kbp_dev_by_napi_id() - the device that has a NAPI instance
 * @net: the network namespace to look in
 * @napi_id: id of the instance
 *
 * Context: rtnl_lock held.
 * Return: the device, or NULL.
 */
struct net_device *kbp_dev_by_napi_id(struct net *net, u32 napi_id)
{
	struct net_device *dev;
	bool found;

	for_each_netdev(net, dev) {
		rcu_read_lock();
		found = kbp_napi_by_id(dev, napi_id);
		rcu_read_unlock();
		if (found)
			return dev;
	}
	return NULL;
}

/**
 * kbp_napi_kick() - poll an attached NAPI once, as if its interrupt had come
 * @a: the attachment
 *
 * Context: RCU reader, interrupts on.
 */
void kbp_napi_kick(struct kbp_napi *a)
{
	struct napi_struct *n = READ_ONCE(a->napi);

	if (!n || !kbp_napi_listed(a->dev, n))
		return;
	local_bh_disable();
	if (napi_schedule_prep(n))
		kbp_schedule(n);
	local_bh_enable();
}

/**
 * kbp_napi_is_lacking() - could the poller hold an instance, and does not?
 * @a: the attachment
 *
 * Context: RCU reader.
 * Return: false also while its interrupt is to wake the poller, its driver has
 * disabled it or is not working, and while the user's thread is to serve it.
 */
bool kbp_napi_is_lacking(const struct kbp_napi *a)
{
	struct napi_struct *n = READ_ONCE(a->napi);

	if (READ_ONCE(a->hold) != KBP_HOLD_FREE || READ_ONCE(a->armed) ||
	    READ_ONCE(a->leaving) || !kbp_dev_works(a->dev) || !n || !kbp_napi_listed(a->dev, n))
		return false;
	return !(READ_ONCE(n->state) & (NAPIF_STATE_DISABLE |
					NAPIF_STATE_NPSVC |
					NAPIF_STATE_THREADED));
}

/**
 * kbp_napi_claim() - poll an attached NAPI once, if nobody else polls it now
 * @a: the attachment
 *
 * Context: RCU reader, interrupts on.
 * Return: false if somebody else has it, or it can't be held.
 */
bool kbp_napi_claim(struct kbp_napi *a)
{
	/* Who has it would be told to poll once more, and keep it all the same. */
	if (!kbp_napi_is_lacking(a) ||
	    test_bit(NAPI_STATE_SCHED, &READ_ONCE(a->napi)->state))
		return false;
	kbp_napi_kick(a);
	return true;
}

/*
 * Is it to wake the poller, and served by nobody now? Then one poll shows that the
 * poller has it, again. RCU reader.
 */
static bool kbp_napi_is_idle(const struct kbp_napi *a)
{
	struct napi_struct *n = READ_ONCE(a->napi);

	return READ_ONCE(a->armed) && !READ_ONCE(a->served) &&
	       !READ_ONCE(a->leaving) && kbp_dev_works(a->dev) && n &&
	       kbp_napi_listed(a->dev, n) &&
	       !(READ_ONCE(n->state) & (NAPIF_STATE_DISABLE |
					NAPIF_STATE_NPSVC | NAPIF_STATE_SCHED |
					NAPIF_STATE_THREADED));
}

/* Enter the instance that @a stands for now. RCU reader, kbp_mutex. */
static void kbp_napi_bind(struct kbp_napi *a, struct napi_struct *n)
{
	a->leaving = false;
	a->napi_id = n->napi_id;
	a->index = kbp_napi_index(a->dev, n);
	WRITE_ONCE(a->napi, n);
	hash_add_rcu(kbp_napi_table, &a->hash, (unsigned long)n);
	kbp_napi_table_count++;
	kbp_engage_update();
	kbp_napi_kick(a);
	/* It may be a socket's that busy-polls, which tells nobody when it ends. */
	if (a->poller->task)
		wake_up_process(a->poller->task);
}

/* Take an instance back from its poller; false if it is polled just now. */
static bool kbp_napi_take_back(struct kbp_poller *p, struct kbp_napi *a)
{
	bool polled, taken;

	local_bh_disable();
	raw_spin_lock_irq(&p->lock);
	taken = kbp_unhold(a);
	polled = p->cur == a->napi || READ_ONCE(a->hold) == KBP_HOLD_POLLING;
	if (taken) {
		kbp_count(&p->stats, handed_napis, 1);
		kbp_stock_add(this_cpu_ptr(&softnet_data), a->napi);
	}
	raw_spin_unlock(&p->lock);
	if (taken)
		kbp_stock_raise();
	local_irq_enable();
	local_bh_enable();
	return !polled;
}

/**
 * kbp_napi_leave() - have the poller let go of an attachment's instance
 * @a: the attachment; nothing of ours points to the instance afterwards
 *
 * Context: kbp_mutex held; may sleep, as long as two rounds of the poller last.
 */
void kbp_napi_leave(struct kbp_napi *a)
{
	struct kbp_poller *p = a->poller;
	unsigned long beat;

	if (!a->napi)
		return;
	WRITE_ONCE(a->leaving, true);
	hash_del_rcu(&a->hash);
	kbp_napi_table_count--;
	kbp_engage_update();
	/* Pairs with the readers in kbp_enqueue() and kbp_round(). */
	synchronize_rcu();
	/*
	 * It is not held again, so with the end of the next round nobody polls it as an
	 * attachment. As one that is none it may be polled whenever we look, where it
	 * always has packets.
	 */
	beat = READ_ONCE(p->beat);
	while (!kbp_napi_take_back(p, a) && READ_ONCE(p->beat) - beat < 2)
		usleep_range(50, 100);
	a->served = false;
	WRITE_ONCE(a->napi, NULL);
}

static bool kbp_key_matches(const struct kbp_napi_key *key,
			    const struct kbp_napi *a)
{
	if (a->dev != key->dev)
		return false;
	return key->queue == KBP_NO_QUEUE ? a->napi_id == key->napi_id :
					    a->queue == key->queue;
}

/**
 * kbp_napi_find() - an attachment by the name that the user gave
 * @key: device with queue or NAPI id
 *
 * Context: kbp_mutex held.
 * Return: the attachment, or NULL.
 */
struct kbp_napi *kbp_napi_find(const struct kbp_napi_key *key)
{
	struct kbp_poller *p;
	struct kbp_napi *a;

	list_for_each_entry(p, &kbp_pollers, link)
		list_for_each_entry(a, &p->napis, link)
			if (kbp_key_matches(key, a))
				return a;
	return NULL;
}

/* The attachment of an instance, which may not be served now. kbp_mutex. */
static struct kbp_napi *kbp_napi_named(const struct net_device *dev,
				       const struct napi_struct *n)
{
	struct kbp_poller *p;
	struct kbp_napi *a;

	list_for_each_entry(p, &kbp_pollers, link)
		list_for_each_entry(a, &p->napis, link)
			if (n->napi_id && a->dev == dev &&
			    a->napi_id == n->napi_id)
				return a;
	return kbp_napi_lookup(n);
}

/* It has one attachment, and with that one class. */
static const char *kbp_why_attached(const struct kbp_napi *a)
{
	return a->class == KBP_POLL_CLASS_RT ?
	       "this NAPI instance is attached already, in class rt; detach it first" :
	       "this NAPI instance is attached already, in class normal; detach it first";
}

/* The instance a key names, or an error with the sentence for the user. */
static struct napi_struct *kbp_napi_resolve(const struct kbp_napi_key *key,
					    const char **why)
{
	struct napi_struct *n;
	struct kbp_napi *a;

	if (key->queue != KBP_NO_QUEUE &&
	    key->queue >= key->dev->real_num_rx_queues) {
		*why = "the interface has no such receive queue";
		return ERR_PTR(-EINVAL);
	}
	n = key->queue == KBP_NO_QUEUE ? kbp_napi_by_id(key->dev, key->napi_id) :
					 kbp_napi_by_queue(key->dev, key->queue);
	if (!n) {
		*why = "the interface has no NAPI instance for this queue; its packets go through the backlog, which `kbp attach backlog` serves";
		return ERR_PTR(-EOPNOTSUPP);
	}
	if (kbp_is_bound(n)) {
		*why = "this NAPI instance belongs to one CPU (a tunnel's) or only sends; a poller that owns all serves it on its CPU";
		return ERR_PTR(-EOPNOTSUPP);
	}
	a = kbp_napi_named(key->dev, n);
	if (a) {
		*why = kbp_why_attached(a);
		return ERR_PTR(-EEXIST);
	}
	if (kbp_has_thread(n)) {
		*why = "threaded NAPI is on for this interface; turn it off first";
		return ERR_PTR(-EBUSY);
	}
	return n;
}

static void kbp_napi_free(struct kbp_napi *a)
{
	kbp_adaptive_free(a->adaptive);
	kfree_rcu(a, rcu);
}

static struct kbp_napi *kbp_napi_new(const struct kbp_napi_key *key,
				     struct kbp_poller *p,
				     const struct kbp_napi_config *config)
{
	struct kbp_napi *a = kzalloc(sizeof(*a), GFP_KERNEL);

	if (!a)
		return NULL;
	a->dev = key->dev;
	a->queue = key->queue;
	a->poller = p;
	a->mode = config->mode;
	a->class = config->class;
	/* In the other modes the poller holds it as soon as it can. */
	a->armed = a->mode == KBP_MODE_SLEEP;
	u64_stats_init(&a->stats.syncp);
	if (a->mode != KBP_MODE_ADAPTIVE)
		return a;
	a->adaptive = kbp_adaptive_new(&config->knobs);
	if (a->adaptive)
		return a;
	kfree(a);
	return NULL;
}

/**
 * kbp_napi_attach() - give a NAPI instance to a poller
 * @key: the instance; the device may be down, then it follows when it is up
 * @p: the poller
 * @config: how it is to be served
 * @res: the attachment
 * @why: on error, what was wrong
 *
 * Context: rtnl_lock and kbp_mutex held.
 * Return: 0 or a negative errno; then nothing has changed.
 */
int kbp_napi_attach(const struct kbp_napi_key *key, struct kbp_poller *p,
		    const struct kbp_napi_config *config,
		    struct kbp_napi **res, const char **why)
{
	struct napi_struct *n;
	struct kbp_napi *a;

	a = kbp_napi_find(key);
	if (a) {
		*why = kbp_why_attached(a);
		return -EEXIST;
	}
	if (p->napis_count >= KBP_NAPIS_MAX) {
		*why = "this poller has as many NAPI instances as it can serve";
		return -ENOSPC;
	}
	a = kbp_napi_new(key, p, config);
	if (!a)
		return -ENOMEM;

	rcu_read_lock();
	n = kbp_napi_resolve(key, why);
	if (IS_ERR(n)) {
		rcu_read_unlock();
		kbp_napi_free(a);
		return PTR_ERR(n);
	}
	list_add_tail_rcu(&a->link, &p->napis);
	WRITE_ONCE(p->napis_count, p->napis_count + 1);
	queue_delayed_work(kbp_follow_wq, &kbp_follow, KBP_FOLLOW_EVERY);
	a->napi_id = n->napi_id;
	a->index = kbp_napi_index(a->dev, n);
	if (netif_running(key->dev))
		kbp_napi_bind(a, n);
	rcu_read_unlock();
	*res = a;
	kbp_notify_napi(a, KBP_EVENT_ADDED);
	return 0;
}

/**
 * kbp_napi_detach() - give a NAPI instance back to softirq
 * @a: the attachment; gone afterwards
 * @event: why
 *
 * Context: kbp_mutex held, may sleep.
 */
void kbp_napi_detach(struct kbp_napi *a, enum kbp_event event)
{
	struct kbp_poller *p = a->poller;

	kbp_napi_leave(a);
	list_del_rcu(&a->link);
	WRITE_ONCE(p->napis_count, p->napis_count - 1);
	kbp_notify_napi(a, event);
	kbp_napi_free(a);
}

/* The instance that an attachment stands for now. RCU reader. */
static struct napi_struct *kbp_napi_now(const struct kbp_napi *a)
{
	return a->queue == KBP_NO_QUEUE ? kbp_napi_by_index(a->dev, a->index) :
					  kbp_napi_by_queue(a->dev, a->queue);
}

/**
 * kbp_napi_up() - find an attachment's instance again, which may be another one
 * @a: the attachment; its interface has come up, or its poller
 *
 * Context: rtnl_lock and kbp_mutex held.
 */
void kbp_napi_up(struct kbp_napi *a)
{
	struct napi_struct *n;

	/* While its CPU is offline the poller serves nothing. */
	if (a->napi || !a->poller->task)
		return;
	rcu_read_lock();
	n = kbp_napi_now(a);
	if (n && !kbp_napi_lookup(n))
		kbp_napi_bind(a, n);
	rcu_read_unlock();
	kbp_notify_napi(a, a->napi ? KBP_EVENT_UP : KBP_EVENT_DOWN);
}

/*
 * A driver may free its instances and make new ones while the interface is up,
 * when the number of queues changes or an XDP program comes or goes. None is
 * freed while we hold it (napi_disable() waits for us); the attachment then
 * stands for the new one. rtnl_lock and kbp_mutex are held.
 */
static void kbp_napi_follow(struct kbp_napi *a)
{
	bool served = netif_running(a->dev) && a->poller->task;
	bool lost = a->napi, found = false;
	struct napi_struct *n;

	rcu_read_lock();
	/* Only what is listed may be looked into. */
	if (lost && kbp_napi_listed(a->dev, a->napi) &&
	    a->napi->napi_id == a->napi_id)
		lost = false;
	if (served && !lost && kbp_napi_is_lacking(a)) {
		kbp_napi_claim(a);
		/* A socket may have it; the thread goes on asking. */
		wake_up_process(a->poller->task);
	}
	if (served && !lost && kbp_napi_is_idle(a))
		kbp_napi_kick(a);
	n = served && (lost || !a->napi) ? kbp_napi_now(a) : NULL;
	/* Another attachment may have it, for example by its id. */
	found = n && (n == a->napi || !kbp_napi_lookup(n));
	rcu_read_unlock();
	if (lost)
		kbp_napi_leave(a);
	if (found)
		kbp_napi_up(a);
	else if (lost)
		kbp_notify_napi(a, KBP_EVENT_DOWN);
}

static void kbp_follow_work(struct work_struct *work)
{
	bool any = false;
	struct kbp_poller *p;
	struct kbp_napi *a;

	kbp_conflict_look();
	WRITE_ONCE(kbp_followed, jiffies);
	rtnl_lock();
	mutex_lock(&kbp_mutex);
	list_for_each_entry(p, &kbp_pollers, link) {
		list_for_each_entry(a, &p->napis, link) {
			kbp_napi_follow(a);
			any = true;
		}
	}
	if (any)
		queue_delayed_work(kbp_follow_wq, &kbp_follow,
				   KBP_FOLLOW_EVERY);
	mutex_unlock(&kbp_mutex);
	rtnl_unlock();
}

/**
 * kbp_napi_look() - have attachments follow their drivers, if it is time
 *
 * Context: a poller's thread that is awake and has attachments.
 */
void kbp_napi_look(void)
{
	if (time_before(jiffies, READ_ONCE(kbp_followed) + KBP_FOLLOW_EVERY))
		return;
	WRITE_ONCE(kbp_followed, jiffies);
	mod_delayed_work(kbp_follow_wq, &kbp_follow, 0);
}

static void kbp_napi_event(struct kbp_napi *a, unsigned long event)
{
	switch (event) {
	case NETDEV_GOING_DOWN:
		kbp_napi_leave(a);
		kbp_notify_napi(a, KBP_EVENT_DOWN);
		break;
	case NETDEV_UP:
		kbp_napi_up(a);
		break;
	case NETDEV_CHANGE:
	case NETDEV_FEAT_CHANGE:
		kbp_napi_follow(a);
		break;
	case NETDEV_UNREGISTER:
		kbp_napi_detach(a, KBP_EVENT_GONE);
		break;
	}
}

/* rtnl_lock is held. */
static int kbp_netdev_event(struct notifier_block *nb, unsigned long event,
			    void *ptr)
{
	struct net_device *dev = netdev_notifier_info_to_dev(ptr);
	struct kbp_napi *a, *next;
	struct kbp_poller *p;

	if (event != NETDEV_GOING_DOWN && event != NETDEV_UP &&
	    event != NETDEV_CHANGE && event != NETDEV_FEAT_CHANGE &&
	    event != NETDEV_UNREGISTER)
		return NOTIFY_DONE;

	mutex_lock(&kbp_mutex);
	list_for_each_entry(p, &kbp_pollers, link)
		list_for_each_entry_safe(a, next, &p->napis, link)
			if (a->dev == dev)
				kbp_napi_event(a, event);
	mutex_unlock(&kbp_mutex);
	return NOTIFY_DONE;
}

static struct notifier_block kbp_netdev_nb = {
	.notifier_call = kbp_netdev_event,
};

int kbp_napi_init(void)
{
	int err;

	/* Not bound to the CPU of a poller, and not while the machine sleeps. */
	kbp_follow_wq = alloc_workqueue("kbp_follow",
					WQ_UNBOUND | WQ_FREEZABLE, 0);
	if (!kbp_follow_wq)
		return -ENOMEM;
	err = register_netdevice_notifier(&kbp_netdev_nb);
	if (err)
		destroy_workqueue(kbp_follow_wq);
	return err;
}

void kbp_napi_exit(void)
{
	unregister_netdevice_notifier(&kbp_netdev_nb);
	/* No attachment is left that would start it again. */
	cancel_delayed_work_sync(&kbp_follow);
	destroy_workqueue(kbp_follow_wq);
}
