// SPDX-License-Identifier: GPL-2.0-only
/*
 * A live patch for tests only that replaces all others, as cumulative live
 * patches of distributions do. Its own function has nothing to do with kbp: it
 * says where a reader of /proc/cmdline can see it.
 */
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int usurper_cmdline_show(struct seq_file *m, void *v)
{
	seq_puts(m, "usurper is in effect\n");
	return 0;
}

static struct klp_func usurper_funcs[] = {
	{ .old_name = "cmdline_proc_show", .new_func = usurper_cmdline_show },
	{ }
};

static struct klp_object usurper_objs[] = {
	{ .funcs = usurper_funcs },
	{ }
};

static struct klp_patch usurper_patch = {
	.mod = THIS_MODULE,
	.objs = usurper_objs,
	.replace = true,
};

static int __init usurper_init(void)
{
	return klp_enable_patch(&usurper_patch);
}

static void __exit usurper_exit(void)
{
}

module_init(usurper_init);
module_exit(usurper_exit);

MODULE_INFO(livepatch, "Y");
MODULE_DESCRIPTION("A live patch that replaces all others, for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
