#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Build the QEMU of the lab's parallel clock: Debian's sources and lab/qemu/parallel.patch.
#
#	scripts/build-qemu.sh                   into the lab's cache; nothing to do when it is there
#	QEMU_SOURCE=FILE scripts/build-qemu.sh  from this archive, where Debian's mirror has it no longer
#
# Debian's own package stays what the other clocks run on.
set -euo pipefail

VERSION=10.0.2
ARCHIVE=qemu_$VERSION+ds.orig.tar.xz
SHA256=0901da33844a331bf8b3602b9c1fbd178e60b737c8e3ade678255bd090c9b9f1
# What its build asks for; bookworm's own meson is too old.
BUILDERS=(meson==1.5.0 pycotap==1.3.1)

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PATCH=$ROOT/lab/qemu/parallel.patch
CACHE=${KBP_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kbp-lab}
PLACE=$CACHE/qemu-parallel

fail() {
	printf 'build-qemu: %s\n' "$*" >&2
	exit 1
}

# Print the address of Debian's main archive as apt uses it.
mirror() {
	# shellcheck disable=SC2016 # apt fills these in
	apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}

fetch() {
	local address
	if [[ -n ${QEMU_SOURCE:-} ]]; then
		cp "$QEMU_SOURCE" "$1"
	elif [[ ! -f $1 ]]; then
		address=$(mirror)
		[[ -n $address ]] || fail "apt names no mirror; look at /etc/apt/sources.list"
		printf 'build-qemu: downloading %s\n' "$ARCHIVE"
		# Apt's own client, with the proxy and whatever else is set for apt.
		/usr/lib/apt/apt-helper download-file "${address%/}/pool/main/q/qemu/${ARCHIVE/+/%2B}" "$1.partial" ||
			fail "the mirror does not have $ARCHIVE any more. Get it from Debian's archive of snapshots and give it" \
				"as QEMU_SOURCE."
		mv "$1.partial" "$1"
	fi
	printf '%s  %s\n' "$SHA256" "$1" | sha256sum --check --quiet ||
		{ rm -f "$1"; fail "$ARCHIVE is not the archive that it should be; it was removed"; }
}

# Unpack into the current folder and make it one that configures without what Debian took out of it.
unpack() {
	tar -x -f "$1" --strip-components=1
	patch --quiet --strip=1 <"$PATCH"
	# The firmware that it would unpack is not in Debian's archive.
	sed -i 's/unpack_edk2_blobs = bzip2.found()/unpack_edk2_blobs = false/' meson.build
}

build() {
	python3 -m venv venv
	venv/bin/pip install --quiet --disable-pip-version-check "${BUILDERS[@]}" ||
		fail "pip could not install ${BUILDERS[*]}"
	mkdir build
	cd build
	../configure --python="$PWD/../venv/bin/python3" --target-list=x86_64-softmmu --without-default-features \
		--enable-tcg --enable-fdt=system --disable-docs --disable-werror --disable-install-blobs >configure.log 2>&1 ||
		{ tail -n 20 configure.log >&2; fail "configure failed"; }
	ninja qemu-system-x86_64
}

main() {
	local key work
	key=$(cat "$PATCH" "$ROOT/scripts/build-qemu.sh" | sha256sum | cut -c1-12)
	if [[ -x $PLACE/qemu-system-x86_64 && $(cat "$PLACE/key" 2>/dev/null) == "$key" ]]; then
		return
	fi
	mkdir -p "$PLACE" "$CACHE/downloads"
	exec 9>"$PLACE/build.lock"
	flock 9
	fetch "$CACHE/downloads/$ARCHIVE"
	work=$PLACE/work
	rm -rf "$work"
	mkdir "$work"
	cd "$work"
	unpack "$CACHE/downloads/$ARCHIVE"
	(build)
	mv build/qemu-system-x86_64 "$PLACE/"
	printf '%s\n' "$key" >"$PLACE/key"
	cd /
	rm -rf "$work"
	printf 'build-qemu: %s\n' "$PLACE/qemu-system-x86_64"
}

main
