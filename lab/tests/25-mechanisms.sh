#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --module lab/modules/testfreq --timeout 900s
# kernels: wide
#
# Every mechanism that can run on this kernel is set up around a short ping-pong, is seen to have served it, and leaves
# nothing behind; the others say why they can't. On network cards, and on loopback, which has no interrupts; those that
# have the frequency follow the poller without a cpufreq driver, and with one that only counts.

. /lab/lib.sh
. /lab/net.sh

LO_PORT=7703
POLICY=/sys/devices/system/cpu/cpufreq/policy$NET_CPU

# Everything that a mechanism may change, as text. Threads of mainline stay when they are switched off on older kernels.
settings() {
	cat /sys/class/net/eth0/threaded /sys/class/net/eth0/napi_defer_hard_irqs /sys/class/net/eth0/gro_flush_timeout
	ip netns exec tester cat /sys/class/net/eth1/threaded /sys/class/net/eth1/gro_flush_timeout
	cat /sys/class/net/lo/queues/rx-0/rps_cpus
	for file in /proc/sys/net/core/busy_read /proc/sys/net/core/busy_poll; do
		[ ! -e "$file" ] || cat "$file"
	done
	grep -h . /proc/irq/*/smp_affinity_list
	[ ! -e "$POLICY" ] || cat "$POLICY/scaling_governor"
	[ ! -e /sys/module/kbp ] || echo "the module is loaded"
}

# one PATH MECHANISM DEVICES...: the ping-pong of that path while the mechanism serves it.
one() {
	path=$1 name=$2 account="$OUT/$1-$2"
	shift 2
	ns=tester to="$NET_SERVER:$NET_PORT"
	[ "$path" = nic ] || { ns='' to="127.0.0.1:$LO_PORT"; }
	# shellcheck disable=SC2086
	kbp measure mechanism "$name" "$@" --cpu "$NET_CPU" --module "$MODULES/kbp.ko" -- \
		kbp ${ns:+-n $ns} measure pingpong client "$to" --json --cpu 1 --timeout-ms 5000 --count 50 \
		> "$account.json" 2> "$account.err" || lab_fail "$path, $name: $(cat "$account.err")"
	sed "s/^/$path $name: /" "$account.err"
	grep -q 'its counters moved' "$account.err" || lab_fail "$path, $name was not shown to have served"
	lost=$(sed -n 's/.*"lost":\([0-9]*\).*/\1/p' "$account.json" | head -n 1)
	[ "$lost" = 0 ] || lab_fail "$path, $name: '$lost' lost"
	[ "$(settings)" = "$before" ] || lab_fail "$path, $name left something: $(settings)"
	served="$served $name"
}

# all PATH DEVICES...
all() {
	path_of_all=$1
	shift
	served=
	kbp measure mechanisms --cpu "$NET_CPU" "$@" > "$OUT/$path_of_all.txt" || lab_fail "kbp measure mechanisms"
	cat "$OUT/$path_of_all.txt"
	mechanisms=$(awk '$2 == "yes" { print $1 }' "$OUT/$path_of_all.txt")
	for mechanism in $mechanisms; do
		one "$path_of_all" "$mechanism" "$@"
	done
	echo "$path_of_all: served by$served"
}

expect() {
	for wanted in "$@"; do
		case " $served " in
		*" $wanted "*) ;;
		*) lab_fail "$wanted did not serve" ;;
		esac
	done
}

net_up
# Whether a mechanism serves is asked here, not how soon.
lab_turns long
ip link set lo up
kbp measure pingpong server --bind "127.0.0.1:$LO_PORT" --cpu 3 > /run/server-lo.log 2>&1 &
lab_defer kill $!
lab_wait_for 10 grep -qi ":1E17 " /proc/net/udp
before=$(settings)

all nic --dev eth0 --dev eth1@tester
expect softirq threaded threaded-fifo defer-irqs kbp-busy
[ ! -e /proc/sys/net/core/busy_read ] || expect busy-read
grep -A1 '^kbp-sleep+freq ' "$OUT/nic.txt" | grep "CPU $NET_CPU has no frequency to choose" ||
	lab_fail "kbp-sleep+freq without a frequency"
all lo --dev lo
expect softirq
! grep -q thread_backlog_napi /proc/cmdline || expect backlog-threads

echo "with a frequency to choose"
insmod "$MODULES/kbp_testfreq.ko" || lab_fail "insmod kbp_testfreq"
echo performance > "$POLICY/scaling_governor"
before=$(settings)
served=
for mechanism in kbp-sleep+freq kbp-sleep+freq-on kbp-adaptive+freq; do
	changes=$(cat "$POLICY/kbp_test_transitions")
	one nic "$mechanism" --dev eth0 --dev eth1@tester
	[ "$(cat "$POLICY/kbp_test_transitions")" -gt "$changes" ] || lab_fail "$mechanism has not changed the frequency"
done
kbp measure mechanism kbp-sleep+freq --dev eth0 --cpu "$NET_CPU" --module "$MODULES/kbp.ko" --seconds 100 \
	2> "$OUT/killed-freq.err" &
lab_wait_for 30 grep -q 'is active' "$OUT/killed-freq.err"
kill -KILL $!
[ "$(cat "$POLICY/scaling_governor")" = kbp ] || lab_fail "the governor was not set"
kbp measure mechanism softirq --dev eth0 --cpu "$NET_CPU" -- true || lab_fail "softirq after a killed process"
[ "$(settings)" = "$before" ] || lab_fail "the governor of a killed process was not undone: $(settings)"
rmmod kbp_testfreq || lab_fail "rmmod kbp_testfreq"
before=$(settings)

# A process that is killed leaves its mechanism; the next one undoes it.
kbp measure mechanism defer-irqs --dev eth0 --cpu "$NET_CPU" --seconds 100 2> "$OUT/killed.err" &
lab_wait_for 30 grep -q 'is active' "$OUT/killed.err"
kill -KILL $!
[ "$(cat /sys/class/net/eth0/napi_defer_hard_irqs)" = 100 ] || lab_fail "defer-irqs was not set"
kbp measure mechanism softirq --dev eth0 --cpu "$NET_CPU" -- true || lab_fail "softirq after a killed process"
[ "$(settings)" = "$before" ] || lab_fail "what a killed process left was not undone: $(settings)"

lab_dmesg_clean
lab_pass
