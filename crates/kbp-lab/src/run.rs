// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job on one machine: boot or go on from a snapshot, hand over the job, watch, collect, judge.
//!
//! Not here: QEMU as a process ([`crate::machine`]) and what is in the guest ([`crate::initramfs`], [`crate::payload`]).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cache::Cache;
use crate::clock::{Clock, TurnCheck, BACK_NS_LIMIT};
use crate::emulator;
use crate::error::{tail, Error, IoContext, Result};
use crate::machine::{init_seen, Console, Event, Machine, Start};
use crate::payload::GuestFile;
use crate::qemu::{Accelerator, Nics, Qemu};
use crate::snapshot::Snapshot;

/// Longest wait for a guest to boot, in the host's time. A cold boot on the virtual clock takes half a minute.
pub(crate) const BOOT: Duration = Duration::from_secs(240);
/// Longest wait for a guest to go down for its next boot.
const DOWN: Duration = Duration::from_secs(300);
/// Longest wait for the guest to take its job and have its clock checked.
const JOB: Duration = Duration::from_secs(120);
/// Longest wait for the last of what the guest has sent, once it said that this was all.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Longest wait for a snapshot to be written or loaded.
const SNAPSHOT: Duration = Duration::from_secs(60);
/// How often a machine that was lost before its first process ran is started again.
const BOOT_RETRIES: u32 = 2;
/// Lines of the console that a message shows.
const CONSOLE_LINES: usize = 30;

/// What is to be run, and on what machine.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// The kernel's id in `kernels.toml`.
    pub kernel: String,
    /// CPUs, 1 to 64.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// What the guest's time is.
    pub clock: Clock,
    /// Network cards.
    pub nics: Nics,
    /// The path of a wire: a further card, whose frames go to a tester on the host. Only with the real clock.
    pub wire: Option<PathBuf>,
    /// Folders of modules to build; the guest finds the `.ko` files in `$MODULES`.
    pub modules: Vec<PathBuf>,
    /// Files of this machine, with the libraries that they need.
    pub files: Vec<GuestFile>,
    /// Debian packages, with the libraries that they need.
    pub packages: Vec<String>,
    /// More words for the kernel's command line.
    pub append: String,
    /// The script, a path inside the lab's folder; `None` only with `shell`.
    pub script: Option<PathBuf>,
    /// The script's arguments.
    pub args: Vec<String>,
    /// The folder that what the script left in `$OUT` comes to, with `console.log`, `dmesg.log` and `machine.json`.
    pub out_dir: Option<PathBuf>,
    /// The script's time limit, in the host's time.
    pub timeout: Duration,
    /// Give the terminal a shell in the guest instead of running the script.
    pub shell: bool,
    /// Show the console.
    pub verbose: bool,
    /// Boot anew instead of going on from a snapshot.
    pub cold: bool,
    /// Boot a whole Debian from a disk: its name in `kernels.toml`. Only with the real clock.
    pub root: Option<String>,
    /// The kernel of a machine that the script runs inside the guest: its id in `kernels.toml`.
    pub nested: Option<String>,
    /// Kernels of the boots that follow on the same disk; the script runs in each.
    pub then: Vec<String>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The script exited with 0.
    Pass,
    /// The script exited with 4: it cannot run here.
    Skip,
    /// The script exited with another code.
    Fail {
        /// That code.
        code: i32,
    },
    /// The machine ended or fell silent without a result: a panic, or QEMU died. Never a statement about the test.
    Lost {
        /// What is known.
        reason: String,
        /// Whether the guest's first process had begun.
        init_ran: bool,
    },
    /// The script ran longer than its limit.
    TimedOut,
    /// The clock is not fair enough to report anything.
    ClockRefused {
        /// Why.
        reason: String,
    },
}

/// What a job left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub verdict: Verdict,
    /// The check of a clock that counts instructions.
    pub turns: Option<TurnCheck>,
    /// The end of the console, for messages.
    pub console_tail: String,
    /// Host time until the guest could take its job.
    pub boot: Duration,
    /// Host time of the script.
    pub script: Duration,
}

