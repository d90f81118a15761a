#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --root debian --kernel 6.1-previous-1 --then 6.1 --clock real --cpus 4 --mem 2048 --nics 2 --file out/deb:/packages --timeout 1800s
# steps: install signed refuse attach update restart old-kernel purge
#
# The Debian packages on a Debian that gets a new kernel. First boot: DKMS builds and signs the module, a queue is
# attached and saved, and a newer kernel is installed, for which DKMS builds without being asked. Second boot, into that
# one: what was attached is attached again and serves. Then the old kernel goes, then our packages, and nothing is left.
# Debian's 6.1.0-55 has panicked in 1 GiB, in ext4_mb_load_buddy_gfp().

. /lab/lib.sh
. /lab/net.sh

OWNER="Owner of this machine"
KEPT=/var/lib/lab-test
RELEASE=$(uname -r)

now() {
	date +%s
}

# built RELEASE: does DKMS say that the module is installed for that kernel?
built() {
	dkms status | grep -q "^kbp/[0-9.]*, $1, x86_64: installed"
}

# What there is of ours in the file system.
leftovers() {
	find / -xdev \( -path /packages -o -path /lab -o -path /out -o -path /var/lib/lab-test -o -path '*/kbp-lab*' \) -prune \
		-o \( -name 'kbp*' -o -name '_kbp' \) -print
}

# signed RELEASE: both modules of that kernel are signed with the owner's key, and still have livepatch relocations.
signed() {
	for module in kbp kbp_trace; do
		signer=$(modinfo -k "$1" -F signer "$module")
		[ "$signer" = "$OWNER" ] || lab_fail "$module for $1 is signed by '$signer'"
	done
	readelf --wide --sections "$(modinfo -k "$1" -F filename kbp)" | grep -q ' \.klp\.rela\.vmlinux\.\.text ' ||
		lab_fail "the module for $1 has lost its livepatch relocations"
}

# refused RELEASE CONFIG...: DKMS leaves a kernel with this configuration out, with a sentence, and that kernel installs all
# the same.
refused() {
	release=$1
	shift
	build=/lib/modules/$release/build
	mkdir -p "$build/include/config"
	printf '%s\n' "$@" | tee "$build/.config" > "$build/include/config/auto.conf"
	touch "$build/Makefile" "$build/Module.symvers"
	code=0
	dkms build "kbp/$VERSION" -k "$release" > "$OUT/refused" 2>&1 || code=$?
	cat "$OUT/refused"
	[ "$code" = 77 ] || lab_fail "DKMS ended with $code for $release"
	grep -q BUILD_EXCLUSIVE "$OUT/refused" || lab_fail "that does not say why"
	# What the scripts of a kernel's package call.
	dkms autoinstall --kernelver "$release" || lab_fail "dkms autoinstall fails, and with it the kernel's package"
	! built "$release" || lab_fail "DKMS has built it for $release"
}

# Requested and active, without counters, what was learned, and what is another one after each boot.
state() {
	kbp show --json | sed 's/"stats":{[^}]*},\{0,1\}//g; s/"[a-z_]*id":[0-9]*,\{0,1\}//g; s/"irq":[0-9]*,\{0,1\}//g
		s/"wake_latency_ns":[0-9a-z]*,\{0,1\}//g'
}

# served NAME: packets come through the poller, and none of them through a softirq of its CPU. A host that is busy with
# other things may keep the poller from running for so long that the watchdog hands its packets back, rightly: only a
# second in which it did not is judged.
served() {
	for _ in $(seq 60); do
		handbacks=$(kbp_counter handbacks) softirqs=$(net_softirqs "$NET_CPU") packets=$(kbp_counter packets)
		sleep 1
		packets=$(($(kbp_counter packets) - packets)) softirqs=$(($(net_softirqs "$NET_CPU") - softirqs))
		handbacks=$(($(kbp_counter handbacks) - handbacks))
		echo "$1: in 1 s $packets packets polled, $softirqs NET_RX softirqs on CPU $NET_CPU, handed back $handbacks times"
		if [ "$handbacks" -eq 0 ] && [ "$packets" -ge 20 ]; then
			[ "$((softirqs * 20))" -lt "$packets" ] || lab_fail "packets still go through softirq"
			return
		fi
	done
	lab_fail "$1: the poller served no second without the watchdog"
}

restore_is_over() {
	case $(systemctl is-active kbp-restore.service) in
	active | failed) ;;
	*) return 1 ;;
	esac
}

