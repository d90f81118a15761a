// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /proc says: softirqs, interrupts, CPU time, packets dropped, symbols, tasks, mounts.
//!
//! The parsers are pure functions over text; the methods of [`Host`] read the file and call them.
//! Which interrupt belongs to which queue is decided in [`crate::irq`].

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};

use serde::Serialize;

use crate::host::{Host, HostError};
use crate::CpuList;

/// /proc/softirqs: how often each kind of softirq ran, by CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Softirqs {
    columns: Vec<u32>,
    rows: BTreeMap<String, Vec<u64>>,
}

impl Softirqs {
    /// How often softirqs of this kind (`NET_RX`) ran on the CPU since boot; `None` when the
    /// kernel has no such kind or the CPU has no column.
    pub fn count(&self, kind: &str, cpu: u32) -> Option<u64> {
        let column = self.columns.iter().position(|&c| c == cpu)?;
        self.rows.get(kind)?.get(column).copied()
    }

    /// Every count: the kind, the CPU, how often it ran there since boot.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u32, u64)> {
        self.rows.iter().flat_map(|(kind, row)| {
            let cpus = self.columns.iter().copied();
            cpus.zip(row.iter().copied())
                .map(move |(cpu, count)| (kind.as_str(), cpu, count))
        })
    }

    /// The kinds of softirq of this kernel.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.rows.keys().map(String::as_str)
    }
}

/// One line of /proc/interrupts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Number, or `None` for the architecture's own ones (`NMI`, `LOC`).
    pub irq: Option<u32>,
    /// What stands before the colon.
    pub label: String,
    /// Times it was raised since boot, in the order of the columns.
    pub counts: Vec<u64>,
    /// Names of the handlers; empty when nothing handles it.
    pub actions: Vec<String>,
}

/// /proc/interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    columns: Vec<u32>,
    /// The lines in their order.
    pub lines: Vec<Interrupt>,
}

impl Interrupts {
    /// The line of an interrupt number.
    pub fn get(&self, irq: u32) -> Option<&Interrupt> {
        self.lines.iter().find(|line| line.irq == Some(irq))
    }

    /// How often the interrupt was raised on all CPUs since boot; `None` for an unknown number.
    pub fn total(&self, irq: u32) -> Option<u64> {
        Some(self.get(irq)?.counts.iter().sum())
    }

    /// Every count: the line, the CPU, how often it was raised there since boot. Lines without a count for each CPU
    /// (`ERR`, `MIS`) are left out.
    pub fn counts(&self) -> impl Iterator<Item = (&Interrupt, u32, u64)> {
        let whole = |line: &&Interrupt| line.counts.len() == self.columns.len();
        self.lines.iter().filter(whole).flat_map(|line| {
            let cpus = self.columns.iter().copied();
            cpus.zip(line.counts.iter().copied())
                .map(move |(cpu, count)| (line, cpu, count))
        })
    }

    /// How often the interrupt was raised on one CPU since boot.
    pub fn count(&self, irq: u32, cpu: u32) -> Option<u64> {
        let column = self.columns.iter().position(|&c| c == cpu)?;
        self.get(irq)?.counts.get(column).copied()
    }
}

impl Interrupt {
    /// What a person calls it: the number with the first handler, or the architecture's label.
    pub fn name(&self) -> String {
        match self.actions.first() {
            Some(action) => format!("{} {action}", self.label),
            None => self.label.clone(),
        }
    }
}

/// Where a CPU spent its time since boot, in ticks of [`TICK_NS`] (/proc/stat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// User space, niced and guests included.
    pub user: u64,
    /// System calls and kernel threads.
    pub system: u64,
    /// Interrupts.
    pub irq: u64,
    /// Softirqs.
    pub softirq: u64,
    /// Idle, waiting for disks included.
    pub idle: u64,
    /// Taken by the host of this virtual machine.
    pub steal: u64,
}

/// Directory of the PCI devices, from the root of the host.
const PCI_DEVICES: &str = "sys/bus/pci/devices";
/// Length of a tick of /proc/stat, nanoseconds: the kernel's `USER_HZ` is 100 on every architecture that we run on,
/// whatever its own tick is.
pub const TICK_NS: u64 = 10_000_000;

