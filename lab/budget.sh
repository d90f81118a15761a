#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --package ethtool --append nohz=off --timeout 600s
#
# What the small budgets of class normal cost a bulk packet, `make budget`: a bulk of frames goes back and forth between
# two cards of that class, with budgets from 64 down to 1, and through softirq, in turns. It is alone in the machine and on
# one CPU, so on the virtual clock the time that a frame takes from card to card is the number of instructions for its
# reception, its way and its transmission, and for its part of polls, interrupts and wake-ups.
#
#     lab/budget.sh [ROUNDS [SECONDS_OF_ROW [BUDGET...]]]

. /lab/lib.sh
. /lab/net.sh
. /lab/circle.sh

ROUNDS=${1:-2}
ROW_SECONDS=${2:-0.2}
BUDGETS=64\ 16\ 8\ 4\ 2\ 1
if [ $# -gt 2 ]; then
	shift 2
	BUDGETS=$*
fi
# As many as a driver's full poll, and fewer than a ring holds.
FRAMES=64
CARDS=eth0\ eth1

# polled COUNTER: of the poller, 0 without one.
polled() {
	polled=$(kbp_counter "$1")
	echo "${polled:-0}"
}

# row NAME: ns and polls for each frame, as a line and in /run/rows.
row() {
	polls=$(polled normal_polls) packets=$(polled packets) softirqs=$(net_softirqs "$NET_CPU")
	# shellcheck disable=SC2086 # two cards
	circle_row "$ROW_SECONDS" "$1" $CARDS
	polls=$(($(polled normal_polls) - polls)) packets=$(($(polled packets) - packets))
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	awk -v name="$1" -v rate="$CIRCLE_RATE" -v polls="$polls" -v packets="$packets" -v softirqs="$softirqs" 'BEGIN {
		printf "%s: %.0f ns a frame; %d polls of class normal for %d packets, %d NET_RX softirqs\n",
			name, 1e9 / rate, polls, packets, softirqs }' | tee -a /run/rows
}

budget() {
	kbp poller add --cpu "$NET_CPU" --budget "$1" > /dev/null || lab_fail "kbp poller add"
	for card in $CARDS; do
		kbp attach "$card" --cpu "$NET_CPU" --class normal --mode sleep > /dev/null || lab_fail "attach $card"
	done
	row "budget $1"
	[ "$softirqs" -le 10 ] || lab_fail "frames go through softirq"
	for card in $CARDS; do
		kbp detach "$card" > /dev/null || lab_fail "detach $card"
	done
	kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller del"
}

circle_init
for card in $CARDS; do
	ip link set "$card" up
done
for card in $CARDS; do
	circle_card "$card" "$NET_CPU"
done
# shellcheck disable=SC2086 # two cards
circle_begin $CARDS
lab_quickly kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"
circle_send "$FRAMES" eth0 eth1
circle_row "$ROW_SECONDS" warm-up eth0 eth1
for _ in $(seq "$ROUNDS"); do
	row softirq
	for budget in $BUDGETS; do
		budget "$budget"
	done
done
cp /run/rows "$OUT/rows"
circle_end "$FRAMES" eth0 eth1
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
