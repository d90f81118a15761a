#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --mem 512 --package qemu-system-x86 --package qemu-system-common --package seabios --package util-linux --module lab/modules/testfreq --timeout 400s
# kernels: wide
# beside: others
#
# `kbp vm` with a real QEMU in the guest, which emulates and does not run: its vCPU threads and the workers of vhost are
# those of any machine. What tuning changes is shown before, is so after, and goes back byte for byte, also when the
# machine has ended; what came since or was changed by hand is found; what can't be is refused with the reason.

. /lab/lib.sh

CPUS=/sys/devices/system/cpu

# vm_start NAME OPTIONS...: a machine; $VM is its process, $VM-mon.in takes commands.
vm_start() {
	vm_name=$1
	shift
	mkfifo "/run/$vm_name.in" "/run/$vm_name.out"
	qemu-system-x86_64 -M microvm -cpu qemu64 -m 16 -accel tcg,thread=multi,tb-size=16 -nodefaults -display none -S \
		-monitor "pipe:/run/$vm_name" "$@" > "$OUT/$vm_name.log" 2>&1 &
	VM=$!
	cat "/run/$vm_name.out" > "$OUT/$vm_name.monitor" &
	lab_defer "kill $VM 2> /dev/null || :"
	# It answers when it is whole, with all its threads.
	monitor "$vm_name" "info status"
	lab_wait_for 60 grep -q "VM status" "$OUT/$vm_name.monitor"
}

# monitor NAME COMMAND: without waiting for what it does.
monitor() { echo "$2" > "/run/$1.in"; }

# workers PID: the numbers of its vhost workers, by the kernel's own names.
workers() {
	for workers_comm in /proc/[0-9]*/comm "/proc/$1/task/"*/comm; do
		if [ "$(cat "$workers_comm" 2> /dev/null)" = "vhost-$1" ]; then
			workers_dir=${workers_comm%/comm}
			echo "${workers_dir##*/}"
		fi
	done | sort -un
}

has_workers() { [ "$(workers "$1" | wc -l)" = "$2" ]; }

# vcpu PID N: the number of a vCPU's thread.
vcpu() {
	for vcpu_comm in "/proc/$1/task/"*/comm; do
		if [ "$(cat "$vcpu_comm")" = "CPU $2/TCG" ]; then
			vcpu_dir=${vcpu_comm%/comm}
			echo "${vcpu_dir##*/}"
		fi
	done
}

# thread TID: everything of it that tuning may touch.
thread() {
	echo "thread $1 $(cat "/proc/$1/comm")"
	grep Cpus_allowed "/proc/$1/status"
	sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f16,17,38,39
	grep -E '^(policy|prio) ' "/proc/$1/sched"
	chrt -p "$1"
}

# snapshot PID: the machine's threads, all frequencies and all interrupts.
snapshot() {
	snapshot_tids=$(ls "/proc/$1/task" 2> /dev/null)
	for snapshot_tid in $(echo "$snapshot_tids $(workers "$1")" | tr ' ' '\n' | sort -un); do
		thread "$snapshot_tid"
	done
	host_snapshot
}

host_snapshot() {
	for snapshot_file in "$CPUS"/cpufreq/*/scaling_governor "$CPUS"/cpufreq/*/scaling_setspeed \
		"$CPUS"/cpufreq/ondemand/* /proc/irq/*/smp_affinity* /proc/sys/kernel/sched_rt*; do
		[ ! -f "$snapshot_file" ] || echo "$snapshot_file $(cat "$snapshot_file")"
	done
}

# same A B: two snapshots.
same() { diff "$OUT/$1" "$OUT/$2" || lab_fail "$2 is not $1"; }

# is_on TID CPUS POLICY PRIORITY
is_on() {
	is_cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status")
	is_policy=$(sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f38,39)
	[ "$is_cpus $is_policy" = "$2 $4 $3" ] || lab_fail "thread $1 is on $is_cpus, policy $is_policy"
}

# refused CODE WORDS COMMAND...: the exit code, and what is said.
refused() {
	refused_code=$1 refused_words=$2
	shift 2
	"$@" > "$OUT/refused" 2>&1
	refused_is=$?
	[ "$refused_is" = "$refused_code" ] || lab_fail "$*: $refused_is, not $refused_code: $(cat "$OUT/refused")"
	grep "$refused_words" "$OUT/refused" || lab_fail "$*: no '$refused_words': $(cat "$OUT/refused")"
}

# notes WORDS: are among what tuning says.
notes() { grep "$1" "$OUT/notes" || lab_fail "no '$1': $(cat "$OUT/notes")"; }

modprobe -a vhost_net tun || lab_fail "modprobe"
insmod "$MODULES/kbp_testfreq.ko" || lab_fail "testfreq"
modprobe -a cpufreq_userspace cpufreq_ondemand || lab_fail "governors"
# What was set by hand for a governor goes with it.
echo userspace > "$CPUS/cpu2/cpufreq/scaling_governor"
echo 1600000 > "$CPUS/cpu2/cpufreq/scaling_setspeed"
echo ondemand > "$CPUS/cpu3/cpufreq/scaling_governor"
echo 71 > "$CPUS/cpufreq/ondemand/up_threshold" || lab_fail "up_threshold"

