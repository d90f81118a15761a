#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package util-linux --timeout 300s
#
# A FIFO poller and programs that want its CPU, for 30 s: everybody gets on, nothing stalls, nothing is lost. Then
# without programs: a FIFO thread that never sleeps would be stopped by RT throttling.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp_start -P f:50
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"

echo "30 s with two hogs on CPU $NET_CPU"
for _ in 1 2; do
	taskset -c "$NET_CPU" sh -c 'while :; do :; done' &
	hogs="$hogs $!"
	lab_defer "kill $! 2> /dev/null || :"
done
net_traffic hogs --seconds 30 --period-us 2000
net_none_lost hogs
# shellcheck disable=SC2086
used=$(for pid in $hogs; do cut -d' ' -f14 "/proc/$pid/stat"; done | awk '{ sum += $1 } END { print sum }')
echo "the hogs ran for $used ticks of 10 ms of 3000"
[ "$used" -gt 120 ] || lab_fail "the hogs starved"
[ "$(kbp_counter yields)" -gt 0 ] || lab_fail "the poller never yielded"
# shellcheck disable=SC2086
kill $hogs

echo "5 s alone"
net_traffic alone --seconds 5 --period-us 2000
net_none_lost alone
! lab_dmesg_since | grep -q 'RT throttling activated' || lab_fail "RT throttling stopped the poller"
# Not a bar: a host that takes the virtual CPU away for long looks like a starved poller.
echo "the watchdog stepped in $(kbp_counter handbacks) times"
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
