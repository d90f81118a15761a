# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# Frames that go round by themselves: what an interface receives it sends again. With two interfaces on one wire, or the
# two ends of a veth, nothing else in the machine is needed to keep the receive path busy; on the virtual clock, the time
# that a frame takes is the number of instructions that it costs. Source it after lib.sh.

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

# circle_card CARD CPU: a card for a circle: its interrupts come at once, and to that CPU, so that this serves everything.
# Both ends of the wire have to be up.
circle_card() {
	ip link set "$1" promisc on
	# One queue; a card that can't tell has one.
	! ethtool -l "$1" > /dev/null 2>&1 || ethtool -L "$1" combined 1 || lab_fail "ethtool -L $1"
	lab_wait_for 30 grep -q 1 "/sys/class/net/$1/carrier"
	ethtool -C "$1" rx-usecs 0 || lab_fail "ethtool -C $1"
	lab_irqs_to "$2" "$1"
}

# circle_cards CPU CARD...: both ends of a wire.
circle_cards() {
	circle_cpu=$1
	shift
	for dev in "$@"; do
		ip link set "$dev" up
	done
	for dev in "$@"; do
		circle_card "$dev" "$circle_cpu"
	done
}

# circle_send FRAMES FROM TO [OPTION...]: frames that the one interface sends to the other, in one burst.
circle_send() {
	circle_frames=$1 circle_from=$2 circle_to=$3
	shift 3
	kbp measure sockets send raw --dev "$circle_from" --to 10.0.0.1:7000 \
		--to-mac "$(cat "/sys/class/net/$circle_to/address")" --count "$circle_frames" --burst "$circle_frames" "$@" \
		> /dev/null || lab_fail "cannot send by $circle_from"
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
