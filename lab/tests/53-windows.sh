#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testidle --timeout 600s
#
# Mode adaptive against fixed windows: the same frames, at random (Poisson) and as a recorded trace has them, with the
# window that it learns and with windows of set lengths after each packet, on a CPU that has idle states. None of these is
# clearly better in both the 99th percentile of the round trips and the CPU time of the poller; of the trace, in their mean
# and the CPU time, since its tail are trains of six packets that wait for each other, with any window.

. /lab/lib.sh
. /lab/net.sh

WINDOW=/sys/module/kbp/parameters/window_us
SEED=20261123
# What is clearly better, in per cent of the other: less than this.
CLEARLY=95

# frames ARRIVALS SECONDS: their account is in frames.json, of the last ones only, because it is long. Arrivals are a rate,
# at random gaps, or trace:FILE.
frames() {
	case $1 in
	trace:*) set -- "$2" --arrivals "$1" ;;
	*) set -- "$2" --arrivals poisson --rate "$1fps" --seed "$SEED" ;;
	esac
	frames_seconds=$1
	shift
	kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" "$@" --seconds "$frames_seconds" --cpu 1 \
		--drain-ms 20 > "$OUT/frames.json" 2> "$OUT/frames.err" || lab_fail "$*: $(cat "$OUT/frames.err")"
	! grep -E '"(warmup_)?lost":[1-9]' "$OUT/frames.json" || lab_fail "frames are lost"
}

# window US ARRIVALS LEARN LAST: sets $RTT, which is the $figure of the round trips, and, in nanoseconds a frame, $CPU,
# of a window of that length; 0: as learned. The frames of LEARN seconds come before those of LAST seconds, which count.
window() {
	echo "$1" > "$WINDOW"
	kbp attach eth0 --cpu "$NET_CPU" --mode adaptive > /dev/null || lab_fail "attach"
	frames "$2" "$3"
	CPU=$(cut -d ' ' -f 1 "/proc/$POLLER/schedstat")
	frames "$2" "$4"
	CPU=$(($(cut -d ' ' -f 1 "/proc/$POLLER/schedstat") - CPU))
	RTT=$(grep -o '"rtt_ns":{[^}]*}' "$OUT/frames.json" | tail -n 1 | grep -o "\"$figure\":[0-9]*" | cut -d : -f 2)
	count=$(net_value frames n)
	[ -n "${RTT:+$count}" ] || lab_fail "no account: $(cut -c 1-300 "$OUT/frames.json")"
	CPU=$((CPU / count))
	kbp detach eth0 > /dev/null || lab_fail "detach"
	echo "$2, window $1 us: $figure $RTT ns, CPU $CPU ns a frame, $count frames"
}

net_up
insmod "$MODULES/kbp_testidle.ko" || lab_fail "insmod kbp_testidle"
net_limit_others 2
kbp_start
POLLER=$(kbp poller show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
for arrivals in 2000 10000 trace:/lab/traces/services.txt; do
	# Around a gap; the shortest sleeps at once, the longest never or seldom.
	case $arrivals in
	2000) windows_us='1 320 1280' figure=p99 learn=0.15 last=0.4 ;;
	10000) windows_us='1 20 80 1280' figure=p99 learn=0.15 last=0.4 ;;
	*) windows_us='1 80 320 1280' figure=mean learn=0.5 last=1 ;;
	esac
	window 0 "$arrivals" "$learn" "$last"
	learned_rtt=$RTT learned_cpu=$CPU longest_rtt=0 least_cpu=$CPU
	for us in $windows_us; do
		window "$us" "$arrivals" "$learn" "$last"
		if [ $((RTT * 100)) -lt $((learned_rtt * CLEARLY)) ] && [ $((CPU * 100)) -lt $((learned_cpu * CLEARLY)) ]; then
			lab_fail "$arrivals: a fixed window of $us us is better"
		fi
		[ "$RTT" -lt "$longest_rtt" ] || longest_rtt=$RTT
		[ "$CPU" -gt "$least_cpu" ] || least_cpu=$CPU
	done
	# The windows make a difference, or nothing is compared.
	[ $((longest_rtt * 100)) -gt $((learned_rtt * 105)) ] || lab_fail "$arrivals: no window has longer round trips"
	[ $((least_cpu * 2)) -lt "$learned_cpu" ] || [ "$CPU" -gt $((least_cpu * 2)) ] ||
		lab_fail "$arrivals: no window takes less CPU time"
done
echo 0 > "$WINDOW"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
rmmod kbp_testidle || lab_fail "rmmod"
lab_dmesg_clean
lab_pass
