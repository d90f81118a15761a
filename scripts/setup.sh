#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Install the Debian packages that building, the lab and the lint need.
#
#	scripts/setup.sh build     what `make demo` and `make test` need
#	scripts/setup.sh test      what `make test` needs on top
#	scripts/setup.sh lint      what `make lint` needs on top
#	scripts/setup.sh deb       what `make deb` needs on top
#	scripts/setup.sh qemu      what `make lab-qemu` needs on top
#
# Does nothing, quickly, when everything is there. Kernels and QEMU are not
# installed here: the lab fetches and unpacks them beside the system.
set -euo pipefail

BUILD_PACKAGES=(
	gcc make libc6-dev binutils     # Rust's linker, klp-reloc, host tests, modules
	libelf1 libssl3                 # kbuild: objtool and its other programs
	mmdebstrap                      # the lab: a build root for compilers that this Debian lacks
	python3 python3-yaml            # scripts
	zstd lz4                        # check-abi: what some kernel images are compressed by
	git                             # a result names the commit that it was made from
)
# A browser opens the page of `kbp report`; it needs a font to show text. Topologies are made with nftables, runc and kmod's
# modprobe. The others are what the tests of the drivers run,
# unmodified, and how they make their namespaces. Where systemd runs, Debian starts a memcached on the loopback interface;
# the tests do not use it.
TEST_PACKAGES=(chromium fonts-dejavu-core nftables runc kmod iproute2 iperf3 memcached sockperf)
LINT_PACKAGES=(shellcheck sparse)
# Packages are built by debhelper, and dpkg insists on build-essential; e2fsprogs makes the disk of the machine in which
# they are tested.
DEB_PACKAGES=(build-essential dpkg-dev debhelper dh-dkms e2fsprogs)
# The QEMU of the lab's parallel clock is built from sources.
QEMU_PACKAGES=(patch xz-utils ninja-build pkgconf python3-venv libglib2.0-dev libfdt-dev zlib1g-dev)

fail() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

# Print the packages among the arguments that are not installed. A package that
# another one provides (libssl3 by libssl3t64 on newer releases) counts as there.
missing_packages() {
	local installed package
	installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' |
		sed -n 's/^installed //p' | sed 's/([^)]*)//g' | tr -s ', \n' '   ') "
	for package in "$@"; do
		[[ $installed == *" $package "* ]] || printf '%s\n' "$package"
	done
}

install_packages() {
	local -a missing
	mapfile -t missing < <(missing_packages "$@")
	[[ ${#missing[@]} -gt 0 ]] || return 0
	if [[ $EUID -ne 0 ]]; then
		fail "these packages are missing: ${missing[*]}." \
			"Install them as root: apt-get install --no-install-recommends ${missing[*]}"
	fi
	printf 'setup: installing %s\n' "${missing[*]}"
	apt-get update -q ||
		fail "apt-get update failed. Look at its messages above and at /etc/apt/sources.list."
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" ||
		fail "apt-get could not install ${missing[*]}. Look at its messages above."
}

check_rust() {
	command -v cargo >/dev/null ||
		fail "cargo is missing. Install the current stable Rust with rustup," \
			"open a new shell so that cargo is in PATH, and try again."
	[[ $1 != lint ]] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
		fail "rustfmt or clippy is missing. Install them: rustup component add rustfmt clippy"
}

main() {
	local what=${1:-build}
	local -a packages=("${BUILD_PACKAGES[@]}")
	case $what in
	build) ;;
	test) packages+=("${TEST_PACKAGES[@]}") ;;
	lint) packages+=("${LINT_PACKAGES[@]}") ;;
	deb) packages+=("${DEB_PACKAGES[@]}") ;;
	qemu) packages+=("${QEMU_PACKAGES[@]}") ;;
	*) fail "unknown argument '$what'; use build, test, lint, deb or qemu" ;;
	esac
	if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
		fail "this machine has no apt. The lab takes its kernels from Debian through apt;" \
			"use Debian 12 or newer, or a container of it."
	fi
	install_packages "${packages[@]}"
	check_rust "$what"
}

main "$@"
