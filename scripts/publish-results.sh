#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# publish-results.sh STUDY RESULTS: copies the merged results of a study, STUDY/MACHINE/NAME.json, to
# RESULTS/MACHINE[-NAME].json, and its summary. Nothing is left out: a partial result is refused.
set -eu

study=$1
results=$2

mkdir -p "$results"
for file in "$study"/*/*.json; do
	if grep -q '^  "partial": true' "$file"; then
		echo "publish-results.sh: $file is partial; run the study to its end" >&2
		exit 1
	fi
done
for file in "$study"/*/*.json; do
	machine=$(basename "$(dirname "$file")")
	name=$(basename "$file" .json)
	case $name in
	result) to=$results/$machine.json ;;
	*) to=$results/$machine-$name.json ;;
	esac
	cp "$file" "$to"
done
cp "$study/summary.txt" "$results/summary.txt"
