#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The first process of a guest that lives in memory. It mounts what a script expects and loads the drivers of the way in
# and out; the rest is job.sh.

export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux
# Before we say that we run: a machine that ends here is started again.
if ! kbp-lab-guest timers; then
	echo "kbp-lab: the machine has a CPU whose timer is dead"
	reboot -f
fi
echo "kbp-lab: init"

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/mounts /etc/mtab
mkdir -p /run/netns /var/run
hostname lab
echo 0 > /proc/sys/kernel/kptr_restrict
echo 1 > /proc/sys/kernel/printk_devkmsg 2> /dev/null

while read -r module; do
	insmod "$module" || {
		echo "kbp-lab: the stock module $module does not load"
		reboot -f
	}
done < /etc/kbp-lab/insmod
ip link set lo up

. /etc/kbp-lab/job.sh
