#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --package util-linux --timeout 300s
#
# RPS to two pollers shares flows between them. RFS sends each flow to the CPU of its program: past the pollers, which
# is said before, or, where the programs run on the pollers' CPUs, to them. Nothing is lost while it comes and goes.

. /lab/lib.sh
. /lab/net.sh

FLOWS="1 2 3 4 5 6 7 8"

wire() {
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	modprobe veth
	ip netns add tester
	lab_defer ip netns del tester
	ip link add near type veth peer name far netns tester
	for flow in $FLOWS; do
		ip address add "10.8.0.$flow/24" dev near
	done
	ip link set near up
	ip netns exec tester ip address add 10.8.0.100/24 dev far
	ip netns exec tester ip link set far up
	for flow in $FLOWS; do
		kbp measure pingpong server --bind "10.8.0.$flow:$NET_PORT" --cpu 1 > "/run/server$flow.log" 2>&1 &
		lab_defer kill $!
	done
	for flow in $FLOWS; do
		lab_wait_for 10 grep -q serving "/run/server$flow.log"
	done
}

# far NAME VALUE: a file of the queue through which the tester's programs receive.
far() {
	ip netns exec tester sh -c "echo $2 > /sys/class/net/far/queues/rx-0/$1" || lab_fail "$1"
}

rfs() {
	echo "$1" > /proc/sys/net/core/rps_sock_flow_entries
	far rps_flow_cnt "$1"
}

# flows NAME CPU...: all flows at the same time, their programs on these CPUs in turn, and who had the replies. In the
# flows called `toggled` RFS comes and goes meanwhile.
flows() {
	flows_name=$1
	shift
	backlog2=$(kbp_counter_of 2 backlog_packets) backlog3=$(kbp_counter_of 3 backlog_packets)
	flow_pids=
	for flow in $FLOWS; do
		kbp -n tester measure pingpong client "10.8.0.$flow:$NET_PORT" --json --cpu "$1" --timeout-ms 8000 --count 200 \
			--period-us 5000 > "$OUT/$flows_name$flow.json" 2> "$OUT/$flows_name$flow.err" &
		flow_pids="$flow_pids $!"
		last=$!
		set -- "$@" "$1"
		shift
		# One after the other: each tests itself before it begins, and wants its CPU for that.
		usleep 300000
	done
	while [ "$flows_name" = toggled ] && kill -0 "$last" 2> /dev/null; do
		rfs 4096
		usleep 50000
		rfs 0
		usleep 50000
	done
	for pid in $flow_pids; do
		wait "$pid" || lab_fail "a client failed: $(cat "$OUT/$flows_name"*.err)"
	done
	for flow in $FLOWS; do
		account=$(net_value "$flows_name$flow" n):$(net_value "$flows_name$flow" lost)
		[ "$account" = 200:0 ] || lab_fail "$flows_name: flow $flow: answered and lost of 200: $account"
	done
	backlog2=$(($(kbp_counter_of 2 backlog_packets) - backlog2)) backlog3=$(($(kbp_counter_of 3 backlog_packets) - backlog3))
	echo "$flows_name: 1600 round trips, 0 lost; $backlog2 packets by the poller of CPU 2, $backlog3 by that of CPU 3"
	lab_dmesg_clean
}

wire
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
for cpu in 2 3; do
	kbp poller add --cpu "$cpu" > /dev/null || lab_fail "kbp poller add"
	kbp attach backlog --cpu "$cpu" > /dev/null || lab_fail "attach backlog"
done
far rps_cpus c

echo "RPS: the pollers share the flows"
flows rps 0
if [ "$backlog2" -lt 200 ] || [ "$backlog3" -lt 200 ] || [ $((backlog2 + backlog3)) -lt 1600 ]; then
	lab_fail "one poller had all the flows, or the pollers have not had all"
fi

echo "RFS: to the CPU of the programs, which has no poller"
rfs 4096
kbp -n tester attach far --cpu 2 --dry-run 2>&1 | grep "RFS is on" || lab_fail "it is not said"
flows rfs 0
[ $((backlog2 + backlog3)) -le 400 ] || lab_fail "RFS did not take the flows to their programs"

echo "RFS comes and goes"
flows toggled 0

echo "RFS: to programs on the pollers' CPUs, which also send there"
rfs 4096
flows home 2 3
if [ "$backlog2" -lt 1200 ] || [ "$backlog3" -lt 1200 ]; then
	lab_fail "the flows did not come to the pollers of their programs' CPUs"
fi
rfs 0
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
