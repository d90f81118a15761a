// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units in machines of the lab, a few at once.
//!
//! A unit that came to its end is a folder with its result and `unit.json`, which says what it is the result of; a
//! study that is started again leaves it out. An interrupt ends the machines; what they had not finished is done again.
//!
//! Not here: what the results say ([`crate::compare::table`]).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use kbp_lab::{Clock, GuestFile, Lab, MachineSpec, Verdict};

use super::file::Unit;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::machine::complete_result;
use crate::result::ResultFile;

/// The script that runs `kbp compare` in the guest.
const SCRIPT: &str = "lab/bench.sh";
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// How a study is run.
#[derive(Debug)]
pub struct StudyRun<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// Folder of everything.
    pub out: &'a Path,
    /// Machines at once.
    pub jobs: usize,
    /// Revision of the source.
    pub git: &'a str,
}

/// What a study came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Units that are done, those that were before included.
    pub done: usize,
    /// Units that failed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Units that an interrupt left undone.
    pub left: usize,
}

impl StudyRun<'_> {
    /// The folder of a unit.
    pub fn dir(&self, unit: &Unit) -> PathBuf {
        self.out.join(&unit.machine.name).join(&unit.run)
    }

    /// The result of a unit that is done; `None` while it is not.
    ///
    /// # Errors
    /// When its folder holds the result of something else.
    pub fn result_of(&self, unit: &Unit) -> Result<Option<ResultFile>> {
        let dir = self.dir(unit);
        let stamp = dir.join("unit.json");
        let Ok(text) = std::fs::read_to_string(&stamp) else {
            return Ok(None);
        };
        let found: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if found != unit.identity() {
            return Err(Error::Invalid(format!(
                "{} was made by another study file: give another --out, or --restart to discard what is there",
                dir.display()
            )));
        }
        ResultFile::load(&dir.join("result.json")).map(Some)
    }

    /// Runs what is not done yet.
    ///
    /// # Errors
    /// When a folder holds something else, or a result can't be kept. Failures of a machine are in the report.
    pub fn run(&self, units: &[Unit]) -> Result<Report> {
        let mut report = Report::default();
        let mut to_do = Vec::new();
        for unit in units {
            match self.result_of(unit)? {
                Some(_) => report.done += 1,
                None => to_do.push(unit),
            }
        }
        let board = Board::new(&to_do);
        let next = AtomicUsize::new(0);
        let ends = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1))
                .map(|_| scope.spawn(|| self.work(&to_do, &next, &board, &ends)))
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                std::thread::sleep(LOOK);
                if interrupt::requested() {
                    end_machines();
                }
            }
        });
        let ends = ends
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        report.left = to_do.len() - ends.len();
        for (name, end) in ends {
            match end {
                Ok(()) => report.done += 1,
                Err(_) if interrupt::requested() => report.left += 1,
                Err(error) => report.failed.push((name, error.to_string())),
            }
        }
        Ok(report)
    }

    fn work(
        &self,
        units: &[&Unit],
        next: &AtomicUsize,
        board: &Board,
        ends: &Mutex<Vec<(String, Result<()>)>>,
    ) {
        while !interrupt::requested() {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.get(place) else { return };
            let since = Instant::now();
            let end = self.unit(unit, place, board);
            board.tell(unit, place, since.elapsed(), &end);
            if let Ok(mut ends) = ends.lock() {
                ends.push((unit.name(), end));
            }
        }
    }

    /// One unit: the machine, and its result completed and stamped.
    fn unit(&self, unit: &Unit, place: usize, board: &Board) -> Result<()> {
        let dir = self.dir(unit);
        std::fs::create_dir_all(&dir).map_err(|e| Error::file("create", &dir, e))?;
        let log = dir.join("log");
        let path = dir.join("result.json");
        // What an earlier try left must not be taken for the result of this one.
        remove(&path)?;
        let spec = spec(unit, &dir, self.git)?;
        let outcome = self.lab.run(&spec, || -> Box<dyn Write + Send> {
            match std::fs::File::create(&log) {
                Ok(file) => Box::new(Sink {
                    file,
                    line: Vec::new(),
                    over: Arc::clone(&board.over[place]),
                }),
                Err(_) => Box::new(std::io::sink()),
            }
        })?;
        let file = match outcome.verdict {
            Verdict::Pass | Verdict::Fail { .. } => whole(&path, &log)?,
            verdict => {
                return Err(Error::Program {
                    program: format!("the machine of {}", unit.name()),
                    why: format!("{verdict:?}; see {}", log.display()),
                })
            }
        };
        file.save(&path)?;
        let stamp = dir.join("unit.json");
        std::fs::write(&stamp, format!("{:#}\n", unit.identity()))
            .map_err(|e| Error::file("write", &stamp, e))
    }
}

