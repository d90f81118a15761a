#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 400s
# kernels: wide
#
# In silence a poller in mode sleep or adaptive costs no CPU time and wakes its CPU for nothing but the card's own
# interrupt, one a second: no timer of its own, no run of its thread that the card did not ask for, by the kernel's
# trace of a minute of the guest. All interrupts of that CPU are compared with those of the stock path, roughly.

. /lab/lib.sh
. /lab/net.sh

SECONDS_EACH=60
TRACE=/sys/kernel/tracing
# A ten thousandth of a CPU: what a look at the card takes at each of its interrupts, one a second.
BUSY_NS_MAX=$((SECONDS_EACH * 100000))

# interrupts: of the poller's CPU, NAME COUNT a line.
interrupts() {
	awk -v column=$((NET_CPU + 2)) 'NR > 1 && NF > column { print $1 $NF, $column }' /proc/interrupts
}

traced() {
	for event in timer/hrtimer_expire_entry sched/sched_switch; do
		echo "$1" > "$TRACE/events/$event/enable" || lab_fail "tracing"
	done
}

# silence NAME: sets, for a minute without traffic, $woken to the interrupts of the CPU, $device to those of the card,
# $timers to how often the module's timer ran there, $runs to how often its thread did.
silence() {
	echo > "$TRACE/trace"
	traced 1
	interrupts > "$OUT/before"
	sleep "$SECONDS_EACH"
	interrupts > "$OUT/after"
	traced 0
	grep -v '^#' "$TRACE/trace" > "$OUT/$1.trace"
	awk 'NR == FNR { before[$1] = $2; next } $2 != before[$1] { print $1, $2 - before[$1] }' \
		"$OUT/before" "$OUT/after" > "$OUT/$1"
	woken=$(awk '{ sum += $2 } END { print sum + 0 }' "$OUT/$1")
	device=$(awk '/eth0/ { sum += $2 } END { print sum + 0 }' "$OUT/$1")
	timers=$(grep -c "function=kbp_" "$OUT/$1.trace")
	runs=$(grep -c "next_comm=kbp/" "$OUT/$1.trace")
	echo "$1: $woken interrupts, $device of them the card's, $timers timers of the module, $runs runs of its thread:" \
		"$(tr '\n' ' ' < "$OUT/$1")"
}

is_asleep() { kbp poller show --json | grep -q '"state":"idle"'; }

# thread_ns: CPU time of the poller's thread.
thread_ns() {
	cut -d ' ' -f 1 "/proc/$(kbp poller show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')/schedstat"
}

# silent MODE: the same while a poller has the card, compared with stock, and after traffic.
silent() {
	kbp attach eth0 --cpu "$NET_CPU" --mode "$1" > /dev/null || lab_fail "attach"
	net_traffic "$1-traffic" --count 200 --period-us 1000
	net_none_lost "$1-traffic"
	lab_wait_for 5 is_asleep
	sleep 5
	used=$(thread_ns)
	silence "$1"
	used=$(($(thread_ns) - used))
	echo "$1: $used ns of the poller's thread"
	[ "$device" -gt 0 ] || lab_fail "$1: the card's interrupt does not come here, so nothing was compared"
	[ "$timers" -eq 0 ] || lab_fail "$1: $timers timers of the module"
	[ "$runs" -gt 0 ] || lab_fail "$1: the trace has no run of the thread"
	[ "$runs" -le "$device" ] || lab_fail "$1: the thread ran $runs times"
	# The kernel's own timers come to this CPU or to another, and after a thread has run there is a tick more.
	[ "$woken" -le $((2 * stock)) ] || lab_fail "$1: $woken interrupts, stock has $stock"
	[ "$used" -le "$BUSY_NS_MAX" ] || lab_fail "$1: the thread took $used ns"
	net_traffic "$1-after" --count 200 --period-us 1000
	net_none_lost "$1-after"
	kbp detach eth0 > /dev/null || lab_fail "detach"
}

# Neither what measures nor threads of the kernel that have no place of their own (kcompactd) wake what is measured.
for pid in /proc/[0-9]*; do
	taskset -p -c 0 "${pid#/proc/}" > /dev/null 2>&1 || true
done
taskset -p $$ | grep -q ': 1$' || lab_fail "taskset"
# Where all sleep.
lab_turns long
# A thread that is FIFO starts a timer of the kernel before 6.12, RT throttling, for a second or two each time it runs.
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
echo $((1 << NET_CPU)) > "$TRACE/tracing_cpumask"
net_up
lab_irqs_to "$NET_CPU" eth0
net_traffic stock-traffic --count 200 --period-us 1000
net_none_lost stock-traffic
sleep 5
silence stock
stock=$woken
kbp_start
silent sleep
silent adaptive
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
