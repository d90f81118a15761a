#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package ethtool --package netcat-openbsd --package util-linux --timeout 300s
#
# What else people do to a card that is attached: threaded NAPI, deferred interrupts, GRO off, netconsole, sockets that
# busy-poll. Each works while the poller goes on, or is refused with a sentence; nothing is lost.

. /lab/lib.sh
. /lab/net.sh

CARD=/sys/class/net/eth0

attach() {
	kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
	lab_wait_for 5 kbp_active
}

# served WHAT: for a second the poller goes on serving, and NET_RX does not run in its place. A host that is busy with
# other things may make the watchdog hand back, rightly; then another second is judged.
served() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		served_handbacks=$(kbp_counter handbacks) served_packets=$(kbp_counter packets)
		served_softirqs=$(net_softirqs "$NET_CPU")
		sleep 1
		served_packets=$(($(kbp_counter packets) - served_packets))
		served_softirqs=$(($(net_softirqs "$NET_CPU") - served_softirqs))
		served_handbacks=$(($(kbp_counter handbacks) - served_handbacks))
		[ "$served_handbacks" -ne 0 ] || break
	done
	echo "$1: $served_packets packets polled, $served_softirqs NET_RX softirqs, $served_handbacks times handed back"
	[ "$served_handbacks" -eq 0 ] || lab_fail "$1: no second without the watchdog"
	kbp_active || lab_fail "$1: not active"
	[ "$served_packets" -ge 20 ] || lab_fail "$1: the poller serves nothing"
	[ "$((served_softirqs * 10))" -lt "$served_packets" ] || lab_fail "$1: packets go through softirq"
}

net_up
kbp_start
attach
net_traffic whole --seconds 600 --period-us 3000
served "nothing else"

echo 1 > "$CARD/threaded"
served "threaded NAPI set by the user"
echo "while it is on: detached, the user's thread serves; attaching again is refused"
kbp detach eth0 > /dev/null || lab_fail "detach from threaded"
# CPU time of the threads of eth0, ns.
threads() {
	grep -l '^napi/eth0' /proc/[0-9]*/comm | while read -r comm; do cut -d' ' -f1 "${comm%comm}schedstat"; done |
		awk '{ sum += $1 } END { printf "%d\n", sum }'
}
before=$(threads)
thread_runs() { [ "$(threads)" -gt "$before" ]; }
lab_wait_for 20 thread_runs
! kbp attach eth0 --cpu "$NET_CPU" --mode busy 2> "$OUT/refusal" || lab_fail "a threaded instance was attached"
grep -q "threaded NAPI is on" "$OUT/refusal" || lab_fail "it does not say why: $(cat "$OUT/refusal")"
echo 0 > "$CARD/threaded"
attach

echo 2 > "$CARD/napi_defer_hard_irqs"
echo 50000 > "$CARD/gro_flush_timeout"
served "deferred interrupts set by the user"
for _ in 1 2 3 4 5; do
	kbp detach eth0 > /dev/null || lab_fail "detach from deferred"
	attach
done
echo 0 > "$CARD/gro_flush_timeout"
echo 0 > "$CARD/napi_defer_hard_irqs"

ethtool -K eth0 gro off || lab_fail "ethtool"
served "without GRO"
ethtool -K eth0 gro on || lab_fail "ethtool"

ip netns exec tester nc.openbsd -u -l 6666 > "$OUT/netconsole" &
lab_defer kill $!
modprobe netconsole "netconsole=6665@$NET_SERVER/eth0,6666@$NET_TESTER/$NET_TESTER_MAC" || lab_fail "netconsole"
echo 8 > /proc/sys/kernel/printk
for line in 1 2 3 4 5 6 7 8 9 10; do echo "<1>through netconsole $line" > /dev/kmsg; done
lab_wait_for 10 grep -q "through netconsole 10" "$OUT/netconsole"
served "netconsole on the card"
rmmod netconsole

echo 50 > /proc/sys/net/core/busy_read
echo 50 > /proc/sys/net/core/busy_poll
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach eth1"
kept=$NET_PID
net_traffic busyread --seconds 3 --period-us 2000
served "sockets that busy-poll"
net_none_lost busyread
NET_PID=$kept

kbp unload > /dev/null || lab_fail "unload"
net_alive || lab_fail "the traffic stopped: $(cat "$OUT/whole.err")"
kill -INT "$NET_PID"
net_none_lost whole
lab_dmesg_clean
lab_pass
