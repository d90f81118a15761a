#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2:igb --timeout 500s
# beside: others
# kernels: 6.1 6.12 7.3
#
# What is attached is written to a file, lost with the module as with a restart, and comes back: the same pollers and
# attachments, packets through them, a second time nothing is done. A card is known under another name, what is missing
# keeps nothing else from being done, what comes late is waited for, and in the end every file holds what it held.

. /lab/lib.sh
. /lab/net.sh

FILE=/etc/kbp/kbp.toml

# traces DEV [ip netns exec NAME]: what attaching writes for an interface of a namespace.
traces_of() {
	device=$1
	shift
	"$@" sh -c "for file in /sys/class/net/$device/queues/*/[rx]ps_cpus; do echo \$file \$(cat \$file 2>&1); done" |
		sed "s/^/$* /"
}

traces() {
	for file in /proc/irq/[0-9]*/smp_affinity_list; do
		echo "$file $(cat "$file" 2>&1)"
	done
	for device in "$@" near lo; do
		traces_of "$device"
	done
	traces_of inside ip netns exec pod
	traces_of eth1 ip netns exec tester
}

same_as_before() {
	traces eth0 > /run/after
	cmp -s /run/before /run/after || lab_fail "$1 left this: $(diff /run/before /run/after)"
	! grep '"original"' /run/kbp/state.json 2> /dev/null || lab_fail "$1: that is still remembered"
}

# Everything that `kbp show` says, but what belongs to one life of the module: numbers of threads, counters, what a
# thread does at this moment, how long it took to wake. And not where an interrupt came last: a card moves it with the
# next that comes.
shown() {
	kbp show --json 2>&1 | sed 's/"\(pid\|napi_id\)":[0-9]*//g; s/"stats":{[^}]*}//g
		s/"state":"[a-z-]*"//g; s/"affinity_active":"[0-9,-]*"//g
		s/"wake_latency_ns":[0-9a-z]*//g'
}

is_as_saved() {
	shown > /run/shown.now
	cmp -s /run/shown /run/shown.now
}

# becomes_as_saved: and if not, what differs, a line for each object.
becomes_as_saved() {
	lab_until 10 is_as_saved && return
	for shown_file in /run/shown /run/shown.now; do
		sed 's/},{/},\n{/g' "$shown_file" > "$shown_file.lines"
	done
	lab_fail "it does not become what it was: $(diff /run/shown.lines /run/shown.now.lines)"
}

same_as_saved() {
	kbp save /run/again.toml > /dev/null || lab_fail "save"
	cmp "$FILE" /run/again.toml || lab_fail "what came back is not what was saved"
}

# code WANTED COMMAND...: what it says goes to $OUT/said.
code() {
	code_wanted=$1
	shift
	code_is=0
	"$@" > "$OUT/said" 2>&1 || code_is=$?
	cat "$OUT/said"
	[ "$code_is" = "$code_wanted" ] || lab_fail "$* ended with $code_is, not $code_wanted"
}

says() { grep -q -e "$1" "$OUT/said" || lab_fail "it does not say: $1"; }

# served NAME: packets go through the poller of CPU 2, without softirqs there and without a loss. A run in which a busy
# host made the watchdog hand back is not judged.
served() {
	for _ in 1 2 3 4 5; do
		handbacks=$(kbp_counter_of 2 handbacks) packets=$(kbp_counter_of 2 packets) softirqs=$(net_softirqs 2)
		net_traffic "$1" --count 300 --period-us 2000
		net_none_lost "$1"
		handbacks=$(($(kbp_counter_of 2 handbacks) - handbacks)) packets=$(($(kbp_counter_of 2 packets) - packets))
		softirqs=$(($(net_softirqs 2) - softirqs))
		echo "$1: $packets packets, $softirqs NET_RX softirqs on CPU 2, handed back $handbacks times"
		[ "$handbacks" -ne 0 ] || break
	done
	[ "$handbacks" -eq 0 ] || lab_fail "$1: no run without the watchdog"
	[ "$packets" -ge 300 ] || lab_fail "$1: the poller had $packets packets"
	[ "$softirqs" -le 10 ] || lab_fail "$1: $softirqs softirqs"
}

load() { kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"; }
unload() { kbp unload > /dev/null || lab_fail "kbp unload"; }

net_up
modprobe veth
ip netns add pod
lab_defer ip netns del pod
ip link add near type veth peer name inside netns pod
ip link set near up
ip netns exec pod ip link set inside up
traces eth0 > /run/before

echo "what is attached is written down"
code 3 kbp save
load
kbp poller add --cpu 2 -P f:50 --watchdog 2s > /dev/null || lab_fail "poller"
kbp poller add --cpu 0 --owns attached --budget 16 --watchdog 1s > /dev/null || lab_fail "poller"
kbp attach backlog --cpu 0 > /dev/null || lab_fail "attach backlog"
kbp attach eth0 --cpu 2 > /dev/null || lab_fail "attach eth0"
kbp -n tester attach eth1 --cpus 0,2 --no-irq > /dev/null || lab_fail "attach eth1"
kbp attach near --cpu 2 > /dev/null || lab_fail "attach near"
kbp -n pod attach inside --cpu 0 > /dev/null || lab_fail "attach inside"
is_settled() {
	shown > /run/shown
	! grep -q '"mode_active":"softirq"' /run/shown
}
lab_wait_for 10 is_settled
code 0 kbp save
says "$FILE: 2 pollers, 5 attachments"
cat "$FILE"
code 0 kbp save --dry-run
cmp "$FILE" "$OUT/said" || lab_fail "a dry run prints something else"
code 0 kbp restore
says "nothing to do"
code 2 kbp -n pod save
code 2 ip netns exec pod kbp save

echo "and comes back"
unload
same_as_before unload
code 3 kbp restore
load
code 0 kbp restore --dry-run
says "poller-new: the poller of CPU 2, owns all, fifo 50, budget 8, watchdog 2000 ms"
same_as_before "a dry run"
code 0 kbp restore
becomes_as_saved
served restored
code 0 kbp restore
says "nothing to do"
same_as_saved
code 0 kbp restore --dry-run
says "nothing to do"

echo "what contradicts is refused, what is wrong is told with its line"
kbp detach near > /dev/null || lab_fail "detach"
sed 's/"f:50"/"f:51"/' "$FILE" > /run/other.toml
code 10 kbp restore /run/other.toml
says "the poller of CPU 2: it is there already and has priority fifo 50, not fifo 51; delete it first"
same_as_saved
sed 's/^owns = "all"/owns = "every"/' "$FILE" > /run/wrong.toml
line=$(grep -n every /run/wrong.toml | cut -d: -f1)
code 2 kbp restore /run/wrong.toml
says "^kbp: /run/wrong.toml:$line: owns 'every' is not known; it is one of: all, attached"
unload
same_as_before "the second unload"
lab_dmesg_clean

echo "a card has another name, and another card is gone"
ip link set eth0 down
ip link set eth0 name lan0
ip address replace "$NET_SERVER/24" dev lan0
ip link set lan0 up
ip neighbour replace "$NET_TESTER" lladdr "$NET_TESTER_MAC" dev lan0 nud permanent
carrier() { [ "$(cat /sys/class/net/lan0/carrier)" = 1 ] && [ "$(ip netns exec tester cat /sys/class/net/eth1/carrier)" = 1 ]; }
lab_wait_for 30 carrier
cp "$FILE" /run/missing.toml
printf '[[attach]]\ndevice = "eth9"\ncpus = "2"\n' >> /run/missing.toml
load
code 10 kbp restore /run/missing.toml
says "eth0 is called lan0 now"
says "^kbp: /run/missing.toml:$(grep -n eth9 /run/missing.toml | cut -d: -f1 | awk '{ print $1 - 1 }'): eth9: there is no interface 'eth9'"
lab_wait_for 10 is_settled
kbp save /run/again.toml > /dev/null || lab_fail "save"
sed 's/lan0/eth0/' /run/again.toml | cmp "$FILE" - || lab_fail "under the new name it is not what was saved"
served renamed
code 0 kbp restore
says "lan0 queue 0: so already"

echo "what comes late is waited for"
cat >> "$FILE" << END
[[attach]]
device = "late"
cpus = "2"
END
kbp restore --wait 60s > "$OUT/late" 2>&1 &
late=$!
is_waiting() { grep -q "waiting up to 1m for late" "$OUT/late"; }
lab_wait_for 20 is_waiting
ip link add late type veth peer name early
wait "$late" || lab_fail "restore ended with $?: $(cat "$OUT/late")"
cat "$OUT/late"
kbp show --json | grep -q '"ifname":"late"' || lab_fail "it is not attached"
ip link del late

unload
ip link set lan0 down
ip link set lan0 name eth0
net_eth0_up
lab_wait_for 30 net_carrier
same_as_before "the last unload"
net_traffic after --count 100 --period-us 2000
net_none_lost after
lab_dmesg_clean
lab_pass
