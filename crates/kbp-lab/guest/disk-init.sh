#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The first process of a machine that has a system on a disk: loads the drivers of the disk, and gives way to the first
# process of that system. The guest's side of a job (job.sh) and the units that start it go along in /run, so that nothing
# of the lab lies on the disk.
#
# It stands in for the first root that the system would make for itself (initramfs-tools). So a kernel boots that was not
# installed by the system's own means, and nothing is lost: what is tested begins with the system's first process.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Before we say that we run: a machine that ends here is started again, and the disk is as it was.
if ! kbp-lab-guest timers; then
	echo "kbp-lab: the machine has a CPU whose timer is dead"
	reboot -f
fi
echo "kbp-lab: init"

give_up() {
	echo "kbp-lab: $1"
	reboot -f
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
	insmod "$module" || give_up "the stock module $module does not load"
done < /etc/kbp-lab/insmod
tries=0
while [ ! -b /dev/vda ]; do
	tries=$((tries + 1))
	[ "$tries" -le 500 ] || give_up "the disk did not appear"
	usleep 10000
done
mkdir -p /system
mount -t ext4 /dev/vda /system || give_up "the disk cannot be mounted"
mount -t tmpfs -o mode=755,nosuid,nodev run /run
mkdir -p /run/systemd/system /run/kbp-lab
cp /etc/kbp-lab/*.service /etc/kbp-lab/*.target /run/systemd/system/
cp /etc/kbp-lab/job.sh /run/kbp-lab/guest.sh
for dir in proc sys dev run; do
	mount --move "/$dir" "/system/$dir"
done
exec switch_root /system /sbin/init
