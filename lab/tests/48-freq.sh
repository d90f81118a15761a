#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testfreq --timeout 600s
# kernels: wide
#
# The frequency of a poller's CPU follows the poller, as the driver counts it: with `on` it is low in each sleep, with
# `auto` only where sleeps are long, and packets that come fast change nothing. What was there before comes back, also
# when the module goes, or after the CPU was away. What can't be is refused with the reason, and a driver that refuses to
# lower the frequency leaves it the highest.

. /lab/lib.sh
. /lab/net.sh

CPUS=/sys/devices/system/cpu
POLICY=$CPUS/cpufreq/policy$NET_CPU

freq_load() {
	insmod "$MODULES/kbp_testfreq.ko" "$@" || lab_fail "insmod kbp_testfreq $*"
}

freq_unload() {
	rmmod kbp_testfreq || lab_fail "rmmod kbp_testfreq"
}

# is FILE VALUE: of the policy.
is() {
	is_now=$(cat "$POLICY/$1")
	[ "$is_now" = "$2" ] || lab_fail "$1 is $is_now, not $2"
}

is_at() { [ "$(cat "$POLICY/scaling_cur_freq")" = "$1" ]; }

changes() { echo $(($(cat "$POLICY/kbp_test_transitions") + $(cat "$POLICY/kbp_test_fast_switches"))); }

# follows KIND: as the poller says.
follows() { kbp poller show --json | grep -q "\"freq_active\":\"$1\""; }

# refused WORDS ARGUMENTS...: no poller with these arguments, and the reason.
refused() {
	refused_words=$1
	shift
	! kbp poller add --cpu "$NET_CPU" "$@" 2> "$OUT/refused" || lab_fail "$* is taken"
	grep "$refused_words" "$OUT/refused" || lab_fail "$*: $(cat "$OUT/refused")"
	[ "$(kbp poller show --json)" = "[]" ] || lab_fail "$* left a poller"
}

# poller KIND MODE: a poller of that kind that serves the card.
poller() {
	kbp poller add --cpu "$NET_CPU" --freq "$1" > "$OUT/added" || lab_fail "poller add"
	kbp attach eth0 --cpu "$NET_CPU" --mode "$2" > /dev/null || lab_fail "attach"
	lab_wait_for 5 follows "$1"
	is scaling_governor kbp
}

# pings NAME PERIOD_US COUNT: $CHANGES of the frequency for them, and how often the poller SLEPT.
pings() {
	CHANGES=$(changes) SLEPT=$(kbp_counter sleeps)
	net_traffic "$1" --count "$3" --period-us "$2" --jitter 0
	net_none_lost "$1"
	CHANGES=$(($(changes) - CHANGES)) SLEPT=$(($(kbp_counter sleeps) - SLEPT))
	echo "$1: $CHANGES changes and $SLEPT sleeps for $3 packets, p50 $(net_value "$1" p50) ns, max $(net_value "$1" max) ns"
}

net_up
lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"

echo "what is refused"
refused "no cpufreq driver has it" --freq on
freq_load shared=1
refused "CPU $NET_CPU has one frequency with CPU 3" --freq auto
kbp poller add --cpu "$NET_CPU" --freq auto --force --dry-run | grep "write 'kbp' to" || lab_fail "dry run"
is scaling_governor schedutil
kbp poller add --cpu "$NET_CPU" --freq auto --force > /dev/null || lab_fail "--force"
lab_wait_for 5 is_at 800000
kbp save - | grep "freq_shared = true" || lab_fail "it is not saved"
kbp poller del --cpu "$NET_CPU" | grep "governor of CPU 2 is schedutil again" || lab_fail "poller del"
freq_unload
freq_load
echo 2400000 > "$POLICY/scaling_min_freq"
refused "leave one frequency" --freq on
echo 800000 > "$POLICY/scaling_min_freq"

echo "on: low in each sleep"
poller on sleep
lab_wait_for 5 is_at 800000
pings on-sleep 2000 200
[ "$CHANGES" -ge 380 ] || lab_fail "it does not follow each sleep"
[ "$CHANGES" -le $((2 * SLEPT + 4)) ] || lab_fail "it changes more often than the poller sleeps"
kbp stats --json | grep -o '"\(slowdowns\|speedups\|freq_errors\)":[0-9]*'
[ "$(kbp_counter freq_errors)" = 0 ] || lab_fail "refused changes"
# What takes 20 us is not done again before ten times as long has gone by.
pings on-fast 200 1000
[ "$CHANGES" -le $((3 * SLEPT / 2)) ] || lab_fail "$CHANGES changes for packets that come every 200 us"
on_p90=$(net_value on-fast p90)
kbp detach eth0 > /dev/null
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 is_at 2400000
pings on-busy 2000 50
[ "$CHANGES" -le 4 ] || lab_fail "a poller that never sleeps changes it"
kbp poller del --cpu "$NET_CPU" > "$OUT/deleted" || lab_fail "poller del"
grep "the governor of CPU $NET_CPU is schedutil again" "$OUT/deleted" || lab_fail "$(cat "$OUT/deleted")"
is scaling_governor schedutil

