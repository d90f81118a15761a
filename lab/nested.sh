# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# A virtual machine inside the guest, of what `kbp lab run --nested KERNEL` brought: started, asked, ended. Source it
# after lib.sh. The machine has virtio's network card on the tap device $NESTED_TAP, served by vhost-net, and runs
# commands that come through a virtio-serial port (crates/kbp-lab/guest/nested-init.sh).
#
# Not here: anything about what is tested.

NESTED_DIR=/run/nested
NESTED_TAP=tap0
NESTED_MAC=52:54:00:4b:60:00
# Queues of its card, each with a worker of vhost-net's; more than one before nested_tap.
NESTED_QUEUES=1
# Where the machine's card and its memory are, for QEMU; nested_tap or nested_vhost_user says it.
NESTED_NETDEV=
NESTED_MEMORY=

# nested_with FILE...: files of this guest come to the same place in the machine, programs with their libraries.
nested_with() {
	mkdir -p "$NESTED_DIR/more"
	for nested_file in "$@"; do
		nested_copy "$nested_file"
		# The loader lists nothing for what is no program.
		/lib64/ld-linux-x86-64.so.2 --list "$nested_file" 2> /dev/null |
			awk '$2 == "=>" { print $3 } NF == 2 && $1 ~ /^\// { print $1 }' > "$NESTED_DIR/libraries"
		while read -r nested_library; do
			nested_copy "$nested_library"
		done < "$NESTED_DIR/libraries"
	done
}

nested_copy() {
	# The machine's /lib is a link to /usr/lib, as here.
	nested_dir=$(readlink -f "$(dirname "$1")")
	mkdir -p "$NESTED_DIR/more$nested_dir"
	cp -L "$1" "$NESTED_DIR/more$nested_dir/"
}

# nested_tap BRIDGE: the tap device as a port of it.
nested_tap() {
	modprobe tun || lab_fail "tun"
	NESTED_NETDEV="tap,id=net,ifname=$NESTED_TAP,script=no,downscript=no,vhost=on,queues=$NESTED_QUEUES"
	nested_multi=
	[ "$NESTED_QUEUES" = 1 ] || nested_multi=multi_queue
	# shellcheck disable=SC2086 # a word or none
	ip tuntap add "$NESTED_TAP" mode tap vnet_hdr $nested_multi || lab_fail "no tap device"
	lab_defer ip link del "$NESTED_TAP"
	ip link set "$NESTED_TAP" master "$1" up
}

# nested_vhost_user SOCKET MEMORY_MIB: its card is served by the program that connects there, which sees all of its
# memory, huge pages of 2 MiB.
nested_vhost_user() {
	[ "$NESTED_QUEUES" = 1 ] || lab_fail "a card that vhost-user serves has one queue here"
	NESTED_NETDEV="vhost-user,id=net,chardev=net"
	NESTED_MEMORY="-chardev socket,id=net,path=$1,server=on -machine memory-backend=memory
		-object memory-backend-memfd,id=memory,size=$2M,share=on,hugetlb=on,hugetlbsize=2M"
}

