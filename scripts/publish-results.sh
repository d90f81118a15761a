#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# publish-results.sh STUDY RESULTS [keep]: copies the merged results of a study, STUDY/MACHINE/NAME.json, to
# RESULTS/MACHINE[-NAME].json, and its summary. No row is left out: a partial result is refused. The merged results hold
# coarse timelines, so that a repository can keep them. With `keep`, for a study of which only some runs were made, the
# other results and the summary stay what they are; every table names the revision that was measured.
set -eu

study=$1
results=$2
keep=${3:-}
# A repository is no archive: what is larger than this stays out of it.
bytes_max=8000000

for file in "$study"/*/*.json; do
	if grep -q '^  "partial": true' "$file"; then
		echo "publish-results.sh: $file is partial; run the study to its end" >&2
		exit 1
	fi
done
bytes=$(cat "$study"/*/*.json | wc -c)
if [ "$bytes" -gt "$bytes_max" ]; then
	echo "publish-results.sh: $bytes bytes of results are more than $bytes_max; shorten the study" >&2
	exit 1
fi
# Where on its machine the lab and the program were says nothing to others.
plain() {
	sed -E -e 's#/[^" ]*/(kbp-lab/|\.cache/kbp-lab/)#~/.cache/kbp-lab/#g' -e 's#("command": ")[^ "]*/kbp[^/ ]* #\1kbp #' "$1"
}

mkdir -p "$results"
# What an earlier study called otherwise is not published again.
[ "$keep" = keep ] || rm -f "$results"/*.json
for file in "$study"/*/*.json; do
	machine=$(basename "$(dirname "$file")")
	name=$(basename "$file" .json)
	case $name in
	result) to=$results/$machine.json ;;
	*) to=$results/$machine-$name.json ;;
	esac
	plain "$file" > "$to"
done
[ "$keep" = keep ] || cp "$study/summary.txt" "$results/summary.txt"
