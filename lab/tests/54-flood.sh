#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 400s --module lab/modules/testidle
#
# As many packets as a poller that waits for interrupts can just carry. Their handlers raise softirqs, so ksoftirqd
# awakes beside it, and other threads want the CPU of a poller that never has nothing to do. Before 6.4 no softirq runs
# then but there, and what was sent is not freed. It gets on with that, and no queue stands: the longest round trip is not
# that of a rest in which all packets of milliseconds are served before anybody rests.

. /lab/lib.sh

insmod "$MODULES/kbp_testidle.ko" || lab_fail "testidle"
kbp compare --paths nic --loads idle --mechanisms kbp-sleep,kbp-adaptive --open-loop 24414fps --frame 512 --rounds 1 \
	--row-ms 300 --warm-up-ms 200 --out "$OUT" --modules "$MODULES" > "$OUT/compare.log" 2>&1 ||
	lab_fail "compare: $(cat "$OUT/compare.log")"
grep "nic  " "$OUT/compare.log"
grep -o '"rtt_ns":{[^}]*}' "$OUT/result.json" | sed 's/.*"p99":\([0-9]*\).*/\1/' > "$OUT/p99"
[ "$(wc -l < "$OUT/p99")" -eq 3 ] || lab_fail "not three rows: $(cat "$OUT/p99")"
while read -r p99; do
	[ "$p99" -lt 2000000 ] || lab_fail "a queue stands: p99 $p99 ns"
done < "$OUT/p99"
lab_pass
