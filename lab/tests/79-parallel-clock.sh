#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --cpus 4 --clock parallel --module lab/modules/storm
# kernels: slow
#
# The parallel clock: CPUs that work at the same time do not make each other slower, whether they execute PAUSE or not, and
# a sleep takes its time. It needs `make lab-qemu`, so it is not in `make test`.

. /lab/lib.sh

# Time that a fixed piece of work takes on CPU 1, microseconds.
work() {
	from=$(cut -d' ' -f1 /proc/uptime)
	# shellcheck disable=SC2016 # it is for that shell
	taskset 2 sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done'
	awk -v from="$from" '{ printf "%d\n", ($1 - from) * 1000000 }' /proc/uptime
}

[ "$LAB_CLOCK" = parallel ] || lab_fail "the clock is $LAB_CLOCK"
alone=$(work)
# In the kernel, with PAUSE: the poll function of the storm spins so, for as long as it has packets.
insmod "$MODULES/storm.ko" cpu=2 burst=1000000 period_ms=1 || lab_fail "insmod storm"
lab_defer rmmod storm
# In programs, without.
for cpu in 0 3; do
	taskset $((1 << cpu)) sh -c 'while :; do :; done' &
	spinners="$spinners $!"
done
sleep 0.05
beside=$(work)
# shellcheck disable=SC2086 # a list of numbers
kill $spinners
echo "alone $alone us, beside spinners on three other CPUs $beside us"
[ "$alone" -ge 1000000 ] || lab_fail "the work is too short to be compared: $alone us"
[ "$beside" -le $((alone * 102 / 100)) ] || lab_fail "the spinners made it slower: $beside us, alone $alone us"
[ "$beside" -ge $((alone * 98 / 100)) ] || lab_fail "the spinners made it quicker: $beside us, alone $alone us"

# A sleep ends when it should.
from=$(cut -d' ' -f1 /proc/uptime)
sleep 5
slept=$(awk -v from="$from" '{ printf "%d\n", ($1 - from) * 1000 }' /proc/uptime)
if [ "$slept" -lt 4990 ] || [ "$slept" -gt 5030 ]; then
	lab_fail "a sleep of 5 s took $slept ms"
fi
lab_dmesg_clean
lab_pass
