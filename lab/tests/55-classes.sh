#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --append isolcpus=domain,1 --timeout 400s --module lab/modules/storm
# kernels: wide
#
# The two classes of a poller, with a storm of three NAPI instances on its CPU, which are merely owned and so of class
# normal. A card of class rt waits for one small poll of them; the same card in class normal waits for one of each. The
# storm is done all the same, each of the three has its share, and nothing goes through softirq. In mode adaptive the card
# needs no interrupts while the storm keeps the poller awake; where interrupts are threads (PREEMPT_RT), those that it
# needs in mode sleep wait until bottom halves are on, and are not switched to twice.
#
# The tester's CPU is out of the scheduler's domains, as another machine would be.

. /lab/lib.sh
. /lab/net.sh

# Within the time that a burst takes, pings come all the time: three times 400 packets of 20 us, every 30 ms.
STORM="cpu=$NET_CPU burst=400 pkt_ns=20000 period_ms=30 napis=3"

# measure CLASS: with the card in that class; the account is $OUT/CLASS.json.
measure() {
	kbp attach eth0 --cpu "$NET_CPU" --class "$1" > "$OUT/attach-$1" || lab_fail "attach"
	kbp show --json | grep -q "\"class\":\"$1\"" || lab_fail "the class is not shown: $(kbp show)"
	net_traffic "$1" --count 3000 --period-us 500
	net_none_lost "$1"
	kbp detach eth0 > /dev/null || lab_fail "detach"
}

# switches: how often the thread of the card's receive interrupt went to sleep, or to wait for a lock.
switches() {
	grep -l '^irq/.*eth0-rx' /proc/[0-9]*/comm | while read -r comm; do
		grep -h '^voluntary' "${comm%comm}status"
	done | awk '{ sum += $2 } END { print sum + 0 }'
}

# interrupts MODE: with the card in class rt and that mode, interrupts for 1000 pings; and SWITCHES of its thread.
interrupts() {
	kbp attach eth0 --cpu "$NET_CPU" --class rt --mode "$1" > /dev/null || lab_fail "attach"
	before=$(net_interrupts eth0) SWITCHES=$(switches)
	net_traffic "irqs-$1" --count 1000 --period-us 500
	net_none_lost "irqs-$1"
	INTERRUPTS=$(($(net_interrupts eth0) - before)) SWITCHES=$(($(switches) - SWITCHES))
	kbp detach eth0 > /dev/null || lab_fail "detach"
	echo "$1: $INTERRUPTS interrupts, $SWITCHES switches of their thread"
}

net_up
# A poll of 2 packets of the storm takes 40 us.
kbp_start --budget 2

# A device has one class, and a class is one of two.
kbp attach eth0 --cpu "$NET_CPU" --class rt > /dev/null || lab_fail "attach"
if kbp attach eth0 --cpu "$NET_CPU" --class normal 2> "$OUT/twice"; then
	lab_fail "a device is in both classes"
fi
grep -q "class rt" "$OUT/twice" || lab_fail "its class is not named: $(cat "$OUT/twice")"
kbp detach eth0 > /dev/null || lab_fail "detach"
! kbp attach eth0 --cpu "$NET_CPU" --class urgent 2> "$OUT/unknown" || lab_fail "an unknown class"
grep -q "normal, rt" "$OUT/unknown" || lab_fail "the classes are not named: $(cat "$OUT/unknown")"
! kbp attach eth0 --cpu 3 --class normal 2> "$OUT/none" || lab_fail "a class without a poller"
grep -q "kbp poller add" "$OUT/none" || lab_fail "no way out: $(cat "$OUT/none")"
! kbp attach lo --cpu "$NET_CPU" --class normal 2> "$OUT/backlog" || lab_fail "a backlog in class normal"
grep -q "class" "$OUT/backlog" || lab_fail "no reason: $(cat "$OUT/backlog")"

# shellcheck disable=SC2086 # arguments
insmod "$MODULES/storm.ko" $STORM || lab_fail "storm"
lab_defer rmmod storm
softirqs=$(net_softirqs "$NET_CPU")
measure rt
measure normal
softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
p99_rt=$(net_value rt p99)
p99_normal=$(net_value normal p99)
echo "p99 in class rt $p99_rt ns, in class normal $p99_normal ns; $softirqs softirqs"
[ "$p99_rt" -lt 200000 ] || lab_fail "class rt waits"
# Three polls of 40 us, where class rt waits for a part of one.
[ "$p99_normal" -gt $((p99_rt + 50000)) ] || lab_fail "class normal does not wait for its like"
[ "$softirqs" -lt 100 ] || lab_fail "the storm goes through softirq"

interrupts sleep
sleep_interrupts=$INTERRUPTS
if grep -q PREEMPT_RT /proc/version; then
	[ $((SWITCHES * 10)) -ge $((INTERRUPTS * 9)) ] || lab_fail "threads of interrupts did not run"
	# On kernels without a lock behind bottom halves they never do.
	[ $((SWITCHES * 10)) -lt $((INTERRUPTS * 14)) ] || lab_fail "threads of interrupts wait for bottom halves"
	# A poller makes way for its equals.
	for priority in 50 51; do
		kbp poller add --cpu 1 -P "f:$priority" --dry-run > "$OUT/priority-$priority" 2>&1 || lab_fail "dry run"
	done
	grep -q "keeps the threads that handle interrupts" "$OUT/priority-51" || lab_fail "nothing is said of priority 51"
	! grep -q "keeps the threads that handle interrupts" "$OUT/priority-50" || lab_fail "priority 50 is warned of"
fi
sleeps=$(kbp_counter sleeps)
interrupts adaptive
[ "$(kbp_counter sleeps)" -gt $((sleeps + 20)) ] || lab_fail "the poller does not sleep between the bursts of the storm"
[ $((INTERRUPTS * 3)) -lt "$sleep_interrupts" ] || lab_fail "mode adaptive has interrupts though the poller is awake"

# Each of the three is served alike, to one burst.
served=$(cat /sys/module/storm/parameters/served)
echo "packets of the three: $served"
least=$(echo "$served" | tr , '\n' | head -n 3 | sort -n | head -n 1)
most=$(echo "$served" | tr , '\n' | head -n 3 | sort -n | tail -n 1)
[ "$least" -gt 4000 ] || lab_fail "the storm is not served"
[ $((most - least)) -le 400 ] || lab_fail "shares are not equal: $served"

# What a person sees of it.
kbp stats --waits | tee "$OUT/waits"
grep -q "CPU $NET_CPU normal" "$OUT/waits" || lab_fail "no waits"
# How long the poller waited for BH: all waits are counted there, a round has at least one.
if grep -q PREEMPT_RT /proc/version; then
	grep -q "CPU $NET_CPU bh\$" "$OUT/waits" || lab_fail "no column for BH"
	bh=$(awk 'NR > 1 { sum += $NF } END { print sum + 0 }' "$OUT/waits")
	[ "$bh" -gt 6000 ] || lab_fail "$bh waits for BH"
fi
kbp stats --json | grep -q '"rt":\[{"below_ns"' || lab_fail "no waits of class rt: $(kbp stats --json)"
[ "$(kbp_counter normal_polls)" -gt 6000 ] || lab_fail "polls of class normal are not counted"
lab_dmesg_clean
lab_pass
