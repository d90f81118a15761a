#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testidle --module lab/modules/testfreq --timeout 500s
# kernels: wide
#
# Deep idle states are kept from a poller's CPU while packets are to be expected, and let in during a silence: the
# kernel counts which states the CPU enters, and the round trips show what their exits take. The limit ends with the
# poller, and the user's own is left as it is. So it is in mode adaptive, with a frequency that follows the poller, too.

. /lab/lib.sh
. /lab/net.sh

CPU_DIR=/sys/devices/system/cpu/cpu$NET_CPU
USERS_LIMIT=$CPU_DIR/power/pm_qos_resume_latency_us
LIMIT_US=10
# The deepest state's exit: a silence of a hundred times that lets it in.
DEEP_US=200

# usage STATE: how often the CPU entered it.
usage() {
	for usage_name in "$CPU_DIR"/cpuidle/state*/name; do
		[ "$(cat "$usage_name")" != "$1" ] || cat "${usage_name%name}usage"
	done
}

MODE="sleep"

# poller ARGUMENTS...: serves the card in $MODE.
poller() {
	kbp poller add --cpu "$NET_CPU" "$@" > "$OUT/added" || lab_fail "poller add $*"
	kbp attach eth0 --cpu "$NET_CPU" --mode "$MODE" > /dev/null || lab_fail "attach"
}

poller_del() { kbp poller del --cpu "$NET_CPU" > "$OUT/deleted" || lab_fail "poller del"; }

# pings NAME PERIOD_US COUNT: how often the CPU was in $C6 meanwhile, also before the first packet and after the last,
# and how many sleeps had the limit $LIFTED; $P90 of the round trips.
pings() {
	C6=$(usage C6) LIFTED=$(kbp_counter deep_sleeps)
	net_traffic "$1" --count "$3" --period-us "$2" --jitter 0
	net_none_lost "$1"
	C6=$(($(usage C6) - C6)) LIFTED=$(($(kbp_counter deep_sleeps) - LIFTED)) P90=$(net_value "$1" p90)
	echo "$1: C6 $C6 times, the limit lifted in $LIFTED sleeps for $3 packets, p90 $P90 ns"
}

limited() { kbp poller show --json | grep -q "\"max_cstate_latency_us\":$LIMIT_US,\"cstates_limited\":true"; }

net_up
lab_quickly kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"

echo "what is refused"
! kbp poller add --cpu "$NET_CPU" --max-cstate-latency $LIMIT_US 2> "$OUT/refused" || lab_fail "without idle states"
grep "no cpuidle driver has it" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
insmod "$MODULES/kbp_testidle.ko" "latencies_us=2,50,$DEEP_US" || lab_fail "insmod kbp_testidle"
! kbp poller add --cpu "$NET_CPU" --max-cstate-latency $DEEP_US 2> "$OUT/refused" || lab_fail "a limit of all"
grep "keeps none away" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
! kbp poller add --cpu "$NET_CPU" --max-cstate-latency 40000 2> "$OUT/refused" || lab_fail "40 ms"
grep "from 0 to 30000" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"

net_limit_others $LIMIT_US

echo "without a limit, a packet every 5 ms waits for the exit of C6"
poller
pings deep 5000 100
deep=$P90
[ "$C6" -ge 75 ] || lab_fail "C6 $C6 times"
poller_del

echo "with a limit it does not"
poller --max-cstate-latency $LIMIT_US
limited || lab_fail "$(kbp poller show --json)"
kbp save - | grep "max_cstate_latency_us = $LIMIT_US" || lab_fail "it is not saved"
pings limited 5000 100
[ "$LIFTED" -le 15 ] || lab_fail "the limit was lifted in $LIFTED sleeps"
[ $((deep - P90)) -ge $((DEEP_US * 800)) ] || lab_fail "p90 $P90 ns, and $deep ns without the limit"
limited_p90=$P90

echo "a silence lets it in"
pings silent 50000 40
[ "$C6" -ge 30 ] || lab_fail "C6 $C6 times"
[ "$LIFTED" -ge 35 ] || lab_fail "the limit was lifted in $LIFTED sleeps"
[ "$P90" -ge $((limited_p90 + DEEP_US * 800)) ] || lab_fail "p90 $P90 ns, and $limited_p90 ns with a packet every 5 ms"
pings busy-again 5000 100
[ "$LIFTED" -le 15 ] || lab_fail "the limit was lifted in $LIFTED sleeps"
[ "$P90" -le $((limited_p90 + 20000)) ] || lab_fail "p90 $P90 ns, and $limited_p90 ns before"

echo "one that was asked for by somebody else counts, and stays as it is"
echo 100 > "$USERS_LIMIT"
pings beside 50000 20
[ "$C6" = 0 ] || lab_fail "C6 $C6 times beside a limit of 100 us"
[ "$(cat "$USERS_LIMIT")" = 100 ] || lab_fail "the user's limit is $(cat "$USERS_LIMIT") us"
echo 0 > "$USERS_LIMIT"

echo "the CPU goes and comes, and the limit with it"
echo 0 > "$CPU_DIR/online"
! limited || lab_fail "a CPU that is not there is limited"
echo 1 > "$CPU_DIR/online"
lab_wait_for 5 limited
pings back 5000 100
# Its interrupts went to another CPU with it, which wakes the poller from there since.
[ "$P90" -le $((limited_p90 + 40000)) ] || lab_fail "p90 $P90 ns, and $limited_p90 ns before"

echo "it ends with the poller"
poller_del
poller
pings after 5000 100
[ "$C6" -ge 75 ] || lab_fail "C6 $C6 times"
poller_del

echo "in mode adaptive, with a frequency that follows it"
insmod "$MODULES/kbp_testfreq.ko" || lab_fail "insmod kbp_testfreq"
MODE=adaptive
poller --max-cstate-latency $LIMIT_US --freq auto
limited || lab_fail "$(kbp poller show --json)"
kbp poller show --json | grep -q '"freq_active":"auto"' || lab_fail "$(kbp poller show --json)"
# What it learns first.
pings learned 5000 50
pings adaptive 5000 100
[ "$LIFTED" -le 15 ] || lab_fail "the limit was lifted in $LIFTED sleeps"
[ "$P90" -le $((limited_p90 + 60000)) ] || lab_fail "p90 $P90 ns, and $limited_p90 ns in mode sleep"
changes=$(cat "$CPU_DIR/cpufreq/kbp_test_transitions")
pings adaptive-silent 50000 40
[ "$LIFTED" -ge 30 ] || lab_fail "the limit was lifted in $LIFTED sleeps"
changes=$(($(cat "$CPU_DIR/cpufreq/kbp_test_transitions") - changes))
[ "$changes" -ge 40 ] || lab_fail "$changes changes of the frequency in 40 silences"
poller_del
[ "$(cat "$CPU_DIR/cpufreq/scaling_governor")" = schedutil ] || lab_fail "$(cat "$CPU_DIR/cpufreq/scaling_governor")"
rmmod kbp_testfreq || lab_fail "rmmod kbp_testfreq"
MODE="sleep"

echo "and with the module"
# Without a poller, too, packets are to come by this CPU.
lab_irqs_to "$NET_CPU" eth0
poller --max-cstate-latency $LIMIT_US
lab_quickly kbp unload || lab_fail "unload"
c6=$(usage C6)
net_traffic stock --count 100 --period-us 5000 --jitter 0
net_none_lost stock
[ $(($(usage C6) - c6)) -ge 75 ] || lab_fail "C6 $(($(usage C6) - c6)) times without the module"
lab_dmesg_clean
lab_pass
