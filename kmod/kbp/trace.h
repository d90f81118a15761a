/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints: what becomes of a NAPI instance between the schedule request
 * and the stack. Part of the contract with user space.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM kbp

#if !defined(KBP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define KBP_TRACE_H

#include <linux/netdevice.h>
#include <linux/tracepoint.h>

TRACE_EVENT(kbp_enqueue,

	TP_PROTO(const struct napi_struct *napi, u32 cpu, bool attached,
		 bool wake),

	TP_ARGS(napi, cpu, attached, wake),

	TP_STRUCT__entry(
		__field(const void *, napi)
		__field(u32, napi_id)
		__field(u32, cpu)
		__field(bool, attached)
		__field(bool, wake)
	),

	TP_fast_assign(
		__entry->napi = napi;
		__entry->napi_id = napi->napi_id;
		__entry->cpu = cpu;
		__entry->attached = attached;
		__entry->wake = wake;
	),

	TP_printk("napi=%p napi_id=%u poller=%u attached=%d wake=%d",
		  __entry->napi, __entry->napi_id, __entry->cpu,
		  __entry->attached, __entry->wake)
);

TRACE_EVENT(kbp_poll,

	TP_PROTO(const struct napi_struct *napi, int work, int budget,
		 bool held),

	TP_ARGS(napi, work, budget, held),

	TP_STRUCT__entry(
		__field(const void *, napi)
		__field(u32, napi_id)
		__field(int, work)
		__field(int, budget)
		__field(bool, held)
	),

	TP_fast_assign(
		__entry->napi = napi;
		__entry->napi_id = napi->napi_id;
		__entry->work = work;
		__entry->budget = budget;
		__entry->held = held;
	),

	TP_printk("napi=%p napi_id=%u work=%d budget=%d held=%d",
		  __entry->napi, __entry->napi_id, __entry->work,
		  __entry->budget, __entry->held)
);

TRACE_EVENT(kbp_handback,

	TP_PROTO(u32 cpu, unsigned int napis),

	TP_ARGS(cpu, napis),

	TP_STRUCT__entry(
		__field(u32, cpu)
		__field(unsigned int, napis)
	),

	TP_fast_assign(
		__entry->cpu = cpu;
		__entry->napis = napis;
	),

	TP_printk("poller=%u napis=%u", __entry->cpu, __entry->napis)
);

TRACE_EVENT(kbp_window,

	TP_PROTO(const struct napi_struct *napi, u64 age_ns, bool poll,
		 u64 sleep_ns),

	TP_ARGS(napi, age_ns, poll, sleep_ns),

	TP_STRUCT__entry(
		__field(const void *, napi)
		__field(u32, napi_id)
		__field(u64, age_ns)
		__field(bool, poll)
		__field(u64, sleep_ns)
	),

	TP_fast_assign(
		__entry->napi = napi;
		__entry->napi_id = napi->napi_id;
		__entry->age_ns = age_ns;
		__entry->poll = poll;
		__entry->sleep_ns = sleep_ns;
	),

	TP_printk("napi=%p napi_id=%u age_ns=%llu poll=%d sleep_ns=%llu",
		  __entry->napi, __entry->napi_id, __entry->age_ns,
		  __entry->poll, __entry->sleep_ns)
);

#endif /* KBP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
