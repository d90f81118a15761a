#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 400s --module lab/modules/testidle
#
# As many packets as a poller that waits for interrupts can just carry. Their handlers raise softirqs, so ksoftirqd is
# awake beside it, and wants the CPU of a poller that always has something to do. Before 6.5 no softirq runs then but
# there, and what was sent is not freed. All get on, and no queue stands: p99 is not that of a rest in which the packets
# of milliseconds are served before anybody rests.

. /lab/lib.sh

insmod "$MODULES/kbp_testidle.ko" || lab_fail "testidle"
kbp compare --paths nic --loads idle --mechanisms kbp-sleep,kbp-adaptive --open-loop 24414fps --frame 512 --rounds 1 \
	--row-ms 300 --warm-up-ms 200 --out "$OUT" --modules "$MODULES" > "$OUT/compare.log" 2>&1 ||
	lab_fail "compare: $(cat "$OUT/compare.log")"
grep "nic  " "$OUT/compare.log"
grep -o '"rtt_ns":{[^}]*}' "$OUT/result.json" | sed 's/.*"p99":\([0-9]*\).*/\1/' > "$OUT/p99"
! grep -E '"(warmup_)?lost":[1-9]' "$OUT/result.json" > /dev/null || lab_fail "frames were lost"
[ "$(wc -l < "$OUT/p99")" -eq 3 ] || lab_fail "not three rows: $(cat "$OUT/p99")"
while read -r p99; do
	[ "$p99" -lt 2000000 ] || lab_fail "a queue stands: p99 $p99 ns"
done < "$OUT/p99"
! lab_dmesg_since | grep -q 'RT throttling activated' || lab_fail "RT throttling stopped somebody"
lab_dmesg_clean
lab_pass
