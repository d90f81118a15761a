#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package netcat-openbsd --package util-linux --timeout 300s
# beside: others
#
# netconsole on a card that a poller holds: netpoll polls it too, from any CPU and in interrupts. Every line that four
# CPUs print at the same time arrives at the other side, whether the poller or netconsole was there first, and of the
# traffic nothing is lost.

. /lab/lib.sh
. /lab/net.sh

LINES_EACH=50

listen() {
	ip netns exec tester nc.openbsd -u -l 6666 > "$OUT/netconsole" &
	LISTENER=$!
	lab_wait_for 10 listens
}

listens() { ip netns exec tester grep -qi ":1A0A " /proc/net/udp; }

netconsole_on() {
	modprobe netconsole "netconsole=6665@$NET_SERVER/eth0,6666@$NET_TESTER/$NET_TESTER_MAC" || lab_fail "netconsole"
}

attach() {
	kbp attach eth0 --cpu "$NET_CPU" > /dev/null || lab_fail "attach"
	lab_wait_for 5 kbp_active
}

# arrived NAME CPU: all lines of that CPU are there.
arrived() { [ "$(grep -c "$1 from CPU $2 " "$OUT/netconsole")" -eq "$LINES_EACH" ]; }

# print_everywhere NAME: from all CPUs at once, the poller's too.
print_everywhere() {
	packets=$(kbp_counter packets) handbacks=$(kbp_counter handbacks)
	printers=
	for cpu in 0 1 2 3; do
		taskset -c "$cpu" sh -c "line=0; while [ \$line -lt $LINES_EACH ]; do
			line=\$((line + 1)); echo \"<1>$1 from CPU $cpu \$line\" > /dev/kmsg; done" &
		printers="$printers $!"
	done
	for printer in $printers; do
		wait "$printer"
	done
	for cpu in 0 1 2 3; do
		lab_wait_for 30 arrived "$1" "$cpu"
	done
	packets=$(($(kbp_counter packets) - packets)) handbacks=$(($(kbp_counter handbacks) - handbacks))
	echo "$1: $((4 * LINES_EACH)) lines arrived, $packets packets polled meanwhile, handed back $handbacks times"
	lab_wait_for 5 kbp_active
	lab_dmesg_clean
}

echo on > /proc/sys/kernel/printk_devkmsg
echo 8 > /proc/sys/kernel/printk
# Room for all lines, should the listener not run for a while.
echo 8000000 > /proc/sys/net/core/rmem_default
net_up
kbp_start
attach
listen
net_traffic whole --seconds 600 --period-us 2000

echo "netconsole comes to a card that is held"
netconsole_on
print_everywhere second

echo "printed in interrupts: what each CPU does, asked for with SysRq"
echo 1 > /proc/sys/kernel/sysrq
lab_dmesg_mark
echo l > /proc/sysrq-trigger
backtraces() { grep -q "Sending NMI from CPU\|Show backtrace of all active CPUs" "$OUT/netconsole"; }
lab_wait_for 20 backtraces
! lab_dmesg_since | grep -E 'WARNING:|BUG:' || lab_fail "the kernel complained"
# The backtraces that were asked for are no complaint.
lab_dmesg_mark

echo "the poller comes to a card with netconsole, and goes under it"
kbp detach eth0 > /dev/null || lab_fail "detach"
attach
print_everywhere first
kbp detach eth0 > /dev/null || lab_fail "detach"
attach
rmmod netconsole
lab_wait_for 5 kbp_active
kbp unload > /dev/null || lab_fail "unload"
net_alive || lab_fail "the traffic stopped: $(cat "$OUT/whole.err")"
kill -INT "$NET_PID"
net_none_lost whole
kill "$LISTENER"
lab_dmesg_clean
lab_pass
