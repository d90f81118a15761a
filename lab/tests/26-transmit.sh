#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2:igb --package ethtool --timeout 200s
# beside: others
#
# A card whose transmit queue has a NAPI instance of its own (igb with one queue): what the card has sent is seen to in the
# card's class. Only the receive queue is attached; the other instance is the poller's by its interrupt.

. /lab/lib.sh
. /lab/net.sh

PINGS=300

# irqs NAME: the interrupts whose names begin so.
irqs() { awk -v name="$1" 'index($NF, name) == 1 { sub(":", "", $1); print $1 }' /proc/interrupts; }

# Those of the transmit queue that came to the poller's CPU.
transmit_interrupts() {
	awk -v column=$((NET_CPU + 2)) '$NF == "eth0-tx-0" { print $column }' /proc/interrupts
}

is_asleep() { kbp show --json | grep -q '"mode_active":"sleep"'; }

# replies CLASS: sets $normals to the polls of class normal, and $sent to the transmit queue's interrupts, of some pings.
replies() {
	kbp attach eth0 --cpu "$NET_CPU" --class "$1" --mode sleep > /dev/null || lab_fail "attach"
	lab_wait_for 5 is_asleep
	normals=$(kbp_counter normal_polls) sent=$(transmit_interrupts)
	net_traffic "$1" --count "$PINGS" --period-us 3000
	net_none_lost "$1"
	normals=$(($(kbp_counter normal_polls) - normals)) sent=$(($(transmit_interrupts) - sent))
	kbp detach eth0 > /dev/null || lab_fail "detach"
	echo "$1: $sent interrupts for $PINGS replies, $normals polls of class normal"
	[ "$sent" -ge $((PINGS / 2)) ] || lab_fail "the replies' interrupts come elsewhere"
}

net_up
ethtool -L eth0 combined 1 || lab_fail "ethtool"
ip netns exec tester ethtool -L eth1 combined 1 || lab_fail "ethtool"
lab_wait_for 30 net_carrier
kbp_start
[ -n "$(irqs eth0-tx-0)" ] || lab_fail "the transmit queue has no interrupt of its own: $(grep eth0 /proc/interrupts)"
echo "$NET_CPU" > "/proc/irq/$(irqs eth0-tx-0)/smp_affinity_list"
for irq in $(irqs eth1); do
	echo 0 > "/proc/irq/$irq/smp_affinity_list"
done

replies rt
[ "$normals" -le $((PINGS / 10)) ] || lab_fail "what a card of class rt has sent is of class normal"
# Those that receive, and these.
replies normal
[ "$normals" -ge $((3 * PINGS / 2)) ] || lab_fail "class normal has $normals polls for $PINGS pings and their replies"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
