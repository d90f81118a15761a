#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --nested 6.1 --cpus 5 --mem 1024 --nics 2 --timeout 1800s --module lab/modules/storm --module lab/modules/svmexit --package util-linux
# kernels: slow
#
# A machine inside the guest, on the guest's own KVM with vhost-net: its threads are placed by `kbp vm tune`, a poller in
# each serves the card, the other end of the wire gets all its answers, no packet goes through a softirq of the card's CPU
# in either, and both are undone. The machine's card has two queues, each with a vhost worker: both workers are placed,
# and the poller inside serves both queues.
# It takes the host minutes, most of them for the boot inside, so only `run-tests.py lab --test` runs it.

. /lab/lib.sh
. /lab/nested.sh
. /lab/ovs.sh
. /lab/vm-lib.sh

PINGS=200

# The machine sends on the queue of the CPU that its server has, and what comes back comes on the same one.
OTHER_PORT=7701
NESTED_QUEUES=2

# pings NAME [PORT]: round trips; sets HOST and GUEST, the softirqs that they took.
pings() {
	vm_count_softirqs
	kbp -n tester measure pingpong client "$VM_SERVER:${2:-$VM_PORT}" --json --cpu 0 --count "$PINGS" --period-us 500 \
		> "$OUT/$1.json" 2> "$OUT/$1.err" || lab_fail "the client failed: $(cat "$OUT/$1.err")"
	HOST=$VM_NET_RX_HOST
	GUEST=$VM_NET_RX_GUEST
	vm_count_softirqs
	HOST=$((VM_NET_RX_HOST - HOST))
	GUEST=$((VM_NET_RX_GUEST - GUEST))
	n=$(sed -n 's/.*"n":\([0-9]*\).*/\1/p' "$OUT/$1.json" | head -n 1)
	echo "$1: $n round trips, softirqs $HOST in the host, $GUEST in the guest"
	[ "$n" = "$PINGS" ] || lab_fail "$1: $n of $PINGS answered"
}

# traces: what attaching changes, in both.
traces() {
	for irq in $(vm_interrupts eth0); do
		echo "$irq $(cat "/proc/irq/$irq/smp_affinity_list")"
	done
	# A card with one queue that sends has nothing to say of XPS, which is an error to read.
	grep -s . /sys/class/net/eth0/queues/*/[rx]ps_cpus
	nested_must 20 "grep -s . /proc/irq/*/smp_affinity_list /sys/class/net/eth0/queues/*/[rx]ps_cpus; true"
	echo "$nested_answer"
}

# queues: packets of each queue inside.
queues() {
	nested_ask 20 "kbp stats --json" | grep -o '"name":"eth0[^}]*"packets":[0-9]*' | sed 's/.*://' | tr '\n' ' '
}

# workers: where each vhost worker may run.
workers() {
	for comm in /proc/[0-9]*/task/[0-9]*/comm; do
		[ "$(cat "$comm" 2> /dev/null)" != "vhost-$NESTED_PID" ] ||
			sed -n 's/^Cpus_allowed_list:\t//p' "${comm%comm}status"
	done
}

vm_host_up bridge
vm_inner_up
[ "$(workers | tr '\n' ' ')" = "$VM_VHOST_CPU $VM_VHOST_CPU " ] || lab_fail "vhost workers: $(workers)"
nested_must 10 "kbp measure pingpong server --bind $VM_SERVER:$OTHER_PORT --cpu 1 > /run/other.log 2>&1 &"
nested_must 30 "tries=0; while ! grep -qi ':1E15 ' /proc/net/udp; do tries=\$((tries + 1)); [ \$tries -lt 100 ] || exit 1; sleep 0.02; done"
traces > /run/before

pings softirq
[ "$HOST" -gt $((PINGS / 2)) ] || lab_fail "the host's softirqs are not seen: $HOST"
[ "$GUEST" -gt $((PINGS / 2)) ] || lab_fail "the guest's softirqs are not seen: $GUEST"

vm_poller_on both sleep
pings both
[ "$HOST" -lt $((PINGS / 10)) ] || lab_fail "packets go through softirq in the host: $HOST"
[ "$GUEST" -lt $((PINGS / 10)) ] || lab_fail "packets go through softirq in the guest: $GUEST"
pings other "$OTHER_PORT"
[ "$HOST" -lt $((PINGS / 10)) ] || lab_fail "packets of the other queue go through softirq in the host: $HOST"
[ "$GUEST" -lt $((PINGS / 10)) ] || lab_fail "packets of the other queue go through softirq in the guest: $GUEST"
packets=$(queues)
echo "packets of each queue: $packets"
for queue in $packets; do
	[ "$queue" -gt $((PINGS / 2)) ] || lab_fail "a queue had $queue packets"
done
[ "$(echo "$packets" | wc -w)" = 2 ] || lab_fail "not two queues: $packets"
vm_poller_off both

traces > /run/after
cmp -s /run/before /run/after || lab_fail "this is left: $(diff /run/before /run/after)"
pings after
[ "$GUEST" -gt $((PINGS / 2)) ] || lab_fail "the guest's card is not given back"

# A command that does not end is ended, and the next one is answered.
nested_ask 1 "sleep 100" && lab_fail "a command without an end was not ended"
[ "$(nested_ask 5 "echo alive")" = alive ] || lab_fail "no answer after it"
kbp vm list
kbp vm verify nested || lab_fail "its threads are not where they were put"
kbp vm untune nested || lab_fail "kbp vm untune"
nested_must 60 "kbp unload"
kbp unload > /dev/null || lab_fail "kbp unload"
nested_must 20 "! dmesg | grep -E 'WARNING:|BUG:|Oops|Call Trace|rcu.*stall|soft lockup'"
lab_dmesg_clean
lab_pass
