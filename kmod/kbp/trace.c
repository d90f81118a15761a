// SPDX-License-Identifier: GPL-2.0-only
/*
 * The tracepoints of kbp, in a module of their own (kbp_trace): the kernel
 * makes no trace events for a module that is a live patch.
 */
#include <linux/module.h>

#define CREATE_TRACE_POINTS
#include "trace.h"

EXPORT_TRACEPOINT_SYMBOL_GPL(kbp_enqueue);
EXPORT_TRACEPOINT_SYMBOL_GPL(kbp_poll);
EXPORT_TRACEPOINT_SYMBOL_GPL(kbp_handback);
EXPORT_TRACEPOINT_SYMBOL_GPL(kbp_window);

MODULE_DESCRIPTION("KBP: tracepoints");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
