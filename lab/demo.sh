#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The demo, inside the guest: two network cards on one wire, the server's in the namespace of
# the host, the tester's in a namespace of its own, so that every packet really goes over the
# wire. Then `kbp measure demo` measures all modes under all loads.
#
# From the lab: $OUT (results), $MODULES (kbp.ko, storm.ko). Arguments go to `kbp measure demo`.
set -eu

SERVER_DEV=eth0
TESTER_DEV=eth1
NS=tester
SERVER_IP=10.9.0.1
TESTER_IP=10.9.0.2

die() {
	echo "demo.sh: $*" >&2
	exit 1
}

# busybox's shell would take its own, smaller ip.
ip() {
	/usr/bin/ip "$@"
}

in_ns() {
	ip netns exec "$NS" "$@"
}

# Nothing but the ping-pong on the wire: no neighbour discovery, no router solicitations.
quiet_ipv6() {
	[ -e /proc/sys/net/ipv6 ] || return 0
	for scope in all default; do
		echo 1 >"/proc/sys/net/ipv6/conf/$scope/disable_ipv6"
	done
}

mac_of() {
	cat "/sys/class/net/$1/address"
}

# wait_carrier WHAT COMMAND...: until the command prints 1.
wait_carrier() {
	what=$1
	shift
	tries=0
	while [ "$("$@" 2>/dev/null || echo 0)" != 1 ]; do
		tries=$((tries + 1))
		[ "$tries" -le 100 ] || die "$what has no carrier after 10 s"
		sleep 0.1
	done
}

for dev in "$SERVER_DEV" "$TESTER_DEV"; do
	[ -d "/sys/class/net/$dev" ] || die "there is no $dev: the demo needs two network cards (--nics 2)"
done
for module in kbp storm; do
	[ -f "$MODULES/$module.ko" ] || die "there is no $MODULES/$module.ko"
done

server_mac=$(mac_of "$SERVER_DEV")
tester_mac=$(mac_of "$TESTER_DEV")

quiet_ipv6
ip netns add "$NS"
ip link set "$TESTER_DEV" netns "$NS"
in_ns sh -c '[ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'

# The loopback is needed too: the measuring process wakes its server through it.
ip link set lo up
ip address add "$SERVER_IP/24" dev "$SERVER_DEV"
ip link set "$SERVER_DEV" up
ip -n "$NS" link set lo up
ip -n "$NS" address add "$TESTER_IP/24" dev "$TESTER_DEV"
ip -n "$NS" link set "$TESTER_DEV" up

ip neighbour replace "$TESTER_IP" lladdr "$tester_mac" dev "$SERVER_DEV" nud permanent
ip -n "$NS" neighbour replace "$SERVER_IP" lladdr "$server_mac" dev "$TESTER_DEV" nud permanent

wait_carrier "$SERVER_DEV" cat "/sys/class/net/$SERVER_DEV/carrier"
wait_carrier "$TESTER_DEV" in_ns cat "/sys/class/net/$TESTER_DEV/carrier"

# For traces; a kernel that has it mounted already is no error.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true

# Without the limit of 95 % real-time threads a stuck one would hang the guest: say which it is.
echo "real-time limit: $(cat /proc/sys/kernel/sched_rt_runtime_us) of $(cat /proc/sys/kernel/sched_rt_period_us) us"

# The lab reads exit codes 0, 1 and 4 as pass, fail and skip; the demo never skips.
kbp measure demo --out "$OUT" --modules "$MODULES" \
	--server-dev "$SERVER_DEV" --tester-dev "$TESTER_DEV" --tester-ns "$NS" \
	--server "$SERVER_IP:7700" "$@" || exit 1
