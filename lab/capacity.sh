#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --package ethtool --append nohz=off --timeout 30m
#
# What the receive path of one CPU carries when nothing else is the limit: a bulk of frames goes back and forth between
# two cards on it, through softirq and through a poller. No tester and no server want a part of the machine, so on the
# virtual clock the time that a frame takes from card to card is the number of instructions for its reception, its way and
# its transmission, and for its part of polls, interrupts and wake-ups.
#
#     lab/capacity.sh modes   [ROUNDS [SECONDS_OF_ROW]]            `make capacity`: each mode, class rt, three sizes
#     lab/capacity.sh budgets [ROUNDS [SECONDS_OF_ROW [BUDGET...]]]    `make budget`: class normal, budgets from 64 to 1
#
# Every frame that was sent has to be there in the end. `modes` fails where a mode that sleeps carries less than 0.954 of
# what mode busy does, which is what the paper's poller lost by sleeping (001, Fig. 14), or where any carries less than 0.99
# of what softirq does, before the modes or after. Where nothing of a frame is used again both take as many instructions,
# and rows of a second differ by some thousandths.
#
# In which order a poller frees what was sent stays in the allocator for a while, and is good for softirq as well. So in
# `modes` softirq comes first, in a machine that had no poller; one more row of it, after the modes of each size, shows what
# is left to it.

. /lab/lib.sh
. /lab/net.sh
. /lab/circle.sh

STUDY=${1:-modes}
ROUNDS=${2:-2}
ROW_SECONDS=${3:-1}
BUDGETS=64\ 16\ 8\ 4\ 2\ 1
if [ $# -gt 3 ]; then
	shift 3
	BUDGETS=$*
fi
MODES=busy\ sleep\ adaptive
# With their headers and without checksum, bytes.
SIZES=64\ 512\ 1514
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
	polls=$(polled polls) packets=$(polled packets) softirqs=$(net_softirqs "$NET_CPU")
	# shellcheck disable=SC2086 # two cards
	circle_row "$ROW_SECONDS" "$1" $CARDS
	polls=$(($(polled polls) - polls)) packets=$(($(polled packets) - packets))
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	awk -v name="$1" -v rate="$CIRCLE_RATE" -v polls="$polls" -v packets="$packets" -v softirqs="$softirqs" 'BEGIN {
		printf "%s: %.0f ns a frame; %d polls for %d packets, %d NET_RX softirqs\n",
			name, 1e9 / rate, polls, packets, softirqs }' | tee -a /run/rows
}

are_active() { [ "$(kbp show --json | grep -o '"mode_active":"[a-z]*"' | grep -c -v softirq)" = 2 ]; }

# served NAME CLASS MODE [OPTION OF THE POLLER...]: a row by a poller that serves both cards.
served() {
	name=$1 class=$2 mode=$3
	shift 3
	kbp poller add --cpu "$NET_CPU" "$@" > /dev/null || lab_fail "kbp poller add"
	for card in $CARDS; do
		kbp attach "$card" --cpu "$NET_CPU" --class "$class" --mode "$mode" > /dev/null || lab_fail "attach $card"
	done
	lab_wait_for 5 are_active
	row "$name"
	[ "$softirqs" -le 10 ] || lab_fail "frames go through softirq"
	for card in $CARDS; do
		kbp detach "$card" > /dev/null || lab_fail "detach $card"
	done
	kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller del"
}

# circle SIZE: frames begin to go round.
circle() {
	# shellcheck disable=SC2086 # two cards
	circle_begin $CARDS
	circle_send "$FRAMES" eth0 eth1 --size "$1"
	# shellcheck disable=SC2086
	circle_row "$ROW_SECONDS" "warm-up, $1 bytes" $CARDS
}

budgets() {
	circle 64
	for _ in $(seq "$ROUNDS"); do
		row softirq
		for budget in $BUDGETS; do
			served "budget $budget" normal sleep --budget "$budget"
		done
	done
	circle_end "$FRAMES" eth0 eth1
}

modes() {
	# Whether the allocator keeps a slab when its last packet head is freed, or gives it back and has the next one zeroed,
	# hangs on how the frames lie in the rings when a row begins: that luck would be in every row. So it keeps them all.
	echo 1000 > /sys/kernel/slab/skbuff_head_cache/min_partial || lab_fail "the allocator of packet heads takes no min_partial"
	for size in $SIZES; do
		circle "$size"
		for _ in $(seq "$ROUNDS"); do
			row "$size bytes, softirq"
		done
		circle_end "$FRAMES" eth0 eth1
	done
	for size in $SIZES; do
		circle "$size"
		for _ in $(seq "$ROUNDS"); do
			for mode in $MODES; do
				served "$size bytes, $mode" rt "$mode"
			done
		done
		row "$size bytes, softirq-after"
		circle_end "$FRAMES" eth0 eth1
	done
	# Frames a second, means of the rounds, against mode busy.
	awk '{
		size = $1
		name = substr($3, 1, length($3) - 1)
		sum[size, name] += 1e9 / $4
		rows[size, name]++
		sizes[size]
		names[name]
	}
	END {
		for (size in sizes)
			for (name in names) {
				rate = sum[size, name] / rows[size, name]
				busy = sum[size, "busy"] / rows[size, "busy"]
				softirq = sum[size, "softirq"] / rows[size, "softirq"]
				after = sum[size, "softirq-after"] / rows[size, "softirq-after"]
				printf "%s bytes, %s: %.0f frames/s, %.3f of busy, %.3f of softirq\n", size, name, rate,
					rate / busy, rate / softirq
				if (name !~ /^softirq/)
					bad += rate < 0.954 * busy || rate < 0.99 * softirq || rate < 0.99 * after
			}
		exit bad > 0
	}' /run/rows > /run/ratios
	carried=$?
	sort -n /run/ratios | tee "$OUT/ratios"
}

circle_init
# shellcheck disable=SC2086 # two cards
circle_cards "$NET_CPU" $CARDS
lab_quickly kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"
carried=0
case $STUDY in
modes | budgets) "$STUDY" ;;
*) lab_fail "'$STUDY' is none of modes, budgets" ;;
esac
cp /run/rows "$OUT/rows"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
[ "$carried" = 0 ] || lab_fail "a mode carries less than 0.954 of busy, or than 0.99 of softirq"
lab_pass
