#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Random actions on pollers and everything around them, in the guest: real clock, 4 CPUs, 2 cards. The arguments are
# those of kbp-torture. `make torture-short` and `make torture` run this.

. /lab/lib.sh

# Frequencies and idle states that a poller can be told to use; exits that take the host no longer than need be.
insmod "$MODULES/kbp_testfreq.ko" || lab_fail "insmod kbp_testfreq"
insmod "$MODULES/kbp_testidle.ko" latencies_us=2,10,30 || lab_fail "insmod kbp_testidle"
modprobe -a veth bridge vxlan 2> /dev/null
kbp-torture --module "$MODULES/kbp.ko" --otherpatch "$MODULES/otherpatch.ko" --json "$OUT/torture.json" "$@" ||
	lab_fail "kbp-torture $*"
lab_dmesg_clean
lab_pass
