# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# Two network cards on one wire: eth0 here, eth1 in the namespace `tester`, and traffic with sequence numbers between
# them. Source it after lib.sh.

NET_SERVER=10.9.0.1
NET_TESTER=10.9.0.2
NET_PORT=7700
# The poller's CPU in the tests; the server and the tester run on others.
NET_CPU=2

net_carrier() {
	[ "$(cat /sys/class/net/eth0/carrier 2> /dev/null)" = 1 ] &&
		[ "$(ip netns exec tester cat /sys/class/net/eth1/carrier 2> /dev/null)" = 1 ]
}

net_eth0_up() {
	ip address replace "$NET_SERVER/24" dev eth0
	ip link set eth0 up
	ip neighbour replace "$NET_TESTER" lladdr "$NET_TESTER_MAC" dev eth0 nud permanent
}

# What is made here takes long and has no time limit that matters.
net_up() {
	lab_quickly net_make
}

net_make() {
	NET_TESTER_MAC=$(cat /sys/class/net/eth1/address)
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	ip netns add tester
	lab_defer ip netns del tester
	ip link set eth1 netns tester
	net_eth0_up
	ip netns exec tester ip address add "$NET_TESTER/24" dev eth1
	ip netns exec tester ip link set eth1 up
	ip netns exec tester ip neighbour replace "$NET_SERVER" lladdr "$(cat /sys/class/net/eth0/address)" dev eth1 \
		nud permanent
	lab_wait_for 30 net_carrier
	kbp measure pingpong server --bind "$NET_SERVER:$NET_PORT" --cpu 3 > /run/server.log 2>&1 &
	lab_defer kill $!
	lab_wait_for 10 grep -qi ":1E14 " /proc/net/udp
}

# net_traffic NAME ARGUMENTS...: starts pings in the background; net_finish NAME waits for their end.
net_traffic() {
	net_name=$1
	shift
	kbp -n tester measure pingpong client "$NET_SERVER:$NET_PORT" --json --cpu 1 --timeout-ms 5000 "$@" \
		> "$OUT/$net_name.json" 2> "$OUT/$net_name.err" &
	NET_PID=$!
}

net_alive() {
	kill -0 "$NET_PID" 2> /dev/null
}

# net_value NAME KEY: the first number of that key in a client's account.
net_value() {
	sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$OUT/$1.json" | head -n 1
}

net_finish() {
	wait "$NET_PID" || lab_fail "the client failed: $(cat "$OUT/$1.err")"
	NET_N=$(net_value "$1" n)
	NET_LOST=$(net_value "$1" lost)
	[ -n "$NET_N$NET_LOST" ] || lab_fail "no account in $1.json: $(cat "$OUT/$1.json")"
	echo "$1: $NET_N round trips, $NET_LOST lost"
}

net_none_lost() {
	net_finish "$1"
	[ "$NET_N:$NET_LOST" = "$NET_N:0" ] || lab_fail "$NET_LOST of $NET_N lost"
}

# How often NET_RX ran on a CPU.
net_softirqs() {
	awk -v column=$(($1 + 2)) '$1 == "NET_RX:" { print $column }' /proc/softirqs
}

# Receive interrupts of a card on all CPUs.
net_interrupts() {
	awk -v name="$1-rx-0" '$NF == name { for (i = 2; i <= 5; i++) sum += $i } END { print sum + 0 }' /proc/interrupts
}

# net_limit_others US: no CPU but the poller's sleeps more deeply than that, so what is seen is this one's.
net_limit_others() {
	for net_other_cpu in 0 1 3; do
		echo "$1" > "/sys/devices/system/cpu/cpu$net_other_cpu/power/pm_qos_resume_latency_us" || lab_fail "PM QoS"
	done
}

# kbp_counter NAME: a counter of the poller on NET_CPU.
kbp_counter() {
	kbp_counter_of "$NET_CPU" "$1"
}

# kbp_counter_of CPU NAME: of the poller on that CPU.
kbp_counter_of() {
	kbp stats --json | sed -n "s/.*\"name\":\"CPU $1\"[^}]*\"$2\":\([0-9]*\).*/\1/p"
}

# Is eth0 served as busy now?
kbp_active() {
	kbp show --json | grep -q '"mode_active":"busy"'
}

kbp_start() {
	lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
	kbp poller add --cpu "$NET_CPU" "$@" > /dev/null || lab_fail "kbp poller add"
}
