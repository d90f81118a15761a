#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2:igb --package util-linux --package irqbalance --package socat --timeout 300s
#
# Two pollers serve the receive queues of one card: traffic of many flows, none of it in a softirq on their CPUs, none of
# it lost. A bridge and the end of a veth in another namespace are attached by name. Every file that was written holds
# afterwards what it held before. irqbalance is told to leave the interrupts alone, and one that is moved is seen.

. /lab/lib.sh
. /lab/net.sh

FLOWS="1 2 3 4 5 6 7 8"

# What attaching writes, in this namespace and in the pod's.
traces() {
	for file in /sys/class/net/*/queues/*/[rx]ps_cpus /proc/irq/[0-9]*/smp_affinity_list; do
		echo "$file $(cat "$file" 2>&1)"
	done
	for file in rx-0/rps_cpus tx-0/xps_cpus; do
		echo "pod $file $(ip netns exec pod cat "/sys/class/net/inside/queues/$file" 2>&1)"
	done
}

same_as_before() {
	traces > /run/after
	cmp -s /run/before /run/after || lab_fail "$1 left this: $(diff /run/before /run/after)"
	! grep '"original"' /run/kbp/state.json 2> /dev/null || lab_fail "$1: that is still remembered"
}

# A flow for each address of the card: it tells flows apart by their addresses, and the servers answer from theirs.
card_up() {
	NET_TESTER_MAC=$(cat /sys/class/net/eth1/address)
	ip link set eth1 netns tester
	for flow in $FLOWS; do
		ip address add "10.9.0.$flow/24" dev eth0
	done
	ip link set eth0 up
	ip neighbour replace "10.9.0.100" lladdr "$NET_TESTER_MAC" dev eth0 nud permanent
	ip netns exec tester ip address add 10.9.0.100/24 dev eth1
	ip netns exec tester ip link set eth1 up
	lab_wait_for 30 net_carrier
	for flow in $FLOWS; do
		kbp measure pingpong server --bind "10.9.0.$flow:$NET_PORT" --cpu 1 > "/run/server$flow.log" 2>&1 &
		lab_defer kill $!
	done
	for flow in $FLOWS; do
		lab_wait_for 10 grep -q serving "/run/server$flow.log"
	done
}

# A pod behind a bridge.
bridge_up() {
	ip link add br0 type bridge
	ip link add port type veth peer name inside netns pod
	ip link set port master br0
	ip address add 10.8.0.1/24 dev br0
	ip link set port up
	ip link set br0 up
	ip netns exec pod ip address add 10.8.0.2/24 dev inside
	ip netns exec pod ip link set inside up
	kbp measure pingpong server --bind "10.8.0.1:$NET_PORT" --cpu 1 > /run/bridge.log 2>&1 &
	lab_defer kill $!
	lab_wait_for 10 grep -q serving /run/bridge.log
}

# flows NAME: all flows at the same time, and their account.
flows() {
	flow_pids=
	for flow in $FLOWS; do
		kbp -n tester measure pingpong client "10.9.0.$flow:$NET_PORT" --json --cpu 0 --timeout-ms 5000 --count 150 \
			--period-us 6000 > "$OUT/$1$flow.json" 2> "$OUT/$1$flow.err" &
		flow_pids="$flow_pids $!"
	done
	for pid in $flow_pids; do
		wait "$pid" || lab_fail "a client failed: $(cat "$OUT/$1"*.err)"
	done
	trips=0
	for flow in $FLOWS; do
		[ "$(net_value "$1$flow" lost)" = 0 ] || lab_fail "$1: flow $flow lost $(net_value "$1$flow" lost)"
		trips=$((trips + $(net_value "$1$flow" n)))
	done
	[ "$trips" -ge 1200 ] || lab_fail "$1: $trips round trips of 1200"
	echo "$1: $trips round trips of 8 flows, 0 lost"
}

# no_softirqs NAME COMMAND...: while it runs, neither poller's CPU runs NET_RX (a few are others': timers of the stack).
# A host that is busy with other things may keep a poller from running for so long that the watchdog hands its packets
# back, rightly: only a run in which it did not is judged.
no_softirqs() {
	softirqs_name=$1
	shift
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		handbacks2=$(kbp_counter_of 2 handbacks) handbacks3=$(kbp_counter_of 3 handbacks)
		before2=$(net_softirqs 2) before3=$(net_softirqs 3)
		"$@"
		softirqs=$(($(net_softirqs 2) - before2 + $(net_softirqs 3) - before3))
		handbacks2=$(($(kbp_counter_of 2 handbacks) - handbacks2)) handbacks3=$(($(kbp_counter_of 3 handbacks) - handbacks3))
		echo "$softirqs_name: NET_RX on CPU 2 and 3: $softirqs; handed back on CPU 2: $handbacks2, on CPU 3: $handbacks3"
		if [ "$handbacks2" -eq 0 ] && [ "$handbacks3" -eq 0 ]; then
			[ "$softirqs" -le 10 ] || lab_fail "$softirqs_name: $softirqs NET_RX softirqs on the pollers' CPUs"
			return
		fi
	done
	lab_fail "$softirqs_name: the pollers served no run without the watchdog"
}

