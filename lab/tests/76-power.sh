#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testfreq --module lab/modules/testidle --timeout 400s
# kernels: wide
#
# The drivers for frequencies and idle states that the tests of both need, since an emulated processor has neither.
# cpufreq: requests of a governor are counted, take their time, are made as fast switches or refused, and the clock
# stays what it is. cpuidle: a packet that wakes a CPU comes later by what the state's exit takes, and PM QoS bounds
# that. Both go and come while packets are on their way.

. /lab/lib.sh
. /lab/net.sh

CPUS=/sys/devices/system/cpu
POLICY=$CPUS/cpufreq/policy$NET_CPU
PINGS=100

between() { [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]; }

# ---- frequencies ----

freq_load() {
	insmod "$MODULES/kbp_testfreq.ko" "$@" || lab_fail "insmod kbp_testfreq $*"
	[ "$(cat "$POLICY/scaling_driver")" = kbp_testfreq ] || lab_fail "the driver is not in use"
}

freq_unload() {
	rmmod kbp_testfreq || lab_fail "rmmod kbp_testfreq"
	[ ! -e "$POLICY" ] || lab_fail "a policy is left"
}

# is FILE VALUE: of the policy.
is() {
	is_now=$(cat "$POLICY/$1")
	[ "$is_now" = "$2" ] || lab_fail "$1 is $is_now, not $2"
}

# Time since the module was loaded, from the files alone: no process is started, so little is added to what is timed.
now_us() {
	NOW_US=0
	while read -r _ spent_ns; do
		NOW_US=$((NOW_US + spent_ns / 1000))
	done < "$POLICY/kbp_test_time_ns"
}

# set_speed KHZ: and how long it took, in $TOOK_US.
set_speed() {
	now_us
	set_begin_us=$NOW_US
	echo "$1" > "$POLICY/scaling_setspeed"
	now_us
	TOOK_US=$((NOW_US - set_begin_us))
	echo "to $1 kHz: $TOOK_US us"
}

userspace_governor() {
	modprobe cpufreq_userspace
	echo userspace > "$POLICY/scaling_governor" || lab_fail "no governor userspace"
}

echo "frequencies: counted, and as slow as they say"
freq_load latency_us=2000
is scaling_available_frequencies "800000 1600000 2400000 "
is cpuinfo_transition_latency 2000000
userspace_governor
set_speed 2400000
transitions=$(cat "$POLICY/kbp_test_transitions")
set_speed 800000
between "$TOOK_US" 2000 3000 || lab_fail "a transition of 2000 us took $TOOK_US us"
is kbp_test_transitions $((transitions + 1))
is scaling_cur_freq 800000
set_speed 800000
[ "$TOOK_US" -lt 1000 ] || lab_fail "no transition took $TOOK_US us"
is kbp_test_transitions $((transitions + 1))
is stats/total_trans $((transitions + 1))
before_ns=$(sed -n 's/^800000 //p' "$POLICY/kbp_test_time_ns")
sleep 0.05
after_ns=$(sed -n 's/^800000 //p' "$POLICY/kbp_test_time_ns")
[ $((after_ns - before_ns)) -ge 50000000 ] || lab_fail "50 ms at 800 MHz count as $((after_ns - before_ns)) ns"

echo "frequencies: what was counted outlives the CPU's absence"
echo 0 > "$CPUS/cpu$NET_CPU/online"
echo 1 > "$CPUS/cpu$NET_CPU/online"
[ "$(cat "$POLICY/kbp_test_transitions")" -gt "$transitions" ] || lab_fail "the count was lost"
freq_unload

echo "frequencies: fast switches"
freq_load fast=1
have_switched() {
	for fast_file in "$CPUS"/cpufreq/policy*/kbp_test_fast_switches; do
		[ "$(cat "$fast_file")" -ge 1 ] || return 1
	done
}
is scaling_governor schedutil
lab_wait_for 10 have_switched
is kbp_test_transitions 0
freq_unload

echo "frequencies: policies of two CPUs"
freq_load shared=1
is affected_cpus "2 3"
[ ! -e "$CPUS/cpufreq/policy3" ] || lab_fail "CPU 3 has a policy of its own"
freq_unload

echo "frequencies: refused"
freq_load broken=1
userspace_governor
echo 800000 > "$POLICY/scaling_setspeed"
is scaling_cur_freq 2400000
is kbp_test_transitions 0
[ "$(cat "$POLICY/kbp_test_refused")" -ge 1 ] || lab_fail "nothing was refused"
freq_unload
[ "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" = tsc ] || lab_fail "the clock has changed"
! lab_dmesg_since | grep 'TSC unstable\|switching not enabled' || lab_fail "the kernel did not take the driver as it is"

# ---- idle states ----

idle_load() {
	insmod "$MODULES/kbp_testidle.ko" "$@" || lab_fail "insmod kbp_testidle $*"
	[ "$(cat $CPUS/cpuidle/current_driver)" = kbp_testidle ] || lab_fail "the driver is not in use"
}

