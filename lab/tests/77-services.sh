#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --mem 384 --timeout 500s --module kmod --package memcached --package kamailio --package sip-tester
# beside: others
#
# Debian's memcached and kamailio as what `kbp compare` measures: rows of both under softirq and under a poller, every value
# right, every message forwarded. One that is killed in the middle of its row is a cell that failed, with the reason, and the
# others are there.

. /lab/lib.sh

# compare NAME ARGUMENTS...: what came of it is in $OUT/NAME/result.json.
compare() {
	name=$1
	shift
	code=0
	kbp compare --paths nic --loads idle --rounds 1 --modules "$MODULES" --out "$OUT/$name" "$@" > "$OUT/$name.txt" 2>&1 || code=$?
	cat "$OUT/$name.txt"
	return "$code"
}

# rows NAME TOOL: the rows of a tool.
rows() {
	grep '"mode":' "$OUT/$1/result.json" | grep "\"tool\":\"$2\""
}

# nothing_runs: no process of a service is left.
nothing_runs() {
	! pidof memcached kamailio sipp > /dev/null
}

compare both --mechanisms softirq,kbp-sleep-rt --service memcached,sip --requests-per-s 200 --calls-per-s 20 --row-ms 800 ||
	lab_fail "services were not measured"
for tool in memcached kamailio; do
	[ "$(rows both "$tool" | wc -l)" = 3 ] || lab_fail "$tool has not three rows"
	rows both "$tool" | grep -v '"lost":0' && lab_fail "$tool has lost something"
	rows both "$tool" | grep '"mode":"kbp-sleep-rt"' | grep -q '"poller":{' || lab_fail "no poller served $tool"
done
rows both memcached | grep '"note":' && lab_fail "the kernel does not say when memcached's requests left"
# Of a rate and a seed follows how many requests there are; of calls, the messages.
rows both memcached | sed 's/.*"n":\([0-9]*\),.*/\1/' | sort -u > /run/requests
[ "$(wc -l < /run/requests)" = 1 ] || lab_fail "mechanisms were asked different requests: $(cat /run/requests)"
rows both kamailio | grep -v '"n":96,' && lab_fail "16 calls have 96 messages that are forwarded"
lab_wait_for 10 nothing_runs

# killed PROGRAM SERVICE BEGUN: the program is killed in its first row, which has begun when BEGUN runs.
killed() {
	compare "killed-$1" --mechanisms softirq,threaded-fifo --service "$2" --requests-per-s 200 --calls-per-s 20 --row-ms 1500 &
	run=$!
	lab_wait_for 60 pidof "$3"
	victim=$(pidof "$1" | tr ' ' '\n' | sort -n | head -n 1)
	# In the middle of it, if the machine is fast enough; where exactly is all the same.
	sleep 1
	kill -KILL "$victim"
	code=0
	wait "$run" || code=$?
	[ "$code" = 1 ] || lab_fail "$1 was killed, and the exit code is $code"
	result=$OUT/killed-$1/result.json
	grep -q '"failed": true' "$result" || lab_fail "no cell has failed: $(head -n 60 "$result")"
	grep -q '"why": ".*died while it was needed.*signal: 9' "$result" || lab_fail "no reason: $(grep why "$result")"
	[ "$(rows "killed-$1" "$1" | wc -l)" = 2 ] || lab_fail "the others have not two rows"
	# What a killed kamailio leaves goes with its sockets, in time for the next one.
	lab_wait_for 20 nothing_runs
}

killed memcached memcached memcached
killed kamailio sip sipp
lab_dmesg_clean
lab_pass
