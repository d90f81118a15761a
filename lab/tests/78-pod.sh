#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --mem 512 --clock real --cpus 2 --nics 2 --timeout 300s --package crun --package containernetworking-plugins --package iptables
# beside: others
#
# A pod: two containers with one network that Debian's CNI plug-ins made. Pings pass the forwarded port, both containers see
# the same interface, and nothing is left when it is removed, also after it was killed half way.

. /lab/lib.sh

lab_alternatives

# What a pod could leave: namespaces, interfaces, processes, files, addresses in use.
traces() {
	ls /run/netns 2> /dev/null
	ip -o link | sed 's/^[0-9]*: //; s/ qdisc [a-z_]*//'
	cat /proc/sys/net/ipv4/ip_forward
	find /run/kbp-topo /sys/fs/cgroup /var/lib/cni -name '*pod*' 2> /dev/null
	crun list -q
}

nothing_left() {
	traces > /run/after
	cmp -s /run/before /run/after
}

lab_defer kbp topo del --all
traces > /run/before
kbp topo list -v | grep -A 10 '^pod'
kbp topo add pod --dry-run || lab_fail "dry run"
nothing_left || lab_fail "a dry run made something: $(diff /run/before /run/after)"

kbp topo add pod || lab_fail "add"
crun list
for container in kbp-pod-app kbp-pod-pause; do
	crun exec "$container" ip -4 address show eth0 | grep -q '10\.91\.251\.2/24' || lab_fail "$container has not the pod's address"
done
[ "$(crun exec kbp-pod-app readlink /proc/self/ns/net)" = "$(crun exec kbp-pod-pause readlink /proc/self/ns/net)" ] ||
	lab_fail "the containers have two networks"
crun exec kbp-pod-app /opt/kbp measure pingpong server --bind 10.91.251.2:7700 > /run/server.log 2>&1 &
lab_wait_for 10 grep -q serving /run/server.log
kbp -n kbp-pod-wire measure pingpong client 10.91.250.1:7700 --json --count 30 --timeout-ms 10000 --period-us 20000 \
	> "$OUT/pod.json" || lab_fail "pings: $(cat "$OUT/pod.json" /run/server.log)"
grep -q '"lost":0' "$OUT/pod.json" || lab_fail "pings were lost: $(cat "$OUT/pod.json")"
ip netns exec kbp-pod-host iptables -t nat -S | grep -q -- '--dport 7700' || lab_fail "no port is forwarded"
kbp topo del pod || lab_fail "del"
lab_wait_for 30 nothing_left

# Nothing is bound on the namespace's file, as when it was killed between the two steps of making it.
kbp topo add pod > /dev/null || lab_fail "add again"
umount /run/netns/kbp-pod-app
kbp topo del pod || lab_fail "del without the pod's namespace"
lab_wait_for 30 nothing_left

for delay in 0 0.3 1; do
	kbp topo add pod > /dev/null 2>&1 &
	pid=$!
	lab_wait_for 20 [ -e /run/kbp-topo/pod.json ]
	sleep "$delay"
	kill -KILL "$pid" 2> /dev/null
	wait "$pid" 2> /dev/null
	kbp topo del pod || lab_fail "del after $delay s"
	lab_wait_for 30 nothing_left
done
lab_dmesg_clean
lab_pass
