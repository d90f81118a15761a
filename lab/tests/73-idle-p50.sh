#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 2 --timeout 400s
#
# What mode busy costs a packet where nothing competes: the median of idle round trips, in turns with the stock path. The
# demo has the same bar, 1.02 times; here it is looked at with each change.

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
lab_dmesg_clean
lab_pass
