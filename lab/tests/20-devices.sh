#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 300s
# beside: others
#
# What may happen to an attached card: mode flips under traffic, down and up, its namespace deleted, the card pulled.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp_start

echo "flips under traffic"
net_traffic flips --seconds 8 --period-us 2000
while net_alive; do
	kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
	kbp detach eth0 > /dev/null || lab_fail "detach"
done
net_none_lost flips
lab_dmesg_clean

echo "down and up"
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
ip link set eth0 down
kbp show --json | grep -q '"mode_requested":"busy"' || lab_fail "the attachment did not survive the interface going down"
! kbp_active || lab_fail "an interface that is down is shown as served"
net_eth0_up
lab_wait_for 30 net_carrier
net_traffic updown --seconds 2
net_none_lost updown
kbp_active || lab_fail "not served again after up"
lab_dmesg_clean

echo "the poller's CPU goes and comes back"
net_traffic cpu --seconds 4
echo 0 > "/sys/devices/system/cpu/cpu$NET_CPU/online"
kbp show --json | grep -q '"mode_requested":"busy"' || lab_fail "the attachment did not survive its CPU going offline"
! kbp_active || lab_fail "a card is shown as served by a CPU that is offline"
sleep 1
echo 1 > "/sys/devices/system/cpu/cpu$NET_CPU/online"
lab_wait_for 5 kbp_active
net_none_lost cpu
lab_dmesg_clean

echo "the namespace of an attached card goes"
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach eth1"
net_traffic both --seconds 2
net_none_lost both
[ "$(kbp show --json | grep -o '"mode_requested"' | wc -l)" = 2 ] || lab_fail "two attachments expected"
ip netns del tester
one_left() { [ "$(kbp show --json | grep -o '"mode_requested"' | wc -l)" = 1 ]; }
lab_wait_for 10 one_left
lab_dmesg_clean

echo "an attached card is pulled"
echo 1 > /sys/class/net/eth0/device/remove
none_left() { ! kbp show --json | grep -q '"mode_requested"'; }
lab_wait_for 10 none_left
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
