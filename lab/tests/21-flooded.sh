#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --package ethtool --timeout 600s
#
# A device that never runs empty is detached and attached again, in each mode, again and again: whoever asks for that waits
# for two rounds of the poller and not for luck, and no frame is lost.
#
# Frames go round in a veth with NAPI instances. One end is served by a poller of its own, the other end's frames have to
# pass filters that match nothing, so that most frames always wait there, and each poll finds as many as it may.

. /lab/lib.sh
. /lab/net.sh
. /lab/circle.sh

# The ring of a veth has 256.
FRAMES=200
FILTERS=16
TIMES=5
# More than without frames, where most of it is the command's own, and RCU's: 13 to 49 ms in five runs, since all CPUs share one
# stream of instructions. Who waited for luck needed 114 in mode busy (ec96f52).
LATER_NS_MAX=80000000
OTHER_CPU=3

# look: POLLS and PACKETS of the poller of v0, of one reading: two would be polls apart.
look() {
	stats=$(kbp stats --json | sed -n "s/.*\"name\":\"CPU $NET_CPU\"\([^}]*\).*/\1/p")
	POLLS=$(echo "$stats" | sed -n 's/.*"polls":\([0-9]*\).*/\1/p')
	PACKETS=$(echo "$stats" | sed -n 's/.*"packets":\([0-9]*\).*/\1/p')
}

have_come() {
	look
	[ $((PACKETS - $1)) -ge 2000 ]
}

is_flooded() {
	look
	polls=$POLLS packets=$PACKETS
	lab_wait_for 5 have_come "$packets"
	polls=$((POLLS - polls)) packets=$((PACKETS - packets))
	# Of 64; a poll may end between the two.
	[ "$packets" -ge $((polls * 60)) ] || lab_fail "$1: $polls polls for $packets packets: it runs empty"
}

# detached MODE [CONDITION]: LONGEST, of the times that it took.
detached() {
	LONGEST=0
	for _ in $(seq "$TIMES"); do
		kbp attach v0 --cpu "$NET_CPU" --mode "$1" > /dev/null || lab_fail "attach v0 --mode $1"
		${2:-true} "$1"
		begin=$(circle_now)
		kbp detach v0 > /dev/null || lab_fail "detach v0, $1"
		took=$(($(circle_now) - begin))
		[ "$took" -le "$LONGEST" ] || LONGEST=$took
	done
}

modprobe veth
ip link add v0 type veth peer name v1
circle_init
for end in v0 v1; do
	ethtool -K "$end" gro on tso off || lab_fail "ethtool -K $end"
	ip link set "$end" up
done
lab_quickly kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"
for cpu in $NET_CPU $OTHER_CPU; do
	kbp poller add --cpu "$cpu" > /dev/null || lab_fail "kbp poller add"
done
kbp attach v1 --cpu "$OTHER_CPU" > /dev/null || lab_fail "attach v1"
circle_begin v0 v1
for priority in $(seq 101 $((100 + FILTERS))); do
	tc filter add dev v0 ingress prio "$priority" protocol all u32 match u32 0xffffffff 0xffffffff at 0 flowid :1 || lab_fail "tc filter"
done
tc filter del dev v0 ingress prio 2 || lab_fail "tc filter del"
circle_redirect v0 v0 200
detached busy
empty=$LONGEST
echo "without frames: $((empty / 1000)) us at most"
circle_send "$FRAMES" v0 v1 --cpu "$OTHER_CPU"
for mode in busy sleep adaptive; do
	detached "$mode" is_flooded
	echo "$mode: $packets packets in $polls polls, then detached: $((LONGEST / 1000)) us at most"
	[ "$LONGEST" -le $((empty + LATER_NS_MAX)) ] || lab_fail "$mode: the poller lets go by luck"
done
circle_end "$FRAMES" v0 v1
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