idle_unload() {
	rmmod kbp_testidle || lab_fail "rmmod kbp_testidle"
	[ "$(cat $CPUS/cpuidle/current_driver)" = none ] || lab_fail "the driver is left"
	[ ! -e "$CPUS/cpu$NET_CPU/cpuidle/state0" ] || lab_fail "states are left"
}

# usage STATE: how often CPU 2 was in it.
usage() {
	for usage_name in "$CPUS/cpu$NET_CPU"/cpuidle/state*/name; do
		[ "$(cat "$usage_name")" != "$1" ] || cat "${usage_name%name}usage"
	done
}

# limit US CPU...: PM QoS; 0 is no limit.
limit() {
	limit_us=$1
	shift
	for limit_cpu; do
		echo "$limit_us" > "$CPUS/cpu$limit_cpu/power/pm_qos_resume_latency_us" || lab_fail "PM QoS"
	done
}

# row NAME LIMIT_US: pings that wake CPU 2, which may sleep as the limit says, and how often it was in which state.
row() {
	limit "$2" "$NET_CPU"
	c1=$(usage C1) c3=$(usage C3) c6=$(usage C6)
	net_traffic "$1" --count $PINGS --period-us 5000
	net_none_lost "$1"
	c1=$(($(usage C1) - c1)) c3=$(($(usage C3) - c3)) c6=$(($(usage C6) - c6))
	P50=$(net_value "$1" p50)
	echo "$1: limit $2 us, p50 $P50 ns, C1 $c1, C3 $c3, C6 $c6 times"
}

# slower WHAT NS EXPECTED_NS: within a fifth and 10 us, since what other CPUs do meanwhile does not come after it.
slower() {
	slower_room_ns=$(($3 / 5 + 10000))
	echo "$1: $2 ns slower, $3 expected"
	between "$2" $(($3 - slower_room_ns)) $(($3 + slower_room_ns)) || lab_fail "$1: not as slow as it says"
}

# Packets to the server come by CPU 2, which has nothing else to do; all else is kept from sleeping deeply.
net_up
lab_irqs_to "$NET_CPU" eth0
lab_irqs_to 1 eth1
idle_load
limit 10 0 1 3

echo "idle states: what waking takes"
row shallow 10
shallow=$P50
[ "$c3:$c6" = 0:0 ] || lab_fail "a limit of 10 us is not kept"
[ "$c1" -ge $PINGS ] || lab_fail "with a limit of 10 us it does not sleep in C1"
row middle 100
[ "$c6" = 0 ] || lab_fail "a limit of 100 us is not kept"
[ "$c3" -ge $((PINGS * 3 / 4)) ] || lab_fail "with a limit of 100 us it does not sleep in C3"
slower "C3 after C1" $((P50 - shallow)) 48000
row deep 0
[ "$c6" -ge $((PINGS * 3 / 4)) ] || lab_fail "without a limit it does not sleep in C6"
slower "C6 after C1" $((P50 - shallow)) 198000
in_interrupt=$(cat /sys/module/kbp_testidle/parameters/paid_in_interrupt)
behind_hlt=$(cat /sys/module/kbp_testidle/parameters/paid_behind_hlt)
echo "paid in interrupts $in_interrupt times, behind HLT $behind_hlt times"
[ "$in_interrupt" -ge $((3 * PINGS)) ] || lab_fail "interrupts did not wait for the exits of the states"
[ "$behind_hlt" -le $((PINGS / 10)) ] || lab_fail "the exits of the states came after interrupts"

echo "idle states: a CPU goes and comes"
echo 0 > "$CPUS/cpu$NET_CPU/online"
echo 1 > "$CPUS/cpu$NET_CPU/online"
lab_irqs_to "$NET_CPU" eth0
row again 0
[ "$c6" -ge $((PINGS * 3 / 4)) ] || lab_fail "it no longer sleeps in C6"
idle_unload

echo "other latencies, and what is refused"
idle_load latencies_us=5,20,1000
[ "$(cat "$CPUS/cpu$NET_CPU"/cpuidle/state*/latency | tr '\n' ' ')" = "0 5 20 1000 " ] || lab_fail "latencies"
idle_unload
for wrong in 2,50 2,50,50 0,1,2 1,2,100000; do
	! insmod "$MODULES/kbp_testidle.ko" "latencies_us=$wrong" 2> /dev/null || lab_fail "latencies_us=$wrong is taken"
done

echo "both go and come under traffic"
net_traffic under --seconds 1.5 --period-us 500
for _ in 1 2 3; do
	freq_load
	idle_load
	freq_unload
	idle_unload
done
net_alive || lab_fail "the traffic ended before the modules were gone"
net_none_lost under
limit 0 0 1 2 3
lab_dmesg_clean
lab_pass
