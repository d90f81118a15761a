#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2:igb --package ethtool --package util-linux --timeout 500s
#
# XDP on what a poller serves. Programs of the stack and of the driver pass, drop, return and redirect frames on an
# attached card, to the last frame; AF_XDP sockets receive, one that busy-polls too; on a veth the program comes before and
# after the attachment.

. /lab/lib.sh
. /lab/net.sh

FRAMES=500

# The EtherType of these frames is known to nobody but the programs and the receivers.
send_frames() {
	send_netns=$1 send_dev=$2 send_mac=$3
	# It ends with 1 when a busy host keeps it from its rate, which does not matter here.
	kbp -n "$send_netns" measure sockets send raw --dev "$send_dev" --to 192.0.2.1:7000 --to-mac "$send_mac" --size 64 \
		--burst 1 --rate 1000 --count "$FRAMES" --cpu 1 --json > "$OUT/sent.json" 2> "$OUT/sent.err" || :
	grep -q "\"sent\":$FRAMES," "$OUT/sent.json" || lab_fail "not all were sent: $(cat "$OUT"/sent.*)"
}

# receive_frames TECHNIQUE NETNS DEV ARGUMENTS...: starts a receiver that ends with the last frame.
receive_frames() {
	receive_as=$1 receive_netns=$2 receive_dev=$3
	shift 3
	# The shell that starts it empties the file late on a busy host; what the last receiver said is not this one's.
	: > "$OUT/received.err"
	kbp ${receive_netns:+-n "$receive_netns"} measure sockets receive "$receive_as" --dev "$receive_dev" --cpu 0 \
		--count "$FRAMES" --seconds 60 --json "$@" > "$OUT/received.json" 2> "$OUT/received.err" &
	RECEIVER=$!
	lab_wait_for 20 grep -q "receiving by" "$OUT/received.err"
}

received() { ! kill -0 "$RECEIVER" 2> /dev/null; }

# Who waits in vain is asked for what it has, and the card for what became of the rest.
all_received() {
	lab_until 30 received || kill -INT "$RECEIVER"
	wait "$RECEIVER"
	grep -q "\"received\":$FRAMES," "$OUT/received.json" && return
	kbp stats
	ethtool -S eth0 | grep -v ': 0$'
	lab_fail "$1: $(cat "$OUT"/received.*)"
}

counters_before() {
	packets=$(kbp_counter packets) backlogged=$(kbp_counter backlog_packets) softirqs=$(net_softirqs "$NET_CPU")
	handbacks=$(kbp_counter handbacks)
}

# polled NAME: the frames went through the poller, and not through softirq on its CPU. A busy host may make the watchdog
# hand back, rightly; then softirqs are not judged.
polled() {
	packets=$(($(kbp_counter packets) - packets)) softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	handbacks=$(($(kbp_counter handbacks) - handbacks))
	echo "$1: $packets packets polled, $softirqs NET_RX softirqs, $handbacks times handed back"
	[ "$handbacks" -eq 0 ] || return 0
	[ "$packets" -ge "$FRAMES" ] || lab_fail "$1: past the poller"
	[ "$((softirqs * 10))" -lt "$packets" ] || lab_fail "$1: through softirq"
}

start_program() {
	: > /run/program
	kbp-xdp "$@" > /run/program 2>&1 &
	PROGRAM=$!
	lab_wait_for 20 grep -q attached /run/program
}

end_program() {
	kill "$PROGRAM"
	wait "$PROGRAM" || lab_fail "$1: $(cat /run/program)"
	grep -q "frames=$FRAMES" /run/program || lab_fail "$1: the program saw $(cat /run/program)"
}