/// What is known about a machine, for whoever reads its results later; written as `machine.json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    pub schema: &'static str,
    pub clock: Clock,
    pub accelerator: Accelerator,
    pub kernel: String,
    pub kernel_package: String,
    pub cpus: u32,
    pub memory_mib: u32,
    pub qemu: String,
    pub qemu_command: Vec<String>,
    pub cmdline: String,
    pub clocksource: String,
    pub turns: Option<TurnCheck>,
    pub unix_time: u64,
    #[serde(flatten)]
    pub verdict: Option<Verdict>,
}

impl Record {
    /// Whether QEMU emulates each CPU, in a thread of its own.
    fn in_threads(&self) -> bool {
        self.accelerator == Accelerator::Tcg && self.clock == Clock::Real
    }
}

/// A machine and its job, ready to go.
pub(crate) struct Job<'a> {
    pub cache: &'a Cache,
    pub qemu: &'a Qemu,
    pub arguments: Vec<String>,
    /// The machine's snapshot, or `None` to boot anew.
    pub snapshot: Option<Snapshot>,
    pub payload: Vec<u8>,
    pub record: Record,
    pub spec: &'a MachineSpec,
    /// Longest wait for the guest to boot.
    pub boot_limit: Duration,
    /// Another boot of its disk follows, so it has to go down in order.
    pub goes_down: bool,
}

