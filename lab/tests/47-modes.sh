#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 600s
# kernels: wide
#
# The modes of a poller, side by side with the same periodic packets: all of them come, none through NET_RX on the
# poller's CPU, in each mode. Sleep polls once an interrupt. Adaptive learns the period, is awake before most packets
# and polls a small part of what busy polls, also where an interrupt for what was sent comes just when it has to wake;
# beside a device in mode busy it waits for no interrupt, and where sleeping would save little it polls through, with
# halts in between. In silence both sleep and stay asleep. What can't be had together is refused.

. /lab/lib.sh
. /lab/net.sh

COUNT=500
HALT=/sys/module/kbp/parameters/halt_us
TRACING=/sys/kernel/tracing
POLLS=$TRACING/events/kbp/kbp_poll

napi_counter() {
	kbp stats --json | sed -n "s/.*\"name\":\"eth0 queue 0\"[^}]*\"$1\":\([0-9]*\).*/\1/p"
}

is_active() { kbp show --json | grep -q "\"mode_active\":\"$1\""; }

attach() {
	kbp attach eth0 --cpu "$NET_CPU" --mode "$@" > /dev/null || lab_fail "attach: $*"
	lab_wait_for 5 is_active "$1"
}

detach() { kbp detach eth0 > /dev/null || lab_fail "detach"; }

# periodic NAME: packets every millisecond; sets $empty, $packets, $schedules, $timed to what the poller did for them.
periodic() {
	empty=$(napi_counter empty_polls) packets=$(napi_counter packets) schedules=$(napi_counter schedules)
	timed=$(napi_counter timed_polls) softirqs=$(net_softirqs "$NET_CPU")
	net_traffic "$1" --count "$COUNT" --period-us 1000 --jitter 0
	net_none_lost "$1"
	empty=$(($(napi_counter empty_polls) - empty)) packets=$(($(napi_counter packets) - packets))
	schedules=$(($(napi_counter schedules) - schedules)) timed=$(($(napi_counter timed_polls) - timed))
	softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
	echo "$1: $packets packets, $empty empty polls, scheduled $schedules times, $timed of them by its timer;" \
		"$softirqs NET_RX softirqs; p50 $(net_value "$1" p50) ns, p99 $(net_value "$1" p99) ns"
	[ "$packets" -ge "$COUNT" ] || lab_fail "$1: the poller had $packets packets"
	[ "$softirqs" -eq 0 ] || lab_fail "$1: $softirqs softirqs"
}

# pairs GAP_US: two packets, GAP_US apart, every millisecond; most have to find the device held, by the trace.
pairs() {
	printf '%s000\n' "$1" $((1000 - $1)) > /run/pairs
	pairs_row 0.3
	echo "work > 0" > "$POLLS/filter"
	echo > "$TRACING/trace"
	echo 1 > "$POLLS/enable"
	pairs_row 0.3
	echo 0 > "$POLLS/enable"
	polls=$(grep -c kbp_poll: "$TRACING/trace") met=$(grep -c 'kbp_poll:.*held=1' "$TRACING/trace")
	echo "pairs $1 us apart: of $polls polls that found packets the device was held in $met"
	[ "$polls" -ge 400 ] || lab_fail "pairs: there were $polls polls only"
	[ $((met * 20)) -ge $((polls * 19)) ] || lab_fail "pairs $1 us apart: it was not awake before their packets"
}

pairs_row() {
	kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --arrivals trace:/run/pairs --seconds "$1" \
		--sleep --cpu 1 --drain-ms 50 > "$OUT/pairs.json" 2> "$OUT/pairs.err" || lab_fail "pairs: $(cat "$OUT/pairs.err")"
}

# flow RATE SECONDS CPU: frames at that rate, in the background.
flow() {
	kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --rate "$1" --seconds "$2" --cpu "$3" --drain-ms 50 \
		> "$OUT/flow-$1.json" 2> "$OUT/flow-$1.err" &
	flow=$!
	lab_defer kill "$flow" '2> /dev/null || true'
}

polls_through() { [ "$(kbp_counter polled_through)" = 1 ]; }

# gone OWNER COUNTER: by how much it went up between /run/before and /run/after.
gone() {
	gone_from=$(sed -n "s/.*\"name\":\"$1\"[^}]*\"$2\":\([0-9]*\).*/\1/p" /run/before)
	echo $(($(sed -n "s/.*\"name\":\"$1\"[^}]*\"$2\":\([0-9]*\).*/\1/p" /run/after) - gone_from))
}

# watch NAME SECONDS: sets $irqs, $slept, $halts, $halted and $busy (ns) to what becomes of eth0 and of the poller.
watch() {
	kbp stats --json > /run/before
	sleep "$2"
	kbp stats --json > /run/after
	irqs=$(gone "eth0 queue 0" schedules) slept=$(gone "CPU $NET_CPU" sleeps) halts=$(gone "CPU $NET_CPU" halts)
	halted=$(gone "CPU $NET_CPU" halted_ns) busy=$(gone "CPU $NET_CPU" busy_ns)
	echo "$1: scheduled $irqs times, $slept sleeps in $2 s, $halts halts, $halted ns, busy for $busy ns"
}

# silent MODE MS: nothing comes for some seconds of the guest; it may be awake for so long.
silent() {
	lab_wait_for 5 is_asleep
	sleeps=$(kbp_counter sleeps) busy=$(kbp_counter busy_ns) polls=$(kbp_counter polls) switches=$(switches)
	lab_quickly sleep 4
	sleeps=$(($(kbp_counter sleeps) - sleeps)) busy=$(($(kbp_counter busy_ns) - busy))
	polls=$(($(kbp_counter polls) - polls)) switches=$(($(switches) - switches))
	echo "$1, in 4 s of silence: $sleeps sleeps, $switches switches, $polls polls, $busy ns"
	# The driver raises an interrupt every two seconds, lest one was lost.
	if [ "$sleeps" -gt 6 ] || [ "$switches" -gt 6 ] || [ "$busy" -gt $(($2 * 1000000)) ]; then
		lab_fail "$1: the poller does not sleep"
	fi
}

