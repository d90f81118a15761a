#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The demo, inside the guest: every mechanism of the demo on the path `nic`, idle and in a storm. The path (two network
# cards on one wire, the tester's in a namespace of its own) is made by `kbp compare` itself.
#
# From the lab: $OUT (results), $MODULES (kbp.ko, storm.ko). Arguments go to `kbp compare`.
set -eu

for module in kbp storm; do
	[ -f "$MODULES/$module.ko" ] || {
		echo "demo.sh: there is no $MODULES/$module.ko" >&2
		exit 1
	}
done

# For traces; a kernel that has it mounted already is no error.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true

# Without the limit of 95 % real-time threads a stuck one would hang the guest: say which it is.
echo "real-time limit: $(cat /proc/sys/kernel/sched_rt_runtime_us) of $(cat /proc/sys/kernel/sched_rt_period_us) us"

# The lab reads exit codes 0, 1 and 4 as pass, fail and skip; the demo never skips.
kbp compare --preset demo --out "$OUT" --modules "$MODULES" "$@" || exit 1