# nested_start SECONDS MEMORY_MIB CPUS WORDS: starts it and waits until it takes commands; WORDS go to its kernel.
nested_start() {
	modprobe kvm_amd || lab_fail "this processor runs no virtual machines"
	modprobe vhost_net || lab_fail "vhost_net"
	# See docs/decisions/019-nested.md; on the real clock a CPU's turn does not end between an interrupt and an exit.
	[ "$LAB_CLOCK" = real ] || insmod "$MODULES/kbp_svmexit.ko" || lab_fail "insmod kbp_svmexit"
	mkdir -p "$NESTED_DIR/more/nested"
	[ ! -d /nested/modules ] || cp /nested/modules/*.ko "$NESTED_DIR/more/nested/"
	(cd "$NESTED_DIR/more" && find . | cpio -o -H newc 2> /dev/null) > "$NESTED_DIR/more.cpio"
	cat /nested/initramfs.cpio "$NESTED_DIR/more.cpio" > "$NESTED_DIR/initramfs"
	rm -rf "$NESTED_DIR/more" "$NESTED_DIR/more.cpio"
	mkfifo "$NESTED_DIR/agent.in" "$NESTED_DIR/agent.out"
	: > "$NESTED_DIR/answers"
	echo 0 > "$NESTED_DIR/id"
	exec 8<> "$NESTED_DIR/agent.in" 9<> "$NESTED_DIR/agent.out"
	lab_turns long
	nested_card="virtio-net-pci,netdev=net,mac=$NESTED_MAC,romfile="
	# An interrupt for each queue's two directions, one for the control queue, one for the configuration.
	[ "$NESTED_QUEUES" = 1 ] || nested_card="$nested_card,mq=on,vectors=$((2 * NESTED_QUEUES + 2))"
	# shellcheck disable=SC2086 # arguments
	qemu-system-x86_64 -name nested,debug-threads=on -accel kvm -cpu host -M pc,hpet=off -m "$2" \
		-smp "$3" -nodefaults -no-user-config -display none -no-reboot -L /usr/share/qemu \
		-kernel /nested/kernel -initrd "$NESTED_DIR/initramfs" \
		-append "console=ttyS0 oops=panic panic=-1 no_timer_check tsc=reliable cpu_init_udelay=0 random.trust_cpu=on $4" \
		-serial "file:$NESTED_DIR/console" -device virtio-serial-pci \
		-chardev "pipe,id=agent,path=$NESTED_DIR/agent" -device virtserialport,chardev=agent,name=nested.agent \
		$NESTED_MEMORY -netdev "$NESTED_NETDEV" \
		-device "$nested_card" > "$NESTED_DIR/qemu.log" 2>&1 8>&- 9>&- &
	NESTED_PID=$!
	lab_defer kill "$NESTED_PID"
	cat <&9 > "$NESTED_DIR/answers" 8>&- &
	lab_defer kill $!
	# How far it is, for a person: its console goes to a file.
	nested_wait_s=0
	while [ "$nested_wait_s" -lt "$1" ] && ! lab_until 5 nested_is_up; do
		nested_wait_s=$((nested_wait_s + 5))
		echo "the machine inside after $nested_wait_s s: $(tail -n 1 "$NESTED_DIR/console")"
	done
	nested_is_up || lab_fail "the machine inside did not come up: $(cat "$NESTED_DIR/qemu.log")
$(tail -n 20 "$NESTED_DIR/console")"
	# What the lab had set.
	lab_turns short
}

nested_is_up() {
	kill -0 "$NESTED_PID" || lab_fail "the machine inside ended: $(cat "$NESTED_DIR/qemu.log")"
	grep -q '^ready' "$NESTED_DIR/answers"
}

# nested_ask SECONDS COMMAND...: runs it in the machine, prints what it printed, has its exit code. One line.
nested_ask() {
	# In a file, because callers catch the output in a subshell.
	nested_id=$(($(cat "$NESTED_DIR/id") + 1))
	echo "$nested_id" > "$NESTED_DIR/id"
	nested_seconds=$1
	shift
	echo "$nested_id $nested_seconds $*" >&8
	lab_until $((nested_seconds + 5)) grep -q "^end $nested_id " "$NESTED_DIR/answers" ||
		lab_fail "the machine inside does not answer to: $*
$(tail -n 20 "$NESTED_DIR/console")"
	sed -n "/^begin $nested_id\$/,/^end $nested_id /p" "$NESTED_DIR/answers" | sed -e 1d -e '$d' | sed '$d'
	return "$(sed -n "s/^end $nested_id //p" "$NESTED_DIR/answers")"
}

# nested_must SECONDS COMMAND...: the same, quietly; the test fails with it.
nested_must() {
	nested_answer=$(nested_ask "$@") || lab_fail "in the machine inside: $*: $nested_answer"
}