/// /proc/stat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The online CPUs.
    pub cpus: BTreeMap<u32, CpuTicks>,
    /// Context switches since boot.
    pub context_switches: u64,
}

/// /proc/schedstat: how often a CPU began to run a task, since boot, by CPU. Its idle task does not count.
pub type TaskRuns = BTreeMap<u32, u64>;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: String,
    /// Its kind (`cgroup2`).
    pub kind: String,
    /// Its options.
    pub options: Vec<String>,
}

/// A task that has threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    /// Process id (thread group).
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub comm: String,
}

/// A symbol of /proc/kallsyms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The kind letter of nm(1): `t`, `T`, `D` ...
    pub kind: char,
    /// The module that it is in; `None` for the kernel image.
    pub module: Option<String>,
}

fn columns(header: &str) -> Vec<u32> {
    header
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect()
}

/// Read the text of /proc/softirqs.
pub fn parse_softirqs(text: &str) -> Softirqs {
    let mut lines = text.lines();
    let columns = columns(lines.next().unwrap_or_default());
    let rows = lines
        .filter_map(|line| {
            let (kind, counts) = line.split_once(':')?;
            let counts = counts
                .split_whitespace()
                .map_while(|word| word.parse().ok())
                .collect();
            Some((kind.trim().to_owned(), counts))
        })
        .collect();
    Softirqs { columns, rows }
}

/// The names of the handlers at the end of a line of /proc/interrupts.
///
/// The kernel pads the kind of trigger ("edge") to eight columns and puts two spaces before the
/// first handler, on every architecture. So the handlers are what follows the last run of two or
/// more spaces, and a line that ends with spaces has none.
fn actions(rest: &str) -> Vec<String> {
    if rest.ends_with(' ') {
        return Vec::new();
    }
    let Some((_, names)) = rest.rsplit_once("  ") else {
        return Vec::new();
    };
    names
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

fn parse_interrupt(line: &str, cpus: usize) -> Option<Interrupt> {
    let (label, rest) = line.split_once(':')?;
    let label = label.trim().to_owned();
    let counts: Vec<u64> = rest
        .split_whitespace()
        .take(cpus)
        .map_while(|word| word.parse().ok())
        .collect();
    let irq = label.parse().ok();
    let actions = if irq.is_some() {
        actions(rest)
    } else {
        Vec::new()
    };
    Some(Interrupt {
        irq,
        label,
        counts,
        actions,
    })
}

/// Read the text of /proc/interrupts.
pub fn parse_interrupts(text: &str) -> Interrupts {
    let mut lines = text.lines();
    let columns = columns(lines.next().unwrap_or_default());
    let lines = lines
        .filter_map(|line| parse_interrupt(line, columns.len()))
        .collect();
    Interrupts { columns, lines }
}

fn parse_ticks(line: &str) -> Option<(u32, CpuTicks)> {
    let (cpu, times) = line.strip_prefix("cpu")?.split_once(' ')?;
    let cpu = cpu.parse().ok()?;
    let mut words = times.split_whitespace();
    let mut ticks = [0; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    let ticks = CpuTicks {
        user: user + nice,
        system,
        irq,
        softirq,
        idle: idle + iowait,
        steal,
    };
    Some((cpu, ticks))
}

/// Read the text of /proc/stat.
pub fn parse_stat(text: &str) -> Stat {
    let mut stat = Stat::default();
    for line in text.lines() {
        if line.starts_with("cpu") {
            // The first line, the sum, has no number of a CPU.
            stat.cpus.extend(parse_ticks(line));
        } else if let Some(count) = line.strip_prefix("ctxt ") {
            stat.context_switches = count.trim().parse().unwrap_or(0);
        }
    }
    stat
}

/// Read the text of /proc/schedstat. The ninth number of a CPU's line is the count of its time slices in every version
/// so far (15 to 17); the others count only while kernel.sched_schedstats is on.
pub fn parse_task_runs(text: &str) -> TaskRuns {
    let runs = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = words.next()?.parse().ok()?;
        Some((cpu, words.nth(8)?.parse().ok()?))
    });
    runs.collect()
}

