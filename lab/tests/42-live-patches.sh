#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --module lab/modules/rival --module lab/modules/otherpatch --timeout 300s
# beside: others
#
# Other live patches: one of a function that kbp replaces too is refused, whichever comes first; one that replaces all
# others makes kbp step aside; one that has nothing to do with it is waited for. And enable=0 keeps the module inert.

. /lab/lib.sh
. /lab/net.sh

net_up

# settled NAME: is that live patch in, and everybody over?
settled() {
	[ "$(cat "/sys/kernel/livepatch/$1/enabled" "/sys/kernel/livepatch/$1/transition" 2> /dev/null | tr -d '\n')" = 10 ]
}

gone() {
	[ ! -e "/sys/kernel/livepatch/$1" ]
}

take_out() {
	echo 0 > "/sys/kernel/livepatch/$1/enabled"
	lab_wait_for 60 gone "$1"
	# The kernel lets go of the module a little later.
	lab_wait_for 10 rmmod "$1" 2> /dev/null
}

echo "the other one second"
kbp_start
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
net_traffic second --seconds 3
! insmod "$MODULES/rival.ko" 2> /dev/null || lab_fail "a second live patch of the same function came in"
[ ! -e /sys/module/rival ] || lab_fail "it is half there"
lab_dmesg_since | grep -q "rival is refused, because it replaces __napi_schedule_irqoff" || lab_fail "it is not said why"
lab_wait_for 5 kbp_active
net_none_lost second

echo "one that replaces all others"
net_traffic usurped --seconds 600 --period-us 3000
insmod "$MODULES/usurper.ko" || lab_fail "insmod usurper"
lab_wait_for 60 settled usurper
grep -q usurper /proc/cmdline || lab_fail "the usurper is not in effect"
no_poller() { kbp show --json | grep -q '"pollers":\[\]'; }
lab_wait_for 10 no_poller
! kbp poller add --cpu "$NET_CPU" 2> "$OUT/refusal" || lab_fail "a poller without a live patch"
grep -q "another live patch has replaced" "$OUT/refusal" || lab_fail "it does not say why: $(cat "$OUT/refusal")"
kbp unload || lab_fail "unload after being replaced"
net_alive || lab_fail "the traffic stopped: $(cat "$OUT/usurped.err")"
take_out usurper
kill -INT "$NET_PID"
net_none_lost usurped
lab_dmesg_clean

echo "the other one first"
insmod "$MODULES/rival.ko" || lab_fail "insmod rival"
lab_wait_for 60 settled rival
! kbp load --module "$MODULES/kbp.ko" 2> "$OUT/refusal" || lab_fail "kbp came in second"
cat "$OUT/refusal"
grep -q "rival replaces __napi_schedule_irqoff" "$OUT/refusal" || lab_fail "it does not say why"
[ ! -e /sys/module/kbp ] || lab_fail "kbp is half there"
[ ! -e /sys/module/kbp_trace ] || lab_fail "what kbp brought along stayed behind"
! kbp check --module "$MODULES/kbp.ko" > "$OUT/check" || lab_fail "kbp check does not see it"
take_out rival
lab_dmesg_clean

echo "unload while another one is in transition"
kbp_start
kbp attach eth0 --cpu "$NET_CPU" --mode busy > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
# A poller that runs is no task that can be moved at the first try; the kernel tries again after a second.
insmod "$MODULES/otherpatch.ko" || lab_fail "insmod otherpatch"
[ "$(cat /sys/kernel/livepatch/otherpatch/transition)" = 1 ] || echo "  its transition is over already"
kbp unload || lab_fail "unload beside another transition"
[ ! -e /sys/module/kbp ] || lab_fail "the module is still there"
lab_wait_for 60 settled otherpatch
take_out otherpatch
lab_dmesg_clean

echo "enable=0"
insmod "$MODULES/kbp_trace.ko" || lab_fail "insmod kbp_trace"
insmod "$MODULES/kbp.ko" enable=0 || lab_fail "insmod enable=0"
gone kbp || lab_fail "the live patch is there"
! kbp poller add --cpu "$NET_CPU" 2> "$OUT/refusal" || lab_fail "an inert module makes a poller"
grep -q "enable=0" "$OUT/refusal" || lab_fail "it does not say why: $(cat "$OUT/refusal")"
kbp unload || lab_fail "unload of the inert module"
net_traffic end --seconds 1
net_none_lost end
lab_dmesg_clean
lab_pass
