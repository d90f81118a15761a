#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2 --package ethtool --append nohz=off --timeout 600s
#
# What a loaded module costs those who do not use it: one frame goes back and forth between two cards that are not
# attached, with the module and without, in turns. It is alone in the machine, so on the virtual clock its time is the
# number of instructions of an interrupt, a schedule request, a poll and a transmission; a row is the mean of thousands.
# With nohz=off, because whether an idle CPU stops its tick between two frames changes that by 3 %. A frame takes some 35,000
# instructions, of which 60 to 360 were the module's in four runs on 6.1: a call that ftrace catches, and one question. A bar
# of 1 % was within that noise.

. /lab/lib.sh
. /lab/circle.sh

# An instruction is a nanosecond on this clock.
COST_NS_MAX=600
ROUNDS=3
ROW_SECONDS=0.3

row() {
	circle_row "$ROW_SECONDS" "$1" eth0 eth1
	[ "$CIRCLE_RATE" -gt 1000 ] || lab_fail "the frame does not go round"
}

circle_init
circle_cards 2 eth0 eth1
circle_begin eth0 eth1
circle_send 1 eth0 eth1
row warm-up
for _ in $(seq "$ROUNDS"); do
	row without
	without="$without $CIRCLE_RATE"
	lab_quickly kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "load"
	row with
	with="$with $CIRCLE_RATE"
	lab_quickly kbp unload > /dev/null || lab_fail "unload"
done
circle_end 1 eth0 eth1
# median RATE...
median() {
	printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"
}
# shellcheck disable=SC2086
awk -v without="$(median $without)" -v with="$(median $with)" -v most="$COST_NS_MAX" 'BEGIN {
	cost = 1e9 / with - 1e9 / without
	printf "from card to card, ns: %.0f without, %.0f with: %.0f more\n", 1e9 / without, 1e9 / with, cost
	exit (cost > most)
}' || lab_fail "an unused module costs more than $COST_NS_MAX instructions a frame"
lab_dmesg_clean
lab_pass
