#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One unit of a study, inside the guest: `kbp compare` with the arguments of the study file. What it measured is in
# $OUT/result.json, also when a cell failed; then it ends with 1.
#
# A machine of the study that names lab/modules/testfreq or testidle has these drivers for the whole unit, under every
# mechanism alike. Whatever no mechanism governs has its highest frequency then, and the result says so.
#
# From the lab: $OUT (results), $MODULES (kbp.ko, the modules of the loads, the drivers).
set -eu

if [ -e "$MODULES/kbp_testidle.ko" ]; then
	insmod "$MODULES/kbp_testidle.ko"
fi
# A machine that has kbp_lab.others_idle_us=US on its command line: no CPU but the poller's (the third, as `kbp compare` has
# it) sleeps more deeply than that, so what a round trip has of idle states is what the mechanism has.
others_us=$(sed -n 's/.*kbp_lab\.others_idle_us=\([0-9]*\).*/\1/p' /proc/cmdline)
if [ -n "$others_us" ]; then
	for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
		[ "${cpu##*/cpu}" = 2 ] || echo "$others_us" > "$cpu/power/pm_qos_resume_latency_us"
	done
fi
if [ -e "$MODULES/kbp_testfreq.ko" ]; then
	insmod "$MODULES/kbp_testfreq.ko"
	for governor in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do
		echo performance > "$governor"
	done
fi

# The CNI plug-ins of a pod call iptables, whose name the package makes only where it is installed, not unpacked.
if [ -e /usr/sbin/xtables-nft-multi ] && [ ! -e /usr/sbin/iptables ]; then
	ln -s xtables-nft-multi /usr/sbin/iptables
fi

# The lab reads exit codes 0, 1 and 4 as pass, fail and skip; a study never skips.
kbp compare --out "$OUT" --modules "$MODULES" "$@" || exit 1
