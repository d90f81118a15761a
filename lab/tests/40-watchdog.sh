#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package util-linux --timeout 200s
#
# A program of higher real-time priority takes the poller's CPU: the watchdog hands the packets back to softirq, says
# so, and the poller takes over again when it can.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp_start -P f:50 --watchdog 20ms
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
kbp monitor --json --for 30s > "$OUT/events.json" &
lab_defer kill $!

net_traffic starved --seconds 9 --period-us 2000
sleep 1
# 600 ms at a time: less than what RT throttling allows, much more than the watchdog's 20 ms.
for _ in 1 2 3; do
	# timeout stays outside: on that CPU, at that priority, it would never run.
	timeout 0.6 taskset -c "$NET_CPU" chrt -f 90 sh -c 'while :; do :; done'
	sleep 0.5
done
# One that is moved here from another CPU catches a lone poller in the middle of its loop, and not in a rest.
taskset -cp 3 $$ > /dev/null
for _ in 1 2 3; do
	taskset -c 0 chrt -f 90 sh -c 'while :; do :; done' &
	hog=$!
	lab_defer kill "$hog" '2> /dev/null || true'
	sleep 0.2
	taskset -cp "$NET_CPU" "$hog" > /dev/null
	sleep 0.4
	kill "$hog"
	lab_wait_for 5 kbp_active
done
net_none_lost starved
handbacks=$(kbp_counter handbacks)
echo "the watchdog handed back $handbacks times"
[ "$handbacks" -ge 6 ] || lab_fail "six times were expected"
lab_wait_for 5 grep -q handed-back "$OUT/events.json"
lab_wait_for 5 grep -q resumed "$OUT/events.json"
lab_wait_for 5 kbp_active

softirqs=$(net_softirqs "$NET_CPU")
net_traffic resumed --seconds 2
net_none_lost resumed
grown=$(($(net_softirqs "$NET_CPU") - softirqs))
echo "NET_RX on CPU $NET_CPU since the poller is back: $grown"

echo "what waits for the watchdog in class normal is overdue"
kbp detach eth0 > /dev/null || lab_fail "detach"
kbp attach eth0 --cpu "$NET_CPU" --mode sleep --class normal > /dev/null || lab_fail "attach"
overdue=$(kbp_counter normal_overdue)
net_traffic waited --seconds 3 --period-us 2000
sleep 0.5
timeout 0.6 taskset -c "$NET_CPU" chrt -f 90 sh -c 'while :; do :; done'
net_none_lost waited
overdue=$(($(kbp_counter normal_overdue) - overdue))
echo "overdue: $overdue"
[ "$overdue" -ge 1 ] || lab_fail "it is not counted"
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
