#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 300s
# beside: others
#
# The machine goes to sleep and wakes up, by the kernel's own test of it (pm_test), as far as the CPUs: pollers and
# attachments are back afterwards. What is sent meanwhile may be lost, as always when a machine sleeps.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp_start
kbp monitor --json --for 120s > "$OUT/events.json" &
lab_defer kill $!
# It listens when it has reported something.
listens() {
	kbp attach backlog --cpu "$NET_CPU" > /dev/null 2>&1 || kbp detach backlog --cpu "$NET_CPU" > /dev/null
	grep -q changed "$OUT/events.json"
}
lab_wait_for 10 listens
kbp attach backlog --cpu "$NET_CPU" > /dev/null 2>&1
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
backlog_active() { kbp show --json | grep -q '"backlog_active":"attached"'; }

# events WORD: how often that was reported.
events() {
	grep -c "\"event\":\"$1\"" "$OUT/events.json"
}

more_events() {
	[ "$(events online)" -gt "$online" ] && [ "$(events offline)" -gt "$offline" ]
}

# sleep_until LEVEL STATE: as deep as that, and back; the kernel stays there for 5 s.
sleep_until() {
	echo "$1, $2"
	online=$(events online) offline=$(events offline)
	echo "$1" > /sys/power/pm_test || lab_fail "this kernel has no pm_test $1: $(cat /sys/power/pm_test)"
	echo "$2" > /sys/power/state || lab_fail "suspend"
	lab_wait_for 20 kbp_active
	lab_wait_for 5 backlog_active
	lab_wait_for 30 net_carrier
	lab_wait_for 5 more_events
	packets=$(kbp_counter packets)
	net_traffic "after-$1" --seconds 2 --period-us 2000
	net_none_lost "after-$1"
	packets=$(($(kbp_counter packets) - packets))
	echo "$packets packets polled afterwards"
	[ "$packets" -ge "$NET_N" ] || lab_fail "the poller serves less than it has to"
	lab_dmesg_clean
}

grep -q mem /sys/power/state || lab_fail "this machine can't sleep: $(cat /sys/power/state)"
echo deep > /sys/power/mem_sleep || lab_fail "only $(cat /sys/power/mem_sleep)"
sleep_until devices freeze
# The other CPUs go and come on the way.
sleep_until processors mem
kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
