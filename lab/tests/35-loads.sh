#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock virtual --cpus 4 --nics 4 --timeout 400s --module lab/modules/storm --module lab/modules/softirq
# kernels: wide
#
# Every load runs, by its own totals and by the kernel's counters, and leaves nothing behind, not even after it was
# killed. Frames of the streams' cards do not reach the stack behind the other cards on the hub.

. /lab/lib.sh
. /lab/net.sh

SERVER=10.9.1.1
TESTER=10.9.1.2

# load NAME ARGUMENTS...: runs it on NET_CPU; fails when its totals stand still.
load() {
	kbp measure load "$@" --cpu "$NET_CPU" --json > "$OUT/load.json" 2> "$OUT/load.err" ||
		lab_fail "$*: $(cat "$OUT/load.err")"
	echo "$(cut -d. -f1 /proc/uptime) $*: $(sed 's/.*"totals"/totals/' "$OUT/load.json")"
}

# refused WORDS COMMAND...: the command fails and says so.
refused() {
	refused_words=$1
	shift
	"$@" > "$OUT/refused" 2>&1 && lab_fail "was not refused: $*"
	grep -q "$refused_words" "$OUT/refused" || lab_fail "$*: no '$refused_words' in: $(cat "$OUT/refused")"
}

total() {
	net_value load "$1"
}

# How often a softirq vector ran on NET_CPU.
vector() {
	awk -v name="$1:" -v column=$((NET_CPU + 2)) '$1 == name { print $column }' /proc/softirqs
}

# within NAME VALUE LOW HIGH
within() {
	if [ "$2" -lt "$3" ] || [ "$2" -gt "$4" ]; then
		lab_fail "$1 is $2, not $3 to $4"
	fi
}

# softirq VECTOR KIND RATE MS: its work was done, in that vector of that CPU, and nearly as often as it should.
softirq() {
	before=$(vector "$2")
	load softirq --vector "$1" --rate-hz "$3" --length-us 100 --seconds "0.$4"
	ran=$(total ran)
	moved=$(($(vector "$2") - before))
	due=$(($3 * $4 / 1000))
	within "$1: ran" "$ran" $((due * 8 / 10)) $((due * 13 / 10))
	within "$1: softirqs" "$moved" $((ran * 9 / 10)) $((ran * 5 + 400))
}

streams_up() {
	echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
	ip netns add tester
	lab_defer ip netns del tester
	ip link set eth0 up
	ip link set eth3 netns tester
	ip address add "$SERVER/24" dev eth2
	ip link set eth2 up
	ip netns exec tester ip address add "$TESTER/24" dev eth3
	ip netns exec tester ip link set eth3 up
	ip neighbour replace "$TESTER" lladdr 52:54:00:4b:50:03 dev eth2 nud permanent
	ip netns exec tester ip neighbour replace "$SERVER" lladdr 52:54:00:4b:50:02 dev eth3 nud permanent
	lab_wait_for 30 grep -q 1 /sys/class/net/eth2/carrier
	lab_wait_for 30 ip netns exec tester grep -q 1 /sys/class/net/eth3/carrier
	lab_wait_for 30 grep -q 1 /sys/class/net/eth0/carrier
}

# interrupts DEV CPU: how many interrupts of a card came to that CPU, and how many to the others.
interrupts() {
	awk -v name="$1(-.*)?$" -v column=$(($2 + 2)) '
		NR == 1 { cpus = NF }
		$NF ~ "^" name { for (i = 2; i <= cpus + 1; i++) if (i == column) own += $i; else others += $i }
		END { print own + 0, others + 0 }' /proc/interrupts
}

# moved DEV CPU OWN OTHERS: while a load ran the card's interrupts came to that CPU. An interrupt moves when it comes for
# the first time, so each of its three may come to another CPU once, and once more when it has gone back.
moved() {
	# shellcheck disable=SC2046
	set -- "$@" $(interrupts "$1" "$2")
	within "interrupts of $1 on CPU $2" $(($5 - $3)) 50 1000000
	within "interrupts of $1 on other CPUs" $(($6 - $4)) 0 6
}

