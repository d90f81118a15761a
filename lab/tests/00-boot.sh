#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2 --clock virtual
# kernels: all
#
# The machine that every other test relies on: what it mounts, what it can do, and that it is quiet.

. /lab/lib.sh

# Interrupts of the PIT so far.
ticks() { awk '$1 == "0:" { for (cpu = 2; $cpu ~ /^[0-9]+$/; cpu++) sum += $cpu } END { print sum + 0 }' /proc/interrupts; }

echo "kernel $(uname -r), clock $LAB_CLOCK, $LAB_CPUS CPUs"

[ "$(nproc)" = "$LAB_CPUS" ] || lab_fail "nproc says $(nproc)"
for mount in /proc /sys /dev /sys/kernel/debug /sys/kernel/tracing /sys/fs/cgroup; do
	grep -q " $mount " /proc/mounts || lab_fail "$mount is not mounted"
done
[ -d /sys/kernel/livepatch ] || lab_fail "this kernel has no livepatch"
symbol=$(grep -m 1 ' T __napi_schedule$' /proc/kallsyms) || lab_fail "kallsyms cannot be read"
case $symbol in
0000000000000000*) lab_fail "kallsyms hides addresses" ;;
esac

ip netns add boot-test || lab_fail "no network namespaces"
lab_defer ip netns del boot-test
ip link add veth-a type veth peer name veth-b netns boot-test || lab_fail "no veth"
ip netns exec boot-test ip link show veth-b > /dev/null || lab_fail "the veth peer is not in its namespace"

cards=0
while [ "$cards" -lt "$LAB_NICS" ]; do
	ip link show "eth$cards" > /dev/null || lab_fail "eth$cards is missing"
	cards=$((cards + 1))
done

if [ "$LAB_CLOCK" = virtual ]; then
	source=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)
	[ "$source" = tsc ] || lab_fail "the clock source is $source"
	# The timer that ends turns: CPU 0 took its interrupts once, and all that was measured waited for them.
	grep -q '^ *0: .*timer' /proc/interrupts || lab_fail "the PIT has no interrupt here"
	ticks_before=$(ticks)
	sleep 0.1
	[ "$(ticks)" = "$ticks_before" ] || lab_fail "$(($(ticks) - ticks_before)) interrupts of the PIT in 0.1 s"
fi
date > "$OUT/date"
lab_dmesg_clean
lab_pass
