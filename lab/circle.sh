# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# Frames that go round by themselves: what an interface receives it sends again. With two interfaces on one wire, or the
# two ends of a veth, nothing else in the machine is needed to keep the receive path busy; on the virtual clock, the time
# that a frame takes is the number of instructions that it costs. Source it after lib.sh.
#
# The frames have to come from outside of this file.

circle_init() {
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	modprobe -a dummy sch_ingress cls_u32 act_mirred
	ip link add sink type dummy
	ip link set sink up
}

# What comes to the interface goes out by another one. The lower PRIORITY wins.
circle_redirect() {
	circle_from=$1 circle_to=$2 circle_priority=$3
	tc filter add dev "$circle_from" ingress prio "$circle_priority" protocol all u32 match u32 0 0 \
		action mirred egress redirect dev "$circle_to" || lab_fail "tc filter add dev $circle_from"
}

# circle_begin DEV...: from now on these interfaces send what they receive.
circle_begin() {
	for dev in "$@"; do
		tc qdisc add dev "$dev" ingress || lab_fail "tc qdisc add dev $dev"
		circle_redirect "$dev" "$dev" 2
	done
}

circle_sunk() {
	cat /sys/class/net/sink/statistics/tx_packets
}

circle_has_sunk() {
	[ "$(circle_sunk)" = "$1" ]
}

# circle_end FRAMES DEV...: what they receive goes to the sink, which counts: exactly so many have to come.
circle_end() {
	circle_expected=$(($(circle_sunk) + $1))
	shift
	for dev in "$@"; do
		circle_redirect "$dev" sink 1
	done
	lab_wait_for 5 circle_has_sunk "$circle_expected"
	for dev in "$@"; do
		tc qdisc del dev "$dev" ingress || lab_fail "tc qdisc del dev $dev"
	done
}

# Frames that these interfaces have received, as they count them.
circle_received() {
	for dev in "$@"; do
		cat "/sys/class/net/$dev/statistics/rx_packets"
	done | awk '{ sum += $1 } END { print sum }'
}

# The guest's monotonic clock, ns.
circle_now() {
	awk '/^now at/ { print $3 }' /proc/timer_list
}

# circle_row SECONDS NAME DEV...: the rate at which these interfaces receive, frames a second: CIRCLE_RATE.
circle_row() {
	circle_seconds=$1 circle_name=$2
	shift 2
	circle_frames=$(circle_received "$@") circle_ns=$(circle_now)
	sleep "$circle_seconds"
	circle_frames=$(($(circle_received "$@") - circle_frames)) circle_ns=$(($(circle_now) - circle_ns))
	# shellcheck disable=SC2034
	CIRCLE_RATE=$((circle_frames * 1000000 / (circle_ns / 1000)))
	echo "$circle_name: $CIRCLE_RATE frames/s"
}
