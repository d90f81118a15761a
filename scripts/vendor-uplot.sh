#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Bring the files of uPlot, the charts of `kbp report`, into the repository, or check them.
#
#	scripts/vendor-uplot.sh           fetch the release that uplot.lock names, write the files
#	scripts/vendor-uplot.sh --check   fetch it and compare; writes nothing
#
# To take a newer release, change the version and the integrity in uplot.lock (`npm view
# uplot@VERSION dist.integrity`), run this, then the tests. Needs npm and openssl; building and
# testing need neither.
set -euo pipefail

cd "$(dirname "$0")/.."
ASSETS=crates/kbp-measure/assets/uplot
FILES=(dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE)

fail() {
	printf 'vendor-uplot: %s\n' "$*" >&2
	exit 1
}

# Print the integrity of a file as npm writes it.
integrity() {
	printf 'sha512-%s' "$(openssl dgst -sha512 -binary "$1" | openssl base64 -A)"
}

main() {
	local version wanted found archive file
	read -r version wanted <"$ASSETS/uplot.lock"
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	archive=$scratch/$(cd "$scratch" && npm pack --silent "uplot@$version") ||
		fail "npm could not fetch uplot@$version. Look at its messages above."
	found=$(integrity "$archive")
	[[ $found == "$wanted" ]] ||
		fail "uplot@$version has the integrity $found, and $ASSETS/uplot.lock asks for $wanted." \
			"Nothing was changed."
	tar -xzf "$archive" -C "$scratch"
	for file in "${FILES[@]}"; do
		if [[ ${1:-} == --check ]]; then
			cmp "$scratch/package/$file" "$ASSETS/${file##*/}" ||
				fail "$ASSETS/${file##*/} is not that of uplot@$version: run scripts/vendor-uplot.sh"
		else
			install -m 644 "$scratch/package/$file" "$ASSETS/${file##*/}"
		fi
	done
	printf 'uplot@%s: %s\n' "$version" "$ASSETS"
}

main "$@"
