#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 400s
#
# What mode busy costs a packet where nothing competes: the median of idle round trips, in turns with the stock path. The
# demo has the same bar, 1.02 times; here it is looked at with each change. Then the same path with a tester that polls its own
# card, so that mode busy has the server's card alone.

. /lab/lib.sh

kbp compare --paths nic --loads idle --mechanisms softirq,kbp-busy --rounds 2 --row-ms 400 --out "$OUT" \
	--modules "$MODULES" > "$OUT/table" 2>&1 || lab_fail "kbp compare: $(cat "$OUT/table")"
kbp report "$OUT/result.json" --csv |
	awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
		{ sum[$column["mode"]] += $column["p50_ns"]; rows[$column["mode"]]++ }
		END {
			busy = sum["kbp-busy"] / rows["kbp-busy"]
			softirq = sum["softirq"] / rows["softirq"]
			printf "p50 in %d and %d rows: kbp-busy %.1f, softirq %.1f us, ratio %.4f\n", rows["kbp-busy"],
				rows["softirq"], busy / 1000, softirq / 1000, busy / softirq
			exit !(rows["kbp-busy"] == 2 && rows["softirq"] == 3 && busy <= softirq * 1.02)
		}' || lab_fail "idle, mode busy is slower than the stock path by more than 2 %"

# A tester that polls its own card: no mechanism serves that, and next to no interrupt of it comes.
# receive_irqs RESULT: interrupts of that card in the rows, as /proc/interrupts had them.
receive_irqs() {
	grep -o '"[0-9]* eth1-rx-0":{[^}]*}' "$1" | grep -o ':[0-9]*' | awk -F : '{ sum += $2 } END { print sum + 0 }'
}
deferral() {
	cat /sys/class/net/eth1/napi_defer_hard_irqs /sys/class/net/eth1/gro_flush_timeout
}
deferral > "$OUT/before"
[ "$(receive_irqs "$OUT/result.json")" -gt 500 ] || lab_fail "the card that softirq served had no interrupts"
kbp compare --paths nic --loads idle --mechanisms softirq,kbp-busy --cpus 0 1 2 0 --replies-cpu 3 --open-loop 4000fps \
	--rounds 1 --row-ms 200 --out "$OUT/polled" --modules "$MODULES" > "$OUT/table" 2>&1 ||
	lab_fail "kbp compare --replies-cpu: $(cat "$OUT/table")"
irqs=$(receive_irqs "$OUT/polled/result.json")
grep -o '"n":[0-9]*' "$OUT/polled/result.json" | cut -d : -f 2 > "$OUT/frames"
frames=$(awk '{ sum += $1 } END { print sum }' "$OUT/frames")
echo "the tester's card: $irqs interrupts, $frames replies in $(wc -l < "$OUT/frames") rows"
[ "$frames" -ge 2000 ] || lab_fail "replies are missing"
[ "$((5 * irqs))" -le "$frames" ] || lab_fail "the tester's card is not polled"
grep -o '"poller":{[^}]*}' "$OUT/polled/result.json" | sed 's/.*"packets":\([0-9]*\).*/\1/' > "$OUT/packets"
echo "the poller's packets: $(tr '\n' ' ' < "$OUT/packets")"
[ "$(cat "$OUT/packets")" -lt 1200 ] || lab_fail "the poller has served the tester's card"
deferral | cmp -s - "$OUT/before" || lab_fail "the tester's card is not as it was: $(deferral)"
lab_dmesg_clean
lab_pass
