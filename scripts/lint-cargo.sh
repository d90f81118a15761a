#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What the tests need of a library's features, the product's own dependencies have: where they differ, cargo compiles
# that library and every crate that uses it once for the product and once more for its tests.
set -eu
cd "$(dirname "$0")/.."

libraries=$(mktemp -d)
trap 'rm -r "$libraries"' EXIT

# features EDGES FILE: each library that these dependencies lead to, with its features.
features() {
	cargo tree --locked --quiet --workspace --prefix none --format '{p} {f}' --edges "$1" > "$2.tree"
	sed 's/ (\*)$//' "$2.tree" | LC_ALL=C sort -u > "$2"
	[ -s "$2" ] || {
		echo "cargo tree names no library" >&2
		exit 1
	}
}

features normal,build "$libraries/product"
features normal,build,dev "$libraries/tests"
# A library of the tests alone is compiled once.
LC_ALL=C comm -13 "$libraries/product" "$libraries/tests" > "$libraries/more"
while read -r name version features; do
	if grep -qF "$name $version " "$libraries/product"; then
		echo "Cargo.toml: only with the tests $name has the features $features:" \
			"name them among the dependencies of the crate whose tests need them" >&2
		failed=1
	fi
done < "$libraries/more"
exit "${failed:-0}"