# The receive interrupts, in the order of the queues.
receive_irqs() {
	awk '/ eth0-(rx|TxRx)-/ { sub(":", "", $1); print $1 }' /proc/interrupts
}

# What irqbalance says that it leaves alone.
banned() {
	printf setup | socat -t 5 - "UNIX-CONNECT:/run/irqbalance/irqbalance$IRQBALANCE.sock"
}

# Their places.
places() {
	receive_irqs | while read -r irq; do
		printf '%s ' "$(cat "/proc/irq/$irq/smp_affinity_list")"
	done
}

xps() {
	for queue in /sys/class/net/eth0/queues/tx-*; do
		printf '%s ' "$(sed 's/^0*\(.\)/\1/' "$queue/xps_cpus")"
	done
}

echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
modprobe -a veth bridge
ip netns add tester
lab_defer ip netns del tester
ip netns add pod
lab_defer ip netns del pod
card_up
bridge_up
QUEUES=$(find /sys/class/net/eth0/queues -name 'rx-*' | wc -l)
echo "eth0 has $QUEUES receive queues; interrupts at $(places)"
[ "$QUEUES" = 4 ] || lab_fail "4 receive queues were expected"
traces > /run/before
flows stock

echo "two pollers for the queues of one card"
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
! kbp attach eth0 --queues all --cpus 2-3 2> "$OUT/refused" || lab_fail "attached without pollers"
grep -q "kbp poller add --cpu 2" "$OUT/refused" || lab_fail "$(cat "$OUT/refused")"
for cpu in 2 3; do
	kbp poller add --cpu "$cpu" > /dev/null || lab_fail "kbp poller add"
done
kbp attach eth0 --queues all --cpus 2-3 --dry-run > "$OUT/plan" || lab_fail "dry run"
cat "$OUT/plan"
[ "$(grep -c "napi-attach" "$OUT/plan")$(grep -c xps_cpus "$OUT/plan")" = 44 ] || lab_fail "that plan is not complete"
same_as_before "a dry run"
kbp attach eth0 --queues all --cpus 2-3 || lab_fail "attach"
[ "$(places)" = "2 3 2 3 " ] || lab_fail "interrupts at $(places)"
[ "$(xps)" = "4 8 4 8 " ] || lab_fail "transmit queues of CPUs $(xps)"
packets2=$(kbp_counter_of 2 packets) packets3=$(kbp_counter_of 3 packets)
no_softirqs card flows attached
packets2=$(($(kbp_counter_of 2 packets) - packets2)) packets3=$(($(kbp_counter_of 3 packets) - packets3))
echo "packets: $packets2 on CPU 2, $packets3 on CPU 3"
if [ "$packets2" -lt 100 ] || [ "$packets3" -lt 100 ]; then
	lab_fail "one poller had all the work"
fi
lab_dmesg_clean

echo "an interrupt that somebody moves is seen"
irq=$(awk '/ eth0-(rx|TxRx)-0$/ { sub(":", "", $1); print $1 }' /proc/interrupts)
! kbp show 2>&1 | grep "something moved it" || lab_fail "nothing was moved yet"
echo 1 > "/proc/irq/$irq/smp_affinity_list"
kbp show 2>&1 | grep "interrupt $irq of eth0 queue 0 is on CPU 1, not on CPU 2" || lab_fail "it was not seen"
echo 2 > "/proc/irq/$irq/smp_affinity_list"
kbp detach eth0 || lab_fail "detach"
same_as_before "detach"

# The poller holds a queue from the start, so no interrupt comes that would carry out the move of its own: the kernel
# finishes it when the interface comes up again, whatever was written meanwhile.
echo "an interface that is detached while it is down"
kbp attach eth0 --cpu 2 > /dev/null || lab_fail "attach"
ip link set eth0 down
kbp detach eth0 > "$OUT/down" 2>&1 || grep "the kernel finishes an earlier move" "$OUT/down" || lab_fail "$(cat "$OUT/down")"
ip link set eth0 up
lab_wait_for 30 net_carrier
kbp unload || lab_fail "unload"
same_as_before "detach while it is down"
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
for cpu in 2 3; do
	kbp poller add --cpu "$cpu" > /dev/null || lab_fail "kbp poller add"
done

