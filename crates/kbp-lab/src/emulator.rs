// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of QEMU itself: they end a machine and say nothing of what ran in it.
//!
//! **An outdated translation.** Where QEMU emulates each CPU in a thread of its own, a store to code first discards what
//! was translated from it and then changes the memory. A CPU that gets there in between translates the old bytes once
//! more, and that stays. When Linux changes its own code, those bytes can be a breakpoint: later the CPU runs into it
//! where memory has none. Newer kernels end at that (`Oops: int3`). 6.1 sends the CPU back to try again, and it tries for
//! ever, with interrupts off; if another one waits for it, the kernel reports that (`softlockup_panic`), with where all
//! CPUs are (docs/decisions/007-lab-clocks.md).
//!
//! What looks the same and can be a fault of what is tested is not excused: another complaint before, a breakpoint that is
//! in memory, code that is no function of the kernel's own, or that a module from elsewhere has called.
//!
//! Not here: what a machine's end means otherwise ([`crate::run`]).

/// What every sentence on such a fault begins with; `scripts/run-tests.py` repeats a test that has it.
const OWN_FAULT: &str = "QEMU's own fault: ";

/// The bit of the flags that is set while interrupts are on.
const INTERRUPTS_ON: u32 = 1 << 9;

/// The sentence on a fault of QEMU, if it is one: by what the guest's console said, and QEMU itself.
///
/// `in_threads`: each CPU is emulated, in a thread of its own.
pub(crate) fn fault(console: &str, complaints: &str, in_threads: bool) -> Option<String> {
    let what = if complaints.contains("Assertion `") {
        "an assertion of its own failed"
    } else if in_threads && runs_outdated_code(console) {
        "a CPU runs into a breakpoint that is not in memory"
    } else {
        return None;
    };
    Some(format!("{OWN_FAULT}{what}"))
}

/// Whether the first thing that the kernel complained of is a breakpoint that is not there.
fn runs_outdated_code(console: &str) -> bool {
    let first = ["Oops: ", "BUG: ", "WARNING: "]
        .iter()
        .filter_map(|word| console.find(word))
        .min();
    let Some(report) = first.map(|at| &console[at..]) else {
        return false;
    };
    let (headline, rest) = report.split_once('\n').unwrap_or((report, ""));
    let Some(foreign) = foreign_modules(rest) else {
        return false;
    };
    if headline.starts_with("Oops: int3: ") {
        Place::of(rest)
            .is_some_and(|place| place.is_kernels_own(rest, &foreign) && place.before != "cc")
    } else if headline.starts_with("BUG: soft lockup") {
        let others = rest.split("Kernel panic").next().unwrap_or(rest);
        others
            .split("NMI backtrace for cpu ")
            .skip(1)
            .any(|backtrace| hangs_at_breakpoint(backtrace, &foreign))
    } else {
        false
    }
}

/// The modules that are not of the kernel's own build, by the kernel's list: `name(OE)`. None without a list.
fn foreign_modules(report: &str) -> Option<Vec<&str>> {
    let (_, list) = report.split_once("Modules linked in:")?;
    let flagged = list.lines().next()?.split_whitespace();
    let foreign = flagged
        .filter_map(|word| word.split_once('('))
        .filter(|(_, flags)| flags.contains('O'));
    Some(foreign.map(|(name, _)| name).collect())
}

/// Whether a CPU, by its backtrace, is in the handler of breakpoints or at the first instruction of a function, where
/// Linux puts them, and no foreign module has a part in it.
fn hangs_at_breakpoint(backtrace: &str, foreign: &[&str]) -> bool {
    let Some(place) = Place::of(backtrace) else {
        return false;
    };
    let in_handler = ["exc_int3+", "asm_exc_int3+"]
        .iter()
        .any(|handler| place.symbol.starts_with(handler));
    let at_function = place.symbol.contains("+0x0/") && place.at != "cc";
    place.is_kernels_own(backtrace, foreign) && place.interrupts_off && (in_handler || at_function)
}

/// Where a CPU was, in the kernel's words.
struct Place<'a> {
    /// Function, distance and length.
    symbol: &'a str,
    interrupts_off: bool,
    /// The bytes in memory before and at the next instruction.
    before: &'a str,
    at: &'a str,
}

