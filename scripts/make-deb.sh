#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Build the Debian packages kbp and kbp-dkms from this source tree: from the files that git knows, as they are now.
#
#	scripts/make-deb.sh KBP OUT      the command, built already; the folder for the packages
#
# The tree is copied, so that what debhelper leaves behind does not lie among the sources.
set -euo pipefail

fail() {
	printf 'make-deb: %s\n' "$*" >&2
	exit 1
}

# The packages, the command and the module go by one version.
check_version() {
	local version=$1 found
	found=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
	[[ $found == "$version" ]] ||
		fail "packaging/debian/changelog says version $version, Cargo.toml says $found"
	found=$(sed -n 's/^MODULE_VERSION("\(.*\)");/\1/p' kmod/kbp/main.c)
	[[ $found == "$version" ]] ||
		fail "packaging/debian/changelog says version $version, kmod/kbp/main.c says $found"
}

# Copies what git tracks to the folder $1.
copy_tracked() {
	local -a deleted
	mapfile -t deleted < <(git ls-files --deleted)
	[[ ${#deleted[@]} -eq 0 ]] ||
		fail "git tracks files that are not there: ${deleted[*]}. Bring them back (git restore) or remove them" \
			"from git, too (git rm)"
	mkdir -p "$1"
	git ls-files --cached -z | tar --null --files-from - --create --file - | tar --extract --directory "$1"
	cp -r "$1/packaging/debian" "$1/debian"
}

main() {
	[[ $# -eq 2 ]] || fail "usage: scripts/make-deb.sh KBP OUT"
	local kbp out version work
	cd "$(dirname "$0")/.."
	[[ -x $1 ]] || fail "there is no program $1; run make build first"
	kbp=$(realpath "$1")
	version=$(dpkg-parsechangelog --file packaging/debian/changelog --show-field Version)
	check_version "$version"
	mkdir -p "$2"
	out=$(realpath "$2")
	work=$out/work
	rm -rf "$work" "$out"/*.deb
	copy_tracked "$work/kbp-$version"
	(cd "$work/kbp-$version" && KBP=$kbp dpkg-buildpackage --build=binary --no-sign) > "$out/build.log" 2>&1 ||
		fail "$(tail -n 15 "$out/build.log")" "(the whole of it is in $out/build.log)"
	mv "$work"/*.deb "$out"
	rm -rf "$work"
	printf '%s\n' "$2"/*.deb
}

main "$@"