echo "a bridge, and the pod's end of the veth behind it"
kbp attach br0 --cpu 2 || lab_fail "attach br0"
kbp -n pod attach inside --cpu 3 || lab_fail "attach inside"
kbp show
[ "$(kbp show --json | grep -o '"backlog_active":"attached"' | wc -l)" = 4 ] || lab_fail "two backlogs for two queues were expected"
backlog2=$(kbp_counter_of 2 backlog_packets) backlog3=$(kbp_counter_of 3 backlog_packets)
ping_pod() {
	kbp -n pod measure pingpong client "10.8.0.1:$NET_PORT" --json --cpu 0 --timeout-ms 5000 --count 500 --period-us 2000 \
		> "$OUT/pod.json" 2> "$OUT/pod.err" || lab_fail "the client failed: $(cat "$OUT/pod.err")"
	[ "$(net_value pod lost)" = 0 ] || lab_fail "$(net_value pod lost) lost"
}
no_softirqs pod ping_pod
backlog2=$(($(kbp_counter_of 2 backlog_packets) - backlog2)) backlog3=$(($(kbp_counter_of 3 backlog_packets) - backlog3))
echo "packets: $backlog2 to the bridge on CPU 2, $backlog3 to the pod on CPU 3"
[ "$backlog2" -ge 500 ] || lab_fail "the bridge's port was not served by the poller of CPU 2"
[ "$backlog3" -ge 500 ] || lab_fail "the pod was not served by the poller of CPU 3"
kbp detach br0 || lab_fail "detach br0"
kbp poller show --json | grep -o '"backlog_requested":"[a-z]*"'
[ "$(kbp poller show --json | grep -o '"backlog_requested":"attached"' | wc -l)" = 1 ] || lab_fail "one backlog was to go back"
lab_dmesg_clean

echo "everything goes with the module, also in other namespaces"
kbp attach eth0 --cpus 3,2 > /dev/null || lab_fail "attach"
kbp attach lo --cpu 2 > /dev/null || lab_fail "attach lo"
# One goes to another namespace before, with its files, and comes back behind.
ip link add roams type veth peer name stays
mask=$(cat /sys/class/net/roams/queues/rx-0/rps_cpus)
kbp attach roams --cpu 2 > /dev/null || lab_fail "attach roams"
[ "$(cat /sys/class/net/roams/queues/rx-0/rps_cpus)" != "$mask" ] || lab_fail "it is not steered"
ip link set roams netns pod
kbp unload || lab_fail "unload"
ip -n pod link set roams netns 1
[ "$(cat /sys/class/net/roams/queues/rx-0/rps_cpus)" = "$mask" ] || lab_fail "what went to another namespace is still steered"
ip link del roams
same_as_before "unload"
flows after
lab_dmesg_clean

echo "irqbalance is told, and told otherwise"
mkdir -p /run/irqbalance
irqbalance --foreground --interval 1 --banirq=1 > "$OUT/irqbalance.log" 2>&1 &
IRQBALANCE=$!
lab_defer kill "$IRQBALANCE"
awk '/ eth0-/ { sub(":", "", $1); print $1 }' /proc/interrupts | while read -r irq; do
	echo 0 > "/proc/irq/$irq/smp_affinity_list"
done
apart() { [ "$(places)" != "0 0 0 0 " ]; }
lab_wait_for 20 apart
echo "irqbalance moved them: $(places)"
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
kbp poller add --cpu 2 > /dev/null || lab_fail "kbp poller add"
kbp attach eth0:0 --cpu 2 --dry-run > "$OUT/told" 2>&1 || lab_fail "dry run"
grep "settings ban irqs 1 [0-9]*' to /run/irqbalance/irqbalance" "$OUT/told" || lab_fail "$(cat "$OUT/told")"
kbp attach eth0 --cpu 2 || lab_fail "attach"
# It must not happen for four rounds of irqbalance; there is nothing to wait for.
sleep 4
[ "$(places)" = "2 2 2 2 " ] || lab_fail "irqbalance moved them: $(places)"
for irq in 1 $(receive_irqs); do
	banned | grep -q " IRQ $irq LOAD" || lab_fail "irqbalance does not leave $irq alone: $(banned)"
done
kbp detach eth0 || lab_fail "detach"
kbp attach eth0:0 --cpu 2 --dry-run > "$OUT/told-again" 2>&1 || lab_fail "dry run"
for irq in $(receive_irqs); do
	! banned | grep " IRQ $irq LOAD" || lab_fail "irqbalance still leaves $irq alone"
done
banned | grep -q " IRQ 1 LOAD" || lab_fail "irqbalance has forgotten its own list: $(banned)"
grep -q "settings ban irqs 1 [0-9]*' to" "$OUT/told-again" || lab_fail "it was not told otherwise: $(cat "$OUT/told-again")"
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
