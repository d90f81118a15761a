// SPDX-License-Identifier: GPL-2.0-only
/*
 * Is this kernel one that we know how to change?
 *
 * The live patch core checks that what we replace is there once. Nobody checks
 * that it is enough: a kernel whose compiler inlined ____napi_schedule() into
 * one more function would pass by us there. Such a copy ends in a call that
 * raises NET_RX, so at load the kernel's text is read once for those calls, and
 * a function that we do not know refuses the load. `make check-abi` does the
 * same with an image, and more exactly. Owns nothing, takes no lock.
 */
#include <linux/kallsyms.h>
#include <linux/interrupt.h>

#include "kbp.h"

#ifdef CONFIG_X86_64

extern char _stext[], _etext[];

/*
 * Who raises NET_RX in the kernels that we know. What the first ones put on a
 * softirq's list is redirected (klp.c, which says why the next ones need not
 * be); the last ones schedule nothing. lab/napi-copies.toml is the same by
 * kernel, with reasons.
 */
static const char * const kbp_known_raisers[] = {
	"__napi_schedule", "__napi_schedule_irqoff", "napi_watchdog",
	"rps_trigger_softirq", "enqueue_to_backlog", "dev_cpu_dead",
	"kick_defer_list_purge",
	"net_rx_action", "trigger_rx_softirq",
	NULL
};

/* How far before the call its argument may be set, bytes. */
#define KBP_ARGUMENT_BYTES_MAX	16

/* Is @at the start of a call, or of a jump, to a function that raises softirqs? */
static bool kbp_raises(const u8 *at)
{
	const void *target;
	s32 distance;

	if (likely(at[0] != 0xe8 && at[0] != 0xe9))
		return false;
	memcpy(&distance, at + 1, sizeof(distance));
	target = at + 5 + distance;
	return target == raise_softirq_irqoff ||
	       target == __raise_softirq_irqoff;
}

/* Is the first argument of a call at @at the number of NET_RX? */
static bool kbp_passes_net_rx(const u8 *at)
{
	/* mov $3, %edi */
	static const u8 set[] = { 0xbf, NET_RX_SOFTIRQ, 0, 0, 0 };
	const u8 *before = at - sizeof(set);
	const u8 *first = max_t(const u8 *, (const u8 *)_stext,
				at - KBP_ARGUMENT_BYTES_MAX);

	for (; before >= first; before--)
		if (!memcmp(before, set, sizeof(set)))
			return true;
	return false;
}

/* Name of the function at @at, without what a compiler appends to it. */
static void kbp_name_of(const void *at, char *name)
{
	sprint_symbol_no_offset(name, (unsigned long)at);
	name[strcspn(name, ". ")] = '\0';
}

static bool kbp_raiser_is_known(const char *name)
{
	const char * const *known;

	for (known = kbp_known_raisers; *known; known++)
		if (!strcmp(name, *known))
			return true;
	return false;
}

/**
 * kbp_verify() - look for copies of ____napi_schedule() that we don't replace
 *
 * Context: thread; reads some 20 MB.
 * Return: 0, also where it can't be seen; -EOPNOTSUPP when there is one.
 */
int kbp_verify(void)
{
	const u8 *at, *end = (const u8 *)_etext - 5;
	char name[KSYM_SYMBOL_LEN];
	unsigned int seen = 0;

	for (at = (const u8 *)_stext; at < end; at++) {
		if (IS_ALIGNED((unsigned long)at, PAGE_SIZE))
			cond_resched();
		if (!kbp_raises(at) || !kbp_passes_net_rx(at))
			continue;
		kbp_name_of(at, name);
		if (!kbp_raiser_is_known(name)) {
			pr_err("kbp: in this kernel %s() raises NET_RX by itself, and this version of the module does not know it\n",
			       name);
			return -EOPNOTSUPP;
		}
		if (!strcmp(name, "__napi_schedule"))
			seen++;
	}
	if (!seen)
		pr_info("kbp: the calls of this kernel can't be read, so whether it has schedule paths of its own is not known\n");
	return 0;
}

#else

int kbp_verify(void)
{
	return 0;
}

#endif /* CONFIG_X86_64 */
