#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package util-linux --package iperf3 --timeout 300s
# kernels: all
# steps: load serve unload
#
# The module works on this kernel: it can be checked, loads, serves without NET_RX on its CPU, and unloads under
# traffic with nothing lost.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp check --module "$MODULES/kbp.ko" > "$OUT/check" || lab_fail "kbp check: $(cat "$OUT/check")"
cat "$OUT/check"
# It says what else takes CPUs: DAMON's thread where there is one, and only there.
if grep -qs Y /sys/module/damon_stat/parameters/enabled; then damon=1; else damon=0; fi
[ "$(grep -c kdamond "$OUT/check")" = "$damon" ] || lab_fail "kbp check: notes about DAMON, of $damon"
# And whether the page allocator tunes the lists of free pages, as it does from 6.7 on; not where that was ended.
newest=$(printf '%s\n' 6.7 "$(uname -r)" | sort -V | tail -n 1)
if [ "$newest" = 6.7 ]; then lists=0; else lists=1; fi
[ "$(grep -c 'lists of free pages' "$OUT/check")" = "$lists" ] || lab_fail "kbp check: notes about page lists, of $lists"
echo 100000 > /proc/sys/vm/percpu_pagelist_high_fraction
kbp check --module "$MODULES/kbp.ko" > "$OUT/check-bounded" || lab_fail "kbp check"
grep -q 'lists of free pages' "$OUT/check-bounded" && lab_fail "kbp check: a note about bounded page lists"
echo 0 > /proc/sys/vm/percpu_pagelist_high_fraction
kbp_start
lab_done load
net_traffic whole --seconds 600 --period-us 3000
kbp attach eth0 --cpu "$NET_CPU" --mode busy || lab_fail "attach"
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode busy || lab_fail "attach eth1"
lab_wait_for 5 kbp_active
# A host that is busy with other things may keep the poller's CPU from running for so long that the watchdog hands the
# packets back, rightly: only seconds in which it did not are judged.
judged=0
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	handbacks=$(kbp_counter handbacks)
	softirqs=$(net_softirqs "$NET_CPU")
	packets=$(kbp_counter packets)
	sleep 1
	packets=$(($(kbp_counter packets) - packets))
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	handbacks=$(($(kbp_counter handbacks) - handbacks))
	echo "in 1 s: $packets packets polled, $softirqs NET_RX softirqs on CPU $NET_CPU, $handbacks times handed back"
	if [ "$handbacks" -ne 0 ] || [ "$packets" -lt 20 ]; then
		continue
	fi
	[ "$((softirqs * 20))" -lt "$packets" ] || lab_fail "packets still go through softirq"
	judged=$((judged + 1))
	[ "$judged" -lt 3 ] || break
done
[ "$judged" -ge 1 ] || lab_fail "the poller served no second without the watchdog"

# The receiver of a stream leaves the packets to the poller's CPU to be freed; that is no reason for a softirq there.
for _ in 1 2 3 4 5; do
	taskset -c 3 iperf3 -s -1 > /dev/null 2>&1 &
	server=$!
	usleep 500000
	handbacks=$(kbp_counter handbacks) softirqs=$(net_softirqs "$NET_CPU") packets=$(kbp_counter packets)
	ip netns exec tester taskset -c 1 iperf3 -c "$NET_SERVER" -t 3 > "$OUT/stream" || lab_fail "iperf3"
	wait "$server"
	packets=$(($(kbp_counter packets) - packets)) softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	handbacks=$(($(kbp_counter handbacks) - handbacks))
	echo "stream: $packets packets polled, $softirqs NET_RX softirqs on CPU $NET_CPU, $handbacks times handed back"
	[ "$handbacks" -ne 0 ] || break
done
[ "$handbacks" -ne 0 ] || [ "$((softirqs * 100))" -lt "$packets" ] || lab_fail "the stream's packets need softirqs to be freed"
lab_done serve
kbp unload || lab_fail "unload"
[ ! -d /sys/module/kbp ] || lab_fail "unloaded, and yet the module is there"
sleep 0.5
kill -INT "$NET_PID"
net_none_lost whole
lab_dmesg_clean
lab_done unload
lab_pass