# account HOOK ACTION NETNS DEV [TO]: a program at eth0, and where its frames arrive; nowhere without DEV.
account() {
	account_name="$1 $2"
	start_program eth0 "$1" "$2" ${5:+"$5"}
	# A driver may start its card anew for a program.
	lab_wait_for 60 net_carrier
	lab_wait_for 20 kbp_active
	[ -z "$4" ] || receive_frames raw "$3" "$4"
	counters_before
	send_frames tester eth1 "$CARD_MAC"
	if [ -n "$4" ]; then
		all_received "$account_name"
	fi
	# What comes later through the same queue has passed what came before.
	net_traffic behind --count 3
	net_none_lost behind
	polled "$account_name"
	end_program "$account_name"
	lab_wait_for 60 net_carrier
	lab_dmesg_clean
}

modprobe veth
net_up
ethtool -L eth0 combined 1 || lab_fail "ethtool"
CARD_MAC=$(cat /sys/class/net/eth0/address)
ip netns add pod
lab_defer ip netns del pod
ip link add near type veth peer name far netns pod
ip link set near up
ip netns exec pod ip link set far up
# A veth takes frames of a driver's program only where the other end has NAPI instances.
ip netns exec pod ethtool -K far gro on || lab_fail "ethtool"
lab_wait_for 30 net_carrier
kbp_start
kbp attach eth0 --cpu "$NET_CPU" > /dev/null || lab_fail "attach"
lab_wait_for 10 kbp_active

echo "programs of the stack, which come and go under traffic"
net_traffic whole --seconds 600 --period-us 5000
whole=$NET_PID
account generic pass "" eth0
account generic drop "" ""
account generic return tester eth1
account generic redirect pod far near
NET_PID=$whole
net_alive || lab_fail "the traffic stopped: $(cat "$OUT/whole.err")"
kill -INT "$NET_PID"
net_none_lost whole

echo "programs of the driver"
account native pass "" eth0
account native drop "" ""
account native return tester eth1
account native redirect pod far near

echo "AF_XDP sockets"
for hook in generic native; do
	receive_frames "xdp-$hook" "" eth0
	lab_wait_for 60 net_carrier
	lab_wait_for 20 kbp_active
	counters_before
	send_frames tester eth1 "$CARD_MAC"
	all_received "AF_XDP $hook"
	polled "AF_XDP $hook"
	lab_wait_for 60 net_carrier
	lab_dmesg_clean
done
kbp detach eth0 > /dev/null || lab_fail "detach"

echo "a veth that is steered to the poller, and then gets a program"
VETH_MAC=$(cat /sys/class/net/near/address)
kbp attach near --cpu "$NET_CPU" > /dev/null || lab_fail "attach near"
for hook in generic native; do
	start_program near "$hook" pass
	receive_frames raw "" near
	counters_before
	send_frames pod far "$VETH_MAC"
	all_received "veth $hook"
	backlogged=$(($(kbp_counter backlog_packets) - backlogged))
	echo "veth $hook: $backlogged packets from the backlog"
	[ "$backlogged" -ge "$FRAMES" ] || lab_fail "veth $hook: past the poller"
	end_program "veth $hook"
	lab_dmesg_clean
done
kbp detach near > /dev/null || lab_fail "detach near"

echo "a socket that busy-polls gets its frames by the poller"
# Packets that sockets have polled themselves.
busy_polled() {
	awk '/^TcpExt:/ { if (!n) n = split($0, names)
		else { split($0, values); for (i = 1; i <= n; i++) if (names[i] == "BusyPollRxPackets") print values[i] } }' \
		/proc/net/netstat
}
# With this a veth has NAPI instances that can be attached; newer kernels do not switch it on for a program.
ethtool -K near gro on || lab_fail "ethtool"
receive_frames xdp-native "" near --busy-poll 1000
kbp attach near --cpu "$NET_CPU" > /dev/null || lab_fail "attach near"
lab_wait_for 10 kbp_active
counters_before
before=$(busy_polled)
send_frames pod far "$VETH_MAC"
all_received "busy-polling"
by_socket=$(($(busy_polled) - before))
polled "busy-polling"
echo "$by_socket packets polled by the socket"
[ "$handbacks" -gt 0 ] || [ "$by_socket" -le $((FRAMES / 20)) ] || lab_fail "the socket took what is the poller's"
kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
