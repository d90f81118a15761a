#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --package util-linux --package iperf3 --timeout 400s
# kernels: 6.1 6.1-rt 6.12 7.3
#
# A poller serves the backlog of its CPU: what veth, a tunnel over it and RPS put there from other CPUs. No NET_RX
# softirq is left on that CPU, and nothing is lost while the backlog changes hands, by request and by force.

. /lab/lib.sh
. /lab/net.sh

VETH_SERVER=10.8.0.1
VXLAN_SERVER=10.8.1.1
MASK=4 # of NET_CPU
# A stock PREEMPT_RT kernel warns when RPS interrupts a CPU that idles, with or without us.
[ "$LAB_KERNEL" != 6.1-rt ] || MASK=0

rps_to_poller() {
	for queue in /sys/class/net/"$1"/queues/rx-*; do
		echo "$MASK" > "$queue/rps_cpus"
	done
}

wire() {
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	modprobe -a veth vxlan
	ip netns add tester
	lab_defer ip netns del tester
	ip link add near type veth peer name far netns tester
	ip address add "$VETH_SERVER/24" dev near
	ip link set near up
	rps_to_poller near
	ip link add tunnel type vxlan id 7 remote 10.8.0.2 local "$VETH_SERVER" dstport 4789 dev near
	ip address add "$VXLAN_SERVER/24" dev tunnel
	ip link set tunnel up
	ip netns exec tester sh -ec ". /lab/net.sh; $(far_side)"
}

# What is done in the tester's namespace.
far_side() {
	cat <<-END
		ip address add 10.8.0.2/24 dev far
		ip link set far up
		for queue in /sys/class/net/far/queues/rx-*; do echo $MASK > \$queue/rps_cpus; done
		ip link add tunnel type vxlan id 7 remote $VETH_SERVER local 10.8.0.2 dstport 4789 dev far
		ip address add 10.8.1.2/24 dev tunnel
		ip link set tunnel up
	END
}

serve() {
	kbp measure pingpong server --bind "0.0.0.0:$NET_PORT" --cpu 3 > /run/server.log 2>&1 &
	lab_defer kill $!
	lab_wait_for 10 grep -qi ":1E14 " /proc/net/udp
}

# traffic NAME SERVER ARGUMENTS...
traffic() {
	traffic_name=$1
	# shellcheck disable=SC2034 # net_traffic reads it
	NET_SERVER=$2
	shift 2
	net_traffic "$traffic_name" "$@"
}

backlog_is() {
	kbp poller show --json | grep -q "\"backlog_active\":\"$1\""
}

attach() {
	kbp attach backlog --cpu "$NET_CPU" > /dev/null || lab_fail "attach"
}

# none_in_softirq NAME SERVER: every packet of a ping-pong goes through the poller, and CPU NET_CPU has no NET_RX.
none_in_softirq() {
	softirqs=$(net_softirqs "$NET_CPU") packets=$(kbp_counter backlog_packets)
	traffic "$1" "$2" --count 1000 --period-us 1000
	net_none_lost "$1"
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs)) packets=$(($(kbp_counter backlog_packets) - packets))
	echo "$1: NET_RX on CPU $NET_CPU: $softirqs, packets from its backlog: $packets"
	[ "$packets" -ge 2000 ] || lab_fail "the poller saw $packets packets of 2000"
	[ "$softirqs" -le 10 ] || lab_fail "$softirqs NET_RX softirqs on CPU $NET_CPU"
}

wire
serve
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"

if grep -q PREEMPT_RT /proc/version || grep -q thread_backlog_napi /proc/cmdline; then
	kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller add"
	! kbp attach backlog --cpu "$NET_CPU" 2> "$OUT/refused" || lab_fail "it was to be refused here"
	cat "$OUT/refused"
	backlog_is softirq || lab_fail "refused, and yet it is not softirq's"
	traffic refused "$VETH_SERVER" --seconds 2
	net_none_lost refused
	kbp unload || lab_fail "unload"
	lab_dmesg_clean
	lab_pass
fi

echo "a poller that owns only what is attached leaves the backlog alone"
kbp poller add --cpu "$NET_CPU" --owns attached > /dev/null || lab_fail "kbp poller add"
backlog_is softirq || lab_fail "it was to be softirq's"
! kbp detach backlog --cpu "$NET_CPU" 2> /dev/null || lab_fail "detached what was not attached"
attach
backlog_is attached || lab_fail "it was to be attached"
! kbp attach backlog --cpu "$NET_CPU" 2> /dev/null || lab_fail "attached twice"
none_in_softirq veth "$VETH_SERVER"
kbp detach backlog --cpu "$NET_CPU" || lab_fail "detach"
backlog_is softirq || lab_fail "it was to be softirq's again"
kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller del"
lab_dmesg_clean

