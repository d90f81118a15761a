// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /proc says: softirqs, interrupts, symbols, tasks.
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

    /// How often the interrupt was raised on one CPU since boot.
    pub fn count(&self, irq: u32, cpu: u32) -> Option<u64> {
        let column = self.columns.iter().position(|&c| c == cpu)?;
        self.get(irq)?.counts.get(column).copied()
    }
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
