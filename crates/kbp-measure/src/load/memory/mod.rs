// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory statistics and page pressure: what stalled the packets of a Kubernetes node at GitHub (Theo Julienne,
//! "Debugging network stalls on Kubernetes", github.blog, 2019-11-21). There a monitor read `memory.stat` of cgroups;
//! the kernel added up so many counters in one system call that the softirqs behind it waited.
//!
//! Here: many small cgroups, each with a process that allocates and frees pages, and readers of their `memory.stat`
//! on the CPU that is pressed. On request also a reader that fetches a file anew from its disk through the page cache.
//! In a machine without a disk (the lab's guests) there is nothing to fetch; the rest runs there too.
//! Not here: cgroups that died and are kept by their page cache, which made it so slow then. They need days to grow.

mod files;
mod groups;
mod pods;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use kbp_core::Host;

use self::files::BulkFile;
use self::groups::{Groups, Hierarchy};
use self::pods::Pods;
use super::claim::{self, Claim};
use super::worker::{Stop, Workers};
use super::{check_cpu, Count, Entry, Load, Work};
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::error::{Error, Result};
use crate::place::Place;

pub(super) const ENTRY: Entry = Entry {
    load: Load::Memory,
    name: "memory",
    about:
        "readers of cgroup memory statistics, page allocation, and page cache where there is a disk",
    check: |config| check(&config.memory),
    words: |config| config.memory.words(),
    start: |config| Ok(Box::new(Memory::start(&config.memory)?)),
};

const LOAD: &str = "memory";
/// Most cgroups that are made.
const GROUPS_MAX: u32 = 1_000;
/// Largest file that is made, bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The readers of memory statistics and what makes them slow.
#[derive(Debug, Clone)]
pub struct MemoryConfig {
    /// A reader of `memory.stat` for each entry, `SCHED_OTHER`.
    pub reader_cpus: Vec<u32>,
    /// Each reads the sum and the statistics of one cgroup once in so many microseconds.
    pub read_period_us: u32,
    /// Cgroups, each with a process.
    pub groups: u32,
    /// CPUs of these processes, in turn.
    pub group_cpus: Vec<u32>,
    /// Pages that each process allocates and frees at once.
    pub pages: u32,
    /// How often each process does so, microseconds.
    pub page_period_us: u32,
    /// Directory for a file that is read through the page cache again and again; it has to be on a disk. `None` leaves
    /// this out.
    pub files: Option<PathBuf>,
    /// Size of that file, bytes.
    pub file_bytes: u64,
}

impl MemoryConfig {
    /// One reader on the pressed CPU, 1,000 times a second; 32 cgroups whose processes run on any other online CPU.
    pub fn new(cpu: u32) -> Self {
        let online = Host::system().online_cpus().ok();
        let others: Vec<u32> = online
            .iter()
            .flat_map(|cpus| cpus.iter())
            .filter(|&other| other != cpu)
            .collect();
        Self {
            reader_cpus: vec![cpu],
            read_period_us: 1_000,
            groups: 32,
            group_cpus: if others.is_empty() { vec![cpu] } else { others },
            pages: 64,
            page_period_us: 20_000,
            files: None,
            file_bytes: 64 << 20,
        }
    }

    fn words(&self) -> String {
        let files = match &self.files {
            Some(dir) => format!(
                "a file of {} MiB in {} read through the page cache again and again",
                self.file_bytes >> 20,
                dir.display()
            ),
            None => "no file read from a disk".into(),
        };
        format!(
            "Readers of memory.stat on CPU {:?}, every {} µs each; {} cgroups with a process that allocates and frees \
             {} pages every {} µs; {files}.",
            self.reader_cpus, self.read_period_us, self.groups, self.pages, self.page_period_us
        )
    }
}

fn check(config: &MemoryConfig) -> std::result::Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("making cgroups needs root".into());
    }
    if config.reader_cpus.is_empty() || config.group_cpus.is_empty() {
        return Err("it needs a CPU for its readers and one for its processes".into());
    }
    let cpus = config.reader_cpus.iter().chain(&config.group_cpus);
    cpus.copied().try_for_each(check_cpu)?;
    if !(1..=GROUPS_MAX).contains(&config.groups) {
        return Err(format!("{} cgroups: 1 to {GROUPS_MAX}", config.groups));
    }
    if config.pages == 0 || config.read_period_us == 0 || config.page_period_us == 0 {
        return Err("pages and periods have to be more than 0".into());
    }
    Hierarchy::find(&Host::system())?;
    let Some(dir) = &config.files else {
        return Ok(());
    };
    if !(4_096..=FILE_BYTES_MAX).contains(&config.file_bytes) {
        return Err(format!(
            "a file of {} bytes: 4096 to {FILE_BYTES_MAX}",
            config.file_bytes
        ));
    }
    files::check(&Host::system(), dir)
}

/// What the threads count.
#[derive(Debug, Clone, Default)]
struct Tally {
    stat_reads: Arc<AtomicU64>,
    stat_ns: Arc<AtomicU64>,
    file_bytes: Arc<AtomicU64>,
}

fn add(total: &AtomicU64, amount: u64) {
    total.fetch_add(amount, Ordering::Relaxed);
}

