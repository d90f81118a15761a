// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of QEMU itself: they end a machine and say nothing of what ran in it.
//!
//! **An outdated translation.** Where QEMU runs each CPU in a thread of its own (the clock `real`), a store to code
//! first discards what was translated from it and then changes the memory. A CPU that gets there in between translates
//! the old bytes once more, and that stays. When Linux changes its own code, those bytes can be a breakpoint: later the
//! CPU runs into it where memory has none. 6.12 and 7.3 give up at once (`Oops: int3`). 6.1 sends the CPU back to try
//! again, and it tries for ever, with interrupts off; the next CPU that has to wait for it is what the kernel reports
//! (`softlockup_panic`), with where all CPUs are: this one is in the handler of breakpoints.
//!
//! Not here: what a machine's end means otherwise ([`crate::run`]).

/// What every sentence on such a fault begins with; `scripts/run-tests.py` repeats a test that has it.
const OWN_FAULT: &str = "QEMU's own fault: ";

/// The sentence on a fault of QEMU, if it is one: by what the guest's console said, and QEMU itself.
pub(crate) fn fault(console: &str, complaints: &str) -> Option<String> {
    let what = if complaints.contains("Assertion `") {
        "an assertion of its own failed"
    } else if stopped_at_breakpoint(console) || hangs_at_breakpoint(console) {
        "a CPU runs into a breakpoint that is no longer in memory"
    } else {
        return None;
    };
    Some(format!("{OWN_FAULT}{what}"))
}

/// Whether a breakpoint that nobody had asked for ended the kernel, in its own code: a module could have one.
fn stopped_at_breakpoint(console: &str) -> bool {
    console
        .split_once("Oops: int3: ")
        .and_then(|(_, report)| report.lines().find(|line| line.contains("RIP: ")))
        .and_then(|line| line.split_once("RIP: "))
        .is_some_and(|(_, place)| !place.contains('['))
}

/// Whether the kernel ended since a CPU waited for one that is in the handler of breakpoints, or at the very first
/// instruction of a function while others are being changed there.
fn hangs_at_breakpoint(console: &str) -> bool {
    let Some((_, report)) = console.split_once("BUG: soft lockup") else {
        return false;
    };
    let waits_to_change_code = report.contains("text_poke");
    let at_first_instruction = report
        .lines()
        .any(|line| line.contains("RIP: ") && line.contains("+0x0/"));
    report.contains("exc_int3") || (waits_to_change_code && at_first_instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Debian's 6.1 said when a CPU waited in the change of another function's first instruction.
    const FIRST_INSTRUCTION: &str = "\
[  682.941682] watchdog: BUG: soft lockup - CPU#0 stuck for 14s! [kbp:1244]
[  682.955804] RIP: 0010:smp_call_function_many_cond+0xf1/0x330
[  682.983974]  text_poke_bp_batch+0xb7/0x300
[  683.063871] NMI backtrace for cpu 1 skipped: idling at native_safe_halt+0xb/0x10
[  683.082397] NMI backtrace for cpu 2
[  683.083428] RIP: 0010:__napi_schedule+0x0/0xa0
";

    /// What 6.12 said in the same case.
    const AT_ONCE: &str = "\
[   51.844965] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[   51.849659] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 6.12.117+deb12-amd64 #1
[   51.850160] RIP: 0010:__schedule+0x98/0xbf0
";

    #[test]
    fn a_cpu_in_outdated_code_is_not_the_tests_fault() {
        assert!(fault(AT_ONCE, "").is_some());
        let found = fault(FIRST_INSTRUCTION, "").unwrap();
        assert!(found.starts_with(OWN_FAULT), "{found}");
        let in_handler = FIRST_INSTRUCTION
            .replace("text_poke_bp_batch", "flush_tlb_mm_range")
            .replace("__napi_schedule+0x0/0xa0", "exc_int3+0x1a/0x90");
        assert!(fault(&in_handler, "").is_some());
    }

    #[test]
    fn a_cpu_that_hangs_elsewhere_is() {
        for console in [
            FIRST_INSTRUCTION.replace("__napi_schedule+0x0/", "kbp_enqueue+0x4c/"),
            FIRST_INSTRUCTION.replace("text_poke_bp_batch", "flush_tlb_mm_range"),
            FIRST_INSTRUCTION.replace("BUG: soft lockup", "hung"),
            AT_ONCE.replace("__schedule+0x98/0xbf0", "kbp_enqueue+0x98/0xbf0 [kbp]"),
            AT_ONCE.replace("int3", "general protection fault"),
            "Kernel panic - not syncing: Fatal exception".into(),
        ] {
            assert_eq!(fault(&console, ""), None, "{console}");
        }
    }

    #[test]
    fn an_assertion_of_qemu_is_named() {
        let said = "ERROR: x.c:1: f: Assertion `a == b' failed.";
        assert!(fault("", said).unwrap().contains("assertion"));
        assert_eq!(fault("", "could not open /x"), None);
    }
}
