#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --package ethtool --package netcat-openbsd --package util-linux --append isolcpus=domain,2 --timeout 400s
# beside: others
#
# What else people do to a card that is attached: threaded NAPI, deferred interrupts, GRO off, netconsole, sockets that
# busy-poll. Each works while the poller goes on, or is refused with a sentence; nothing is lost. The poller's CPU is
# isolated: nobody else makes it rest.

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
done_writing() { ! kill -0 "$writer" 2> /dev/null; }

echo "the driver starts the card anew: it waits for whoever polls it, and then nobody may until its rings are there"
anew() {
	"$@" &
	writer=$!
	lab_wait_for 20 done_writing
	lab_wait_for 30 net_carrier
	lab_wait_for 10 kbp_active
	net_traffic anew --count 50 --period-us 2000
	net_none_lost anew
}
anew ethtool -G eth0 rx 512
anew ip link set eth0 mtu 1400
anew ethtool -G eth0 rx 256
anew ip link set eth0 mtu 1500
lab_dmesg_clean

first=$(kbp_counter packets)
net_traffic whole --seconds 600 --period-us 3000
flows() { [ "$(kbp_counter packets)" -gt $((first + 20)) ]; }
lab_wait_for 20 flows
served "nothing else"

echo "threaded NAPI set by the user: the thread has the card, which is said, until it is switched off"
not_active() { ! kbp_active; }
said() { kbp show 2>&1 | grep -q "a thread of the kernel serves eth0 queue 0"; }
for _ in 1 2 3; do
	echo 1 > "$CARD/threaded"
	lab_wait_for 20 not_active
	lab_wait_for 5 said
	# A kernel that waits here for the end of a poller waits for ever, with the lock that all of networking needs.
	echo 0 > "$CARD/threaded" &
	writer=$!
	lab_wait_for 20 done_writing
	lab_wait_for 20 kbp_active
done
! said || lab_fail "said of a card that the poller has"
served "threaded NAPI switched off again"
echo "while it is on: the user's thread serves, attached or not; attaching is refused"
echo 1 > "$CARD/threaded"
lab_wait_for 20 not_active
# CPU time of the threads of eth0, ns.
threads() {
	grep -l '^napi/eth0' /proc/[0-9]*/comm | while read -r comm; do cut -d' ' -f1 "${comm%comm}schedstat"; done |
		awk '{ sum += $1 } END { printf "%d\n", sum }'
}
before=$(threads)
thread_runs() { [ "$(threads)" -gt "$before" ]; }
lab_wait_for 20 thread_runs
kbp detach eth0 > /dev/null || lab_fail "detach from threaded"
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

echo "a socket that busy-polls and keeps interrupts back has the card; attached, it has not"
kept=$NET_PID
kbp detach eth0 > /dev/null || lab_fail "detach"
echo 100 > "$CARD/napi_defer_hard_irqs"
echo 1000000000 > "$CARD/gro_flush_timeout"
kbp measure sockets receive udp --dev eth0 --at "$NET_SERVER:7001" --busy-poll 20000 --cpu 0 --seconds 600 > "$OUT/receiver" 2>&1 &
receiver=$!
lab_wait_for 10 grep -q "receiving by" "$OUT/receiver"
kbp -n tester measure sockets send udp --dev eth1 --to "$NET_SERVER:7001" --burst 1 --rate 1000 --cpu 1 --seconds 600 \
	> "$OUT/sender" 2>&1 &
sender=$!
# Packets that sockets have polled themselves.
busy_polled() {
	awk '/^TcpExt:/ { if (!n) n = split($0, names)
		else { split($0, values); for (i = 1; i <= n; i++) if (names[i] == "BusyPollRxPackets") print values[i] } }' \
		/proc/net/netstat
}
before=$(busy_polled)
socket_polls() { [ "$(busy_polled)" -gt $((before + 200)) ]; }
lab_wait_for 20 socket_polls
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 10 kbp_active
for _ in 1 2 3 4 5 6 7 8 9 10; do
	handbacks=$(kbp_counter handbacks) packets=$(kbp_counter packets) before=$(busy_polled)
	sleep 1
	packets=$(($(kbp_counter packets) - packets)) by_socket=$(($(busy_polled) - before))
	handbacks=$(($(kbp_counter handbacks) - handbacks))
	[ "$handbacks" -ne 0 ] || break
done
echo "$packets packets polled by the poller, $by_socket by the socket, $handbacks times handed back"
[ "$handbacks" -eq 0 ] || lab_fail "no second without the watchdog"
if [ "$packets" -lt 20 ] || [ $((by_socket * 10)) -gt "$packets" ]; then
	lab_fail "the socket takes what is the poller's"
fi
kill "$sender" "$receiver"
echo 0 > "$CARD/gro_flush_timeout"
echo 0 > "$CARD/napi_defer_hard_irqs"
NET_PID=$kept

kbp unload > /dev/null || lab_fail "unload"
net_alive || lab_fail "the traffic stopped: $(cat "$OUT/whole.err")"
kill -INT "$NET_PID"
net_none_lost whole
lab_dmesg_clean
lab_pass
