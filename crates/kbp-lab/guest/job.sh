# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# The guest's side of a job: waits for it (the lab may take a snapshot there), unpacks it, has the clock checked, runs
# the script and sends everything back. It is read by the first process of a guest that lives in memory (init.sh), and
# run as a service by a system that was booted from a disk.
#
# Talk with the host goes through three virtio-serial ports, never through the console:
#   kbp.control  lines, both ways (`ready`, `job BYTES`, `taken`, `turns ...`, `run`, `exit CODE`, `end`, `done`)
#   kbp.output   what the script prints
#   kbp.data     the job as a tar stream to us, $OUT as a tar stream back
#
# Not here: any decision. The host decides what a figure or a code means.

give_up() {
	echo "kbp-lab: $1" > /dev/console
	reboot -f
}

# Ports are found by name: their device numbers depend on the order of the bus.
port() {
	for entry in /sys/class/virtio-ports/*; do
		if [ "$(cat "$entry/name")" = "$1" ]; then
			echo "/dev/${entry##*/}"
			return
		fi
	done
}

# The device tells the driver its ports one by one, after the probe.
tries=0
while [ -z "$(port kbp.control)" ] || [ -z "$(port kbp.output)" ] || [ -z "$(port kbp.data)" ]; do
	tries=$((tries + 1))
	[ "$tries" -le 500 ] || give_up "the virtio-serial ports did not appear"
	sleep 0.01
done
exec 5<> "$(port kbp.control)" 6> "$(port kbp.output)" 7<> "$(port kbp.data)"

echo ready >&5
read -r word bytes <&5
[ "$word" = job ] || give_up "the host said '$word' where a job was expected"
echo taken >&5
head -c "$bytes" <&7 | tar -x -f - -C / || give_up "the job does not unpack"
. /run/kbp-lab/job.sh
date -s "@$JOB_EPOCH" > /dev/null
echo "$JOB_SEED" > /dev/urandom

if [ -n "$JOB_PIT_COUNT" ]; then
	kbp-lab-guest mask > /dev/null || give_up "the interrupt of the timer that bounds the turns cannot be masked"
	kbp-lab-guest pit "$JOB_PIT_COUNT" || give_up "the timer that bounds the turns of the CPUs cannot be set"
fi
if [ "$JOB_TURNS_MS" -gt 0 ]; then
	echo "turns $(kbp-lab-guest turns "$JOB_TURNS_MS" 2>&1)" >&5
fi
echo "clocksource $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" >&5
echo "release $(uname -r)" >&5
echo "go" >&5
read -r word <&5
[ "$word" = run ] || give_up "the host said '$word' where 'run' was expected"

cd /lab || give_up "there is no /lab"
# What an earlier boot of the same disk left there has been sent.
rm -rf "$OUT"
mkdir -p "$OUT" "$MODULES"
code=0
if [ -n "$JOB_SHELL" ]; then
	echo "kbp-lab: a shell in the guest; scripts are in /lab, modules in $MODULES; leave it with 'exit'" > /dev/console
	if command -v cttyhack > /dev/null; then
		setsid cttyhack sh -i 5>&- 6>&- 7>&-
	else
		setsid --ctty sh -i < /dev/ttyS0 > /dev/ttyS0 2>&1 5>&- 6>&- 7>&-
	fi
elif [ -x "$JOB_SCRIPT" ]; then
	eval "\"\$JOB_SCRIPT\" $JOB_ARGS" < /dev/null >&6 2>&1 5>&- 7>&-
	code=$?
else
	eval "/bin/sh \"\$JOB_SCRIPT\" $JOB_ARGS" < /dev/null >&6 2>&1 5>&- 7>&-
	code=$?
fi

dmesg > "$OUT/dmesg.log"
echo "exit $code" >&5
tar -c -f - -C "$OUT" . >&7
echo end >&5
# What was sent may not have left QEMU yet, and is lost with the machine: wait until the host has it. This ends, too,
# when the host's program is gone.
read -r word <&5
if [ -n "$JOB_REBOOT" ] && [ "$code" -eq 0 ]; then
	# In order, with every service stopped; the host waits for it and starts the next kernel on the same disk.
	systemctl --no-block reboot
	sleep 600
fi
# The host ends the machine, or is gone.
reboot -f
