#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 60m
#
# One part of a soak, `make soak`: for so many SECONDS pings go to the server and back, in mode busy, sleep and adaptive
# in turn, with programs that want the poller's CPU in every other turn. A turn begins with attaching
# and ends with detaching; the module comes and goes with the part. No ping may be lost, however late this machine is: one
# that comes back after the five seconds that the client waits for it is counted as late, and not as lost.
#
#     lab/soak.sh [SECONDS [SEED]]
#
# What each turn came to is a line of JSON in $OUT/turns.jsonl, what the part left behind is $OUT/part.json. How late
# they are is noted and no bar: the host takes the virtual CPUs away as it likes.

. /lab/lib.sh
. /lab/net.sh

SECONDS_ALL=${1:-600}
SEED=${2:-1}
# Of a turn, seconds.
TURN=20
PERIOD_US=2500

# longest: of the last round trips in the histogram of the turn, ns.
longest() { grep -o '"histogram_ns":[^a-z]*' "$OUT/turn.json" | grep -Eo '[0-9]+,[0-9]+' | tail -n 1 | cut -d , -f 1; }

# memory WORD: of /proc/meminfo, kB.
memory() { awk -v word="$1:" '$1 == word { print $2 }' /proc/meminfo; }

# evidence: what there is to see when pings are lost, and whether they come again, as $OUT/evidence.txt. What fails here
# ends nothing.
evidence() {
	for when in at-once after-3-s; do
		echo "== $when"
		kbp poller show --json
		kbp show --json
		kbp stats
		cat /proc/interrupts /proc/softirqs
		ip -s link show dev eth0
		ip -n tester -s link show dev eth1
		ip -n tester neigh
		for task in /proc/[0-9]*; do
			case $(cat "$task/comm" 2> /dev/null) in
			kbp* | ksoftirqd*) cat "$task/stat" "$task/stack" ;;
			esac
		done
		sleep 3
	done
	echo "== pings again, with what else wants the CPU"
	kbp -n tester measure pingpong client "$NET_SERVER:$NET_PORT" --count 20 --timeout-ms 1000
} > "$OUT/evidence.txt" 2>&1

is_active() { kbp show --json | grep -q "\"mode_active\":\"$1\""; }

hogs_on() {
	hogs=
	for _ in 1 2; do
		taskset "$(printf %x $((1 << NET_CPU)))" sh -c 'while :; do :; done' &
		hogs="$hogs $!"
	done
}

hogs_off() {
	# shellcheck disable=SC2086
	kill $hogs
	# shellcheck disable=SC2086
	wait $hogs 2> /dev/null
}

# turn NUMBER MODE HOGS
turn() {
	kbp attach eth0 --cpu "$NET_CPU" --mode "$2" > /dev/null || lab_fail "turn $1: attach"
	lab_wait_for 20 is_active "$2"
	before=$(kbp_counter handbacks)
	[ "$3" = 0 ] || hogs_on
	net_traffic turn --seconds "$TURN" --period-us "$PERIOD_US" --seed $((SEED + $1))
	net_finish turn
	late=$(net_value turn late)
	lost=$((NET_LOST - late))
	[ "$lost" = 0 ] || evidence
	[ "$3" = 0 ] || hogs_off
	printf '{"mode":"%s","hogs":%s,"seed":%s,"answered":%s,"late":%s,"lost":%s,"rtt_ns_max":%s,"handbacks":%s}\n' \
		"$2" "$3" $((SEED + $1)) "$NET_N" "$late" "$lost" "$(longest)" $(($(kbp_counter handbacks) - before)) |
		tee -a "$OUT/turns.jsonl"
	[ "$lost" = 0 ] || lab_fail "turn $1, $2: $lost pings are lost"
	kbp detach eth0 > /dev/null || lab_fail "turn $1: detach"
}

# between WORD: what the memory is when nothing of ours is loaded.
between() {
	sync
	echo 3 > /proc/sys/vm/drop_caches
	printf '"%s_slab_kb":%s,"%s_percpu_kb":%s' "$1" "$(memory Slab)" "$1" "$(memory Percpu)"
}

net_up
# The first load finds what the kernel keeps from then on: patched functions, pools.
kbp_start
kbp unload > /dev/null || lab_fail "unload"
begin=$(between begin)
kbp_start
end_s=$(($(cut -d. -f1 /proc/uptime) + SECONDS_ALL))
number=0
while [ "$(cut -d. -f1 /proc/uptime)" -lt "$end_s" ]; do
	number=$((number + 1))
	case $((number % 3)) in
	1) mode=busy ;;
	2) mode="sleep" ;;
	*) mode=adaptive ;;
	esac
	turn "$number" "$mode" $((number % 2))
	[ $((number % 10)) -ne 0 ] || echo "turn $number, $((end_s - $(cut -d. -f1 /proc/uptime))) s left"
done
kbp unload > /dev/null || lab_fail "unload"
printf '{"turns":%s,"seconds":%s,%s,%s}\n' "$number" "$SECONDS_ALL" "$begin" "$(between end)" > "$OUT/part.json"
rm -f "$OUT/turn.json" "$OUT/turn.err"
lab_dmesg_clean
lab_pass
