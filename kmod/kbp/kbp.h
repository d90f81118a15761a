/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of the module share.
 *
 * Locks: kbp_mutex (control plane: which pollers and attachments exist) is
 * taken inside rtnl_lock or inside cpus_read_lock, never around them.
 * kbp_poller.lock (one poller's lists and state; raw, interrupts off) is taken
 * by hardIRQs too; nothing but the timer's lock is taken inside it.
 */
#ifndef KBP_H
#define KBP_H

#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/percpu.h>
#include <linux/pm_qos.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>

#include "../uapi/kbp.h"
#include "pace.h"
#include "policy.h"
#include "rtlist.h"
#include "thrift.h"
#include "window.h"

#define KBP_NAPIS_MAX		64	/* attachments of one poller */
#define KBP_BATCH_POLLS		8	/* polls in one stretch with BH off */
#define KBP_CSTATE_ANY		U32_MAX	/* no idle state is kept from the CPU */
#define KBP_NO_QUEUE		U32_MAX	/* attached by NAPI id */

#define KBP_FIELD(field, suffix) u64_stats_t field;

struct kbp_poller_stats {
	struct u64_stats_sync syncp;
	KBP_POLLER_COUNTERS(KBP_FIELD)
};

struct kbp_napi_stats {
	struct u64_stats_sync syncp;
	KBP_NAPI_COUNTERS(KBP_FIELD)
};

/*
 * Each counter has one writer at a time: the thread, or whoever holds
 * kbp_poller.lock. local64 makes that safe against a hardIRQ in between.
 */
#define kbp_count(stats, field, amount)				\
	do {							\
		u64_stats_update_begin(&(stats)->syncp);	\
		u64_stats_add(&(stats)->field, amount);		\
		u64_stats_update_end(&(stats)->syncp);		\
	} while (0)

#define KBP_POLL_CLASSES	(KBP_POLL_CLASS_MAX + 1)

/* Counters of waits: one a power of two nanoseconds, the last for 1 s and more. */
#define KBP_WAITS		32
/* Instances whose waits are known at a time, if their addresses fall apart. */
#define KBP_WAITING_BITS	6

/* What may wake the poller thread; kbp_poller.lock. */
enum kbp_waker {
	KBP_WAKE_NONE,		/* it runs, or rests without being disturbed */
	KBP_WAKE_RT,		/* it rests: a NAPI of class rt wakes it */
	KBP_WAKE_ANY,		/* it has nothing to do */
};

/*
 * Who may touch an instance whose SCHED and IN_BUSY_POLL bits are ours. The
 * poller goes HELD -> POLLING -> HELD; who wants the instance back goes
 * HELD -> FREE, and waits while it is POLLING.
 */
enum kbp_hold {
	KBP_HOLD_FREE,		/* not ours */
	KBP_HOLD_HELD,		/* ours, between two polls */
	KBP_HOLD_POLLING,	/* ours, the poller thread is in its poll function */
};

/* Who has the backlog of a poller's CPU; backlog.c says what each means. */
enum kbp_backlog_hold {
	KBP_BACKLOG_STOCK,
	KBP_BACKLOG_HELD,
	KBP_BACKLOG_POLLING,	/* held, and in its poll function */
	KBP_BACKLOG_ARMED,
};

struct kbp_poller;
struct kbp_adaptive;

/* An attachment: a NAPI instance that somebody gave to a poller. */
struct kbp_napi {
	struct hlist_node hash;		/* by ->napi; RCU, kbp_mutex */
	struct list_head link;		/* kbp_poller.napis; RCU, kbp_mutex */
	/* NULL while the interface is down: then the driver may free it. */
	struct napi_struct *napi;
	struct net_device *dev;		/* valid until NETDEV_UNREGISTER */
	struct kbp_poller *poller;
	u32 queue;			/* as asked for, or KBP_NO_QUEUE */
	u32 index;			/* place among the device's NAPIs */
	u32 napi_id;
	enum kbp_mode mode;
	enum kbp_poll_class class;
	u32 lap;			/* the last one that polled it; the thread's */
	enum kbp_hold hold;		/* by cmpxchg */
	bool leaving;			/* must not be held again */
	bool armed;			/* its interrupt may wake the poller, if that sleeps */
	u64 listed_ns;			/* when it was last put on the list, by who owned SCHED */
	struct kbp_adaptive *adaptive;	/* NULL in other modes */
	/* Written by the thread, while it is held: see kbp_look_for_interrupt(). */
	u32 irqs_of_hold;		/* interrupts beside packets */
	u32 unusual_irqs;		/* of holds, less what is usual in each */
	u32 held_quiet;			/* polls with packets and without interrupt */
	bool held_found;		/* the last poll found packets */
	u32 noisy;			/* how often, in a row, it was not masked */
	bool unmasked;			/* so often that adaptive is served as sleep */
	bool served;			/* the poller polls it now */
	struct kbp_napi_stats stats;
	struct rcu_head rcu;
};

struct kbp_poller_backlog {
	enum kbp_backlog wanted;	/* kbp_mutex; read anywhere */
	/* Written on the poller's CPU: by the thread, or interrupts off. */
	enum kbp_backlog_hold hold;
};

/* On its way to the softirq of another CPU, while the poller's own can't run. */
struct kbp_relay {
	struct list_head list;		/* napi_struct, by poll_list; kbp_poller.lock */
	unsigned int cpu;		/* nr_cpu_ids: there is no other */
	call_single_data_t csd;
	struct work_struct work;
};

struct kbp_poller_config {
	u32 cpu;
	enum kbp_owns owns;
	enum kbp_policy policy;
	u32 priority;
	s32 nice;
	u32 budget;			/* packets */
	u32 watchdog_ms;
	enum kbp_backlog backlog;
	enum kbp_freq freq;
	struct {
		u32 max_us;		/* KBP_CSTATE_ANY: no limit */
		u32 exit_us;		/* of the deepest state */
	} cstate;
};

/* Which idle states the CPU may enter; written by the thread while there is one. */
struct kbp_cstate {
	struct dev_pm_qos_request request;
	struct kbp_pace pace;
	bool lifted;
};

/* Instances whose GRO goes on over several small polls: kbp_goes_on_merging(). */
#define KBP_MERGING_BITS	6

struct kbp_merging {
	const struct napi_struct *napi;	/* to be compared, it may be gone */
	int packets;			/* since GRO was flushed */
	unsigned long since;		/* when that was, jiffies */
};

/* Standing still between two looks at empty rings; the thread's. */
struct kbp_halt {
	struct hrtimer timer;
	u64 halted_ns;			/* since time was last accounted for */
	u64 ended_ns;			/* when the timer ended the last; 0: it did not */
	u64 late_ns;			/* mean of how late it ends them */
	u64 saved_ns;			/* see kbp_halt_length() */
	unsigned long again;		/* jiffies: none before */
	bool in_vain;			/* the last ones were given up */
};

struct kbp_poller {
	raw_spinlock_t lock;
	/* Below: protected by lock. */
	struct list_head todo[KBP_POLL_CLASSES]; /* napi_struct, by poll_list */
	u32 listed[KBP_POLL_CLASSES];	/* how many these are */
	bool unattached;		/* one of class rt without attachment was put there */
	struct {
		const struct napi_struct *napi;
		u64 since_ns;
	} waiting[1 << KBP_WAITING_BITS];
	u64 waits[KBP_POLL_CLASSES][KBP_WAITS];
	struct napi_struct *cur;	/* taken from a list, being polled */
	enum kbp_waker wake;
	u64 woken_ns;			/* when it was woken; 0: by nobody */
	enum kbp_state state;
	bool closing;			/* takes no more work */
	bool watchdog_on;
	bool stuck;			/* relieved with BH off; read anywhere */
	struct list_head home;		/* napi_struct on their way to its CPU's softirq */
	struct kbp_relay relay;
	unsigned long beat_seen;
	unsigned int stale;		/* watchdog periods without a beat */
	u64 usual_ns;			/* how long sleeps are lately; the thread's */

	/* Written by the thread only, read anywhere. */
	unsigned long beat ____cacheline_aligned_in_smp;
	struct kbp_duty duty;
	u64 last_ns;
	unsigned long last_qs;		/* jiffies */
	u64 bh_waits[KBP_WAITS];	/* for BH; PREEMPT_RT */
	unsigned long irqs_seen;	/* of its CPU; PREEMPT_RT */
	unsigned int spins;		/* empty rounds */
	bool resting;			/* serves only class rt, in small budgets */
	bool released;			/* rests, with the interrupts of all devices armed */
	bool fifo;			/* runs as SCHED_FIFO now */
	bool serving;			/* polls what is of class rt */
	struct kbp_lap lap;		/* of class normal */
	struct kbp_merging merging[1 << KBP_MERGING_BITS];
	u32 wakeful;			/* what keeps it awake: devices, backlog, a lacking one */
	u32 held_normals;		/* held devices of class normal, by the last turn of rt */
	bool lacking;			/* somebody else has what it could hold */
	bool letting_go;		/* somebody may wait for what it holds */
	u64 unlocked_ns;		/* when rtnl_lock was last seen free */
	u64 looked_ns;			/* when it was last looked at */
	bool bh_off;			/* softirqs of its CPU can't run */
	struct kbp_wake wake_cost;
	struct kbp_thrift thrift;	/* of what is attached in mode adaptive */
	bool kept;			/* awake, by the last tick, for something else, too */
	unsigned long planned;		/* jiffies: a step of an attachment's plan */
	u32 planners;			/* attachments that took turns in it then */
	u64 due_ns;			/* when it has to be awake; 0: no such time */
	u64 ahead_ns;			/* see kbp_window_next, of what is due then */
	struct kbp_pace pace;
	struct kbp_cstate cstate;

	struct kbp_poller_backlog backlog;
	struct kbp_poller_stats stats;
	struct task_struct *task;	/* NULL while its CPU is offline; kbp_mutex */
	struct kbp_poller_config config;
	struct hrtimer watchdog;
	struct kbp_halt halt;
	call_single_data_t relieve_csd;
	struct work_struct event_work;
	unsigned long events;		/* bits of enum kbp_event */

	struct list_head napis;		/* struct kbp_napi; RCU, kbp_mutex */
	u32 napis_count;		/* kbp_mutex */
	struct list_head link;		/* kbp_pollers; kbp_mutex */
};

/* Which counter of a histogram of waits is that of @ns? */
static inline unsigned int kbp_wait_index(u64 ns)
{
	return min(fls64(ns), KBP_WAITS - 1);
}

extern struct mutex kbp_mutex;
extern struct list_head kbp_pollers;
extern struct workqueue_struct *kbp_wq;
extern unsigned int kbp_relax;
extern unsigned int kbp_window_us;
extern unsigned int kbp_halt_us;
extern bool kbp_enable;

/* Non-zero on a CPU where a schedule request may concern a poller. */
DECLARE_PER_CPU(bool, kbp_engaged);
DECLARE_PER_CPU(struct kbp_poller __rcu *, kbp_poller);

/* klp.c: the replaced functions and what they hand on to the stock path */
extern struct klp_patch kbp_patch;
void kbp_schedule(struct napi_struct *n);
void kbp_stock_add(struct softnet_data *sd, struct napi_struct *n);
void kbp_stock_take(struct list_head *list);
void kbp_stock_raise(void);
bool kbp_is_open(void);
bool kbp_replaces(const char *function);
void kbp_look_for_replacement(void);
void kbp_step_aside(void);
bool kbp_is_aside(void);
const char *kbp_why_closed(void);
void kbp_close(void);

/* enqueue.c: from a schedule request to a poller's list */
bool kbp_enqueue(struct napi_struct *n);
bool kbp_sends_for_rt(const struct kbp_poller *p, const struct napi_struct *n);
void kbp_put(struct kbp_poller *p, struct napi_struct *n, struct kbp_napi *a,
	     enum kbp_poll_class class, u64 now_ns);
bool kbp_put_sent_first(struct kbp_poller *p, const struct net_device *dev);
void kbp_take(struct kbp_poller *p, struct napi_struct *n,
	      enum kbp_poll_class class, u64 now_ns);

/* handback.c: from a poller back to softirq */
bool kbp_holds(const struct kbp_poller *p);
bool kbp_unhold(struct kbp_napi *a);
bool kbp_relay(struct kbp_poller *p, struct napi_struct *n);
void kbp_drain(struct kbp_poller *p);
void kbp_look_for_death(struct kbp_poller *p);
void kbp_watchdog_start(struct kbp_poller *p);
void kbp_watchdog_rest(struct kbp_poller *p);
void kbp_watchdog_learn(struct kbp_poller *p, u64 slept_ns);
void kbp_handback_init(struct kbp_poller *p);
void kbp_handback_exit(struct kbp_poller *p);

/* backlog.c: the backlog of a poller's CPU */
const char *kbp_backlog_refusal(u32 cpu);
void kbp_backlog_set(struct kbp_poller *p, enum kbp_backlog wanted);
void kbp_backlog_recall(struct kbp_poller *p);
void kbp_backlog_give_back(struct kbp_poller *p);
void kbp_backlog_leave(struct kbp_poller *p);
bool kbp_backlog_arm(struct kbp_poller *p);
int kbp_backlog_poll(struct kbp_poller *p, enum kbp_backlog wanted, int budget);
bool kbp_backlog_is_open(const struct kbp_poller *p, enum kbp_backlog wanted);
bool kbp_backlog_has_packets(const struct kbp_poller *p);
bool kbp_backlog_is_waiting(const struct kbp_poller *p);
enum kbp_backlog kbp_backlog_active(const struct kbp_poller *p);

/* Who is to serve the backlog now; a poller that ends wants it no more. */
static inline enum kbp_backlog kbp_backlog_wanted(const struct kbp_poller *p)
{
	return READ_ONCE(p->closing) ? KBP_BACKLOG_SOFTIRQ :
				       READ_ONCE(p->backlog.wanted);
}

static inline bool kbp_backlog_is_attached(const struct kbp_poller *p)
{
	return kbp_backlog_wanted(p) == KBP_BACKLOG_ATTACHED;
}

/* Is an instance on a list of it? Without its lock the answer may be old. */
static inline bool kbp_has_scheduled(const struct kbp_poller *p)
{
	return !list_empty(&p->todo[KBP_POLL_CLASS_RT]) ||
	       !list_empty(&p->todo[KBP_POLL_CLASS_NORMAL]);
}

static inline enum kbp_poll_class kbp_backlog_class(enum kbp_backlog wanted)
{
	return wanted == KBP_BACKLOG_ATTACHED ? KBP_POLL_CLASS_RT :
						KBP_POLL_CLASS_NORMAL;
}

/*
 * Must @n be polled on the CPU that schedules it? A tunnel's gro_cells has a queue
 * without a lock for each CPU. The flag says "not for busy polling"; instances
 * that only send have it too, and can as well stay.
 */
static inline bool kbp_is_bound(const struct napi_struct *n)
{
	return test_bit(NAPI_STATE_NO_BUSY_POLL, &n->state);
}

/*
 * Did the user give @n a thread of its own (threaded NAPI), before it was attached
 * or since? Then that serves it: nobody else may poll what a thread may poll, and
 * the kernel waits for an idle instance, or for that thread, to end it.
 */
static inline bool kbp_has_thread(const struct napi_struct *n)
{
	return test_bit(NAPI_STATE_THREADED, &n->state);
}

/*
 * Does the driver work with its rings? While it takes them apart and makes them
 * anew, many rely on it that nobody schedules an instance whose interrupt they
 * have masked: then none is held, and none is polled unasked.
 */
static inline bool kbp_dev_works(const struct net_device *dev)
{
	return netif_running(dev) && netif_device_present(dev) &&
	       netif_carrier_ok(dev);
}

/* Has every device its interrupt: in a long rest, or for somebody who may wait? */
static inline bool kbp_lets_all_go(const struct kbp_poller *p)
{
	return p->released || p->letting_go;
}

/* Has softirq what the poller is to have, until its thread runs again? */
static inline bool kbp_is_relieved(const struct kbp_poller *p)
{
	enum kbp_state state = READ_ONCE(p->state);

	return state == KBP_STATE_HANDED_BACK || state == KBP_STATE_DEAD;
}

/* Polls of what is scheduled, of one class, that follow each other at once. */
struct kbp_series {
	bool more;			/* there may be another */
	u32 unpolled;			/* of what was listed, so many are not polled yet */
	struct napi_struct *next;	/* taken from the list with the end of the last */
};

/* poll.c: one poll, from a poller's list through the driver into the stack */
void kbp_count_poll(struct kbp_poller *p, struct kbp_napi *a,
		    enum kbp_poll_class class, int work);
int kbp_step_held(struct kbp_poller *p, struct kbp_napi *a);
int kbp_step_sent(struct kbp_poller *p, const struct net_device *dev);
bool kbp_is_awake(const struct kbp_poller *p, const struct kbp_napi *a);
bool kbp_step_todo(struct kbp_poller *p, enum kbp_poll_class class,
		   struct kbp_series *series, int *work);

/* round.c: who is polled, in which order */
bool kbp_round(struct kbp_poller *p);
bool kbp_round_rt(struct kbp_poller *p);
bool kbp_lacks(const struct kbp_poller *p);
void kbp_claim_all(struct kbp_poller *p);
bool kbp_holds_rt(const struct kbp_poller *p);

/* sent.c: what is left of sending */
void kbp_serve_net_tx(struct kbp_poller *p);
void kbp_free_sent(struct kbp_poller *p, bool all_polled);

/* Is it served in mode adaptive, and not as in mode sleep, since nothing masks it? */
static inline bool kbp_is_adaptive(const struct kbp_napi *a)
{
	return a->adaptive && !READ_ONCE(a->unmasked);
}

/* adaptive.c: mode adaptive */
struct kbp_adaptive *kbp_adaptive_new(const struct kbp_window_knobs *knobs);
void kbp_adaptive_free(struct kbp_adaptive *s);
const struct kbp_window_knobs *kbp_adaptive_knobs(const struct kbp_adaptive *s);
bool kbp_adaptive_is_free(const struct kbp_adaptive *s);
bool kbp_adaptive_starts(const struct kbp_napi *a);
bool kbp_adaptive_is_overdue(const struct kbp_napi *a);
void kbp_adaptive_look(struct kbp_napi *a);
u64 kbp_adaptive_quiet(const struct kbp_poller *p, u64 now_ns);
void kbp_adaptive_polled(struct kbp_poller *p, struct kbp_napi *a,
			 const struct napi_struct *n, int work, int budget,
			 bool held);
void kbp_adaptive_let_go(const struct kbp_poller *p, struct kbp_napi *a);
void kbp_adaptive_think(struct kbp_poller *p, u64 until_ns);
void kbp_adaptive_tick(struct kbp_poller *p);
u64 kbp_adaptive_wake(struct kbp_poller *p, u64 now_ns);

/* Is it one of those that are polled through where sleeping saves too little? */
static inline bool kbp_is_thrifty(const struct kbp_napi *a)
{
	return kbp_is_adaptive(a) && kbp_adaptive_is_free(a->adaptive);
}

/* halt.c: standing still between two looks */
bool kbp_halts_through(const struct kbp_poller *p);
bool kbp_halt(struct kbp_poller *p);
u64 kbp_halt_take(struct kbp_poller *p);
void kbp_halt_init(struct kbp_poller *p);
void kbp_halt_exit(struct kbp_poller *p);

/* freq.c: the frequency of a poller's CPU */
#if IS_ENABLED(CONFIG_CPU_FREQ)
u64 kbp_freq_sleep(struct kbp_poller *p, u64 until_ns, bool goes_on);
void kbp_freq_wake(struct kbp_poller *p);
void kbp_freq_tick(struct kbp_poller *p);
void kbp_freq_kick(struct kbp_poller *p);
void kbp_freq_start(struct kbp_poller *p);
void kbp_freq_relieve(struct kbp_poller *p, bool relieved);
void kbp_freq_stop(struct kbp_poller *p);
enum kbp_freq kbp_freq_active(const struct kbp_poller *p);
void kbp_freq_init(void);
void kbp_freq_register(void);
void kbp_freq_exit(void);
#else
static inline u64 kbp_freq_sleep(struct kbp_poller *p, u64 until_ns,
				 bool goes_on)
{
	return 0;
}

static inline void kbp_freq_wake(struct kbp_poller *p) { }
static inline void kbp_freq_tick(struct kbp_poller *p) { }
static inline void kbp_freq_kick(struct kbp_poller *p) { }
static inline void kbp_freq_start(struct kbp_poller *p) { }
static inline void kbp_freq_relieve(struct kbp_poller *p, bool relieved) { }
static inline void kbp_freq_stop(struct kbp_poller *p) { }
static inline enum kbp_freq kbp_freq_active(const struct kbp_poller *p)
{
	return KBP_FREQ_OFF;
}

static inline void kbp_freq_init(void) { }
static inline void kbp_freq_register(void) { }
static inline void kbp_freq_exit(void) { }
#endif

/* cstate.c: idle states of a poller's CPU */
u64 kbp_cstate_sleep(struct kbp_poller *p, u64 until_ns, bool goes_on);
void kbp_cstate_rest(struct kbp_poller *p);
void kbp_cstate_wake(struct kbp_poller *p);
bool kbp_cstate_is_limited(struct kbp_poller *p);
void kbp_cstate_start(struct kbp_poller *p);
void kbp_cstate_stop(struct kbp_poller *p);

/* poller.c: the thread, and its life */
struct kbp_poller *kbp_poller_find(u32 cpu);
int kbp_poller_new(const struct kbp_poller_config *config);
void kbp_poller_del(struct kbp_poller *p);
int kbp_poller_start(struct kbp_poller *p);
void kbp_poller_stop(struct kbp_poller *p);
void kbp_poller_event(struct kbp_poller *p, enum kbp_event event);

/* hotplug.c: CPUs that go and come; suspend and reboot */
bool kbp_is_suspended(void);
int kbp_hotplug_init(void);
void kbp_hotplug_exit(void);

/* verify.c: is this kernel one that we know how to change? */
int kbp_verify(void);

/* conflict.c: other live patches */
int kbp_conflict_check(void);
void kbp_conflict_look(void);
int kbp_conflict_init(void);
void kbp_conflict_exit(void);

/* napi.c: attachments and the devices behind them */
struct kbp_napi_key {
	struct net_device *dev;
	u32 queue;			/* KBP_NO_QUEUE if named by id */
	u32 napi_id;
};

/* How it is to be served. */
struct kbp_napi_config {
	enum kbp_mode mode;
	enum kbp_poll_class class;
	struct kbp_window_knobs knobs;	/* mode adaptive */
};

struct kbp_napi *kbp_napi_lookup(const struct napi_struct *n);
bool kbp_napi_only_sends(const struct napi_struct *n);
bool kbp_napi_listed(struct net_device *dev, const struct napi_struct *n);
struct kbp_napi *kbp_napi_find(const struct kbp_napi_key *key);
int kbp_napi_attach(const struct kbp_napi_key *key, struct kbp_poller *p,
		    const struct kbp_napi_config *config,
		    struct kbp_napi **res, const char **why);
void kbp_napi_detach(struct kbp_napi *a, enum kbp_event event);
void kbp_napi_leave(struct kbp_napi *a);
void kbp_napi_up(struct kbp_napi *a);
void kbp_napi_kick(struct kbp_napi *a);
void kbp_napi_look(void);
bool kbp_napi_is_lacking(const struct kbp_napi *a);
bool kbp_napi_claim(struct kbp_napi *a);
struct net_device *kbp_dev_by_napi_id(struct net *net, u32 napi_id);
void kbp_engage_update(void);
int kbp_napi_init(void);
void kbp_napi_exit(void);

/* netlink.c, stats.c: the control interface */
int kbp_netlink_init(void);
void kbp_netlink_exit(void);
void kbp_notify_poller(struct kbp_poller *p, enum kbp_event event);
void kbp_notify_napi(struct kbp_napi *a, enum kbp_event event);
int kbp_poller_stats_put(struct sk_buff *skb, const struct kbp_poller *p);
int kbp_poller_waits_put(struct sk_buff *skb, struct kbp_poller *p);
int kbp_napi_stats_put(struct sk_buff *skb, const struct kbp_napi *a);

#endif /* KBP_H */
