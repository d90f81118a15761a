#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One unit of a study, inside the guest: `kbp compare` with the arguments of the study file. What it measured is in
# $OUT/result.json, also when a cell failed; then it ends with 1.
#
# From the lab: $OUT (results), $MODULES (kbp.ko and the modules of the loads).
set -eu

# The lab reads exit codes 0, 1 and 4 as pass, fail and skip; a study never skips.
kbp compare --out "$OUT" --modules "$MODULES" "$@" || exit 1