/// Made part by part, so that what was made can be undone at any moment.
#[derive(Debug)]
struct Memory {
    workers: Workers,
    tally: Tally,
    pods: Option<Pods>,
    groups: Option<Groups>,
    file: Option<BulkFile>,
    claim: Claim,
}

impl Memory {
    fn start(config: &MemoryConfig) -> Result<Self> {
        let host = Host::system();
        claim::sweep(&host, LOAD, undo)?;
        let hierarchy = Hierarchy::find(&host).map_err(|why| super::failed(Load::Memory, why))?;
        let mut memory = Self {
            workers: Workers::default(),
            tally: Tally::default(),
            pods: None,
            groups: None,
            file: None,
            claim: Claim::new(&host, LOAD)?,
        };
        memory.set_up(hierarchy, config)?;
        Ok(memory)
    }

    fn set_up(&mut self, hierarchy: Hierarchy, config: &MemoryConfig) -> Result<()> {
        let new = Groups::new(hierarchy, self.claim.id(), config.groups);
        let groups = self.groups.insert(new);
        groups.make(&mut self.claim)?;
        self.pods = Some(Pods::start(groups, config)?);
        if let Some(dir) = &config.files {
            let file = self.file.insert(BulkFile::new(dir, self.claim.id())?);
            file.make(config.file_bytes, &mut self.claim)?;
        }
        for &cpu in &config.reader_cpus {
            self.start_stat_reader(cpu, u64::from(config.read_period_us) * 1_000)?;
        }
        self.start_file_reader(config.reader_cpus[0])
    }

    fn start_stat_reader(&mut self, cpu: u32, period_ns: u64) -> Result<()> {
        let stats = self
            .groups
            .as_ref()
            .map_or(Ok(Vec::new()), Groups::open_stats)?;
        let tally = self.tally.clone();
        let work = move |(), stop: &Stop| read_stats(&stats, period_ns, &tally, stop);
        let name = format!("kbp-memstat/{cpu}");
        self.workers.spawn(&name, on(cpu), || Ok(()), work)
    }

    fn start_file_reader(&mut self, cpu: u32) -> Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let (mut reader, tally) = (file.open()?, self.tally.clone());
        let work = move |(), stop: &Stop| {
            while !stop.requested() {
                add(&tally.file_bytes, reader.next_part()?);
            }
            Ok(())
        };
        let name = format!("kbp-pagecache/{cpu}");
        self.workers.spawn(&name, on(cpu), || Ok(()), work)
    }

    /// Ends everything and undoes it, last one first.
    fn end(&mut self) -> Result<()> {
        let worked = self.workers.end();
        self.pods = None;
        let deleted = self.file.as_ref().map_or(Ok(()), BulkFile::delete);
        let removed = self.groups.as_mut().map_or(Ok(()), Groups::remove);
        deleted.and(removed)?;
        self.claim.release()?;
        worked
    }
}

fn on(cpu: u32) -> Place {
    Place {
        cpu: Some(cpu),
        ..Place::default()
    }
}

/// Reads the sum of all cgroups and the statistics of one, in turn.
fn read_stats(stats: &[File], period_ns: u64, tally: &Tally, stop: &Stop) -> Result<()> {
    let [sum, groups @ ..] = stats else {
        return Ok(());
    };
    let mut buffer = vec![0; 16_384];
    let mut next_ns = monotonic_ns()?;
    for group in groups.iter().cycle() {
        if stop.requested() {
            break;
        }
        let begin_ns = monotonic_ns()?;
        for file in [sum, group] {
            file.read_at(&mut buffer, 0)
                .map_err(|e| Error::sys("read memory.stat", e))?;
        }
        let now_ns = monotonic_ns()?;
        add(&tally.stat_ns, now_ns - begin_ns);
        add(&tally.stat_reads, 2);
        next_ns = (next_ns + period_ns).max(now_ns);
        sleep_until_ns(next_ns)?;
    }
    Ok(())
}

impl Work for Memory {
    fn counts(&self) -> Result<Vec<Count>> {
        let mut counts = vec![
            Count::proof("stat_reads", self.tally.stat_reads.load(Ordering::Relaxed)),
            Count::proof("pages", self.pods.as_ref().map_or(0, Pods::pages)),
            Count::note("stat_ns", self.tally.stat_ns.load(Ordering::Relaxed)),
        ];
        if self.file.is_some() {
            let bytes = self.tally.file_bytes.load(Ordering::Relaxed);
            counts.push(Count::proof("file_bytes", bytes));
        }
        Ok(counts)
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.end()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After `stop` there is nothing left to do; on any other path another error is on its way already.
        let _ = self.end();
    }
}

/// Undoes one thing of a process that died.
fn undo(thing: &str) -> Result<()> {
    match thing.split_once(' ') {
        Some((groups::THING_GROUP, path)) => groups::remove_tree(path.as_ref()),
        Some((groups::THING_CONTROLLER, path)) => groups::disable(path.as_ref()),
        Some((files::THING, path)) => files::delete(path.as_ref()),
        _ => Err(super::failed(
            Load::Memory,
            format!("a process that died left '{thing}' in /run/kbp/load, which is not understood: undo it by hand"),
        )),
    }
}

#[cfg(test)]
mod tests;