/// Read the text of /proc/net/softnet_stat: packets that a CPU dropped because its backlog was full. The columns have
/// no heading: the second one is "dropped", the thirteenth the CPU; all are hexadecimal.
pub fn parse_softnet_drops(text: &str) -> BTreeMap<u32, u64> {
    let drops = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let dropped = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        let cpu = u32::from_str_radix(words.nth(10)?, 16).ok()?;
        Some((cpu, dropped))
    });
    drops.collect()
}

/// Each counter of the text of /proc/net/snmp: protocol, name, value. The names and the values of a protocol are two
/// lines that follow each other.
pub fn snmp_counters(text: &str) -> impl Iterator<Item = (&str, &str, u64)> {
    let lines = text.lines().zip(text.lines().skip(1)).step_by(2);
    lines.flat_map(|(names, values)| {
        let protocol = names.split(':').next().unwrap_or_default();
        let pairs = names
            .split_whitespace()
            .zip(values.split_whitespace())
            .skip(1);
        // Only "the MaxConn of Tcp" is ever negative.
        pairs.filter_map(move |(name, value)| Some((protocol, name, value.parse().ok()?)))
    })
}

/// Read the text of /proc/mounts.
pub fn parse_mounts(text: &str) -> Vec<Mount> {
    let mounts = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        // The kernel writes blanks in names as \\040.
        let point = words.next()?.replace("\\040", " ");
        let kind = words.next()?.to_owned();
        let options = words.next()?.split(',').map(str::to_owned).collect();
        Some(Mount {
            point,
            kind,
            options,
        })
    });
    mounts.collect()
}

/// Read one line of /proc/kallsyms: the name and what is known about it.
fn parse_symbol(line: &str) -> Option<(&str, Symbol)> {
    let mut words = line.split_whitespace();
    let kind = words.nth(1)?.chars().next()?;
    let name = words.next()?;
    let module = words.next().map(|m| m.trim_matches(['[', ']']).to_owned());
    Some((name, Symbol { kind, module }))
}

impl Host {
    /// /proc/softirqs.
    pub fn softirqs(&self) -> Result<Softirqs, HostError> {
        Ok(parse_softirqs(&self.read("proc/softirqs")?))
    }

    /// /proc/interrupts.
    pub fn interrupts(&self) -> Result<Interrupts, HostError> {
        Ok(parse_interrupts(&self.read("proc/interrupts")?))
    }

    /// /proc/stat.
    pub fn stat(&self) -> Result<Stat, HostError> {
        Ok(parse_stat(&self.read("proc/stat")?))
    }

    /// /proc/schedstat; `None` where the kernel has none.
    pub fn task_runs(&self) -> Result<Option<TaskRuns>, HostError> {
        let text = self.read_optional("proc/schedstat")?;
        Ok(text.as_deref().map(parse_task_runs))
    }

    /// The time that a thread was on a CPU, nanoseconds: the first number of its schedstat. The kernel brings it up to
    /// date at each of its ticks and when the thread leaves the CPU.
    pub fn thread_cpu_ns(&self, tid: u32) -> Result<u64, HostError> {
        let file = format!("proc/{tid}/schedstat");
        first_number(&self.read(&file)?)
            .ok_or_else(|| self.malformed(&file, "it does not begin with a time"))
    }

    /// How often a thread gave up its CPU by itself, which is how often it slept; `None` when it is gone.
    ///
    /// # Errors
    /// When it is there and can't be read.
    pub fn thread_sleeps(&self, tid: u32) -> Result<Option<u64>, HostError> {
        let file = format!("proc/{tid}/status");
        let Some(text) = self.read_optional(&file)? else {
            return Ok(None);
        };
        let mut counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count = counts.next().and_then(first_number);
        count
            .map(Some)
            .ok_or_else(|| self.malformed(&file, "it has no voluntary_ctxt_switches"))
    }

    /// The mounted file systems that this process sees.
    pub fn mounts(&self) -> Result<Vec<Mount>, HostError> {
        Ok(parse_mounts(&self.read("proc/mounts")?))
    }