is_asleep() { kbp poller show --json | grep -q '"state":"idle"'; }

switches() {
	poller=$(kbp poller show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
	awk '/ctxt_switches/ { sum += $2 } END { print sum }' "/proc/$poller/status"
}

refused() {
	if kbp attach eth0 --cpu "$NET_CPU" "$@" 2> "$OUT/refused"; then lab_fail "not refused: $*"; fi
	cat "$OUT/refused"
	! is_active '[a-z]*' || lab_fail "refused, and yet attached: $*"
}

net_up
kbp_start
refused --mode sleep --cpu-budget 10
refused --mode adaptive --cpu-budget 10 --max-wake-latency 50
refused --mode adaptive --cpu-budget 101
refused --mode adaptive --max-wake-latency 0
refused --mode softirq
ip link add near type veth peer name far
for mode in sleep adaptive; do
	if kbp attach near --cpu "$NET_CPU" --mode "$mode" 2> "$OUT/refused"; then lab_fail "a backlog in mode $mode"; fi
	grep -q "mode busy" "$OUT/refused" || lab_fail "it does not say what is possible: $(cat "$OUT/refused")"
done
ip link del near

attach busy
periodic busy
busy_empty=$empty
detach

attach sleep
periodic sleep
[ "$empty" -le $((2 * COUNT)) ] || lab_fail "sleep: it polls without an interrupt"
silent sleep 1
detach

attach adaptive
periodic learning
periodic adaptive
[ $((empty * 4)) -le "$busy_empty" ] || lab_fail "adaptive: it polls more than a quarter of what busy does"
[ $((timed * 10)) -ge $((COUNT * 9)) ] || lab_fail "adaptive: it was awake before $timed of $COUNT packets only"
# After a packet that nobody asked for (a probe of a neighbour) it polls for what it has saved: 20 % of a fifth of a second.
silent adaptive 40
detach

# The card's interrupt for what it has sent comes about when the poller has to wake for the second packet of such a pair:
# that must not make it forget when the next pair is due.
for gap in 135 150; do
	attach adaptive
	pairs "$gap"
	detach
done

attach adaptive --max-wake-latency 1
kbp show --json | grep -q '"max_wake_latency_us":1' || lab_fail "it does not say what was asked for"
net_traffic warm-up --count 50 --period-us 1000
net_none_lost warm-up
periodic no-late-wakes
[ "$schedules" -le $((COUNT / 10)) ] || lab_fail "waking up takes longer than 1 us, and yet it sleeps between packets"
silent no-late-wakes 1
detach

attach adaptive --cpu-budget 2.5
kbp show --json | grep -q '"cpu_budget_percent":2.5' || lab_fail "it does not say what was asked for"
detach
# In windows it does not stand still.
[ "$(kbp_counter halts)" -eq 0 ] || lab_fail "it stood still where it does not poll through"
# Both sides of 10,417 frames a second leave so little time to sleep in that it is not worth its late packets. It stands
# still between two looks, which is not busy time. Halts as short as they usually are end late on this clock, and are
# given up for a second each time. When the many frames end, what goes on with a tenth of them is worth a sleep again.
echo 0 > "$HALT"
attach adaptive
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode adaptive > /dev/null || lab_fail "attach eth1"
flow 10417fps 4.8 1
many=$flow
flow 1000fps 7.2 0
lab_wait_for 5 polls_through
watch never-still 0.1
[ "$halts" -eq 0 ] || lab_fail "halts are off, and yet it stood still $halts times"
echo 50 > "$HALT"
watch many 0.2
[ "$irqs" -le 20 ] || lab_fail "it polls through, and yet the card was armed"
[ "$halts" -ge 200 ] || lab_fail "it polls through, and did not stand still in between"
[ "$halted" -ge 20000000 ] || lab_fail "it stood still $halts times, and for $halted ns only"
[ $((halted + busy)) -le 400000000 ] || lab_fail "it stood still for $halted ns and was busy for $busy"
echo 1 > "$HALT"
# They are tried again after a second.
watch late-halts 1.2
if [ "$halts" -eq 0 ] || [ "$halts" -gt 100 ]; then lab_fail "halts end late: it stood still $halts times"; fi
wait "$many" || lab_fail "flow: $(cat "$OUT/flow-10417fps.err")"
sleep 1.2
watch few 0.2
[ "$slept" -ge 100 ] || lab_fail "it polls through though packets have become rare"
wait "$flow" || lab_fail "flow: $(cat "$OUT/flow-1000fps.err")"
[ "$(kbp_counter polled_through)" = 1 ] || lab_fail "it polls through for 1,000 frames a second"
kbp -n tester detach eth1 > /dev/null || lab_fail "detach eth1"
lab_wait_for 5 is_asleep
detach
# The poller is awake for the other card in any case, so this one waits for no interrupt. Last: the other
# card's own interrupts stay on this CPU, and would be counted in a silence.
attach adaptive
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach eth1"
periodic beside-busy
[ "$schedules" -le $((COUNT / 100)) ] || lab_fail "the poller is awake, and yet the card's interrupt was armed"
kbp -n tester detach eth1 > /dev/null || lab_fail "detach eth1"
lab_wait_for 5 is_asleep
detach
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
