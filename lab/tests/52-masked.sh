#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2:e1000 --package ethtool --timeout 300s
#
# A driver whose interrupt does not stay masked: e1000 unmasks it when its handler finds the instance taken, and does
# that also for interrupts of another card on its line. Each packet interrupts then, whatever the poller does. Mode busy
# polls on; mode adaptive saves nothing, is served as mode sleep, and says so. No packet is lost on the way. A veth with an
# instance of its own, which its sender schedules, has no interrupt and is served as it was asked for.

. /lab/lib.sh
. /lab/net.sh

napi_counter() {
	kbp stats --json | sed -n "s/.*\"name\":\"eth0[^\"]*\"[^}]*\"$1\":\([0-9]*\).*/\1/p"
}

is_active() { kbp show --json | grep -q "\"mode_active\":\"$1\""; }

held() { napi_counter held_interrupts; }

net_up
kbp_start
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 is_active busy
net_traffic busy --count 300 --period-us 500 --jitter 0
net_none_lost busy
echo "busy: $(napi_counter packets) packets, $(held) interrupts while it was held"
[ "$(held)" -ge 200 ] || lab_fail "this card does not have the fault; another is needed"
dmesg | grep "kbp: eth0: interrupts come while they are masked" || lab_fail "busy: the log does not have it"
is_active busy || lab_fail "busy: given up"
kbp detach eth0 > /dev/null || lab_fail "detach"

# Waking up takes longer than a microsecond, so it holds the card from packet to packet.
kbp attach eth0 --cpu "$NET_CPU" --mode adaptive --max-wake-latency 1 > /dev/null || lab_fail "attach"
lab_wait_for 5 is_active adaptive
net_traffic adaptive --count 300 --period-us 500 --jitter 0
net_none_lost adaptive
echo "adaptive: $(napi_counter packets) packets, $(held) interrupts while it was held"
is_active sleep || lab_fail "interrupts come while they are masked, and it does not say so"
kbp show --json | grep -q '"mode_requested":"adaptive"' || lab_fail "it forgot what was asked for"
dmesg | grep "kbp: eth0: .* so it is served as in mode sleep" || lab_fail "the log does not have it"
before=$(held)
net_traffic given-up --count 100 --period-us 1000 --jitter 0
net_none_lost given-up
[ "$(held)" -eq "$before" ] || lab_fail "it is held again"
kbp detach eth0 > /dev/null || lab_fail "detach"

# Ten packets 60 us apart, then none for 5 ms: what is held for no more than those ten is found out as well.
echo 300 > /sys/module/kbp/parameters/window_us
kbp attach eth0 --cpu "$NET_CPU" --mode adaptive > /dev/null || lab_fail "attach"
{
	yes 60000 | head -n 9
	echo 5000000
} > /run/tens
kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --arrivals trace:/run/tens --seconds 2 --cpu 1 \
	--drain-ms 50 > "$OUT/tens.json" 2> "$OUT/tens.err" || lab_fail "tens: $(cat "$OUT/tens.err")"
echo "tens: $(napi_counter packets) packets, $(held) interrupts while it was held, $(napi_counter rearms) times let go"
[ "$(net_value tens lost)" = 0 ] || lab_fail "tens: $(net_value tens lost) lost"
is_active sleep || lab_fail "tens: interrupts come while they are masked, and it does not say so"
kbp detach eth0 > /dev/null || lab_fail "detach"
echo 0 > /sys/module/kbp/parameters/window_us

ip link add near type veth peer name far
ip link set far netns tester
# With GRO it has an instance of its own, for what comes from a peer that does not offload segmentation.
ethtool -K near gro on || lab_fail "ethtool"
ip netns exec tester ethtool -K far tso off || lab_fail "ethtool"
ip address add 10.8.0.1/24 dev near
ip link set near up
ip netns exec tester ip address add 10.8.0.2/24 dev far
ip netns exec tester ip link set far up
kbp measure pingpong server --bind 10.8.0.1:$NET_PORT --cpu 3 > /run/veth-server.log 2>&1 &
lab_defer kill $!
lab_wait_for 10 grep -qi "0100080A:1E14 " /proc/net/udp
for mode in busy "adaptive --cpu-budget 50"; do
	# shellcheck disable=SC2086
	kbp attach near --cpu "$NET_CPU" --mode $mode > /dev/null || lab_fail "attach a veth"
	kbp -n tester measure pingpong client 10.8.0.1:$NET_PORT --cpu 1 --count 500 --period-us 200 > "$OUT/veth.txt" ||
		lab_fail "veth: $(cat "$OUT/veth.txt")"
	is_active "${mode%% *}" || lab_fail "a veth is not served in mode $mode: $(kbp show --json)"
	[ "$(kbp stats --json | sed -n 's/.*"name":"near[^"]*"[^}]*"packets":\([0-9]*\).*/\1/p')" -ge 500 ] ||
		lab_fail "its instance did not have the packets"
	# One that is not held is polled once or twice a packet.
	[ "$(kbp stats --json | sed -n 's/.*"name":"near[^"]*"[^}]*"empty_polls":\([0-9]*\).*/\1/p')" -ge 2000 ] ||
		lab_fail "its instance was not held: $(kbp stats --json)"
	kbp detach near > /dev/null || lab_fail "detach"
done
! dmesg | grep "kbp: near: interrupts" || lab_fail "a veth has interrupts"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_pass