echo "no machine"
kbp vm list | tee "$OUT/list" | grep -q PID || lab_fail "list"
refused 6 "no virtual machine of QEMU runs here" kbp vm tune demo --vcpu-cpus 2
refused 6 "is no virtual machine" kbp vm tune 1 --vcpu-cpus 2
refused 6 "is not tuned" kbp vm untune demo
kbp vm untune --all | grep "no virtual machine is tuned" || lab_fail "untune --all"

echo "two machines, one without names of threads"
vm_start plain -name plain -smp 1
plain=$VM
vm_start demo -name guest=demo,debug-threads=on -smp 2 \
	-netdev tap,id=n0,ifname=tap0,script=no,downscript=no,vhost=on -device virtio-net-device,netdev=n0
demo=$VM
lab_wait_for 20 has_workers "$demo" 1
kbp vm list 2> "$OUT/notes" | tee "$OUT/list"
notes "debug-threads=on"
vcpu0=$(vcpu "$demo" 0) vcpu1=$(vcpu "$demo" 1) worker=$(workers "$demo")
for line in "$vcpu0  *vCPU 0" "$vcpu1  *vCPU 1" "$worker  *vhost worker"; do
	grep "^$demo  demo .* no .*$line" "$OUT/list" || lab_fail "not listed: $line"
done
kbp vm list --json | grep -o "\"pid\":$demo,[^[]*"

# Something that is to come back: a nice value, and a thread that is bound already.
renice -n 5 -p "$vcpu1" > /dev/null || lab_fail "renice"
taskset -pc 0-2 "$vcpu1" > /dev/null || lab_fail "taskset"
irq=$(sed -n 's/^ *\([0-9]*\):.*virtio.*/\1/p' /proc/interrupts | head -n 1)
echo 2 > "/proc/irq/$irq/smp_affinity_list" || lab_fail "interrupt $irq"
snapshot "$demo" > "$OUT/before"

echo "what is refused"
refused 2 "nothing is asked for" kbp vm tune demo
refused 6 "CPU 9" kbp vm tune demo --vcpu-cpus 2,9
refused 4 "debug-threads=on" kbp vm tune plain --vcpu-cpus 2
refused 4 "has no governor 'nosuch'" kbp vm tune demo --vcpu-cpus 2 --governor nosuch
refused 5 "needs root" setpriv --reuid=1000 --clear-groups kbp vm tune demo --vcpu-cpus 2
refused 5 "needs root" setpriv --bounding-set=-sys_nice --inh-caps=-sys_nice kbp vm tune demo --vcpu-cpus 2 --governor keep
cgroups=$(sed -n 's/^[^ ]* \([^ ]*\) cgroup2 .*/\1/p' /proc/mounts)
echo +cpuset > "$cgroups/cgroup.subtree_control" || lab_fail "cpuset"
mkdir "$cgroups/narrow"
echo 0-1 > "$cgroups/narrow/cpuset.cpus"
kill "$plain"
wait "$plain"
rm -f /run/plain.in /run/plain.out
vm_start plain -name guest=plain,debug-threads=on -smp 1
plain=$VM
echo "$plain" > "$cgroups/narrow/cgroup.procs"
refused 7 "lacks CPU 2" kbp vm tune plain --vcpu-cpus 2
snapshot "$demo" > "$OUT/refused-all"
same before refused-all
! grep '"original"' /run/kbp/state.json 2> /dev/null || lab_fail "something is remembered"

echo "shown before"
kbp vm tune demo --vcpu-cpus 2-3 --vhost-cpus 3 --dry-run 2> "$OUT/notes" | tee "$OUT/dry"
for change in "bind vCPU 0 (thread $vcpu0) to CPU 2 (now 0-3)" "set vCPU 1 (thread $vcpu1) to SCHED_FIFO 1" \
	"bind vhost worker (thread $worker) to CPU 3" "cpu2/cpufreq/scaling_governor ('userspace' now)"; do
	grep -F "$change" "$OUT/dry" || lab_fail "not shown: $change"
done
notes "interrupt $irq .* is pinned to CPU 2; .echo 0-1 > /proc/irq/$irq/smp_affinity_list"
notes "share CPU 3: a vCPU with a real-time priority"
notes "CPU 2-3 is not isolated: .*isolcpus"
if [ -d /sys/kernel/debug/sched/fair_server ]; then
	notes "fair server has up to 50000 of 1000000 us of CPU 2"
else
	notes "sched_rt_runtime_us is 950000 of 1000000 us"
fi
snapshot "$demo" > "$OUT/dry-run"
same before dry-run

