#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2:igb --package util-linux --timeout 900s
#
# What two pollers carry against one. Frames that go round by themselves, back and forth between two interfaces, keep
# pollers busy with nothing else in the machine: no tester, no server. First one poller has all of them, then each of two
# has half. It is done with the receive queues of two cards on one wire, and with the backlogs that veths go through.
#
# The virtual clock has one stream of instructions for all CPUs. There two pollers carry together what one carries,
# unless they cost each other work: shared locks, shared lines of statistics, work sent from CPU to CPU. So the ratio of
# the two rates is what is left of each poller beside the other, and with instructions of its own for each CPU they carry
# twice that. With `--clock real` on a host with CPUs to spare the ratio is the real one; the cards of the emulator share
# a lock, veths do not.

. /lab/lib.sh
. /lab/net.sh
. /lab/circle.sh

# Frames on their way in each circle; the rings of the cards have 256 descriptors.
FRAMES=32
ROUNDS=2
# Length of a row. The virtual clock costs the host 15 to 35 s for a second.
case $LAB_CLOCK in
virtual) ROW_SECONDS=0.2 ;;
*) ROW_SECONDS=2 ;;
esac

# ratio NAME ONE TWO: the sums of the rows with one and with two pollers.
ratio() {
	awk -v name="$1" -v one="$2" -v two="$3" -v clock="$LAB_CLOCK" 'BEGIN {
		if (one == 0)
			exit 1
		printf "%s: two pollers / one: %.3f\n", name, two / one
		exit (clock == "virtual" && two < one * 0.9)
	}' || lab_fail "$1: two pollers cost each other more than a tenth"
}

# ---- two cards on one wire ----

# flow ADDRESS COUNT: frames from eth0 to an address whose neighbour is eth1.
flow() {
	kbp measure sockets send udp --dev eth0 --to "10.9.0.$1:7000" --count "$2" --burst "$2" --cpu 0 > /dev/null ||
		lab_fail "cannot send to 10.9.0.$1"
}

have_come() {
	[ $(($(kbp_counter_of 2 packets) + $(kbp_counter_of 3 packets) - $1)) -ge 8 ]
}

# A flow whose queue each of the pollers has. Both cards spread flows in the same way.
find_flows() {
	FLOW2='' FLOW3=''
	for address in $ADDRESSES; do
		at2=$(kbp_counter_of 2 packets) at3=$(kbp_counter_of 3 packets)
		flow "$address" 8
		lab_wait_for 5 have_come $((at2 + at3))
		if [ $(($(kbp_counter_of 2 packets) - at2)) -ge 8 ]; then FLOW2=$address; else FLOW3=$address; fi
		if [ -n "$FLOW2" ] && [ -n "$FLOW3" ]; then return; fi
	done
	lab_fail "the card gives all flows to one poller"
}

cards_up() {
	for dev in eth0 eth1; do
		ip link set "$dev" promisc on up
	done
	ip address add 10.9.0.1/24 dev eth0
	for address in $ADDRESSES; do
		ip neighbour replace "10.9.0.$address" lladdr "$(cat /sys/class/net/eth1/address)" dev eth0 nud permanent
	done
	lab_wait_for 30 grep -q 1 /sys/class/net/eth0/carrier
	lab_wait_for 30 grep -q 1 /sys/class/net/eth1/carrier
}

attach() {
	for dev in eth0 eth1; do
		kbp attach "$dev" --queues all --cpus "$1" > /dev/null || lab_fail "kbp attach $dev --cpus $1"
	done
}

detach() {
	for dev in eth0 eth1; do
		kbp detach "$dev" > /dev/null || lab_fail "kbp detach $dev"
	done
}

# cards LIST: the queues of both cards to the pollers of these CPUs, and a circle on each of two queues.
cards() {
	attach "$1"
	at2=$(kbp_counter_of 2 packets) at3=$(kbp_counter_of 3 packets)
	circle_begin eth0 eth1
	flow "$FLOW2" "$FRAMES"
	flow "$FLOW3" "$FRAMES"
	circle_row "$ROW_SECONDS" "cards, pollers of CPUs $1" eth0 eth1
	circle_end $((2 * FRAMES)) eth0 eth1
	echo "  of them the poller of CPU 2 had $(($(kbp_counter_of 2 packets) - at2)), that of CPU 3 $(($(kbp_counter_of 3 packets) - at3))"
	detach
}

# ---- veths, which go through the backlog of the CPU that sends ----

veths_up() {
	for name in v w; do
		ip link add "${name}0" type veth peer name "${name}1"
		ip link set "${name}0" up
		ip link set "${name}1" up
	done
}

# veths CPU CPU: a circle in each of two backlogs, or both in one. Frames stay on the CPU that sends them first, because
# the peer of a veth receives where the veth sends.
veths() {
	at2=$(kbp_counter_of 2 packets) at3=$(kbp_counter_of 3 packets)
	circle_begin v0 v1 w0 w1
	circle_send "$FRAMES" v0 v1 --cpu "$1"
	circle_send "$FRAMES" w0 w1 --cpu "$2"
	circle_row "$ROW_SECONDS" "veths, pollers of CPUs $1 and $2" v0 v1 w0 w1
	circle_end $((2 * FRAMES)) v0 v1 w0 w1
	echo "  of them the poller of CPU 2 had $(($(kbp_counter_of 2 packets) - at2)), that of CPU 3 $(($(kbp_counter_of 3 packets) - at3))"
}

# Which queue it is is a sum of bits of the address, of which a random key chooses some: all of its bits vary.
ADDRESSES="3 5 9 17 33 65 129 254 100 200"
modprobe veth
circle_init
cards_up
veths_up
lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
for cpu in 2 3; do
	kbp poller add --cpu "$cpu" -P f:50 > /dev/null || lab_fail "kbp poller add"
done
attach 2-3
find_flows
detach

one=0 two=0
for _ in $(seq "$ROUNDS"); do
	cards 2
	one=$((one + CIRCLE_RATE))
	cards 2-3
	two=$((two + CIRCLE_RATE))
done
ratio cards "$one" "$two"

one=0 two=0
for _ in $(seq "$ROUNDS"); do
	# A poller with an empty backlog would take its turns from the other's, as one that sleeps does not.
	kbp attach backlog --cpu 2 > /dev/null || lab_fail "attach backlog"
	veths 2 2
	one=$((one + CIRCLE_RATE))
	kbp attach backlog --cpu 3 > /dev/null || lab_fail "attach backlog"
	veths 2 3
	two=$((two + CIRCLE_RATE))
	kbp detach backlog --cpu 2 > /dev/null || lab_fail "detach backlog"
	kbp detach backlog --cpu 3 > /dev/null || lab_fail "detach backlog"
done
ratio veths "$one" "$two"
lab_quickly kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
