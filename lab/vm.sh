#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The virtual machine of paper 000 (Fig. 4 to 9): this guest is a KVM host with a card, a bridge and vhost-net; inside it
# a machine with an unmodified UDP server; the tester in a namespace, with the card at the other end of the wire. Round
# trips with the poller in neither, in the machine inside (`guest`), in this one (`host`) and in `both`, idle and while
# other softirqs compete (section 3.2.5) in the one, the other and both; and, where LOADS has `throughput`, the highest
# rate without loss and without competition (Fig. 9). Run by `make vm`.
#
#     vm.sh SWITCH [ROUNDS SECONDS PERIOD_US MODE SIZES CONFIGS LOADS]
#
# SWITCH is what lies between the card and the machine inside: `bridge`, with vhost-net, or the rival `ovs-dpdk`, Debian's
# OVS-DPDK with vhost-user (Fig. 6). That has the card, and a CPU, for itself: its configurations are `softirq` and
# `guest`, named `ovs-dpdk` and `ovs-dpdk+guest` in rows, and what competes in the host competes where no packet goes.
#
# A row is one line of $OUT/rows.jsonl, and of the output. The module is loaded in both all the time.

. /lab/lib.sh
. /lab/nested.sh
. /lab/ovs.sh
. /lab/vm-lib.sh

SWITCH=$1
CONFIGS=softirq\ guest
[ "$SWITCH" != bridge ] || CONFIGS="$CONFIGS host both"
ROUNDS=${2:-2}
SECONDS_OF_ROW=${3:-0.4}
PERIOD_US=${4:-400}
MODE=${5:-sleep}
SIZES=${6:-24}
CONFIGS=${7:-$CONFIGS}
LOADS=${8:-idle guest host both}
# The highest rate that is tried, frames a second; how long, so that what queues hold is little of it, seconds.
RATE_MAX=60000
TRIAL=0.5
# What competes: a NAPI instance with bursts of 10 ms, and two hogs, on the CPU of the card.
STORM="storm --cpu $VM_CPU --hogs $VM_CPU,$VM_CPU --seconds 60 --json"

load_on() {
	if vm_in_host "$1"; then
		# shellcheck disable=SC2086 # arguments
		kbp measure load $STORM --modules "$MODULES" > /run/load.json 2> /run/load.err &
		LOAD_PID=$!
		lab_wait_for 10 grep -q '[1-9]' /sys/module/storm/parameters/bursts
	fi
	if vm_in_guest "$1"; then
		nested_must 20 "kbp measure load $STORM --modules /nested > /run/load.json 2> /run/load.err & echo \$! > /run/load.pid; while ! grep -qs '[1-9]' /sys/module/storm/parameters/bursts; do sleep 0.02; done"
	fi
}

load_off() {
	LOAD_HOST=null
	LOAD_GUEST=null
	if vm_in_guest "$1"; then
		LOAD_GUEST=$(nested_ask 30 "kill -INT \$(cat /run/load.pid); while kill -0 \$(cat /run/load.pid) 2> /dev/null; do sleep 0.02; done; cat /run/load.json /run/load.err" | head -n 1)
	fi
	if vm_in_host "$1"; then
		kill -INT "$LOAD_PID"
		wait "$LOAD_PID"
		LOAD_HOST=$(head -n 1 /run/load.json)
	fi
}

# ask LOAD SIZE SEED: the tester's account.
ask() {
	if [ "$1" = throughput ]; then
		# With the headers of Ethernet, IP and UDP, and the frame's sum.
		kbp -n tester measure throughput "$VM_SERVER:$VM_PORT" --json --cpu 0 --fifo 30 --size $(($2 + 46)) \
			--max "${RATE_MAX}fps" --preset short --trial "$TRIAL" --seed "$3"
	else
		kbp -n tester measure pingpong client "$VM_SERVER:$VM_PORT" --json --cpu 0 --fifo 30 \
			--seconds "$SECONDS_OF_ROW" --period-us "$PERIOD_US" --size "$2" --seed "$3"
	fi
}

# named CONFIG: the name of it in a row.
named() {
	case $SWITCH:$1 in
	ovs-dpdk:softirq) echo ovs-dpdk ;;
	ovs-dpdk:*) echo "ovs-dpdk+$1" ;;
	*) echo "$1" ;;
	esac
}

# row LOAD CONFIG SIZE ROUND
row() {
	vm_poller_on "$2" "$MODE"
	load_on "$1"
	vm_count_softirqs
	host=$VM_NET_RX_HOST
	guest=$VM_NET_RX_GUEST
	ask "$1" "$3" "$4" > /run/row.json 2> /run/row.err || vm_say "row failed: $(cat /run/row.err)"
	vm_count_softirqs
	host=$((VM_NET_RX_HOST - host))
	guest=$((VM_NET_RX_GUEST - guest))
	load_off "$1"
	vm_poller_off "$2"
	account=$(sed -e 's/"histogram_ns":.*"lost"/"lost"/' -e 's/"timeline_ns":\[.*\],"warmup_lost"/"warmup_lost"/' /run/row.json)
	echo "row {\"load\":\"$1\",\"config\":\"$(named "$2")\",\"payload\":$3,\"round\":$4,\"net_rx_host\":$host,\"net_rx_guest\":$guest,\"load_host\":$LOAD_HOST,\"load_guest\":$LOAD_GUEST,\"account\":${account:-null}}" |
		tee -a /run/rows
	sed -n 's/^row //p' /run/rows > "$OUT/rows.jsonl"
}

case "$SWITCH $CONFIGS" in
ovs-dpdk*host* | ovs-dpdk*both*) lab_fail "no poller of the host serves a card that OVS-DPDK has" ;;
esac
vm_host_up "$SWITCH"
vm_inner_up
vm_say "measuring"
for round in $(seq "$ROUNDS"); do
	for size in $SIZES; do
		for load in $LOADS; do
			for config in $CONFIGS; do
				row "$load" "$config" "$size" "$round"
			done
		done
	done
done
# The first once more, so that a drift is seen.
row "${LOADS%% *}" "${CONFIGS%% *}" "${SIZES%% *}" $((ROUNDS + 1))
kbp unload > /dev/null || lab_fail "kbp unload"
nested_must 60 "kbp unload"
lab_dmesg_clean
lab_pass
