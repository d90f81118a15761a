# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=sh
#
# Helpers for scripts that run in a guest of the lab: results, clean-up, waiting, and dmesg as a result.
# Source it first:  . /lab/lib.sh
#
# Not here: anything about what is tested.

LAB_DEFERRED=

# Ends the test as failed, with a sentence.
lab_fail() {
	echo "FAIL: $*"
	exit 1
}

# Ends the test as skipped, with the reason. lab/kernels.toml has to list it.
lab_skip() {
	echo "SKIP: $*"
	exit 4
}

# Ends the test as passed.
lab_pass() {
	echo "PASS"
	exit 0
}

# Says that a step of the test is done; `# steps:` in its first lines lists them, scripts/run-tests.py reads them.
lab_done() {
	echo "DONE: $1"
}

# Registers a command that runs when the script ends, last one first. Register it where the thing is made.
# The words are joined with blanks and read by the shell again.
lab_defer() {
	LAB_DEFERRED="$*
$LAB_DEFERRED"
}

lab_run_deferred() {
	lab_code=$?
	trap - EXIT
	printf '%s' "$LAB_DEFERRED" | while IFS= read -r lab_command; do
		eval "$lab_command" || echo "clean-up failed: $lab_command"
	done
	exit "$lab_code"
}
trap lab_run_deferred EXIT
trap 'exit 1' INT TERM

# lab_until SECONDS COMMAND...: waits until the command succeeds; fails when it does not in time. The seconds are the
# guest's. It looks every 20 ms.
lab_until() {
	lab_tries=$(($1 * 50))
	shift
	while ! "$@"; do
		lab_tries=$((lab_tries - 1))
		[ "$lab_tries" -gt 0 ] || return 1
		sleep 0.02
	done
}

# lab_wait_for SECONDS COMMAND...: the same, and the test fails with it.
lab_wait_for() {
	lab_until "$@" || {
		shift
		lab_fail "this did not become true: $*"
	}
}

LAB_TURNS=short

# lab_turns LENGTH: how long a CPU may run on the virtual clock before the next one does. `short`, at first: some
# microseconds, so that what they do at the same time takes a round trip as long as on real ones. `long`: 0.25 ms, where
# nothing is timed. A number: ticks of the PIT between two ends of turns. A short turn costs the host much more than what
# is executed in it, also while every CPU is idle. `kbp measure mechanism` and `kbp compare` have long ones while they set
# something up, and then these again.
lab_turns() {
	LAB_TURNS=$1
	[ -n "$LAB_TURNS_SHORT" ] || return 0
	case $1 in
	long) LAB_TURNS_CHOSEN=$LAB_TURNS_LONG ;;
	short) LAB_TURNS_CHOSEN=$LAB_TURNS_SHORT ;;
	*) LAB_TURNS_CHOSEN="kbp-lab-guest pit $1" ;;
	esac
	export LAB_TURNS_CHOSEN
	$LAB_TURNS_CHOSEN > /dev/null || lab_fail "the timer that ends turns"
}

# lab_quickly COMMAND...: the command with long turns, and then those of before.
lab_quickly() {
	lab_quickly_turns=$LAB_TURNS
	lab_turns long
	lab_quickly_code=0
	"$@" || lab_quickly_code=$?
	lab_turns "$lab_quickly_turns"
	return "$lab_quickly_code"
}

# lab_irqs_to CPU DEV: the interrupts of a card come to that CPU.
lab_irqs_to() {
	lab_irqs=$(awk -v dev="$2" '$NF ~ "^" dev "(-|$)" { sub(":", "", $1); print $1 }' /proc/interrupts)
	[ -n "$lab_irqs" ] || lab_fail "no interrupts of $2"
	for lab_irq in $lab_irqs; do
		echo "$1" > "/proc/irq/$lab_irq/smp_affinity_list" || lab_fail "interrupt $lab_irq of $2 does not come to CPU $1"
	done
}

# Puts a mark into the kernel's log; lab_dmesg_clean and lab_dmesg_since look at what comes after the newest one.
lab_dmesg_mark() {
	LAB_MARK="lab-mark-$$-$(cut -d' ' -f1 /proc/uptime)"
	echo "$LAB_MARK" > /dev/kmsg
}

# Prints the kernel's log since the mark.
lab_dmesg_since() {
	dmesg | sed "1,/$LAB_MARK/d"
}

# Fails the test when the kernel complained since the mark.
lab_dmesg_clean() {
	lab_complaints=$(lab_dmesg_since | grep -E \
		'WARNING:|BUG:|BUG |Oops|general protection|Call Trace|rcu.*stall|self-detected stall|soft lockup|hard LOCKUP|hung_task|blocked for more than|INFO: task|possible recursive locking|inconsistent lock state|circular locking|suspicious RCU|KASAN|UBSAN|list_(add|del) corruption|refcount_t:|NETDEV WATCHDOG|Tx Unit Hang|irq lock inversion|invalid wait context|bad unlock balance|held lock freed|lock held when returning|DEBUG_LOCKS_WARN_ON|sleeping function called|scheduling while atomic|ODEBUG|kobject.*(initialize|tried to)|new suspected memory leaks|INFO: trying to register|leaked reference|waiting for .* to become free')
	[ -z "$lab_complaints" ] || lab_fail "the kernel complained:
$lab_complaints"
}

# Makes the links that the package iptables makes when it is installed (update-alternatives); here it is only unpacked.
lab_alternatives() {
	for lab_program in iptables iptables-save iptables-restore ip6tables; do
		[ -e "/usr/sbin/$lab_program" ] || ln -s xtables-nft-multi "/usr/sbin/$lab_program"
	done
}

lab_dmesg_mark
