#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The first process of the guest. It brings the machine to a state in which it waits for a job (the lab may take a
# snapshot there), unpacks the job, has the clock checked, runs the script and sends everything back.
#
# Talk with the host goes through three virtio-serial ports, never through the console:
#   kbp.control  lines, both ways (`ready`, `job BYTES`, `taken`, `turns ...`, `run`, `exit CODE`, `end`)
#   kbp.output   what the script prints
#   kbp.data     the job as a tar stream to us, $OUT as a tar stream back
#
# Not here: any decision. The host decides what a figure or a code means.

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
mkdir -p /run/netns /var/run /out /modules
hostname lab
echo 0 > /proc/sys/kernel/kptr_restrict
echo 1 > /proc/sys/kernel/printk_devkmsg 2> /dev/null

give_up() {
	echo "kbp-lab: $1"
	reboot -f
}

while read -r module; do
	insmod "$module" || give_up "the stock module $module does not load"
done < /etc/kbp-lab/insmod
ip link set lo up

# Ports are found by name: their device numbers depend on the order of the bus.
port() {
	for entry in /sys/class/virtio-ports/*; do
		if [ "$(cat "$entry/name")" = "$1" ]; then
			echo "/dev/${entry##*/}"
			return
		fi
	done
}

# The device tells the driver its ports one by one, after the probe.
tries=0
while [ -z "$(port kbp.control)" ] || [ -z "$(port kbp.output)" ] || [ -z "$(port kbp.data)" ]; do
	tries=$((tries + 1))
	[ "$tries" -le 500 ] || give_up "the virtio-serial ports did not appear"
	usleep 10000
done
exec 5<> "$(port kbp.control)" 6> "$(port kbp.output)" 7<> "$(port kbp.data)"

echo ready >&5
read -r word bytes <&5
[ "$word" = job ] || give_up "the host said '$word' where a job was expected"
echo taken >&5
head -c "$bytes" <&7 | tar -x -f - -C / || give_up "the job does not unpack"
. /run/kbp-lab/job.sh
date -s "@$JOB_EPOCH" > /dev/null
echo "$JOB_SEED" > /dev/urandom

if [ -n "$JOB_PIT_COUNT" ]; then
	kbp-lab-guest pit "$JOB_PIT_COUNT" || give_up "the timer that bounds the turns of the CPUs cannot be set"
fi
if [ "$JOB_TURNS_MS" -gt 0 ]; then
	echo "turns $(kbp-lab-guest turns "$JOB_TURNS_MS" 2>&1)" >&5
fi
echo "clocksource $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" >&5
echo "release $(uname -r)" >&5
echo "go" >&5
read -r word <&5
[ "$word" = run ] || give_up "the host said '$word' where 'run' was expected"

cd /lab || give_up "there is no /lab"
code=0
if [ -n "$JOB_SHELL" ]; then
	echo "kbp-lab: a shell in the guest; scripts are in /lab, modules in $MODULES; leave it with 'exit'"
	setsid cttyhack sh -i 5>&- 6>&- 7>&-
elif [ -x "$JOB_SCRIPT" ]; then
	eval "\"\$JOB_SCRIPT\" $JOB_ARGS" < /dev/null >&6 2>&1 5>&- 7>&-
	code=$?
else
	eval "/bin/sh \"\$JOB_SCRIPT\" $JOB_ARGS" < /dev/null >&6 2>&1 5>&- 7>&-
	code=$?
fi

dmesg > "$OUT/dmesg.log"
echo "exit $code" >&5
tar -c -f - -C "$OUT" . >&7
echo end >&5
# The host ends the machine; this is for the case that it does not.
sleep 5
reboot -f