echo "auto: only where sleeps are long"
poller auto sleep
lab_wait_for 5 is_at 800000
pings auto-fast 200 1000
[ "$CHANGES" -le 30 ] || lab_fail "$CHANGES changes for packets that come every 200 us"
lab_wait_for 5 is_at 800000
pings auto-slow 20000 50
[ "$CHANGES" -ge 80 ] || lab_fail "sleeps of 20 ms are not slow"
auto_p90=$(net_value auto-fast p90)
[ $((auto_p90 + 5000)) -lt "$on_p90" ] || lab_fail "the slowest tenth: $auto_p90 ns with auto, $on_p90 ns with on"

echo "silence is slow, and nobody is woken for it"
lab_wait_for 5 is_at 800000
lab_quickly sleep 3
silent=$(changes) wakeups=$(kbp_counter wakeups) sleeps=$(kbp_counter sleeps)
lab_quickly sleep 10
silent=$(($(changes) - silent)) wakeups=$(($(kbp_counter wakeups) - wakeups)) sleeps=$(($(kbp_counter sleeps) - sleeps))
echo "in 10 s: $silent changes, $wakeups wake-ups, $sleeps sleeps"
[ "$silent" -le $((2 * wakeups + 2)) ] || lab_fail "it changes without a reason"
[ "$sleeps" -le $((wakeups + 1)) ] || lab_fail "it wakes up by itself"

echo "somebody chooses another governor, and it is left alone"
echo performance > "$POLICY/scaling_governor"
follows off || lab_fail "it says that it follows"
kbp show 2>&1 | grep "does not follow its poller: its governor is performance" || lab_fail "kbp show does not say so"
# The way out that it names.
echo kbp > "$POLICY/scaling_governor"
! follows off || lab_fail "it does not follow again"
echo performance > "$POLICY/scaling_governor"
follows off || lab_fail "it says that it follows"
kbp poller del --cpu "$NET_CPU" | grep "something else chose performance" || lab_fail "poller del"
is scaling_governor performance
echo schedutil > "$POLICY/scaling_governor"

echo "in the interrupt, where the driver can"
freq_unload
freq_load fast=1
poller on adaptive
lab_wait_for 5 is_at 800000
pings fast 2000 200
is kbp_test_transitions 0
[ "$(cat "$POLICY/kbp_test_fast_switches")" -ge 100 ] || lab_fail "no fast switches"

echo "the CPU goes and comes under traffic, and the governor with it"
net_traffic absent --seconds 1 --period-us 1000
echo 0 > "$CPUS/cpu$NET_CPU/online"
echo 1 > "$CPUS/cpu$NET_CPU/online"
lab_wait_for 5 follows on
net_none_lost absent

echo "a governor that somebody else has chosen holds the module, which is said"
echo kbp > "$CPUS/cpu1/cpufreq/scaling_governor" || lab_fail "the governor of CPU 1"
! lab_quickly kbp unload 2> "$OUT/refused" || lab_fail "unloaded, with a governor of its own in use"
grep "CPU 1 has the module's governor" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
follows on || lab_fail "something has changed: $(kbp poller show --json)"
echo schedutil > "$CPUS/cpu1/cpufreq/scaling_governor"

echo "the module goes, with what it has changed"
lab_quickly kbp unload || lab_fail "unload"
is scaling_governor schedutil
freq_unload

for fast in 0 1; do
	echo "a driver that refuses, fast=$fast"
	freq_load broken=20 "fast=$fast"
	echo performance > "$POLICY/scaling_governor"
	lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
	poller on sleep
	! kbp poller add --cpu "$NET_CPU" --freq auto 2> "$OUT/twice" || lab_fail "two pollers"
	grep "this CPU has a poller" "$OUT/twice" || lab_fail "$(cat "$OUT/twice")"
	is scaling_governor kbp
	pings "broken$fast" 2000 50
	kbp stats --json | grep -o '"\(slowdowns\|speedups\|freq_errors\)":[0-9]*'
	follows off || lab_fail "it says that it follows"
	errors=$(kbp_counter freq_errors)
	# It is asked again once a second, and not at each of the hundred sleeps and wake-ups.
	[ "$errors" -ge 1 ] || lab_fail "refusals are not counted"
	[ "$errors" -le 5 ] || lab_fail "$errors refusals"
	kbp show 2>&1 | grep "does not follow its poller: its driver refused" || lab_fail "kbp show does not say so"
	lab_quickly kbp unload || lab_fail "unload"
	is scaling_governor performance
	freq_unload
done
lab_dmesg_clean
lab_pass
