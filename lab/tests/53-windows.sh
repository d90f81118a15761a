#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testidle --timeout 600s
#
# Mode adaptive against fixed windows: the same random frames (Poisson) with the window that it learns and with windows
# of set lengths after each packet, on a CPU that has idle states. None of these is clearly better in both the 99th
# percentile of the round trips and the CPU time of the poller.

. /lab/lib.sh
. /lab/net.sh

WINDOW=/sys/module/kbp/parameters/window_us
SEED=20261123
# What is clearly better, in per cent of the other: less than this.
CLEARLY=95

# frames RATE SECONDS: their account is in frames.json, of the last ones only, because it is long.
frames() {
	kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --rate "$1fps" --arrivals poisson \
		--seed "$SEED" --seconds "$2" --cpu 1 --drain-ms 20 > "$OUT/frames.json" 2> "$OUT/frames.err" ||
		lab_fail "$1 frames/s: $(cat "$OUT/frames.err")"
	! grep -E '"(warmup_)?lost":[1-9]' "$OUT/frames.json" || lab_fail "frames are lost"
}

# window US RATE: sets $P99 and, in nanoseconds a frame, $CPU, of a window of that length; 0: as learned.
window() {
	echo "$1" > "$WINDOW"
	kbp attach eth0 --cpu "$NET_CPU" --mode adaptive > /dev/null || lab_fail "attach"
	frames "$2" 0.15
	CPU=$(cut -d ' ' -f 1 "/proc/$POLLER/schedstat")
	frames "$2" 0.4
	CPU=$((($(cut -d ' ' -f 1 "/proc/$POLLER/schedstat") - CPU) * 10 / ($2 * 4)))
	P99=$(grep -o '"rtt_ns":{[^}]*}' "$OUT/frames.json" | tail -n 1 | grep -o '"p99":[0-9]*' | cut -d : -f 2)
	[ -n "$P99" ] || lab_fail "no account: $(cat "$OUT/frames.json")"
	kbp detach eth0 > /dev/null || lab_fail "detach"
	echo "$2 frames/s, window $1 us: p99 $P99 ns, CPU $CPU ns a frame"
}

net_up
insmod "$MODULES/kbp_testidle.ko" || lab_fail "insmod kbp_testidle"
net_limit_others 2
kbp_start
POLLER=$(kbp poller show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
for rate in 2000 10000; do
	# Around a gap; the shortest sleeps at once, the longest never.
	case $rate in
	2000) windows_us='1 320 1280' ;;
	*) windows_us='1 20 80 1280' ;;
	esac
	window 0 "$rate"
	learned_p99=$P99 learned_cpu=$CPU longest_p99=0 least_cpu=$CPU
	for us in $windows_us; do
		window "$us" "$rate"
		if [ $((P99 * 100)) -lt $((learned_p99 * CLEARLY)) ] && [ $((CPU * 100)) -lt $((learned_cpu * CLEARLY)) ]; then
			lab_fail "$rate frames/s: a fixed window of $us us is better"
		fi
		[ "$P99" -lt "$longest_p99" ] || longest_p99=$P99
		[ "$CPU" -gt "$least_cpu" ] || least_cpu=$CPU
	done
	# The windows make a difference, or nothing is compared.
	[ $((longest_p99 * 100)) -gt $((learned_p99 * 105)) ] || lab_fail "$rate frames/s: no window has a longer tail"
	[ $((least_cpu * 2)) -lt "$learned_cpu" ] || [ "$CPU" -gt $((least_cpu * 2)) ] ||
		lab_fail "$rate frames/s: no window takes less CPU time"
done
echo 0 > "$WINDOW"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
rmmod kbp_testidle || lab_fail "rmmod"
lab_dmesg_clean
lab_pass
