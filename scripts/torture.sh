#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Torture on some kernels, one machine after the other:
#
#	KBP=target/release/kbp scripts/torture.sh OUT "6.1 6.12 6.1-debug?" [ARGUMENTS OF kbp-torture]...
#
# A kernel with a question mark is left out, with a word about it, when it is not in the lab's cache. A machine that was
# lost fails too: here that is what is looked for. Each kernel's result and logs are in OUT/KERNEL.
set -euo pipefail

out=$1 kernels=$2
shift 2
arguments=("$@")
kbp=${KBP:?KBP has to name the program kbp}
failed=()

# Checkers cost memory, and packets take longer under them.
settings_of() {
	case $1 in
	*-debug) printf '%s\n' --mem 1024 ;;
	*) printf '%s\n' --mem 512 ;;
	esac
}

rate_of() {
	case $1 in
	*-debug) printf '%s\n' --rate 25 ;;
	esac
}

# The time limit of the machine: what the arguments ask for, and as much again with half an hour on top.
timeout_of() {
	local hours=0 phases=6 seconds=20
	local -a words=("${arguments[@]}")
	while [[ ${#words[@]} -gt 1 ]]; do
		case ${words[0]} in
		--for) hours=${words[1]%h} ;;
		--phases) phases=${words[1]} ;;
		--seconds) seconds=${words[1]} ;;
		esac
		words=("${words[@]:1}")
	done
	printf '%ss\n' $((2 * hours * 3600 + 2 * phases * seconds + 1800))
}

is_cached() {
	"$kbp" lab list --json | python3 -c '
import json, sys
sys.exit(0 if any(k["id"] == sys.argv[1] and k["cached"] for k in json.load(sys.stdin)) else 1)' "$1"
}

torture() {
	local kernel=$1
	local -a settings rate
	mapfile -t settings < <(settings_of "$kernel")
	mapfile -t rate < <(rate_of "$kernel")
	mkdir -p "$out/$kernel"
	"$kbp" lab run lab/torture.sh --kernel "$kernel" --clock real --cpus 4 --nics 2 "${settings[@]}" \
		--append softlockup_panic=0 \
		--module kmod --module lab/modules/otherpatch --module lab/modules/testfreq --module lab/modules/testidle \
		--file "$kbp:/usr/bin/kbp" \
		--file "${kbp%/*}/kbp-torture:/usr/bin/kbp-torture" --timeout "$(timeout_of)" --out "$out/$kernel" \
		-- "${rate[@]}" "${arguments[@]}"
}

for word in $kernels; do
	kernel=${word%\?}
	if [[ $word == *\? ]] && ! is_cached "$kernel"; then
		printf 'torture: %s is not in the cache; make lab-debug-kernel builds it\n' "$kernel"
		continue
	fi
	printf '== torture: %s\n' "$kernel"
	start=$SECONDS
	torture "$kernel" || failed+=("$kernel")
	printf '== torture: %s took %s s\n' "$kernel" $((SECONDS - start))
done
if [[ ${#failed[@]} -gt 0 ]]; then
	printf 'torture: failed on %s\n' "${failed[*]}"
	exit 1
fi