echo "one that owns all serves it, and the tunnel's packets too"
kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller add"
attach
none_in_softirq vxlan "$VXLAN_SERVER"
lab_dmesg_clean

echo "a stream, whose packets other CPUs leave here to be freed"
taskset -c 3 iperf3 -s -1 -p 5200 > /dev/null 2>&1 &
usleep 500000
softirqs=$(net_softirqs "$NET_CPU") packets=$(kbp_counter backlog_packets)
ip netns exec tester taskset -c 1 iperf3 -c "$VETH_SERVER" -p 5200 -t 3 > "$OUT/stream" || lab_fail "iperf3"
softirqs=$(($(net_softirqs "$NET_CPU") - softirqs)) packets=$(($(kbp_counter backlog_packets) - packets))
echo "stream: NET_RX on CPU $NET_CPU: $softirqs, packets from its backlog: $packets"
[ "$packets" -ge 1000 ] || lab_fail "the stream did not go through the poller"
[ "$softirqs" -le 20 ] || lab_fail "$softirqs NET_RX softirqs on CPU $NET_CPU"
lab_dmesg_clean

echo "changing hands under traffic"
traffic hands "$VXLAN_SERVER" --seconds 8 --period-us 500
changes=0
while net_alive; do
	kbp detach backlog --cpu "$NET_CPU" > /dev/null || lab_fail "detach"
	kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller del"
	kbp poller add --cpu "$NET_CPU" --backlog softirq > /dev/null || lab_fail "kbp poller add"
	attach
	changes=$((changes + 1))
done
echo "$changes times"
net_none_lost hands
lab_dmesg_clean

echo "taken from a softirq that never finds its queue empty"
kbp detach backlog --cpu "$NET_CPU" > /dev/null || lab_fail "detach"
for port in 5201 5202; do
	taskset -c 3 iperf3 -s -1 -p "$port" > /dev/null 2>&1 &
done
usleep 500000
for port in 5201 5202; do
	ip netns exec tester taskset -c $((port - 5201)) iperf3 -u -b 0 -l 64 -t 5 -c "$VETH_SERVER" -p "$port" > /dev/null 2>&1 &
	flood=$!
done
usleep 500000
changes=0
while kill -0 "$flood" 2> /dev/null && [ "$changes" -lt 10 ]; do
	attach
	backlog_is attached || lab_fail "not attached under a flood, after $changes changes"
	kbp detach backlog --cpu "$NET_CPU" > /dev/null || lab_fail "detach"
	changes=$((changes + 1))
done
echo "$changes times"
[ "$changes" -gt 0 ] || lab_fail "the flood was over before anything was tried"
wait "$flood"
attach
traffic flooded "$VETH_SERVER" --seconds 1
net_none_lost flooded
lab_dmesg_clean

echo "programs that want the poller's CPU, and one of higher priority that takes it"
traffic forced "$VETH_SERVER" --seconds 8 --period-us 1000
timeout 2 taskset -c "$NET_CPU" sh -c 'while :; do :; done'
for _ in 1 2 3; do
	# timeout stays outside: on that CPU, at that priority, it would never run.
	timeout 0.6 taskset -c "$NET_CPU" chrt -f 90 sh -c 'while :; do :; done'
	sleep 0.3
done
net_none_lost forced
[ "$(kbp_counter handbacks)" -ge 3 ] || lab_fail "the watchdog handed back $(kbp_counter handbacks) times; 3 were expected"
backlog_attached() { backlog_is attached; }
lab_wait_for 5 backlog_attached
lab_dmesg_clean

echo "its CPU goes and comes back, and then the module goes"
traffic gone "$VETH_SERVER" --seconds 8 --period-us 1000
for _ in 1 2; do
	echo 0 > "/sys/devices/system/cpu/cpu$NET_CPU/online"
	kbp poller show --json | grep -q '"state":"offline"' || lab_fail "the poller of a CPU that is offline is not shown so"
	! kbp attach backlog --cpu "$NET_CPU" 2> /dev/null || lab_fail "attached to a CPU that is offline"
	sleep 1
	echo 1 > "/sys/devices/system/cpu/cpu$NET_CPU/online"
	lab_wait_for 5 backlog_attached
done
kbp unload || lab_fail "unload"
net_none_lost gone
traffic after "$VXLAN_SERVER" --seconds 1
net_none_lost after
lab_dmesg_clean
lab_pass