impl Job<'_> {
    /// Runs the job. Machines that are lost before their first process ran are started again, a few times.
    ///
    /// # Errors
    /// Only what is no verdict about the machine: QEMU does not start, files cannot be written.
    pub(crate) fn run(
        mut self,
        sink: &mut dyn FnMut() -> Box<dyn Write + Send>,
    ) -> Result<Outcome> {
        if let Some(dir) = &self.spec.out_dir {
            std::fs::create_dir_all(dir).at("make the folder", dir)?;
        }
        for retry in 0.. {
            let (outcome, console) = self.attempt(sink())?;
            match &outcome.verdict {
                Verdict::Lost {
                    reason,
                    init_ran: false,
                } if retry < BOOT_RETRIES => {
                    eprintln!("lab: the machine was lost before its first process ran: {reason}; starting it again");
                }
                _ => {
                    self.keep(&outcome, &console)?;
                    return Ok(outcome);
                }
            }
        }
        Err(Error::Qemu {
            detail: "no attempt was made".into(),
        })
    }

    fn attempt(&mut self, sink: Box<dyn Write + Send>) -> Result<(Outcome, String)> {
        let begin = Instant::now();
        let mut machine = match self.boot()? {
            Ok(machine) => machine,
            Err((verdict, console)) => {
                let outcome = Outcome {
                    verdict,
                    turns: None,
                    console_tail: tail(&console, CONSOLE_LINES),
                    boot: begin.elapsed(),
                    script: Duration::ZERO,
                };
                return Ok((outcome, console));
            }
        };
        let boot = begin.elapsed();
        machine.stream_output(sink);
        let arrived = machine.receive_data(self.spec.out_dir.as_deref())?;
        machine.send_data(self.payload.clone())?;
        let (verdict, script) = self.watch(&mut machine);
        let sent = matches!(
            verdict,
            Verdict::Pass | Verdict::Skip | Verdict::Fail { .. }
        );
        let unpacked = sent.then(|| arrived.recv_timeout(ARRIVAL));
        if sent {
            machine.say("done");
        }
        let waits = self.goes_down && verdict == Verdict::Pass;
        let is_down = !waits || machine.ends_within(DOWN);
        let console = machine.end();
        let verdict = match waits.then(|| not_down(is_down, &console)).flatten() {
            Some(lost) => lost,
            None => verdict,
        };
        let verdict = self.lost_with_words(verdict, &machine, &console);
        if let (Some(unpacked), Verdict::Pass | Verdict::Skip) = (unpacked, &verdict) {
            unpacked
                .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
                .at(
                    "unpack the guest's files into",
                    self.spec.out_dir.clone().unwrap_or_default(),
                )?;
        }
        let turns = self.record.turns;
        Ok((
            Outcome {
                verdict,
                turns,
                console_tail: tail(&console, CONSOLE_LINES),
                boot,
                script,
            },
            console,
        ))
    }

    /// A machine that has begun to take its job, or the verdict that there is none.
    fn boot(&self) -> Result<std::result::Result<Machine, (Verdict, String)>> {
        if let Some(snapshot) = &self.snapshot {
            if snapshot.ready().is_none() {
                let _lock = self.cache.lock_snapshot(snapshot.name())?;
                // Somebody else may have made it while we waited.
                if snapshot.ready().is_none() {
                    if let Err(lost) = self.take_snapshot(snapshot)? {
                        return Ok(Err(lost));
                    }
                }
            }
            match self.resume(snapshot)? {
                Ok(machine) => return Ok(Ok(machine)),
                Err(reason) => {
                    eprintln!("lab: the snapshot does not load ({reason}); booting");
                    snapshot.discard()?;
                }
            }
        }
        let mut machine = match self.cold_boot(self.console(), false)? {
            Ok(machine) => machine,
            Err(lost) => return Ok(Err(lost)),
        };
        match self.hand_over(&mut machine) {
            None => Ok(Ok(machine)),
            Some(reason) => {
                let text = machine.end();
                let verdict = Verdict::Lost {
                    reason,
                    init_ran: true,
                };
                Ok(Err((self.lost_with_words(verdict, &machine, &text), text)))
            }
        }
    }

    /// Announces the job; the reason when the guest does not answer.
    fn hand_over(&self, machine: &mut Machine) -> Option<String> {
        machine.say(&format!("job {}", self.payload.len()));
        match machine.event(Instant::now() + SNAPSHOT) {
            Event::Line(line) if line == "taken" => None,
            Event::Line(line) => Some(format!("the guest answered '{line}' to its job")),
            Event::Gone => Some("it ended before it took its job".into()),
            Event::TimedOut => Some("the guest did not answer to its job".into()),
        }
    }

    fn resume(&self, snapshot: &Snapshot) -> Result<std::result::Result<Machine, String>> {
        let mut machine = Machine::start(&Start {
            qemu: self.qemu,
            arguments: &self.arguments,
            incoming: snapshot.ready(),
            console: self.console(),
            controlled: false,
            one_cpu: self.one_cpu(),
        })?;
        Ok(match self.hand_over(&mut machine) {
            None => Ok(machine),
            Some(reason) => Err(format!("{reason} {}", tail(&machine.complaints(), 2))),
        })
    }

    fn take_snapshot(
        &self,
        snapshot: &Snapshot,
    ) -> Result<std::result::Result<(), (Verdict, String)>> {
        eprintln!(
            "lab: booting {} once; later runs go on from a snapshot",
            self.record.kernel
        );
        self.cache
            .check_space(2 * (u64::from(self.spec.memory_mib) << 20))?;
        let console = if self.spec.verbose {
            Console::Shown
        } else {
            Console::Kept
        };
        let mut machine = match self.cold_boot(console, true)? {
            Ok(machine) => machine,
            Err(lost) => return Ok(Err(lost)),
        };
        machine.save(&snapshot.partial(), SNAPSHOT)?;
        machine.end();
        snapshot.commit()?;
        Ok(Ok(()))
    }

    fn cold_boot(
        &self,
        console: Console,
        controlled: bool,
    ) -> Result<std::result::Result<Machine, (Verdict, String)>> {
        let start = Start {
            qemu: self.qemu,
            arguments: &self.arguments,
            incoming: None,
            console,
            controlled,
            one_cpu: self.one_cpu(),
        };
        let mut machine = Machine::start(&start)?;
        let deadline = Instant::now() + self.boot_limit;
        loop {
            let reason = match machine.event(deadline) {
                Event::Line(line) if line == "ready" => return Ok(Ok(machine)),
                Event::Line(_) => continue,
                Event::Gone => "it ended while booting".to_string(),
                Event::TimedOut => {
                    format!("it did not boot within {} s", self.boot_limit.as_secs())
                }
            };
            let text = machine.end();
            let verdict = self.lost_with_words(
                Verdict::Lost {
                    reason,
                    init_ran: false,
                },
                &machine,
                &text,
            );
            return Ok(Err((verdict, text)));
        }
    }

    /// Adds to a lost machine's verdict what console and QEMU said.
    fn lost_with_words(&self, verdict: Verdict, machine: &Machine, console: &str) -> Verdict {
        let Verdict::Lost {
            mut reason,
            init_ran,
        } = verdict
        else {
            return verdict;
        };
        let said = console
            .lines()
            .find(|line| line.contains("Kernel panic") || line.starts_with("kbp-lab: the"));
        if let Some(line) = said {
            reason.push_str(": ");
            reason.push_str(line.trim());
        }
        let complaints = machine.complaints();
        if !complaints.is_empty() {
            reason.push_str("; QEMU says: ");
            reason.push_str(&tail(&complaints, 3));
        }
        if let Some(fault) = emulator::fault(console, &complaints, self.record.in_threads()) {
            reason.push_str("; ");
            reason.push_str(&fault);
        }
        Verdict::Lost {
            reason,
            init_ran: init_ran || init_seen(console),
        }
    }

    /// Talks with the guest until its end, and takes the script's time.
    fn watch(&mut self, machine: &mut Machine) -> (Verdict, Duration) {
        let mut deadline = Instant::now() + JOB;
        let mut began = None;
        let mut code = None;
        let verdict = loop {
            let line = match machine.event(deadline) {
                Event::Line(line) => line,
                Event::Gone => {
                    break Verdict::Lost {
                        reason: "it ended without a result".into(),
                        init_ran: true,
                    }
                }
                Event::TimedOut if began.is_some() => break Verdict::TimedOut,
                Event::TimedOut => {
                    let reason =
                        format!("the guest did not take its job within {} s", JOB.as_secs());
                    break Verdict::Lost {
                        reason,
                        init_ran: true,
                    };
                }
            };
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("turns", figures) => {
                    self.record.turns = TurnCheck::parse(figures);
                    if let Some(reason) = self.refusal(figures) {
                        break Verdict::ClockRefused { reason };
                    }
                }
                ("clocksource", name) => self.record.clocksource = name.to_string(),
                ("release", name) => self.record.kernel = name.to_string(),
                ("go", _) => {
                    self.announce();
                    began = Some(Instant::now());
                    deadline = Instant::now() + self.limit();
                    machine.say("run");
                }
                ("exit", number) => code = number.parse().ok(),
                ("end", _) => break verdict_of(code),
                _ => eprintln!("lab: the guest said something unknown: {line}"),
            }
        };
        (verdict, began.map_or(Duration::ZERO, |time| time.elapsed()))
    }

    fn refusal(&self, figures: &str) -> Option<String> {
        match &self.record.turns {
            Some(turns) => turns.refusal(self.spec.clock, self.spec.cpus),
            None => Some(format!("the check of the clock failed: {figures}")),
        }
    }

    fn announce(&self) {
        let record = &self.record;
        let turns = record
            .turns
            .map_or(String::new(), |turns| match self.spec.clock {
                Clock::Parallel => format!(
                    ", CPUs apart by up to {} ns (limit {BACK_NS_LIMIT} ns)",
                    turns.back_ns_max
                ),
                _ => format!(
                    ", longest turn {:.1} us (limit 20 us)",
                    turns.turn_ns_max as f64 / 1000.0
                ),
            });
        eprintln!(
            "lab: {} on QEMU {}, {} CPUs, clock {}, clocksource {}{turns}",
            record.kernel, record.qemu, record.cpus, record.clock, record.clocksource
        );
    }

    fn limit(&self) -> Duration {
        // A person at a shell is not hurried.
        if self.spec.shell {
            Duration::from_secs(24 * 3600)
        } else {
            self.spec.timeout
        }
    }

    fn one_cpu(&self) -> bool {
        self.spec.clock.counts_instructions()
    }

    fn console(&self) -> Console {
        match (self.spec.shell, self.spec.verbose) {
            (true, _) => Console::Terminal,
            (false, true) => Console::Shown,
            (false, false) => Console::Kept,
        }
    }

    fn keep(&mut self, outcome: &Outcome, console: &str) -> Result<()> {
        let Some(dir) = &self.spec.out_dir else {
            return Ok(());
        };
        self.record.verdict = Some(outcome.verdict.clone());
        let path = dir.join("console.log");
        std::fs::write(&path, console).at("write", &path)?;
        let path = dir.join("machine.json");
        let text = serde_json::to_string_pretty(&self.record).map_err(|error| Error::Config {
            path: path.clone(),
            detail: error.to_string(),
        })?;
        std::fs::write(&path, text + "\n").at("write", &path)
    }
}

