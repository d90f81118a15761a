#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --nics 2:igb --package ethtool --timeout 400s
#
# Cards whose transmit queue has a NAPI instance of its own (igb with one queue), on which frames go round: a poll of a
# card of class rt is followed by that of what the card has sent, whenever its interrupts come. What that frees is received
# into (docs/decisions/023-freeing.md).
#
# The kernel's own tracepoint `napi:napi_poll` shows the order: it names the device, and the instance by an address.

. /lab/lib.sh
. /lab/net.sh
. /lab/circle.sh

# As many as a driver's full poll.
FRAMES=64
CARDS=eth0\ eth1
TRACING=/sys/kernel/tracing
# Of the polls that find packets, percent.
FOLLOWED=90

are_asleep() { [ "$(kbp show --json | grep -o '"mode_active":"sleep"' | wc -l)" = 2 ]; }

# order SIZE: the frames of that size, and who is polled after whom.
order() {
	# shellcheck disable=SC2086 # two cards
	circle_begin $CARDS
	circle_send "$FRAMES" eth0 eth1 --size "$1"
	sleep 0.05
	echo > "$TRACING/trace"
	echo 1 > "$TRACING/tracing_on"
	sleep 0.02
	echo 0 > "$TRACING/tracing_on"
	# shellcheck disable=SC2086
	circle_end "$FRAMES" $CARDS
	grep 'napi_poll: ' "$TRACING/trace" > "$OUT/polls-$1"
	sed 's/.*napi struct \([^ ]*\) for device \([^ ]*\) work \([0-9]*\) .*/\1 \2 \3/' "$OUT/polls-$1" |
		awk -v size="$1" -v wanted="$FOLLOWED" '
		{
			napi[NR] = $1
			device[NR] = $2
			work[NR] = $3
			packets[$1] += $3
			if (packets[$1] > packets[receives[$2]])
				receives[$2] = $1
		}
		END {
			for (i = 1; i < NR; i++)
				if (work[i] > 0 && napi[i] == receives[device[i]]) {
					polls++
					followed += device[i + 1] == device[i] && napi[i + 1] != napi[i]
				}
			printf "%s bytes: %d polls of a card, %d followed by what it has sent\n", size, polls, followed
			exit polls < 20 || followed * 100 < polls * wanted
		}' || lab_fail "$1 bytes: what a card has sent waits for the other card (polls-$1)"
}

circle_init
# shellcheck disable=SC2086 # two cards
circle_cards "$NET_CPU" $CARDS
lab_quickly kbp load --module "$MODULES/kbp.ko" > /dev/null || lab_fail "kbp load"
kbp poller add --cpu "$NET_CPU" > /dev/null || lab_fail "kbp poller add"
for card in $CARDS; do
	kbp attach "$card" --cpu "$NET_CPU" --class rt --mode sleep > /dev/null || lab_fail "attach $card"
done
lab_wait_for 5 are_asleep
echo 0 > "$TRACING/tracing_on"
echo 1 > "$TRACING/events/napi/napi_poll/enable" || lab_fail "tracing"
for size in 64 512 1514; do
	order "$size"
done
echo 0 > "$TRACING/events/napi/napi_poll/enable"
lab_quickly kbp unload > /dev/null || lab_fail "unload"
lab_dmesg_clean
lab_pass
