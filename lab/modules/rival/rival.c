// SPDX-License-Identifier: GPL-2.0-only
/*
 * A live patch for tests only, which replaces a function that kbp replaces too,
 * by one that does the same.
 */
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/netdevice.h>

static void rival_schedule_irqoff(struct napi_struct *n)
{
	__napi_schedule(n);
}

static struct klp_func rival_funcs[] = {
	{ .old_name = "__napi_schedule_irqoff",
	  .new_func = rival_schedule_irqoff },
	{ }
};

static struct klp_object rival_objs[] = {
	{ .funcs = rival_funcs },
	{ }
};

static struct klp_patch rival_patch = {
	.mod = THIS_MODULE,
	.objs = rival_objs,
};

static int __init rival_init(void)
{
	return klp_enable_patch(&rival_patch);
}

static void __exit rival_exit(void)
{
}

module_init(rival_init);
module_exit(rival_exit);

MODULE_INFO(livepatch, "Y");
MODULE_DESCRIPTION("A live patch of a function that kbp replaces, for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
