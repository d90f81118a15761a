#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The symbols of the running kernel, without those of modules, for `make check-abi`. Leaves kallsyms in $OUT.

. /lab/lib.sh

grep -v '\[' /proc/kallsyms > "$OUT/kallsyms" || lab_fail "kallsyms cannot be read"
lab_pass
