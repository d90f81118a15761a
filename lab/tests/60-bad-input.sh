#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 200s
# beside: others
#
# What a user may get wrong: one sentence, the documented exit code (docs/reference/exit-codes.md), nothing changed.

. /lab/lib.sh
. /lab/net.sh

# refuses CODE WORDS COMMAND...: the command fails with the code, and says the words in one line.
refuses() {
	want=$1
	words=$2
	shift 2
	"$@" > /run/said 2>&1
	code=$?
	echo "$* -> $code: $(cat /run/said)"
	[ "$code" = "$want" ] || lab_fail "exit code $code instead of $want"
	# For a wrong word on the command line (2), a hint on --help follows.
	[ "$want" = 2 ] || [ "$(wc -l < /run/said)" = 1 ] || lab_fail "more than one line"
	grep -q "$words" /run/said || lab_fail "it does not say '$words'"
}

net_up
refuses 3 "kbp load" kbp poller add --cpu 2
refuses 6 "no-such" kbp load --module /no-such/kbp.ko
kbp_start
before=$(kbp show --json)
affinity=$(cat /proc/irq/*/smp_affinity_list | md5sum)
refuses 6 "eth7" kbp attach eth7 --cpu 2 --mode busy
refuses 6 "queue" kbp attach eth0:9 --cpu 2 --mode busy
refuses 6 "poller" kbp attach eth0 --cpu 1 --mode busy
refuses 7 "poller" kbp poller add --cpu 2
refuses 6 "CPU" kbp poller add --cpu 63
ip link add link eth0 name upper type macvlan
lab_defer ip link del upper
refuses 4 "eth0" kbp attach upper --cpu 2 --mode busy
refuses 2 "f:99" kbp poller add --cpu 1 -P f:99
refuses 6 "not attached" kbp detach eth0
[ "$(kbp show --json | sed 's/"stats":{[^}]*}//g')" = "$(echo "$before" | sed 's/"stats":{[^}]*}//g')" ] ||
	lab_fail "something changed"
[ "$(cat /proc/irq/*/smp_affinity_list | md5sum)" = "$affinity" ] || lab_fail "an interrupt was moved"

kbp attach eth0 --cpu 2 --mode busy --dry-run | grep -q smp_affinity || lab_fail "--dry-run does not show the interrupt"
[ "$(cat /proc/irq/*/smp_affinity_list | md5sum)" = "$affinity" ] || lab_fail "--dry-run moved an interrupt"
kbp attach eth0 --cpu 2 --mode busy > /dev/null || lab_fail "attach"
refuses 7 "attached" kbp attach eth0 --cpu 2 --mode busy
kbp detach eth0 > /dev/null || lab_fail "detach"
[ "$(cat /proc/irq/*/smp_affinity_list | md5sum)" = "$affinity" ] || lab_fail "the interrupt did not come back"
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