/// A boot that proves whether the host's processor can run a guest; the answer holds until the host boots again.
pub(crate) fn kvm_works(cache: &Cache, qemu: &Qemu, arguments: &[String]) -> Result<bool> {
    const TRIAL: Duration = Duration::from_secs(20);
    if std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok(false);
    }
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let file = cache
        .dir("kvm")?
        .join(format!("{}-{}", qemu.version, boot_id.trim()));
    if let Ok(answer) = std::fs::read_to_string(&file) {
        return Ok(answer == "yes");
    }
    let start = Start {
        qemu,
        arguments,
        incoming: None,
        console: Console::Kept,
        controlled: false,
        one_cpu: false,
    };
    let works = match Machine::start(&start) {
        Err(_) => false,
        Ok(mut machine) => {
            let deadline = Instant::now() + TRIAL;
            let ready = machine.event(deadline) == Event::Line("ready".into());
            machine.end();
            ready
        }
    };
    eprintln!(
        "lab: KVM {} on this machine (found by a trial boot)",
        if works { "works" } else { "does not work" }
    );
    std::fs::write(&file, if works { "yes" } else { "no" }).at("write", &file)?;
    Ok(works)
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

fn verdict_of(code: Option<i32>) -> Verdict {
    match code {
        Some(0) => Verdict::Pass,
        Some(4) => Verdict::Skip,
        Some(code) => Verdict::Fail { code },
        None => Verdict::Lost {
            reason: "the guest gave no exit code".into(),
            init_ran: true,
        },
    }
}