/// A result that came to its end, completed with what the lab knows. A failed cell is in it with its reason and does
/// not make the others worthless; a script that ended without a result has said why.
fn whole(path: &Path, log: &Path) -> Result<ResultFile> {
    let said = || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        Error::Program {
            program: "kbp compare in the machine".into(),
            why: format!(
                "{}; see {}",
                last.unwrap_or("it said nothing"),
                log.display()
            ),
        }
    };
    if !path.exists() {
        return Err(said());
    }
    let mut file = ResultFile::load(path)?;
    if file.partial {
        return Err(said());
    }
    complete_result(&mut file, &path.with_file_name("machine.json"))?;
    Ok(file)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path, error))
        }
        _ => Ok(()),
    }
}

fn spec(unit: &Unit, dir: &Path, git: &str) -> Result<MachineSpec> {
    let machine = &unit.machine;
    let wrong = |why: String| Error::Invalid(format!("machine {}: {why}", machine.name));
    let kbp = std::env::current_exe().map_err(|e| Error::sys("find this program's own file", e))?;
    let git = ["--git".to_string(), git.to_string()];
    Ok(MachineSpec {
        kernel: machine.kernel.clone(),
        cpus: machine.cpus,
        memory_mib: machine.memory_mib,
        clock: Clock::from_str(&machine.clock, false).map_err(wrong)?,
        nics: machine.nics.parse().map_err(wrong)?,
        modules: machine.modules.clone(),
        files: vec![GuestFile {
            host: kbp,
            guest: Some("/usr/bin/kbp".into()),
        }],
        packages: machine.packages.clone(),
        append: machine.append.clone(),
        script: Some(SCRIPT.into()),
        args: [unit.args.as_slice(), &git].concat(),
        out_dir: Some(dir.into()),
        timeout: Duration::from_secs(machine.timeout_s),
        ..MachineSpec::default()
    })
}

/// What the guest prints goes to a file; lines of cells (`[3/52] …`) are counted.
struct Sink {
    file: std::fs::File,
    line: Vec<u8>,
    over: Arc<AtomicUsize>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                if let Some(over) = cells_over(&self.line) {
                    self.over.store(over, Ordering::Relaxed);
                }
                self.line.clear();
            } else {
                self.line.push(*byte);
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// The 3 of a line that begins with `[3/52]`.
fn cells_over(line: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(line).ok()?.trim_start();
    text.strip_prefix('[')?.split_once('/')?.0.parse().ok()
}

/// What is done of all units, for the time left.
struct Board {
    since: Instant,
    /// Cells that are over, by unit.
    over: Vec<Arc<AtomicUsize>>,
    cells: usize,
}

impl Board {
    fn new(units: &[&Unit]) -> Self {
        Self {
            since: Instant::now(),
            over: units.iter().map(|_| Arc::default()).collect(),
            cells: units.iter().map(|unit| unit.cells).sum(),
        }
    }

    /// Says that a unit has ended, how far the study is, and how long it will take.
    fn tell(&self, unit: &Unit, place: usize, took: Duration, end: &Result<()>) {
        // A cell of a unit that has ended is over, however it ended.
        self.over[place].store(unit.cells, Ordering::Relaxed);
        let over: usize = self.over.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        let left = left(self.since.elapsed(), over, self.cells);
        let word = match end {
            Ok(()) => "done".into(),
            Err(error) => format!("FAILED: {error}"),
        };
        eprintln!(
            "{}: {word} in {} s; {over} of {} cells, about {} min left",
            unit.name(),
            took.as_secs(),
            self.cells,
            left.as_secs().div_ceil(60)
        );
    }
}

/// The time that the rest takes if it goes on as it went.
fn left(elapsed: Duration, over: usize, all: usize) -> Duration {
    elapsed.mul_f64((all - over.min(all)) as f64 / over.max(1) as f64)
}

/// Ends the machines that this process started: the lab then finds them lost, and clears up behind them. Nothing else
/// is a child of this process while a study runs, but what the lab starts.
fn end_machines() {
    for pid in children(std::process::id()) {
        // SAFETY: kill takes plain numbers. The pid is of a child that was there a moment ago; the lab alone waits for
        // its children, so at worst the signal meets one that has just ended.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

fn children(of: u32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return vec![];
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse::<i32>().ok());
    pids.filter(|pid| parent(*pid) == Some(of)).collect()
}

/// The parent of a process: the second word behind its name, which may hold anything but ends with the last bracket.
fn parent(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind = stat.rsplit_once(')')?.1;
    behind.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_counted_as_the_guest_prints_them() {
        let over = Arc::new(AtomicUsize::new(0));
        let mut sink = Sink {
            file: tempfile::tempfile().unwrap(),
            line: vec![],
            over: Arc::clone(&over),
        };
        sink.write_all(b"lab: x\n  [3/5").unwrap();
        assert_eq!(over.load(Ordering::Relaxed), 0);
        sink.write_all(b"2] nic idle softirq\n[x] \xff\n").unwrap();
        assert_eq!(over.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_time_left_follows_from_the_cells() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(minute, 10, 40), 3 * minute);
        assert_eq!(left(minute, 40, 40), Duration::ZERO);
    }

    #[test]
    fn children_are_ended_and_nobody_else() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(children(std::process::id()).contains(&pid));
        assert!(!children(std::process::id()).contains(&(std::process::id() as i32)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(std::process::id()).contains(&pid));
    }
}