affinities() {
	cat /proc/irq/*/smp_affinity_list
}

stream() {
	affinities > "$OUT/affinity.before"
	others=$(cat /sys/class/net/eth0/statistics/rx_packets)
	receiver=$(interrupts eth2 "$NET_CPU") sender=$(interrupts eth3 1)
	load stream --seconds 0.2 --server-dev eth2 --server-addr "$SERVER" --tester-dev eth3 --tester-ns tester \
		--tester-addr "$TESTER" --receiver-cpu 3 --sender-cpu 1 --udp-mbps 50 --tcp-mbps 50
	# Half of what 50 Mbps are in 0.2 s, at least.
	within "UDP bytes" "$(total udp_bytes)" 625000 1500000
	within "TCP bytes" "$(total tcp_bytes)" 625000 1500000
	# shellcheck disable=SC2086
	moved eth2 "$NET_CPU" $receiver
	# shellcheck disable=SC2086
	moved eth3 1 $sender
	affinities | cmp -s - "$OUT/affinity.before" || lab_fail "an interrupt is not where it was"
	others=$(($(cat /sys/class/net/eth0/statistics/rx_packets) - others))
	within "packets that eth0 received" "$others" 0 5
}

groups_left() {
	find /sys/fs/cgroup -maxdepth 2 -name 'kbp-load-*'
}

nothing_left() {
	[ -z "$(ls -A /run/kbp/load 2> /dev/null)" ] || lab_fail "$1: left in /run/kbp/load: $(ls -A /run/kbp/load)"
	[ -z "$(groups_left)" ] || lab_fail "$1: left: $(groups_left)"
	[ ! -e /sys/module/storm ] || lab_fail "$1: the module storm is left"
	[ ! -e /sys/module/softirq ] || lab_fail "$1: the module softirq is left"
	[ "$(cat /sys/fs/cgroup/cgroup.subtree_control)" = "$CONTROLLERS" ] || lab_fail "$1: the controllers differ"
}

# killed LOAD FILE ARGUMENTS...: a load dies once FILE is there; the next one of its kind undoes what it left.
killed() {
	killed_load=$1
	killed_file=$2
	shift 2
	kbp measure load "$killed_load" --seconds 60 --cpu "$NET_CPU" "$@" > /dev/null 2>&1 &
	killed_pid=$!
	lab_wait_for 20 sh -c "ls -d $killed_file > /dev/null 2>&1"
	kill -KILL "$killed_pid"
	wait "$killed_pid"
	load "$killed_load" --seconds 0.1 "$@"
	nothing_left "$killed_load after it was killed"
}

CONTROLLERS=$(cat /sys/fs/cgroup/cgroup.subtree_control)
kbp measure load || lab_fail "the list of loads"

load idle --seconds 0.01
load hogs --seconds 0.05 --hogs 2,3
load storm --seconds 0.1 --hogs 2,3
softirq tasklet TASKLET 500 200
softirq hi HI 500 200
softirq hrtimer HRTIMER 500 200
softirq timer TIMER 125 400
refused '80 %' kbp measure load softirq --rate-hz 1000 --length-us 900
refused 'nvalid' insmod "$MODULES/softirq.ko" rate_hz=1000 length_ns=900000
refused 'second pair' kbp measure load stream
streams_up
stream
load memory --seconds 0.2 --groups 8
refused 'no disk' kbp measure load memory --files /tmp
nothing_left "after every load"

killed memory '/sys/fs/cgroup/kbp-load-memory*/7/memory.stat' --groups 8
killed softirq /sys/module/softirq
insmod "$MODULES/storm.ko"
refused 'loaded already' kbp measure load storm --cpu "$NET_CPU"
rmmod storm
nothing_left "at the end"
lab_dmesg_clean
lab_pass