install_packages() {
	openssl req -new -x509 -nodes -days 30 -subj "/CN=$OWNER" -newkey rsa:2048 -keyout /var/lib/dkms/mok.key \
		-outform DER -out /var/lib/dkms/mok.pub 2> /dev/null || lab_fail "no key"
	start=$(now)
	dpkg --install /packages/kbp-dkms_*.deb /packages/kbp_*.deb ||
		lab_fail "the packages do not install: $(tail -n 30 /var/lib/dkms/kbp/*/build/make.log)"
	echo "packages installed and module built in $(($(now) - start)) s"
	dkms status
	built "$RELEASE" || lab_fail "DKMS has not built it"
	[ ! -d /sys/module/kbp ] || lab_fail "installing has loaded the module"
	for file in /usr/share/man/man1/kbp-attach.1.gz /usr/share/bash-completion/completions/kbp /etc/kbp \
		/lib/systemd/system/kbp-restore.service; do
		[ -e "$file" ] || lab_fail "there is no $file"
	done
	[ "$(systemctl is-enabled kbp-restore.service)" = disabled ] || lab_fail "installing has enabled the service"
	lab_done install
	signed "$RELEASE"
	lab_done signed
	VERSION=$(dpkg-query -W -f '${Version}' kbp-dkms)
	refused 5.10.0-1-amd64 CONFIG_X86_64=y CONFIG_LIVEPATCH=y
	refused 7.4.1+deb13-amd64 CONFIG_X86_64=y CONFIG_LIVEPATCH=y
	refused 6.1.0-1-amd64 CONFIG_X86_64=y
	cp -r "/usr/src/kbp-$VERSION" /tmp/source
	! make -C /tmp/source KDIR=/lib/modules/6.1.0-1-amd64/build 2> "$OUT/refused" || lab_fail "it was built"
	grep "was built without CONFIG_LIVEPATCH;" "$OUT/refused" || lab_fail "make said this: $(cat "$OUT/refused")"
	rm -r /lib/modules/5.10.0-1-amd64 /lib/modules/7.4.1+deb13-amd64 /lib/modules/6.1.0-1-amd64
	lab_done refuse
}

attach() {
	printf 'auto eth0\niface eth0 inet static\n\taddress %s/24\n' "$NET_SERVER" > /etc/network/interfaces.d/eth0
	net_up
	kbp check || lab_fail "kbp check"
	kbp load || lab_fail "kbp load"
	kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller add"
	kbp attach eth0:0 --cpu "$NET_CPU" --mode busy || lab_fail "attach"
	lab_wait_for 20 kbp_active
	net_traffic before --seconds 600 --period-us 3000
	served "$RELEASE"
	state > "$KEPT/state"
	kbp save || lab_fail "kbp save"
	cat /etc/kbp/kbp.toml
	systemctl enable kbp-restore.service || lab_fail "enable"
	kill -INT "$NET_PID"
	net_none_lost before
	lab_done attach
}

update() {
	next=$(dpkg-deb --field "$LAB_KERNEL_PACKAGES"/6.1/linux-image-*.deb Package)
	next=${next#linux-image-}
	start=$(now)
	dpkg --install "$LAB_KERNEL_PACKAGES"/6.1/*.deb || lab_fail "the newer kernel does not install"
	echo "newer kernel installed and module built in $(($(now) - start)) s"
	dkms status
	built "$RELEASE" || lab_fail "the module for the older kernel is gone"
	built "$next" || lab_fail "DKMS has not built it for the newer kernel"
	signed "$next"
	echo "$RELEASE" > "$KEPT/older"
	echo "$next" > "$KEPT/newer"
	lab_dmesg_clean
	lab_done update
}

restart() {
	[ "$RELEASE" = "$(cat "$KEPT/newer")" ] || lab_fail "this is $RELEASE"
	# No other unit waits for it, so it may still be at it.
	lab_wait_for 120 restore_is_over
	systemctl --no-pager status kbp-restore.service
	[ "$(systemctl is-active kbp-restore.service)" = active ] || lab_fail "what was saved was not restored"
	ip address show dev eth0 | grep -q " $NET_SERVER/24 " || lab_fail "eth0 has no address: $(ip address)"
	lab_wait_for 20 kbp_active
	state > "$OUT/state"
	cmp "$KEPT/state" "$OUT/state" || lab_fail "it was $(cat "$KEPT/state") and is $(cat "$OUT/state")"
	net_up
	net_traffic after --seconds 600 --period-us 3000
	served "$RELEASE"
	lab_done restart
}

old_kernel() {
	older=$(cat "$KEPT/older")
	dpkg --purge "linux-image-$older" "linux-headers-$older" "linux-headers-${older%-amd64}-common" ||
		lab_fail "the older kernel does not go"
	dkms status
	! built "$older" || lab_fail "DKMS keeps the module of the older kernel"
	built "$RELEASE" || lab_fail "the module of the newer kernel is gone, too"
	[ ! -e "/lib/modules/$older/updates" ] || lab_fail "$(find "/lib/modules/$older/updates")"
	served "$RELEASE"
	lab_done old-kernel
}

purge() {
	{ mount --bind / /mnt && mount -t proc none /mnt/proc && mount -t sysfs none /mnt/sys; } || lab_fail "no chroot"
	chroot /mnt /var/lib/dpkg/info/kbp.prerm remove || lab_fail "kbp.prerm in a chroot"
	umount /mnt/sys /mnt/proc /mnt
	kbp_active || lab_fail "removing the package in a chroot has unloaded the module of the machine"
	dpkg --purge kbp kbp-dkms || lab_fail "the packages do not go"
	[ -z "$(dkms status)" ] || lab_fail "DKMS still has $(dkms status)"
	[ ! -d /sys/module/kbp ] || lab_fail "the module is loaded"
	[ -z "$(leftovers)" ] || lab_fail "this is left: $(leftovers)"
	! modinfo kbp 2> /dev/null || lab_fail "there is a module"
	! systemctl cat kbp-restore.service 2> /dev/null || lab_fail "there is a service"
	sleep 1
	kill -INT "$NET_PID"
	net_none_lost after
	lab_done purge
}

mkdir -p "$KEPT"
case $LAB_BOOT in
1)
	install_packages
	attach
	update
	;;
2)
	restart
	old_kernel
	purge
	;;
esac
lab_dmesg_clean
lab_pass
