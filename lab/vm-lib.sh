# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# A KVM host and its virtual machine, as in paper 000: a card, a bridge and vhost-net here, a UDP server in the machine
# inside, the tester in the namespace `tester` at the other end of the wire. Source it after lib.sh, nested.sh and ovs.sh.
#
# CPUs here: 0 tester and everything else, 1 card and its softirqs, 2 vhost worker or OVS-DPDK's poll-mode driver, 3 and
# 4 the vCPUs. In the machine inside: 0 server, 1 card and its softirqs.

VM_SERVER=10.9.0.1
VM_TESTER=10.9.0.2
VM_PORT=7700
# The CPU of the card and its poller, in both.
VM_CPU=1
VM_VHOST_CPU=2
# MiB
VM_MEMORY=384
# What else of the machine is placed.
VM_TUNE=
VM_POLLER="--cpu $VM_CPU -P f:50 --budget 2"
# Softirqs that receive, on that CPU.
VM_NET_RX="awk -v column=$((VM_CPU + 2)) '\$1 == \"NET_RX:\" { print \$column }' /proc/softirqs"

vm_say() {
	echo "$(cut -d' ' -f1 /proc/uptime) $*"
}

vm_interrupts() {
	awk -v dev="$1" '$NF == dev || index($NF, dev "-") == 1 { sub(":", "", $1); print $1 }' /proc/interrupts
}

# vm_carrier CARD...: those of the host, and the tester's.
vm_carrier() {
	for vm_card in "$@"; do
		[ "$(cat "/sys/class/net/$vm_card/carrier")" = 1 ] || return 1
	done
	[ "$(ip netns exec tester cat /sys/class/net/eth1/carrier)" = 1 ]
}

# vm_host_up SWITCH: the host, with `bridge` (and vhost-net) or `ovs-dpdk` between the card and the machine.
vm_host_up() {
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	# A vCPU may have its CPU for itself, also for longer than 950 ms of a second.
	echo -1 > /proc/sys/kernel/sched_rt_runtime_us
	# The tester spins with SCHED_FIFO 30; what its CPU's softirqs leave to ksoftirqd must not wait for it.
	vm_ksoftirqd=$(grep -lx ksoftirqd/0 /proc/[0-9]*/comm | cut -d/ -f3)
	chrt -f -p 31 "$vm_ksoftirqd" > /dev/null || lab_fail "ksoftirqd of the tester's CPU"
	ip netns add tester
	ip link set eth1 netns tester
	ip netns exec tester ip address add "$VM_TESTER/24" dev eth1
	ip netns exec tester ip link set eth1 up
	ip netns exec tester ip neighbour replace "$VM_SERVER" lladdr "$NESTED_MAC" dev eth1 nud permanent
	case $1 in
	bridge) vm_bridge_up ;;
	ovs-dpdk)
		ovs_up eth0 "$VM_VHOST_CPU" "$VM_MEMORY"
		nested_vhost_user "$OVS_SOCKET" "$VM_MEMORY"
		lab_wait_for 30 vm_carrier
		;;
	*) lab_fail "no switch '$1': bridge or ovs-dpdk" ;;
	esac
}

vm_bridge_up() {
	ip link add br0 type bridge
	ip link set eth0 master br0 up
	ip link set br0 up
	nested_tap br0
	VM_TUNE="--vhost-cpus $VM_VHOST_CPU --vhost-priority f:60"
	lab_wait_for 30 vm_carrier eth0
	for irq in $(vm_interrupts eth0); do
		echo "$VM_CPU" > "/proc/irq/$irq/smp_affinity_list"
	done
}

vm_inner_up() {
	mkdir -p /run/nested
	nested_with "$(command -v kbp)"
	nested_start 120 "$VM_MEMORY" 2 ""
	vm_say "the machine inside is up"
	# shellcheck disable=SC2086 # arguments
	kbp vm tune nested --vcpu-cpus 3-4 --priority f:40 $VM_TUNE || lab_fail "kbp vm tune"
	kbp vm verify nested || lab_fail "kbp vm verify"
	nested_must 10 "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip address add $VM_SERVER/24 dev eth0; ip link set eth0 up"
	nested_must 10 "ip neighbour replace $VM_TESTER lladdr $(ip netns exec tester cat /sys/class/net/eth1/address) dev eth0 nud permanent"
	nested_must 10 "for irq in \$(awk '/virtio.*-(in|out)put/ { sub(\":\", \"\", \$1); print \$1 }' /proc/interrupts); do echo $VM_CPU > /proc/irq/\$irq/smp_affinity_list || exit 1; done"
	nested_must 10 "kbp measure pingpong server --bind $VM_SERVER:$VM_PORT --cpu 0 --fifo 30 > /run/server.log 2>&1 &"
	nested_must 60 "tries=0; while ! grep -qi ':1E14 ' /proc/net/udp; do tries=\$((tries + 1)); [ \$tries -lt 100 ] || { cat /run/server.log /proc/net/udp; exit 1; }; sleep 0.02; done"
	nested_must 60 "kbp load --module /nested/kbp.ko"
	kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"
}

# `both` is in the host and in the guest.
vm_in_host() {
	[ "$1" = host ] || [ "$1" = both ]
}

vm_in_guest() {
	[ "$1" = guest ] || [ "$1" = both ]
}

# vm_poller_on WHERE MODE: in `host`, `guest`, `both` or none (`softirq`).
vm_poller_on() {
	if vm_in_host "$1"; then
		# shellcheck disable=SC2086 # arguments
		kbp poller add $VM_POLLER > /dev/null || lab_fail "kbp poller add"
		kbp attach eth0 --cpu "$VM_CPU" --mode "$2" > /dev/null || lab_fail "kbp attach eth0"
		kbp show --json | grep -q "\"mode_active\":\"$2\"" || lab_fail "not active: $(kbp show)"
	fi
	if vm_in_guest "$1"; then
		nested_must 20 "kbp poller add $VM_POLLER && kbp attach eth0 --cpu $VM_CPU --mode $2 && kbp show --json | grep -q '\"mode_active\":\"$2\"'"
	fi
}

vm_poller_off() {
	if vm_in_host "$1"; then
		kbp detach eth0 > /dev/null || lab_fail "kbp detach"
		kbp poller del --cpu "$VM_CPU" > /dev/null || lab_fail "kbp poller del"
	fi
	if vm_in_guest "$1"; then
		nested_must 20 "kbp detach eth0 && kbp poller del --cpu $VM_CPU"
	fi
}

# Sets VM_NET_RX_HOST and VM_NET_RX_GUEST, softirqs so far.
# shellcheck disable=SC2034 # others use them
vm_count_softirqs() {
	VM_NET_RX_GUEST=$(nested_ask 20 "$VM_NET_RX" | head -n 1)
	VM_NET_RX_HOST=$(eval "$VM_NET_RX")
}