    /// The CPUs that an interrupt may go to, as it was asked for.
    pub fn irq_affinity(&self, irq: u32) -> Result<CpuList, HostError> {
        self.read_cpu_list(&format!("proc/irq/{irq}/smp_affinity_list"))
    }

    /// The CPUs that an interrupt really goes to; `None` where the kernel does not say.
    pub fn irq_effective_affinity(&self, irq: u32) -> Result<Option<CpuList>, HostError> {
        let file = format!("proc/irq/{irq}/effective_affinity_list");
        if !self.exists(&file) {
            return Ok(None);
        }
        self.read_cpu_list(&file).map(Some)
    }

    /// The PCI device that an interrupt is of, as `0000:00:04.0`; `None` where no device says that it has it.
    pub fn irq_device(&self, irq: u32) -> Result<Option<String>, HostError> {
        let devices = self.list(PCI_DEVICES)?;
        Ok(devices
            .into_iter()
            .find(|device| self.device_has_irq(device, irq)))
    }

    /// Whether this PCI device has that interrupt.
    pub fn device_has_irq(&self, device: &str, irq: u32) -> bool {
        self.exists(&format!("{PCI_DEVICES}/{device}/msi_irqs/{irq}"))
    }

    /// Ask that an interrupt goes to these CPUs.
    pub fn set_irq_affinity(&self, irq: u32, cpus: &CpuList) -> Result<(), HostError> {
        self.write(
            &format!("proc/irq/{irq}/smp_affinity_list"),
            &cpus.to_string(),
        )
    }

    /// Where /proc/kallsyms has each of these names; a name that is missing has no entry.
    pub fn symbols(&self, names: &[&str]) -> Result<HashMap<String, Vec<Symbol>>, HostError> {
        self.lookup_lines(
            "proc/kallsyms",
            |line, found: &mut HashMap<String, Vec<Symbol>>| {
                if let Some((name, symbol)) = parse_symbol(line) {
                    if names.contains(&name) {
                        found.entry(name.to_owned()).or_default().push(symbol);
                    }
                }
            },
        )
    }

    /// Go through a large file line by line with one buffer, collecting into a `T`.
    pub(crate) fn lookup_lines<T: Default>(
        &self,
        file: &str,
        mut each: impl FnMut(&str, &mut T),
    ) -> Result<T, HostError> {
        let path = self.path(file);
        let fail = |source| HostError::Read {
            path: path.clone(),
            source,
        };
        let mut reader = BufReader::with_capacity(1 << 16, File::open(&path).map_err(fail)?);
        let mut found = T::default();
        let mut line = String::new();
        while reader.read_line(&mut line).map_err(fail)? > 0 {
            each(line.trim_end_matches('\n'), &mut found);
            line.clear();
        }
        Ok(found)
    }

    /// Every process (the leader of each thread group); those that end meanwhile are left out.
    pub fn processes(&self) -> Result<Vec<Task>, HostError> {
        let pids = numbers(self.list("proc")?);
        Ok(pids
            .into_iter()
            .filter_map(|pid| self.task(pid, pid))
            .collect())
    }

    /// Every thread of every process; those that end meanwhile are left out.
    pub fn threads(&self) -> Result<Vec<Task>, HostError> {
        let mut threads = Vec::new();
        for pid in numbers(self.list("proc")?) {
            let tids = numbers(self.list(&format!("proc/{pid}/task")).unwrap_or_default());
            threads.extend(tids.into_iter().filter_map(|tid| self.task(pid, tid)));
        }
        Ok(threads)
    }

    /// The threads of one process, number and name; none when it has ended.
    ///
    /// # Errors
    /// When it is there and can't be read.
    pub fn threads_of(&self, pid: u32) -> Result<Vec<(u32, String)>, HostError> {
        let tids = numbers(self.list(&format!("proc/{pid}/task"))?);
        let tasks = tids.into_iter().filter_map(|tid| self.task(pid, tid));
        Ok(tasks.map(|task| (task.tid, task.comm)).collect())
    }

    fn task(&self, pid: u32, tid: u32) -> Option<Task> {
        let comm = self
            .read_trimmed(&format!("proc/{pid}/task/{tid}/comm"))
            .ok()?;
        Some(Task { pid, tid, comm })
    }

