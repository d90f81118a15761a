#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 2 --nics 2 --package crun --package nftables --timeout 300s
# kernels: wide
# beside: others
#
# Every kind of topology can be made on this kernel, carries packets, and leaves nothing when it is removed; also after
# the program that makes it was killed half way.

. /lab/lib.sh

KINDS="lo veth bridge bridge-netfilter routed-nat vxlan container nic"

# What topologies could leave: namespaces, interfaces and their state, settings, processes, files.
traces() {
	ls /run/netns 2> /dev/null
	ip -o link | sed 's/^[0-9]*: //; s/ qdisc [a-z_]*//'
	ip -o address | grep -v ' lo '
	ip neighbour
	cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv[46]/conf/eth[01]/* 2> /dev/null
	cat /proc/sys/net/bridge/* 2> /dev/null
	find /run/kbp-topo /sys/fs/cgroup -name '*topo-*' -o -name '*.container' 2> /dev/null
	crun list -q
}

# A server at the server's end, ten pings from the client's end.
ping_pong() {
	netns=$(kbp topo show "topo-$1" | sed -n 's/^  client .* in the namespace \([^,]*\).*/\1/p')
	server=$(kbp topo show "topo-$1" | sed -n 's/^  server .* in the namespace \([^,]*\).*/\1/p')
	container=$(kbp topo show "topo-$1" | sed -n 's/^  server .*, container \(.*\)/\1/p')
	address=$(kbp topo show "topo-$1" | sed -n 's/^  server  \([0-9.]*\) .*/\1/p')
	target=$(kbp topo show "topo-$1" | sed -n 's/^  target  //p')
	if [ -n "$container" ]; then
		crun exec "$container" /opt/kbp measure pingpong server --bind "$address:7700" > /run/server.log 2>&1 &
	elif [ -n "$server" ]; then
		kbp -n "$server" measure pingpong server --bind "$address:7700" > /run/server.log 2>&1 &
	else
		kbp measure pingpong server --bind "$address:7700" > /run/server.log 2>&1 &
	fi
	pid=$!
	listening() {
		cat /proc/[0-9]*/net/udp 2> /dev/null | grep -q ':1E14 '
	}
	lab_wait_for 10 listening
	kbp -n "$netns" measure pingpong client "$target:7700" --json --count 30 --timeout-ms 10000 --period-us 20000 \
		> "$OUT/$1.json" 2> "$OUT/$1.err" || lab_fail "$1: $(cat "$OUT/$1.err" /run/server.log)"
	kill "$pid" 2> /dev/null
	wait "$pid" 2> /dev/null
	n=$(sed -n 's/.*"n":\([0-9]*\).*/\1/p' "$OUT/$1.json" | head -n 1)
	lost=$(sed -n 's/.*"lost":\([0-9]*\).*/\1/p' "$OUT/$1.json" | head -n 1)
	echo "$1: $n round trips, $lost lost"
	[ "$lost" = 0 ] || lab_fail "$1: $lost lost"
	[ "$n" -ge 20 ] || lab_fail "$1: $(cat "$OUT/$1.json")"
}

same() {
	traces > /run/after
	cmp -s /run/before /run/after
}

nothing_left() {
	# The last reference to a namespace goes with a delay.
	tries=0
	until same; do
		tries=$((tries + 1))
		[ "$tries" -lt 150 ] || lab_fail "something is left: $(diff /run/before /run/after)"
		sleep 0.2
	done
}

lab_defer kbp topo del --all
traces > /run/before
kbp topo list
for kind in $KINDS; do
	kbp topo add "$kind" --name "topo-$kind" > /dev/null || lab_fail "add $kind"
	ping_pong "$kind"
	kbp topo del "topo-$kind" || lab_fail "del $kind"
	nothing_left
done

# Killed when some of it is made.
for kind in bridge-netfilter container nic; do
	for delay in 0 0.3; do
		kbp topo add "$kind" --name "topo-$kind" > /dev/null 2>&1 &
		pid=$!
		lab_wait_for 20 [ -e "/run/kbp-topo/topo-$kind.json" ]
		sleep "$delay"
		kill -KILL "$pid" 2> /dev/null
		wait "$pid" 2> /dev/null
		kbp topo show "topo-$kind" | grep 'not complete' || echo "$kind was complete"
		# It may have been writing what it remembers.
		: > "/run/kbp-topo/topo-$kind.new"
		kbp topo del "topo-$kind" || lab_fail "del after $delay s"
		nothing_left
	done
done
lab_dmesg_clean
lab_pass
