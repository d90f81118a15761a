#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --mem 768 --nics 2 --package kexec-tools --file {image}:/boot/vmlinuz --timeout 300s
# beside: others
#
# kexec with everything attached and traffic on it: the pollers go before the cards do, the next kernel finds the cards
# in order and its packets arrive. The second half of this test runs there.

. /lab/lib.sh
. /lab/net.sh

# What the next kernel starts: the lab's modules and ports as in this one, and then the second half.
next_init() {
	cat <<-'END'
		#!/bin/busybox sh
		export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin OUT=/out
		mount -t proc proc /proc
		mount -t sysfs sysfs /sys
		mount -t devtmpfs dev /dev
		mount -t tmpfs tmpfs /run
		mkdir -p /run/netns
		while read -r module; do insmod "$module"; done < /etc/kbp-lab/insmod
		port() {
			for entry in /sys/class/virtio-ports/*; do
				[ "$(cat "$entry/name")" != "$1" ] || echo "/dev/${entry##*/}"
			done
		}
		while [ -z "$(port kbp.control)" ] || [ -z "$(port kbp.output)" ] || [ -z "$(port kbp.data)" ]; do usleep 10000; done
		exec 5<> "$(port kbp.control)" 6> "$(port kbp.output)" 7<> "$(port kbp.data)"
		/bin/sh /second.sh >&6 2>&1
		code=$?
		dmesg > "$OUT/dmesg.log"
		echo "exit $code" >&5
		tar -c -f - -C "$OUT" . >&7
		echo end >&5
		sleep 5
		reboot -f
	END
}

second_half() {
	cat <<-'END'
		. /lab/lib.sh
		. /lab/net.sh
		echo "the next kernel: $(uname -r), up $(cut -d' ' -f1 /proc/uptime) s"
		grep -q next_kernel /proc/cmdline || lab_fail "this is not the next kernel: $(cat /proc/cmdline)"
		[ ! -e /sys/module/kbp ] || lab_fail "the module is here"
		ip link set lo up
		ip netns add tester
		ip link set eth1 netns tester
		ip address add "$NET_SERVER/24" dev eth0
		ip link set eth0 up
		ip netns exec tester ip address add "$NET_TESTER/24" dev eth1
		ip netns exec tester ip link set eth1 up
		lab_wait_for 30 net_carrier
		ping -c 20 -i 0.1 -W 5 "$NET_TESTER" > "$OUT/ping" || lab_fail "$(cat "$OUT/ping")"
		tail -n 2 "$OUT/ping"
		grep -q ' 0% packet loss' "$OUT/ping" || lab_fail "packets were lost"
		# From the boot on.
		LAB_MARK='Linux version'
		lab_dmesg_clean
		lab_pass
	END
}

# The root that this machine was booted with, without what belongs to this run. It is small because kexec adds up all of
# it before it jumps, which takes an emulated machine long.
pack_root() {
	next_init > /init.next
	chmod 755 /init.next
	mv /init.next /init
	second_half > /second.sh
	cd / || lab_fail "cd /"
	find . -xdev | grep -vE '^\./(boot|modules|out|proc|run|sys|tmp|dev|root|usr/bin/kbp.*)(/|$)|\.ko(\.xz)?$' > /run/files
	sed 's/^/./' /etc/kbp-lab/insmod >> /run/files
	mkdir -p /run/empty/boot /run/empty/dev /run/empty/out /run/empty/proc /run/empty/run /run/empty/sys /run/empty/tmp
	(cpio -o -H newc < /run/files 2> /dev/null; cd /run/empty && find . -mindepth 1 | cpio -o -H newc 2> /dev/null) | gzip -1 > /run/root.cpio.gz
	echo "packed $(wc -l < /run/files) files, $(wc -c < /run/root.cpio.gz) bytes"
}

net_up
kbp_start
kbp attach backlog --cpu "$NET_CPU" > /dev/null || lab_fail "attach backlog"
kbp attach eth0 --cpu "$NET_CPU" > /dev/null || lab_fail "attach"
lab_wait_for 5 kbp_active
pack_root
# Ticks that go on by themselves: a CPU that programs each of them has none any more if the emulator loses one. Presumably
# that was it when, once, a CPU of the next kernel that had just been started had no timer any more: stalls of RCU, no end.
kexec -s -l /boot/vmlinuz --initrd=/run/root.cpio.gz --command-line="$(cat /proc/cmdline) next_kernel nohz=off highres=off" || lab_fail "kexec -l"
net_traffic whole --seconds 600 --period-us 1000
packets=$(kbp_counter packets)
polled() { [ "$(kbp_counter packets)" -gt $((packets + 100)) ]; }
lab_wait_for 20 polled
lab_dmesg_clean
echo "going"
# What the module says on the way; -x: the interfaces stay up.
kbp monitor --for 60s &
kexec -x -e
lab_fail "kexec came back"
