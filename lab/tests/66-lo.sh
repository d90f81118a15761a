#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --package nftables --timeout 300s
# kernels: wide
#
# Is lo slower than a veth between two namespaces, as paper 002 (section 5) saw and explained by the routes and the
# netfilter rules of lo's namespace? It is with rules there, and it is not without: medians of the same ping-pong.

. /lab/lib.sh

PORT=7700
COUNT=300
RULES=100

# field END KEY: of the topology that is up.
field() {
	kbp topo show lo-or-veth --json | sed -n "s/.*\"$1\":{[^}]*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

# Rules that every packet of the namespace passes and none matches, on its way out and on its way in.
ruleset() {
	echo 'table ip lo_test {'
	for hook in output input; do
		echo "chain $hook { type filter hook $hook priority 0;"
		for rule in $(seq "$RULES"); do
			echo "ip saddr 203.0.113.$rule drop"
		done
		echo '}'
	done
	echo '}'
}

# median NAME PATH [RULES...]: into $MEDIAN_NS.
median() {
	kbp topo add "$2" --name lo-or-veth > /dev/null || lab_fail "kbp topo add $2"
	target=$(kbp topo show lo-or-veth --json | sed -n 's/.*"target":"\([^"]*\)".*/\1/p')
	client=$(field client netns)
	if [ -n "${3-}" ]; then
		ruleset | ip netns exec "$client" nft -f - || lab_fail "nft"
	fi
	: > /run/server.log
	kbp -n "$(field server netns)" measure pingpong server --bind "0.0.0.0:$PORT" --cpu 3 > /run/server.log 2>&1 &
	server=$!
	lab_wait_for 10 grep -q serving /run/server.log
	kbp -n "$client" measure pingpong client "$target:$PORT" --json --cpu 1 --count "$COUNT" --series "$OUT/$1.ns" \
		> "$OUT/$1.json" || lab_fail "pinging over $1"
	kill "$server"
	wait "$server" 2> /dev/null
	kbp topo del lo-or-veth > /dev/null || lab_fail "kbp topo del"
	MEDIAN_NS=$(sort -n "$OUT/$1.ns" | sed -n "$((COUNT / 2))p")
	[ -n "$MEDIAN_NS" ] || lab_fail "no round trips over $1"
	echo "$1: median $MEDIAN_NS ns"
}

median lo lo
lo_ns=$MEDIAN_NS
median veth veth
veth_ns=$MEDIAN_NS
median lo-rules lo rules
rules_ns=$MEDIAN_NS
[ "$lo_ns" -lt "$veth_ns" ] || lab_fail "lo without rules is not faster than veth"
[ "$rules_ns" -gt "$veth_ns" ] || lab_fail "lo with $RULES rules is not slower than veth"
lab_dmesg_clean
lab_pass
