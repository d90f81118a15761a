// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends a kernel thread as a bug in it might, for tests only: loading tells the
 * thread @pid to stop and waits until it has. The load itself fails then, so
 * that the module need not be removed.
 */
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/task.h>

static int pid;
module_param(pid, int, 0444);
MODULE_PARM_DESC(pid, "kernel thread that is to end");

static int __init fault_init(void)
{
	struct pid *named = find_get_pid(pid);
	struct task_struct *task = get_pid_task(named, PIDTYPE_PID);

	put_pid(named);
	if (!task)
		return -ESRCH;
	if (!(task->flags & PF_KTHREAD)) {
		put_task_struct(task);
		return -EPERM;
	}
	kthread_stop(task);
	put_task_struct(task);
	return -ECANCELED;
}

module_init(fault_init);

MODULE_DESCRIPTION("Ends a kernel thread, for tests");
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The KBP developers");
