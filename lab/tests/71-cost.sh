#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2 --timeout 600s
#
# What a loaded module costs those who do not use it: round trips over a card that is not attached, with the module and
# without, in turns. The virtual clock counts instructions. What is paid is the kernel's detour to a live patch at each
# schedule request; rows of one kind lie up to 1 % apart, so the bound is a guard and not the figure.

. /lab/lib.sh
. /lab/net.sh

ROUNDS=3

# p50 NAME: median round trip of one row, ns.
p50() {
	net_traffic "$1" --count 500 --period-us 1000 > /dev/null
	net_none_lost "$1" > /dev/null
	net_value "$1" p50
}

net_up
p50 warm-up > /dev/null
round=0
while [ "$round" -lt "$ROUNDS" ]; do
	round=$((round + 1))
	without="$without $(p50 "without-$round")" || lab_fail "a row"
	kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "load"
	with="$with $(p50 "with-$round")" || lab_fail "a row"
	kbp unload > /dev/null || lab_fail "unload"
done
echo "median round trips, ns: without $without, with $with"
# shellcheck disable=SC2086
echo $without $with | awk '{
	half = NF / 2
	for (i = 1; i <= half; i++) { without += $i; with += $(half + i) }
	printf "ratio %.4f\n", with / without
	exit (with > without * 1.025)
}' || lab_fail "an unused module costs more than 2.5 %"
lab_dmesg_clean
lab_pass
