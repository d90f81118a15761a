#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2:e1000 --timeout 300s
#
# A driver whose interrupt does not stay masked: e1000 unmasks it when its handler finds the instance taken, and does
# that also for interrupts of another card on its line. Each packet interrupts then, whatever the poller does. Mode busy
# polls on; mode adaptive saves nothing, is served as mode sleep, and says so. No packet is lost on the way.

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

# Five packets 60 us apart, then none for 5 ms: what is held for no more than those five is found out as well.
kbp attach eth0 --cpu "$NET_CPU" --mode adaptive --cpu-budget 50 > /dev/null || lab_fail "attach"
printf '%s\n' 60000 60000 60000 60000 5000000 > /run/fives
kbp --json --netns tester measure openloop "$NET_SERVER:$NET_PORT" --arrivals trace:/run/fives --seconds 2 --cpu 1 \
	--drain-ms 50 > "$OUT/fives.json" 2> "$OUT/fives.err" || lab_fail "fives: $(cat "$OUT/fives.err")"
echo "fives: $(napi_counter packets) packets, $(held) interrupts while it was held, $(napi_counter rearms) times let go"
[ "$(net_value fives lost)" = 0 ] || lab_fail "fives: $(net_value fives lost) lost"
is_active sleep || lab_fail "fives: interrupts come while they are masked, and it does not say so"
kbp detach eth0 > /dev/null || lab_fail "detach"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_pass
