#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 2 --timeout 300s
#
# The tester against the kernel's own network emulator on a veth pair: a delay comes out within 2 %, also of frames at
# random times, and lost and doubled frames are as many as the emulator counted. A late frame stops the kernel's trace.

. /lab/lib.sh

SERVER=10.8.0.1
OUT_JSON=$OUT/openloop.json

ip netns add tester
lab_defer ip netns del tester
ip link add server type veth peer name tester netns tester
# Only the tester's frames count: nothing of IPv6, no questions for neighbours.
for dev in server tester; do
	[ $dev = server ] && in= || in="ip netns exec tester"
	$in sh -c "echo 1 >/proc/sys/net/ipv6/conf/$dev/disable_ipv6"
done
ip addr add $SERVER/24 dev server
ip link set server up
ip -n tester addr add 10.8.0.2/24 dev tester
ip -n tester link set tester up
mac=$(cat /sys/class/net/server/address)
ip -n tester neigh replace $SERVER lladdr "$mac" dev tester nud permanent
ip neigh replace 10.8.0.2 lladdr "$(ip netns exec tester cat /sys/class/net/tester/address)" dev server nud permanent
kbp measure pingpong server --bind $SERVER:7700 --cpu 0 > /run/server.log 2>&1 &
lab_defer kill $!
lab_wait_for 10 grep -q serving /run/server.log

# open_loop FRAMES_PER_SECOND SECONDS ARGUMENTS...: a run from the tester's namespace.
open_loop() {
	rate=$1fps
	seconds=$2
	shift 2
	kbp --json --netns tester measure openloop $SERVER:7700 --rate "$rate" --size 512 --seconds "$seconds" \
		--drain-ms 200 --cpu 1 "$@" >"$OUT_JSON" || lab_fail "openloop"
}

# figure KEY: the first value of that name in the last run.
figure() {
	grep -o "\"$1\":[0-9]*" "$OUT_JSON" | head -n 1 | cut -d : -f 2
}

# median: of all round trips of the last run, in ns.
median() {
	grep -o '"rtt_ns":{[^}]*}' "$OUT_JSON" | tail -n 1 | grep -o '"p50":[0-9]*' | cut -d : -f 2
}

open_loop 500 0.5
[ "$(figure lost)" = 0 ] || lab_fail "frames are lost on an idle veth pair"
before=$(median)
ip netns exec tester tc qdisc add dev tester root netem delay 10ms limit 10000 || lab_fail "tc netem"
open_loop 500 0.5
delay=$(($(median) - before))
echo "10 ms of delay came out as $delay ns (p50 without: $before ns)"
if [ "$delay" -lt 9800000 ] || [ "$delay" -gt 10200000 ]; then
	lab_fail "the delay is not within 2 %"
fi
open_loop 500 0.5 --arrivals poisson --seed 7
delay=$(($(median) - before))
echo "10 ms of delay came out as $delay ns at random times"
if [ "$delay" -lt 9800000 ] || [ "$delay" -gt 10200000 ]; then
	lab_fail "the delay of frames at random times is not within 2 %"
fi
# As many as another program counts among the times of this seed.
[ "$(figure sent)" = 258 ] || lab_fail "$(figure sent) frames were sent at the random times of seed 7, not 258"
grep -q '"arrivals":"poisson"' "$OUT_JSON" || lab_fail "the row does not say how its frames came"

# A frame that comes too late stops the trace, and marks it.
TRACING=/sys/kernel/tracing
echo 1 > "$TRACING/tracing_on"
open_loop 500 0.1 --break-trace 20000
[ "$(cat "$TRACING/tracing_on")" = 1 ] || lab_fail "the trace is stopped though no frame took 20 ms"
open_loop 500 0.1 --break-trace 5000
grep -q '"trace_stopped":true' "$OUT_JSON" || lab_fail "it does not say that it stopped the trace"
[ "$(cat "$TRACING/tracing_on")" = 0 ] || lab_fail "the trace runs on though frames take 10 ms"
grep -q 'kbp: frame 0 took 10' "$TRACING/trace" || lab_fail "no mark of the late frame in the trace"
if kbp --netns tester measure openloop $SERVER:7700 --seconds 0.1 --break-trace 1 2> "$OUT/refused"; then
	lab_fail "a trace that does not run is to be stopped"
fi
grep -q "echo 1 >" "$OUT/refused" || lab_fail "it does not say how to begin: $(cat "$OUT/refused")"

# emulate WORDS...: from now on the emulator does this to what the tester sends, counted from 0.
emulate() {
	ip netns exec tester tc qdisc del dev tester root
	ip netns exec tester tc qdisc add dev tester root netem "$@" limit 10000 || lab_fail "tc netem $*"
}

# counted EXPRESSION: a counter of the emulator, `Sent N bytes M pkt (dropped D, ...`.
counted() {
	ip netns exec tester tc -s qdisc show dev tester | sed -n "s/.*$1.*/\\1/p" | head -n 1
}

emulate loss 3%
open_loop 2000 0.5
dropped=$(counted '(dropped \([0-9]*\),')
lost=$(($(figure lost) + $(figure warmup_lost)))
echo "the emulator dropped $dropped frames; $lost are lost"
[ "$dropped" -gt 10 ] || lab_fail "the emulator dropped next to nothing"
[ "$lost" = "$dropped" ] || lab_fail "lost frames are not those that were dropped"

# Copies of the frames of the warm-up are no duplicates of the run, so there is none.
emulate duplicate 3%
open_loop 2000 0.5 --warmup 0
copies=$(($(counted ' \([0-9]*\) pkt ') - $(figure sent)))
echo "the emulator made $copies copies; $(figure dup) frames came twice"
[ "$copies" -gt 10 ] || lab_fail "the emulator made next to no copies"
[ "$(figure dup)" = "$copies" ] || lab_fail "duplicates are not those that were made"
lab_dmesg_clean
lab_pass
