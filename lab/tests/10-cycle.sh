#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 400s
# beside: others
#
# Load, attach, detach and unload, ten times, under traffic that never stops: nothing is lost, and the kernel has
# nothing to complain of.

. /lab/lib.sh
. /lab/net.sh

net_up
net_traffic cycle --seconds 600 --period-us 3000

round=0
while [ "$round" -lt 10 ]; do
	round=$((round + 1))
	kbp_start
	kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "round $round: attach"
	lab_wait_for 5 kbp_active
	before=$(kbp_counter packets)
	sleep 0.5
	[ "$(kbp_counter packets)" -gt "$before" ] || lab_fail "round $round: the poller serves no packets"
	kbp detach eth0 > /dev/null || lab_fail "round $round: detach"
	# Every other round leaves the poller, and its interrupt, to unload.
	[ $((round % 2)) = 0 ] || kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "round $round: again"
	kbp unload || lab_fail "round $round: unload"
	[ ! -e /sys/module/kbp ] || lab_fail "round $round: the module is still there"
	net_alive || lab_fail "round $round: the traffic stopped: $(cat "$OUT/cycle.err")"
	lab_dmesg_clean
	echo "round $round"
done

# An interrupt ends the client with its account.
kill -INT "$NET_PID"
net_none_lost cycle
lab_pass
