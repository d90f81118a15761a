#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The first process of a machine that runs inside a guest (`kbp lab run --nested`). It carries out commands that come
# through the virtio-serial port `nested.agent`, one a line, `ID SECONDS COMMAND...`, and answers each with `begin ID`,
# what the command printed, an empty line and `end ID CODE`. Who asks is lab/nested.sh in the machine around it.
#
# Not here: any decision.

export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/mounts /etc/mtab
mkdir -p /run/netns /var/run
hostname nested
echo 0 > /proc/sys/kernel/kptr_restrict

while read -r module; do
	insmod "$module" || reboot -f
done < /etc/kbp-lab/insmod
ip link set lo up

port() {
	for entry in /sys/class/virtio-ports/*; do
		if [ "$(cat "$entry/name")" = nested.agent ]; then
			echo "/dev/${entry##*/}"
			return
		fi
	done
}

tries=0
while [ -z "$(port)" ]; do
	tries=$((tries + 1))
	[ "$tries" -le 500 ] || reboot -f
	sleep 0.01
done
exec 5<> "$(port)"
echo ready >&5
# /bin/sh, because this shell takes its own applets before the programs of packages.
while read -r id seconds command <&5; do
	timeout "$seconds" /bin/sh -c "$command" > /run/answer 2>&1 < /dev/null 5>&-
	code=$?
	{
		echo "begin $id"
		cat /run/answer
		echo
		echo "end $id $code"
	} >&5
done
reboot -f
