#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 300s
# kernels: all
#
# The module works on this kernel: it can be checked, loads, serves without NET_RX on its CPU, and unloads under
# traffic with nothing lost.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp check --module "$MODULES/kbp.ko" || lab_fail "kbp check"
kbp_start
net_traffic whole --seconds 600 --period-us 3000
kbp attach eth0 --cpu "$NET_CPU" --mode busy || lab_fail "attach"
kbp -n tester attach eth1 --cpu "$NET_CPU" --mode busy || lab_fail "attach eth1"
lab_wait_for 5 kbp_active
sleep 1
softirqs=$(net_softirqs "$NET_CPU")
packets=$(kbp_counter packets)
sleep 3
softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
packets=$(($(kbp_counter packets) - packets))
echo "in 3 s: $packets packets polled, $softirqs NET_RX softirqs on CPU $NET_CPU"
[ "$packets" -gt 100 ] || lab_fail "the poller serves no packets"
[ "$((softirqs * 20))" -lt "$packets" ] || lab_fail "packets still go through softirq"
kbp unload || lab_fail "unload"
sleep 0.5
kill -INT "$NET_PID"
net_none_lost whole
lab_dmesg_clean
lab_pass
