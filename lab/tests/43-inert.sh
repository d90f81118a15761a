#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 2 --append kbp.enable=0 --timeout 100s
# beside: others
#
# kbp.enable=0 on the kernel command line: the way out for who can't reach a machine but its boot loader.

. /lab/lib.sh

! kbp load --module "$MODULES/kbp.ko" 2> "$OUT/refusal" || lab_fail "it was loaded"
cat "$OUT/refusal"
grep -q "kbp.enable=0" "$OUT/refusal" || lab_fail "it does not say why"
[ ! -e /sys/module/kbp ] || lab_fail "the module is there"
! kbp check > "$OUT/check" || lab_fail "kbp check does not see it"
grep -q "kbp.enable=0" "$OUT/check" || lab_fail "kbp check does not say it"
lab_dmesg_clean
lab_pass
