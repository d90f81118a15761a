#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 2 --package kmod --package xz-utils --timeout 150s
# kernels: 6.1 6.12 7.3
# beside: others
#
# Modules that are installed as DKMS packs them, `xz -f` and so with CRC64: the kernel does not unpack that, whether it
# can unpack others (6.12, 7.3) or none (6.1), and `kbp load` brings both in by modprobe.

. /lab/lib.sh

installed=/lib/modules/$(uname -r)/updates/dkms
mkdir -p "$installed" || lab_fail "no $installed"
for module in kbp kbp_trace; do
	cp "$MODULES/$module.ko" "$installed" || lab_fail "no $module"
	xz -f "$installed/$module.ko" || lab_fail "$module is not packed"
done
depmod || lab_fail "depmod"

# Else this says nothing about modprobe.
! kbp load --module "$installed/kbp.ko.xz" 2> "$OUT/refusal" || lab_fail "the kernel unpacks it itself"
cat "$OUT/refusal"
[ ! -e /sys/module/kbp_trace ] || lab_fail "a refused load has left kbp_trace behind"

kbp load || lab_fail "kbp load"
for module in kbp kbp_trace; do
	[ -e "/sys/module/$module" ] || lab_fail "$module is not there"
done
kbp unload || lab_fail "kbp unload"
for module in kbp kbp_trace; do
	[ ! -e "/sys/module/$module" ] || lab_fail "$module is still there"
done
lab_dmesg_clean
lab_pass
