#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --package nftables --timeout 300s
# kernels: wide
# beside: others
#
# Why one path takes longer than another (paper 002, section 5): calls of kernel functions for each round trip, path by
# path, as the kernel's own probes count them. Leaves functions-PATH.json in $OUT.

. /lab/lib.sh

# Two runs of the client, and this many round trips more in the second: what a run needs besides cancels out.
MORE=100
PORT=7700

# field END KEY: of the topology that is up.
field() {
	kbp topo show counted --json | sed -n "s/.*\"$1\":{[^}]*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

# counted_run PATH PINGS NAME
counted_run() {
	kbp measure functions --json -- \
		kbp -n "$client" measure pingpong client "$target:$PORT" --json --cpu 1 --count "$2" > /run/counted ||
		lab_fail "counting on $1"
	tail -n 1 /run/counted > "$OUT/functions-$1-$3.json"
}

count() {
	path=$1
	kbp topo add "$path" --name counted > /dev/null || lab_fail "kbp topo add $path"
	target=$(kbp topo show counted --json | sed -n 's/.*"target":"\([^"]*\)".*/\1/p')
	client=$(field client netns)
	: > /run/server.log
	kbp -n "$(field server netns)" measure pingpong server --bind "0.0.0.0:$PORT" --cpu 3 > /run/server.log 2>&1 &
	server=$!
	lab_wait_for 10 grep -q serving /run/server.log
	counted_run "$path" 20 few
	counted_run "$path" $((20 + MORE)) many
	kill "$server"
	wait "$server" 2> /dev/null
	kbp topo del counted > /dev/null || lab_fail "kbp topo del"
	echo "$path: $(show "$path")"
}

# calls_in PATH FUNCTION NAME: in one run; nothing when this kernel has no function of that name.
calls_in() {
	sed -n "s/.*{\"calls\":\([0-9]*\),\"function\":\"$2\",\"missed\":0,\"symbol\":\".*/\1/p" "$OUT/functions-$1-$3.json"
}

# calls PATH FUNCTION: in MORE round trips.
calls() {
	few=$(calls_in "$1" "$2" few)
	[ -z "$few" ] || echo $(($(calls_in "$1" "$2" many) - few))
}

show() {
	for function in fib_table_lookup nf_hook_slow nft_do_chain __dev_queue_xmit process_backlog \
		__netif_receive_skb_core br_handle_frame ip_rcv ip_forward vxlan_xmit; do
		printf '%s %s, ' "$function" "$(calls "$1" "$function")"
	done
}

# about PATH FUNCTION WANTED: so many calls for each round trip, within a tenth.
about() {
	found=$(calls "$1" "$2")
	[ -n "$found" ] || lab_fail "$2 was not counted on $1"
	wanted=$(($3 * MORE))
	if [ "$((found * 10))" -lt $((wanted * 9)) ] || [ "$((found * 10))" -gt $((wanted * 11)) ]; then
		lab_fail "$1: $found calls of $2, $wanted were expected"
	fi
}

# more PATH THAN FUNCTION
more() {
	[ "$(calls "$1" "$3")" -gt "0$(calls "$2" "$3")" ] || lab_fail "$3: $(calls "$1" "$3") on $1, $(calls "$2" "$3") on $2"
}

mount -t tracefs tracefs /sys/kernel/tracing 2> /dev/null || true
for path in lo veth bridge bridge-netfilter vxlan; do
	count "$path"
done

# One transmission a datagram over veth, two over a bridge, and vxlan encapsulates each once.
about veth udp_sendmsg 2
about veth __dev_queue_xmit 2
about bridge __dev_queue_xmit 4
about bridge br_handle_frame 2
about vxlan vxlan_xmit 2
more bridge-netfilter bridge nf_hook_slow
more bridge-netfilter bridge nft_do_chain
more vxlan bridge fib_table_lookup
more vxlan bridge __dev_queue_xmit
lab_dmesg_clean
lab_pass