/// The verdict on a machine that was to go down in order and did not.
fn not_down(is_down: bool, console: &str) -> Option<Verdict> {
    // The kernel's last words, and nobody else's.
    let in_order = console.contains("reboot: Restarting system");
    let reason = match (is_down, in_order) {
        (true, true) => return None,
        (true, false) => "it ended before its system had gone down in order".into(),
        (false, _) => format!("it did not go down within {} s", DOWN.as_secs()),
    };
    Some(Verdict::Lost {
        reason,
        init_ran: true,
    })
}

/// The script's path in the guest: it has to lie in the lab's folder.
pub(crate) fn guest_script(lab_dir: &Path, script: &Path) -> Result<String> {
    let whole = script.canonicalize().at("find the script", script)?;
    let lab = lab_dir.canonicalize().at("find", lab_dir)?;
    let relative = whole.strip_prefix(&lab).map_err(|_| {
        Error::Argument(format!(
            "{} is not in {}, which is what the guest sees",
            script.display(),
            lab_dir.display()
        ))
    })?;
    Ok(format!("/lab/{}", relative.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_scripts() {
        assert_eq!(verdict_of(Some(0)), Verdict::Pass);
        assert_eq!(verdict_of(Some(4)), Verdict::Skip);
        assert_eq!(verdict_of(Some(1)), Verdict::Fail { code: 1 });
        assert!(matches!(verdict_of(None), Verdict::Lost { .. }));
    }

    #[test]
    fn a_machine_goes_down_in_order_or_is_lost() {
        let orderly = "[  9.1] reboot: Restarting system\n";
        assert_eq!(not_down(true, orderly), None);
        for (is_down, console, wanted) in [
            (false, orderly, "did not go down"),
            (true, "Kernel panic - not syncing", "before its system"),
        ] {
            let Some(Verdict::Lost { reason, init_ran }) = not_down(is_down, console) else {
                panic!("that was in order: {console}")
            };
            assert!(init_ran && reason.contains(wanted), "{reason}");
        }
    }

    #[test]
    fn scripts_outside_the_lab_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let lab = temp.path().join("lab");
        std::fs::create_dir_all(lab.join("tests")).unwrap();
        for path in ["lab/tests/a.sh", "b.sh"] {
            std::fs::write(temp.path().join(path), "").unwrap();
        }
        assert_eq!(
            guest_script(&lab, &lab.join("tests/a.sh")).unwrap(),
            "/lab/tests/a.sh"
        );
        assert!(guest_script(&lab, &temp.path().join("b.sh"))
            .unwrap_err()
            .to_string()
            .contains("is not in"));
        assert!(guest_script(&lab, &lab.join("tests/none.sh")).is_err());
    }
}
