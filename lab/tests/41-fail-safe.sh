#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2 --module lab/modules/storm --module lab/modules/fault --timeout 600s
# kernels: wide
#
# A poller that is stuck with softirqs off, and one whose thread ends: in both cases the packets go on through softirq
# within 100 ms, everybody is told, and the module can be unloaded.

. /lab/lib.sh
. /lab/net.sh

# How long one poll of the stuck driver lasts, ms; on the stock path that is how late a packet may be.
STUCK_MS=400
LATE_MS_MAX=100

net_up
kbp_start
kbp monitor --json --for 60s > "$OUT/events.json" &
lab_defer kill $!
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active

# max_ms NAME: the longest round trip.
max_ms() {
	echo $(($(net_value "$1" max) / 1000000))
}

state() {
	kbp show --json | sed -n 's/.*"state":"\([a-z-]*\)".*/\1/p'
}

is_state() {
	[ "$(state)" = "$1" ]
}

echo "stuck: a driver's poll function spins for $STUCK_MS ms"
net_traffic stuck --seconds 3 --period-us 2000
insmod "$MODULES/storm.ko" cpu="$NET_CPU" burst=1 pkt_ns=$((STUCK_MS * 1000000)) period_ms=800 ||
	lab_fail "insmod storm"
lab_wait_for 8 is_state handed-back
lab_wait_for 8 kbp_active
rmmod storm
net_none_lost stuck
echo "longest round trip $(max_ms stuck) ms, $(kbp_counter relayed_napis) instances went to another CPU"
[ "$(max_ms stuck)" -le "$LATE_MS_MAX" ] || lab_fail "packets waited for the stuck poller"
[ "$(kbp_counter relayed_napis)" -gt 0 ] || lab_fail "nothing was relayed"
grep -q handed-back "$OUT/events.json" || lab_fail "nobody was told of the hand-back"
grep -q resumed "$OUT/events.json" || lab_fail "nobody was told of the return"
lab_dmesg_clean

echo "dead: the poller's thread ends"
net_traffic dead --seconds 1.5 --period-us 2000
sleep 0.3
pid=$(kbp show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
insmod "$MODULES/fault.ko" pid="$pid" 2> /dev/null
[ ! -e "/proc/$pid" ] || lab_fail "the thread lives on"
is_state dead || lab_fail "it is shown as $(state)"
! kbp_active || lab_fail "the card is shown as served"
net_none_lost dead
[ "$(max_ms dead)" -le "$LATE_MS_MAX" ] || lab_fail "packets waited for the dead poller: $(max_ms dead) ms"
lab_wait_for 5 grep -q died "$OUT/events.json"
! kbp -n tester attach eth1 --cpu "$NET_CPU" 2> "$OUT/refusal" || lab_fail "a dead poller takes on work"
grep -q "has ended" "$OUT/refusal" || lab_fail "it does not say why: $(cat "$OUT/refusal")"

echo "a new poller takes over"
kbp poller del --cpu "$NET_CPU" > /dev/null || lab_fail "poller del"
kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "poller add"
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach again"
lab_wait_for 5 kbp_active
net_traffic again --seconds 0.5 --period-us 2000
net_none_lost again

echo "dead and unloaded"
insmod "$MODULES/fault.ko" pid="$(kbp show --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')" 2> /dev/null
is_state dead || lab_fail "it is shown as $(state)"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
net_traffic unloaded --seconds 0.5
net_none_lost unloaded
lab_dmesg_clean
lab_pass