echo "done"
kbp vm tune demo --vcpu-cpus 3,2 --vhost-cpus 1 --priority f:7 --vhost-priority f:3 || lab_fail "tune"
is_on "$vcpu0" 3 1 7
is_on "$vcpu1" 2 1 7
is_on "$worker" 1 1 3
for cpu in 1 2 3; do
	[ "$(cat "$CPUS/cpu$cpu/cpufreq/scaling_governor")" = performance ] || lab_fail "governor of CPU $cpu"
done
kbp vm verify demo || lab_fail "verify"
kbp vm list | grep "demo .* yes .*SCHED_FIFO 7" || lab_fail "list: $(kbp vm list)"
kbp vm tune demo --dry-run > "$OUT/again" 2> /dev/null || lab_fail "again"
[ ! -s "$OUT/again" ] || lab_fail "it would change again: $(cat "$OUT/again")"

echo "a worker comes, a thread is changed by hand"
monitor demo "netdev_add tap,id=n1,ifname=tap1,script=no,downscript=no,vhost=on"
lab_wait_for 20 has_workers "$demo" 2
taskset -pc 0 "$vcpu0" > /dev/null
chrt --rr -p 4 "$vcpu1" || lab_fail "chrt"
new=$(workers "$demo" | grep -vx "$worker")
refused 10 "vCPU 0 (thread $vcpu0) is on CPU 0, not on CPU 3" kbp vm verify demo
grep "vCPU 1 (thread $vcpu1) has SCHED_RR 4.*, not SCHED_FIFO 7" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
grep "vhost worker (thread $new) came since" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
thread "$new" > "$OUT/new-before"
kbp vm tune demo --vhost-cpus 0-1 || lab_fail "tune again"
is_on "$worker" 1 1 3
is_on "$new" 0 1 3
is_on "$vcpu0" 3 1 7
kbp vm verify demo || lab_fail "verify"
monitor demo "netdev_del n1"
lab_wait_for 20 has_workers "$demo" 1
kbp vm verify demo || lab_fail "a worker that went is missed"

echo "what somebody else changed is left alone"
taskset -pc 0-1 "$vcpu0" > /dev/null
kbp vm untune demo | tee "$OUT/undone"
grep "vCPU 0 (thread $vcpu0) .* its affinity was left alone" "$OUT/undone" || lab_fail "not left alone"
is_on "$vcpu0" 0-1 0 0
taskset -pc 0-3 "$vcpu0" > /dev/null
snapshot "$demo" > "$OUT/undone-one"
same before undone-one
! grep '"original"' /run/kbp/state.json || lab_fail "something is still remembered"
refused 6 "is not tuned" kbp vm untune demo

echo "undone byte for byte"
kbp vm tune "$demo" --vcpu-cpus 2-3 --vhost-cpus 1 --vhost-priority o:-3 2> /dev/null || lab_fail "tune by process"
snapshot "$demo" > "$OUT/tuned"
! diff "$OUT/before" "$OUT/tuned" > /dev/null || lab_fail "nothing is changed"
kbp vm untune "$demo" || lab_fail "untune"
snapshot "$demo" > "$OUT/after"
same before after

echo "a poller"
kbp load --module "$MODULES/kbp.ko" || lab_fail "load"
kbp poller add --cpu 3 || lab_fail "poller"
refused 7 "CPU 3 has a kbp poller" kbp vm tune demo --vcpu-cpus 2-3
kbp vm tune demo --vcpu-cpus 2-3 --force 2> "$OUT/notes" || lab_fail "--force"
notes "CPU 3 has a kbp poller"
kbp vm untune --all || lab_fail "untune --all"
kbp unload || lab_fail "unload"
snapshot "$demo" > "$OUT/after-poller"
same before after-poller

echo "the machine ends, and another one of that name is another one"
kbp vm tune demo --vcpu-cpus 2-3 --vhost-cpus 1 2> /dev/null || lab_fail "tune"
host_snapshot > "$OUT/host-tuned"
kill -9 "$demo"
wait "$demo"
lab_wait_for 20 has_workers "$demo" 0
refused 6 "has ended; .kbp vm untune demo. puts back" kbp vm verify demo
kbp vm untune demo | tee "$OUT/undone"
grep "has ended: it has no threads to put back" "$OUT/undone" || lab_fail "its end is not said"
grep "the governor of CPU 2 is userspace again" "$OUT/undone" || lab_fail "governor"
host_snapshot > "$OUT/host-after"
grep "^/" "$OUT/before" > "$OUT/host-before"
same host-before host-after
! diff "$OUT/host-tuned" "$OUT/host-after" > /dev/null || lab_fail "no governor was changed"
! grep '"original"' /run/kbp/state.json || lab_fail "something is still remembered"
vm_start twin -name guest=plain,debug-threads=on -smp 1
refused 2 "is the name of 2 virtual machines" kbp vm tune plain --vcpu-cpus 0
kbp vm tune "$VM" --priority f:2 || lab_fail "by process"
is_on "$(vcpu "$VM" 0)" 0-3 1 2
kbp vm untune plain || lab_fail "only one of them is tuned"
is_on "$(vcpu "$VM" 0)" 0-3 0 0
lab_dmesg_clean
lab_pass
