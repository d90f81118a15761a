#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 1440m
#
# A long run without a lost wake-up, `make long`: for so many MINUTES of the guest, in mode sleep and in mode adaptive,
# frames at random times (Poisson). None may be lost, and none later than the mode promises.
#
#     lab/long.sh [MINUTES [SEED [MODE]...]]      an empty MODE: softirq alone
#
# A packet whose wake-up was lost waits for the next one, for the card's own interrupt after two seconds, or for the
# watchdog, which is counted (handbacks). A minute has as many frames with a mean gap of 1 ms as of 5 ms and of 25 ms, so
# most lost wake-ups would be later than the bound, and gaps end on both sides of all ages at which a poller may stop
# polling.
#
# The bound: inside a window a packet waits for nothing. Outside of it, and in mode sleep, it waits for an interrupt and
# a wake-up, which are microseconds, and if others want the CPU for a part of a rest that packets do not end. Softirq
# shows in the same machine, at the same times, what the tester and the virtual CPUs add. Times count from when a frame
# was sent: that this was late is nobody's fault here. What the CPUs do is traced, the same events in all modes, of which
# empty polls are some; it takes its time. The last moments before the first frame of a part that is later than the bound,
# or after a part that lost some, are kept in late-MODE-RATE-SEED.
#
# DAMON's statistics (damon_stat, on by default in Debian's newest kernels) are off: kdamond.0 holds a CPU for 0.9 to
# 1.7 ms at a time, in all modes and after a frame was received, which would hide a wake-up that is late
# (docs/results/long).

. /lab/lib.sh
. /lab/net.sh

MINUTES=${1:-60}
SEED=${2:-$(date +%s)}
MODES=sleep\ adaptive
if [ $# -gt 2 ]; then
	shift 2
	MODES=$*
fi
# Two of these parts, KBP_REST_SLEEP_NS in kmod/kbp/policy.h.
BOUND_NS=100000
TRACING=/sys/kernel/tracing
TRACED="irq kbp sched/sched_switch sched/sched_waking timer/hrtimer_expire_entry timer/timer_expire_entry
	workqueue/workqueue_execute_start"
DAMON=/sys/module/damon_stat/parameters/enabled
# Lines of a trace that are kept: some milliseconds.
LATE_LINES=2000
# A turn of the virtual CPUs may be long, since all that spin execute PAUSE: 5 ms between two ticks.
PIT_COUNT=6000

# figure KEY: the first value of that name.
figure() { grep -o "\"$1\":[0-9]*" "$OUT/chunk.json" | head -n 1 | cut -d : -f 2; }

is_active() { kbp show --json | grep -q "\"mode_active\":\"$1\""; }

# begin MODE RATE: an hour of empty polls would take days on this clock, so only the fast frames have the usual budget.
begin() {
	softirqs=$(net_softirqs "$NET_CPU")
	# A poller would own the card, attached or not.
	[ "$1" != softirq ] || return 0
	kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller add"
	case $1 in
	adaptive)
		budget=2.5
		[ "$2" -lt 1000 ] || budget=25
		kbp attach eth0 --cpu "$NET_CPU" --mode adaptive --cpu-budget "$budget" > /dev/null || lab_fail "attach"
		;;
	*) kbp attach eth0 --cpu "$NET_CPU" --mode "$1" > /dev/null || lab_fail "attach" ;;
	esac
	lab_wait_for 5 is_active "$1"
}

# limit: the latest that a frame may come, ns.
limit() { echo $(($(worst softirq | cut -d ' ' -f 1) + BOUND_NS)); }

# keep_trace NAME: what it has now; then it begins anew.
keep_trace() {
	echo 0 > "$TRACING/tracing_on"
	tail -n "$LATE_LINES" "$TRACING/trace" > "$OUT/late-$1"
	echo > "$TRACING/trace"
	echo 1 > "$TRACING/tracing_on"
}

# end MODE FRAMES: it was served as it says.
end() {
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	if [ "$1" = softirq ]; then
		[ "$softirqs" -ge $(($2 / 2)) ] || lab_fail "softirq: $softirqs NET_RX softirqs for $2 frames"
		return 0
	fi
	[ "$softirqs" -lt $(($2 / 2)) ] || lab_fail "$1: $softirqs NET_RX softirqs for $2 frames"
	[ "$(kbp_counter handbacks)" = 0 ] || lab_fail "the watchdog had to take over"
	kbp detach eth0 > /dev/null || lab_fail "detach"
	kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller del"
}

# chunk MODE RATE SECONDS SEED: frames for so long; what they came to is a line, and one in /run/MODE.
chunk() {
	begin "$1" "$2"
	break_us=1000000
	[ ! -e /run/softirq ] || break_us=$(($(limit) / 1000))
	kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --rate "$2fps" --arrivals poisson --seed "$4" \
		--seconds "$3" --sleep --cpu 1 --drain-ms 100 --break-trace "$break_us" > "$OUT/chunk.json" 2> "$OUT/chunk.err" ||
		lab_fail "$1, $2 frames/s, seed $4: $(cat "$OUT/chunk.err")"
	max=$(figure since_sent_ns_max) sent_late=$(figure send_late_ns_max) lost=$(figure lost)
	if [ -z "$max" ] || [ -z "$lost" ]; then
		lab_fail "no account: $(cat "$OUT/chunk.json")"
	fi
	echo "$max $2 $4" >> "/run/$1"
	[ "$(cat "$TRACING/tracing_on")" = 1 ] || keep_trace "$1-$2-$4"
	echo "$1, $2 frames/s for $3 s, seed $4: $(figure sent) frames, $lost lost, the longest $max ns; sent up to" \
		"$sent_late ns late"
	if [ "$lost" != 0 ] || [ "$(figure warmup_lost)" != 0 ]; then
		keep_trace "$1-$2-$4"
		lab_fail "frames are lost"
	fi
	end "$1" "$(figure sent)"
}

# minute MODE SEED
minute() {
	chunk "$1" 1000 2 "$2"
	chunk "$1" 200 10 "$2"
	chunk "$1" 40 48 "$2"
}

# worst MODE: the line of the latest frame.
worst() { sort -n "/run/$1" | tail -n 1; }

lab_turns "$PIT_COUNT"
if [ -e "$DAMON" ]; then
	echo N > "$DAMON" || lab_fail "DAMON can't be turned off"
	echo "damon_stat is off"
fi
net_up
# There in all modes, as an attached card's is.
lab_irqs_to "$NET_CPU" eth0
lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
for events in $TRACED; do
	echo 1 > "$TRACING/events/$events/enable" || lab_fail "no events $events"
done
echo 1 > "$TRACING/tracing_on"
echo "$MINUTES minutes of $MODES, seed $SEED"
for minute in $(seq "$MINUTES"); do
	# As often as the modes: what is rare in all of them has to show in it.
	for mode in softirq $MODES; do
		minute "$mode" $((SEED + minute))
	done
	echo "minute $minute of $MINUTES"
done
for mode in softirq $MODES; do
	# shellcheck disable=SC2046
	set -- $(worst "$mode")
	echo "$mode: the latest frame took $1 ns, $2 frames/s, seed $3"
	[ "$1" -le "$(limit)" ] || lab_fail "$mode: later than softirq's worst and $BOUND_NS ns"
done
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
