# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# Finishes the system of a disk, inside of it (chroot): installs the first kernel from the packages that lie there, as
# its owner would have, and leaves out what has no use in a machine without a network to the outside.
#
#	sh disk-prepare.sh KERNEL

set -e
export DEBIAN_FRONTEND=noninteractive
# Machines boot with the lab's own first root; making the system's would take longer than all the rest.
export INITRD=No
dpkg --install "/var/cache/kbp-lab/kernels/$1"/*.deb
systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer
passwd --quiet --delete root
: > /etc/machine-id
