# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# OVS-DPDK as the switch of a virtual machine, the rival of paper 000, Fig. 6: Debian's, with DPDK's driver for the card
# and a vhost-user port for the machine. Source it after lib.sh; the packages are $(OVS_PACKAGES) of the Makefile.
#
# Not here: the machine (nested.sh), and what is measured.

# Where the machine waits for the switch.
OVS_SOCKET=/run/openvswitch/vm.sock
# MiB of huge pages for DPDK. It is told that this is all, or its pools of buffers take what the machine needs.
OVS_MEMORY=128

# ovs_up CARD CPU MEMORY_MIB: the switch with that card, polled by a thread on that CPU; huge pages for a machine with so
# much memory, too.
ovs_up() {
	export OVS_RUNDIR=/run/openvswitch OVS_DBDIR=/run/openvswitch OVS_LOGDIR=/run/openvswitch
	mkdir -p "$OVS_RUNDIR" /dev/hugepages
	# DPDK loads no driver from below a directory that all may write to.
	chmod 755 /
	ovs_pages=$((($3 + OVS_MEMORY) / 2))
	echo "$ovs_pages" > /proc/sys/vm/nr_hugepages
	[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "$ovs_pages" ] || lab_fail "too little memory for huge pages"
	mount -t hugetlbfs none /dev/hugepages || lab_fail "hugetlbfs"
	modprobe tun || lab_fail "tun"
	ovs_take_card "$1"
	ovs_start "$2"
	ovs_must add-br br0 -- set bridge br0 datapath_type=netdev
	ovs_must add-port br0 wire -- set Interface wire type=dpdk "options:dpdk-devargs=$OVS_PCI"
	ovs_must add-port br0 vm -- set Interface vm type=dpdkvhostuserclient "options:vhost-server-path=$OVS_SOCKET"
	ovs_error=$(ovs-vsctl get Interface wire error)
	[ "$ovs_error" = "[]" ] || lab_fail "OVS-DPDK does not take the card: $ovs_error"
}

# ovs_take_card CARD: from its driver to one that leaves it to a program.
ovs_take_card() {
	modprobe uio_pci_generic || lab_fail "uio_pci_generic"
	OVS_PCI=$(basename "$(readlink -f "/sys/class/net/$1/device")")
	echo "$OVS_PCI" > "/sys/bus/pci/devices/$OVS_PCI/driver/unbind"
	echo uio_pci_generic > "/sys/bus/pci/devices/$OVS_PCI/driver_override"
	echo "$OVS_PCI" > /sys/bus/pci/drivers_probe
	[ -e "/sys/bus/pci/drivers/uio_pci_generic/$OVS_PCI" ] || lab_fail "uio_pci_generic does not take $1"
}

# ovs_start CPU: its database and itself; what is said goes to files in $OVS_RUNDIR.
ovs_start() {
	ovsdb-tool create "$OVS_RUNDIR/conf.db" /usr/share/openvswitch/vswitch.ovsschema || lab_fail "ovsdb-tool"
	ovsdb-server --remote="punix:$OVS_RUNDIR/db.sock" --pidfile --detach --log-file "$OVS_RUNDIR/conf.db" \
		2> "$OVS_RUNDIR/db.err" || lab_fail "ovsdb-server: $(cat "$OVS_RUNDIR/db.err")"
	lab_defer ovs_down ovsdb-server
	ovs-vsctl --no-wait init || lab_fail "ovs-vsctl init"
	ovs-vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true "other_config:dpdk-socket-mem=$OVS_MEMORY" \
		"other_config:dpdk-socket-limit=$OVS_MEMORY" other_config:dpdk-lcore-mask=0x1 \
		"other_config:pmd-cpu-mask=$(printf '0x%x' $((1 << $1)))" \
		"other_config:dpdk-extra=--no-telemetry -a $OVS_PCI" || lab_fail "ovs-vsctl"
	/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk "unix:$OVS_RUNDIR/db.sock" --pidfile --detach --log-file \
		2> "$OVS_RUNDIR/switch.err" || lab_fail "OVS-DPDK does not start: $(tail -n 20 "$OVS_RUNDIR/switch.err")"
	lab_defer ovs_down ovs-vswitchd-dpdk
}

ovs_must() {
	ovs-vsctl -t 60 "$@" || lab_fail "ovs-vsctl $*: $(tail -n 20 "$OVS_RUNDIR/ovs-vswitchd-dpdk.log")"
}

ovs_down() {
	kill "$(cat "$OVS_RUNDIR/$1.pid")"
}
