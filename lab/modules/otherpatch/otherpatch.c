// SPDX-License-Identifier: GPL-2.0-only
/*
 * A live patch that has nothing to do with ours, for tests only: it comes and
 * goes while pollers run. It replaces what /proc/cmdline prints, which no
 * packet ever meets, by a text that tells the two apart.
 *
 * Context: the replacement is called for a read of that file, in the reader's
 * process. There are no locks and no state.
 */
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int otherpatch_cmdline_proc_show(struct seq_file *m, void *v)
{
	seq_puts(m, "otherpatch: this text is in place of the command line\n");
	return 0;
}

static struct klp_func otherpatch_funcs[] = {
	{ .old_name = "cmdline_proc_show",
	  .new_func = otherpatch_cmdline_proc_show },
	{ }
};

static struct klp_object otherpatch_objs[] = {
	{
		/* name NULL: the kernel itself */
		.funcs = otherpatch_funcs,
	},
	{ }
};

static struct klp_patch otherpatch_patch = {
	.mod = THIS_MODULE,
	.objs = otherpatch_objs,
};

static int __init otherpatch_init(void)
{
	return klp_enable_patch(&otherpatch_patch);
}

/* The kernel lets the module go only after the patch was disabled. */
static void __exit otherpatch_exit(void)
{
}

module_init(otherpatch_init);
module_exit(otherpatch_exit);

MODULE_DESCRIPTION("Another live patch, for tests only");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
