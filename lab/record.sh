#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --mem 384 --timeout 300s --package memcached --package kamailio --package sip-tester --package iperf3 --package tcpdump --package ethtool
#
# Records when packets come to a card while unmodified programs of Debian talk over it, on the stock path: memcached asked
# at random, calls through kamailio, and a paced TCP stream of iperf3, 8 KiB at a time. What lab/traces/services.txt was
# made with (the arguments of the second line are those of the machine):
#
#   kbp lab run lab/record.sh ARGUMENTS --file target/release/kbp:/usr/bin/kbp --out out/record
#   cp out/record/services.txt lab/traces/
#
# The trace is of gaps in nanoseconds, as `--arrivals trace:FILE` plays it.

. /lab/lib.sh
. /lab/net.sh

SECONDS_LONG=6

# party NAME PROGRAM ADDRESS ARGUMENTS...: in the background, for the whole recording and a second before it.
party() {
	party_name=$1
	shift
	kbp measure party "$@" --server-cpu 3 --client-netns tester --client-cpu 1 --seconds $((SECONDS_LONG + 2)) --json \
		> "$OUT/$party_name.json" 2> "$OUT/$party_name.err" &
	PARTIES="$PARTIES $!"
}

net_up
# Packets as the wire has them, none joined.
ethtool -K eth0 gro off || lab_fail "ethtool"
ip netns exec tester ethtool -K eth1 tso off gso off || lab_fail "ethtool"
PARTIES=
party memcached memcached "$NET_SERVER:11211" --poisson 300
party sip sip "$NET_SERVER:5060" --calls-per-s 17
iperf3 -s -1 -A 3 --forceflush > "$OUT/iperf3-server.err" 2>&1 &
lab_wait_for 10 grep -q "Server listening" "$OUT/iperf3-server.err"
ip netns exec tester iperf3 -c "$NET_SERVER" -A 1 -b 4M -l 8K -t $((SECONDS_LONG + 2)) > "$OUT/iperf3.txt" 2> "$OUT/iperf3.err" &
PARTIES="$PARTIES $!"
sleep 1
tcpdump -Z root -i eth0 -Q in -nn -q -tt --nano -w /run/packets.pcap 2> "$OUT/tcpdump" &
tcpdump=$!
lab_wait_for 10 grep -q "listening on" "$OUT/tcpdump"
sleep "$SECONDS_LONG"
kill "$tcpdump"
wait "$tcpdump" || true
for party in $PARTIES; do
	wait "$party" || lab_fail "a program failed: $(cat "$OUT"/*.err)"
done
grep -q "^0 packets dropped by kernel" "$OUT/tcpdump" || lab_fail "packets are missing: $(cat "$OUT/tcpdump")"
tcpdump -r /run/packets.pcap -Z root -nn -q -tt --nano > "$OUT/packets.txt" 2> "$OUT/read.err" || lab_fail "$(cat "$OUT/read.err")"
{
	echo "# Gaps between the packets that came to a card, ns: memcached asked 300 times a second at random, 17 calls a second"
	echo "# through kamailio, and 4 Mbit/s of iperf3 by TCP, 8 KiB at a time. Recorded by lab/record.sh on $(uname -r)."
	# The 1 before the fraction: some take what begins with a 0 for octal.
	awk '{
		split($1, t, "."); ns = (t[1] % 100000) * 1000000000 + ("1" t[2])
		if (NR > 1) printf "%d\n", ns - last
		last = ns
	}' "$OUT/packets.txt"
} > "$OUT/services.txt"
for port in 11211 5060 5201; do
	packets=$(grep -c "> $NET_SERVER.$port" "$OUT/packets.txt")
	echo "$packets packets to port $port"
	[ "$packets" -gt 0 ] || lab_fail "nothing came to port $port"
done
echo "$(grep -vc '#' "$OUT/services.txt") gaps"
lab_pass