    /// Processes with exactly this name.
    pub fn processes_named(&self, comm: &str) -> Result<Vec<Task>, HostError> {
        Ok(self
            .processes()?
            .into_iter()
            .filter(|task| task.comm == comm)
            .collect())
    }
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn numbers(names: Vec<String>) -> Vec<u32> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_by_cpu() {
        let text = "                    CPU0       CPU2       \n          HI:          1          0\n      NET_RX:       7842         15\n";
        let softirqs = parse_softirqs(text);
        assert_eq!(softirqs.count("NET_RX", 2), Some(15));
        assert_eq!(
            softirqs.count("NET_RX", 1),
            None,
            "a CPU without a column has no count"
        );
        assert_eq!(softirqs.count("NONE", 0), None);
    }

    #[test]
    fn interrupts_have_names_and_counts_by_cpu() {
        let text = "      CPU0  CPU2\n 26:  1  5  PCI-MSI 65536-edge      eth0-rx-0\n LOC:  7  8  Local timer interrupts\n ERR:  3\n";
        let interrupts = parse_interrupts(text);
        let counts: Vec<_> = interrupts
            .counts()
            .map(|(line, cpu, count)| (line.name(), cpu, count))
            .collect();
        let want = [
            ("26 eth0-rx-0", 0, 1),
            ("26 eth0-rx-0", 2, 5),
            ("LOC", 0, 7),
            ("LOC", 2, 8),
        ];
        assert_eq!(counts, want.map(|(name, cpu, n)| (name.to_owned(), cpu, n)));
    }

    #[test]
    fn cpu_time_and_context_switches() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu2 11 0 0 0 0 0 0 0 0 0\nintr 5 1\nctxt 42\n";
        let stat = parse_stat(text);
        let first = CpuTicks {
            user: 3,
            system: 3,
            irq: 6,
            softirq: 7,
            idle: 9,
            steal: 8,
        };
        assert_eq!(stat.cpus[&0], first);
        assert_eq!(stat.cpus.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(stat.context_switches, 42);
    }

    #[test]
    fn task_runs_are_the_last_number_of_a_cpu() {
        let text = "version 15\ntimestamp 4295\ncpu0 1 2 3 4 5 6 7 8 99\ndomain0 3 1 2 3 4 5 6 7 8 9 10\ncpu3 0 0 0 0 0 0 0 0 5\n";
        assert_eq!(parse_task_runs(text), [(0, 99), (3, 5)].into());
    }

    #[test]
    fn drops_of_backlog_and_protocols() {
        let softnet =
            "0000ffff 00000010 00000003 0 0 0 0 0 0 00000000 00000000 00000000 00000002 0 0\n";
        assert_eq!(parse_softnet_drops(softnet), [(2, 16)].into());
        let snmp = "Tcp: MaxConn InSegs\nTcp: -1 5\nUdp: InDatagrams InErrors\nUdp: 12 3\n";
        let counters: Vec<_> = snmp_counters(snmp).collect();
        assert_eq!(
            counters,
            [
                ("Tcp", "InSegs", 5),
                ("Udp", "InDatagrams", 12),
                ("Udp", "InErrors", 3)
            ]
        );
    }

    #[test]
    fn mounts_with_their_options() {
        let text = "cgroup /sys/fs/cgroup/a\\040b cgroup rw,memory 0 0\nnone /x cgroup2 rw 0 0\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts[0].point, "/sys/fs/cgroup/a b");
        assert_eq!(mounts[0].options, ["rw", "memory"]);
        assert_eq!(mounts[1].kind, "cgroup2");
    }

    #[test]
    fn symbols_of_image_and_modules() {
        let (name, symbol) = parse_symbol("ffffffffc0401000 t napi_watchdog\t[e1000e]").unwrap();
        assert_eq!(
            (name, symbol.kind, symbol.module.as_deref()),
            ("napi_watchdog", 't', Some("e1000e"))
        );
        let (name, symbol) = parse_symbol("0000000000000000 T __napi_schedule").unwrap();
        assert_eq!(
            (name, symbol.kind, symbol.module),
            ("__napi_schedule", 'T', None)
        );
    }
}
