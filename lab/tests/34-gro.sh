#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package ethtool --package iperf3 --package tcpdump --package util-linux --timeout 300s
#
# A poller merges the packets of a stream as softirq does, when GRO is on, in class normal over several small polls, and
# never keeps one back: not even where the user lets the kernel keep packets and interrupts back for half a second
# (gro_flush_timeout, napi_defer_hard_irqs). These settings stay as they are and are in effect again when the card is
# detached.

. /lab/lib.sh
. /lab/net.sh

CARD=/sys/class/net/eth0

# stream NAME: TCP through the card for some seconds; sets LONGEST to the longest payload that the stack got at once.
stream() {
	taskset -c 3 iperf3 -s -1 -p 5200 > "$OUT/$1.server" 2>&1 &
	stream_server=$!
	lab_wait_for 10 grep -qi ":1450 .* 0A " /proc/net/tcp6 /proc/net/tcp
	tcpdump -Z root -i eth0 -nn -q -c 3000 'dst host 10.9.0.1 and tcp dst port 5200' > "$OUT/$1.packets" 2> "$OUT/$1.tcpdump" &
	stream_dump=$!
	lab_wait_for 10 grep -q "listening on" "$OUT/$1.tcpdump"
	packets=$(kbp_counter packets)
	ip netns exec tester taskset -c 1 iperf3 -c "$NET_SERVER" -p 5200 -t 4 > "$OUT/$1.client" || lab_fail "iperf3"
	packets=$(($(kbp_counter packets) - packets))
	wait "$stream_server" || lab_fail "iperf3 server: $(cat "$OUT/$1.server")"
	kill "$stream_dump" 2> /dev/null || :
	wait "$stream_dump" || :
	LONGEST=$(awk '$NF > longest { longest = $NF } END { print longest + 0 }' "$OUT/$1.packets")
	echo "$1: $packets packets polled, longest payload $LONGEST bytes, $(awk '/receiver/ { print $7, $8 }' "$OUT/$1.client")"
}

attach() {
	kbp attach eth0 --cpu "$NET_CPU" > /dev/null || lab_fail "attach"
	lab_wait_for 5 kbp_active
}

set_timers() {
	echo "$1" > "$CARD/napi_defer_hard_irqs"
	echo "$2" > "$CARD/gro_flush_timeout"
}

timers() { echo "$(cat "$CARD/napi_defer_hard_irqs") $(cat "$CARD/gro_flush_timeout")"; }

# middle NAME: the median round trip in ms, of a program that sends the next ping after 20 ms.
middle() {
	net_traffic "$1" --count 40 --period-us 20000
	net_none_lost "$1"
	MIDDLE=$(($(net_value "$1" p50) / 1000000))
	echo "$1: median $MIDDLE ms, settings $(timers)"
}

net_up
kbp_start

echo "GRO"
attach
stream merged
[ "$packets" -ge 1000 ] || lab_fail "the stream did not go through the poller"
[ "$LONGEST" -gt 1460 ] || lab_fail "nothing was merged"
ethtool -K eth0 gro off || lab_fail "ethtool"
stream single
[ "$packets" -ge 1000 ] || lab_fail "the stream did not go through the poller"
[ "$LONGEST" -le 1460 ] || lab_fail "merged with GRO off"
ethtool -K eth0 gro on || lab_fail "ethtool"
lab_dmesg_clean

echo "GRO in class normal, polls of 1 packet"
kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "poller del"
kbp poller add --cpu "$NET_CPU" --budget 1 > /dev/null || lab_fail "poller add"
for mode in busy sleep; do
	kbp attach eth0 --cpu "$NET_CPU" --mode "$mode" --class normal > /dev/null || lab_fail "attach"
	stream "small-$mode"
	[ "$packets" -ge 1000 ] || lab_fail "the stream did not go through the poller"
	[ "$LONGEST" -gt 1460 ] || lab_fail "nothing is merged over two polls"
	lab_dmesg_clean
	middle "small-$mode"
	[ "$MIDDLE" -lt 100 ] || lab_fail "the poller keeps packets back"
	kbp detach eth0 > /dev/null || lab_fail "detach"
done
kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "poller del"
kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "poller add"
attach

echo "packets and interrupts kept back: set while attached"
set_timers 100 400000000
middle attached
[ "$MIDDLE" -lt 100 ] || lab_fail "the poller keeps packets back"
kbp detach eth0 > /dev/null || lab_fail "detach"
middle detached
[ "$(timers)" = "100 400000000" ] || lab_fail "the settings were not kept: $(timers)"
[ "$MIDDLE" -ge 100 ] || lab_fail "the settings are not in effect after the poller"

echo "and before"
kbp attach eth0 --cpu "$NET_CPU" --dry-run 2>&1 | grep "gro_flush_timeout" || lab_fail "it is not said"
attach
middle again
[ "$MIDDLE" -lt 100 ] || lab_fail "the poller keeps packets back"
kbp unload > /dev/null || lab_fail "unload"
middle unloaded
[ "$MIDDLE" -ge 100 ] || lab_fail "the settings are not in effect without the module"
set_timers 0 0
lab_dmesg_clean
lab_pass