impl<'a> Place<'a> {
    fn of(report: &'a str) -> Option<Place<'a>> {
        let (_, after) = report.split_once("RIP: ")?;
        let (line, rest) = after.split_once('\n')?;
        // The first is the selector of the segment.
        let (_, symbol) = line.split_once(':')?;
        let (_, code) = rest.split_once("Code: ")?;
        let (before, at) = code.split_once('<')?;
        let (_, flags) = rest.split_once("EFLAGS: ")?;
        let flags = u32::from_str_radix(flags.split_whitespace().next()?, 16).ok()?;
        Some(Place {
            symbol,
            interrupts_off: flags & INTERRUPTS_ON == 0,
            before: before.split_whitespace().next_back()?,
            at: at.split('>').next()?,
        })
    }

    /// A function of the kernel itself, not of a module (`[name]`) or a BPF program, and none without a name; nor
    /// one that a foreign module has called.
    fn is_kernels_own(&self, backtrace: &str, foreign: &[&str]) -> bool {
        let named = self.symbol.contains("+0x") && !self.symbol.contains('[');
        let called = |name: &&str| backtrace.contains(&format!(" [{name}]"));
        named && !self.symbol.starts_with("bpf_prog_") && !foreign.iter().any(called)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Debian's 6.1, while `kbp load` waited for two CPUs (shortened; `watchdog_thresh` was 5).
    const HANGS: &str = "\
[  669.741569] livepatch: enabling patch 'kbp'
[  682.941682] watchdog: BUG: soft lockup - CPU#0 stuck for 14s! [kbp:1244]
[  682.943204] Modules linked in: kbp(OEK+) kbp_trace(OE) e1000e virtio_console virtio_pci
[  682.955804] RIP: 0010:smp_call_function_many_cond+0xf1/0x330
[  682.959145] Code: 56 08 83 e2 01 74 0a f3 90 <8b> 4e 08 83 e1 01 75 f6
[  682.961538] RSP: 0018:ff655d02c03cb860 EFLAGS: 00010202
[  682.983974]  text_poke_bp_batch+0xb7/0x300
[  682.991403]  kbp_init+0x8e/0x1000 [kbp]
[  683.060827] Sending NMI from CPU 0 to CPUs 1-3:
[  683.063871] NMI backtrace for cpu 1 skipped: idling at native_safe_halt+0xb/0x10
[  683.082397] NMI backtrace for cpu 2
[  683.083428] RIP: 0010:__napi_schedule+0x0/0xa0
[  683.083870] Code: 71 ff ff eb c8 e8 32 dd 26 00 66 90 <e8> 3b 56 7f 06 41 55
[  683.084208] RSP: 0018:ff655d02c010cf40 EFLAGS: 00010002
[  683.131682]  e1000_intr_msix_rx+0x6e/0x80 [e1000e]
[  683.178770] Kernel panic - not syncing: softlockup: hung tasks
";

    /// Debian's 7.3, with no module of ours (shortened).
    const ENDS: &str = "\
[   80.405285] Oops: int3: 0000 [#1] SMP NOPTI
[   80.548788] RIP: 0010:__dequeue_task+0x164/0xc50
[   80.641371] Code: 48 18 48 89 8b d0 00 00 00 0f <1f> 44 00 00 c6 43 68 00
[   80.710144] RSP: 0018:ff5958ecc05eba40 EFLAGS: 00000046
[   81.156309]  __schedule+0x1c8/0x1080
[   81.456507] Modules linked in: e1000e
";

    fn excused(console: &str) -> bool {
        fault(console, "", true).is_some()
    }

    #[test]
    fn a_cpu_in_outdated_code_is_not_the_tests_fault() {
        assert!(excused(HANGS) && excused(ENDS));
        assert!(excused(
            &HANGS.replace("__napi_schedule+0x0/0xa0", "exc_int3+0x1a/0x90")
        ));
        // What the kernel says of the CPU that waited has its modules in it once more.
        assert!(excused(&format!("{HANGS} kbp_init+0x8e/0x1000 [kbp]\n")));
        let said = fault(HANGS, "", true).unwrap();
        assert!(said.starts_with(OWN_FAULT), "{said}");
    }

    #[test]
    fn what_could_be_a_modules_fault_is_not_excused() {
        for (console, was, is) in [
            (HANGS, "__napi_schedule+0x0/", "__napi_schedule+0x4c/"),
            (
                HANGS,
                "__napi_schedule+0x0/0xa0",
                "kbp_enqueue+0x0/0xa0 [kbp]",
            ),
            (
                HANGS,
                "e1000_intr_msix_rx+0x6e/0x80 [e1000e]",
                "kbp_round+0x6e/0x80 [kbp]",
            ),
            (HANGS, "00010002", "00010202"),
            (HANGS, "<e8>", "<cc>"),
            (HANGS, "livepatch: enabling", "WARNING: CPU: 1 PID: 1"),
            (HANGS, "BUG: soft lockup", "rcu: INFO: stall"),
            (ENDS, "0f <1f>", "cc <cc>"),
            (ENDS, "__dequeue_task+0x164/0xc50", "0xffffffffc0a01234"),
            (
                ENDS,
                "__dequeue_task+0x164/0xc50",
                "bpf_prog_6deef7357e7b4530+0x164/0xc50",
            ),
            (
                ENDS,
                "__dequeue_task+0x164/0xc50",
                "kbp_round+0x164/0xc50 [kbp]",
            ),
            (ENDS, "int3", "general protection fault"),
            (
                ENDS,
                "__schedule+0x1c8/0x1080",
                "other+0x1c8/0x1080 [other]\nModules linked in: other(O)",
            ),
            (ENDS, "Modules linked in", "Modules"),
            (
                ENDS,
                "Oops: int3",
                "BUG: kernel NULL pointer dereference\nOops: int3",
            ),
        ] {
            let changed = console.replace(was, is);
            assert_ne!(changed, console, "{was}");
            assert!(!excused(&changed), "{was} -> {is}");
        }
        assert!(fault(HANGS, "", false).is_none(), "one CPU at a time");
        assert!(!excused("Kernel panic - not syncing: Fatal exception"));
    }

    #[test]
    fn an_assertion_of_qemu_is_named() {
        let said = "qemu-system-x86_64: ../system/physmem.c:1: f: Assertion `a < b' failed.";
        assert!(fault("", said, false).unwrap().contains("assertion"));
        assert_eq!(
            fault("", "qemu-system-x86_64: could not open /x", false),
            None
        );
    }
}
