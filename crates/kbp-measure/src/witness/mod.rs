// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel itself counts while a row is measured: softirqs, interrupts, CPU time, rests, changes of the frequency,
//! drops, energy. The poller's own counters are read at the same moments, and kept apart.
//!
//! A reading is one pass over a fixed set of files, the same before and after the row; what has to be looked for
//! (threads, files of other namespaces) is looked for before the first one.
//! Not here: any judgement of the numbers.

mod drops;
mod energy;
mod rest;
mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use kbp_core::procfs::{Interrupts, Softirqs, Stat};
use kbp_core::uapi::Freq;
use kbp_core::{Client, Host};

use self::drops::DropCounters;
use self::energy::{Level, Meter};
use self::rest::Rest;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::power::model::Model;
use crate::result::{CpuUse, Energy, FrequencyUse, IdleUse, PollerDelta, Row, Witness};

pub use self::drops::Port;
pub use self::energy::NO_COUNTER;
pub use self::usage::Counted;

/// What is to be read around a row.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// CPU whose softirqs, rests and frequency count.
    pub cpu: u32,
    /// CPUs that energy is estimated of where nothing counts it: those that would be busy on a machine without the tester.
    pub served_cpus: Vec<u32>,
    /// Receive vectors whose interrupts count.
    pub receive_irqs: Vec<u32>,
    /// Threads that the mode brings.
    pub mode_threads: Vec<u32>,
    /// Whether that CPU has a poller of ours.
    pub has_poller: bool,
    /// Who the server is, for its CPU time; it has to live until the last reading.
    pub server: Vec<Counted>,
    /// Who the client is, in the same way.
    pub client: Vec<Counted>,
    /// Interfaces whose drops count; those of their namespaces' protocols do too, and those of the caller's.
    pub ports: Vec<Port>,
    /// What was looked for, at the latest by the first reading. It keeps namespaces of `ports` alive.
    pub found: Found,
}

/// What was looked for before the first reading of a [`Watch`] and its copies; empty until then.
#[derive(Debug, Clone, Default)]
pub struct Found(Arc<OnceLock<Arc<Places>>>);

#[cfg(test)]
impl Found {
    /// Whether nothing was looked for.
    pub fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

#[derive(Debug)]
struct Places {
    ksoftirqds: BTreeMap<u32, u32>,
    drops: DropCounters,
    meter: Meter,
    model: Model,
}

/// One reading. Two of them make a difference.
#[derive(Debug, Clone)]
pub struct Reading {
    at_ns: u64,
    witness: Witness,
    poller: Option<PollerDelta>,
    stat: Stat,
    ksoftirqd_ns: u64,
    server_ns: u64,
    client_ns: u64,
    softirqs: Softirqs,
    interrupts: Interrupts,
    drops: BTreeMap<String, u64>,
    level: Level,
    rest: Rest,
    served_cpus: Vec<u32>,
    places: Arc<Places>,
    has_poller: bool,
}

/// What happened between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Between {
    /// Time between them, nanoseconds.
    pub span_ns: u64,
    /// The kernel's counters.
    pub witness: Witness,
    /// The poller's counters.
    pub poller: Option<PollerDelta>,
    /// CPU time.
    pub cpu: CpuUse,
    /// Softirqs by vector and CPU, without zeros.
    pub softirqs: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Interrupts by line and CPU, without zeros.
    pub interrupts: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Packets dropped by place, without zeros.
    pub drops: BTreeMap<String, u64>,
    /// Frequency of the CPU.
    pub frequency: Option<FrequencyUse>,
    /// Its idle states by name.
    pub idle_states: BTreeMap<String, IdleUse>,
    /// Energy.
    pub energy: Energy,
}

impl Watch {
    /// Looks for what is to be read, which takes longer than to read it, so that a reading which traffic waits for is as short as
    /// the others.
    ///
    /// # Errors
    /// When something that is watched does not exist.
    pub fn look_for(&self, host: &Host) -> Result<()> {
        self.places(host).map(drop)
    }

    /// Reads everything now. The first reading also looks for what is to be read, where nobody did before.
    ///
    /// # Errors
    /// When a counter is not where it should be, the poller is gone, or a thread that is watched has ended.
    pub fn read(&self, host: &Host) -> Result<Reading> {
        let places = self.places(host)?;
        let level = places.meter.read(host)?;
        let drops = places.drops.read(host)?;
        let threads_ns = |tids: &mut dyn Iterator<Item = u32>| -> Result<u64> {
            tids.map(|tid| Counted::Thread(tid).cpu_ns(host)).sum()
        };
        let mode_threads_ns = threads_ns(&mut self.mode_threads.iter().copied())?;
        let ksoftirqd_ns = threads_ns(&mut places.ksoftirqds.values().copied())?;
        let this_ksoftirqd = places.ksoftirqds.get(&self.cpu).copied();
        let softirqs = host.softirqs().map_err(kbp_core::Error::from)?;
        let interrupts = host.interrupts().map_err(kbp_core::Error::from)?;
        let witness = Witness {
            net_rx_softirqs: self.net_rx(&softirqs)?,
            hard_irqs: self.hard_irqs(&interrupts)?,
            ksoftirqd_ns: threads_ns(&mut this_ksoftirqd.into_iter())?,
            mode_threads_ns,
            mode_threads_sleeps: self.sleeps(host)?,
        };
        Ok(Reading {
            at_ns: monotonic_ns()?,
            witness,
            poller: self.read_poller()?,
            stat: host.stat().map_err(kbp_core::Error::from)?,
            ksoftirqd_ns,
            server_ns: usage::sum_ns(host, &self.server)?,
            client_ns: usage::sum_ns(host, &self.client)?,
            softirqs,
            interrupts,
            drops,
            level,
            rest: Rest::read(host, self.cpu)?,
            served_cpus: self.served_cpus.clone(),
            places,
            has_poller: self.has_poller,
        })
    }

    fn places(&self, host: &Host) -> Result<Arc<Places>> {
        if let Some(places) = self.found.0.get() {
            return Ok(Arc::clone(places));
        }
        let places = Arc::new(Places {
            ksoftirqds: usage::ksoftirqds(host)?,
            drops: DropCounters::open(host, &self.ports)?,
            meter: Meter::find(host)?,
            model: Model::load(None)?,
        });
        Ok(Arc::clone(self.found.0.get_or_init(|| places)))
    }

    /// `None` where there is no thread whose sleeps are known.
    fn sleeps(&self, host: &Host) -> Result<Option<u64>> {
        let each = self.mode_threads.iter().map(|tid| host.thread_sleeps(*tid));
        let each: Option<Vec<u64>> = each
            .collect::<std::result::Result<_, _>>()
            .map_err(kbp_core::Error::from)?;
        Ok(each
            .filter(|each| !each.is_empty())
            .map(|each| each.iter().sum()))
    }

    fn net_rx(&self, softirqs: &Softirqs) -> Result<u64> {
        let what = || missing(&format!("NET_RX of CPU {} in /proc/softirqs", self.cpu));
        softirqs.count("NET_RX", self.cpu).ok_or_else(what)
    }

    fn hard_irqs(&self, interrupts: &Interrupts) -> Result<u64> {
        let total = |&irq: &u32| {
            interrupts
                .total(irq)
                .ok_or_else(|| missing(&format!("interrupt {irq}")))
        };
        self.receive_irqs.iter().map(total).sum()
    }

    fn read_poller(&self) -> Result<Option<PollerDelta>> {
        if !self.has_poller {
            return Ok(None);
        }
        let mut client = Client::connect().map_err(kbp_core::Error::from)?;
        let poller = client.poller_get(self.cpu).map_err(kbp_core::Error::from)?;
        let counter = |name: &str| {
            poller.stats.get(name).ok_or_else(|| {
                Error::Invalid(format!("the kbp module does not report the counter {name}"))
            })
        };
        let follows = poller.freq_requested != Freq::Off;
        Ok(Some(PollerDelta {
            busy_ns: counter("busy_ns")?,
            polls: counter("polls")?,
            packets: counter("packets")?,
            handbacks: counter("handbacks")?,
            sleeps: counter("sleeps")?,
            wakeups: counter("wakeups")?,
            empty_polls: Some(empty_polls(&mut client, self.cpu)?),
            empty_rounds: Some(counter("empty_rounds")?),
            slowdowns: follows.then(|| counter("slowdowns")).transpose()?,
            speedups: follows.then(|| counter("speedups")).transpose()?,
        }))
    }
}

/// Of all instances that are attached to the poller of a CPU, in whichever network namespace.
fn empty_polls(client: &mut Client, cpu: u32) -> Result<u64> {
    let napis = client.napis().map_err(kbp_core::Error::from)?;
    let of_cpu = napis.iter().filter(|napi| napi.cpu == cpu);
    Ok(of_cpu
        .filter_map(|napi| napi.stats.get("empty_polls"))
        .sum())
}

fn missing(what: &str) -> Error {
    Error::Invalid(format!("{what} does not exist on this machine"))
}

impl Reading {
    /// What happened since `earlier`. A counter that went back counts as not moved.
    pub fn since(&self, earlier: &Self) -> Between {
        let span_ns = self.at_ns.saturating_sub(earlier.at_ns);
        let poller = self.poller.zip(earlier.poller);
        let cpu = self.cpu_since(earlier);
        Between {
            span_ns,
            energy: self.energy_since(earlier, &cpu, span_ns),
            frequency: self.rest.frequency_since(&earlier.rest),
            idle_states: self.rest.states_since(&earlier.rest),
            witness: witness_since(&earlier.witness, &self.witness),
            poller: poller.map(|(now, then)| poller_since(&then, &now)),
            cpu,
            softirqs: moved(self.softirqs.counts().map(|(kind, cpu, count)| {
                let then = earlier.softirqs.count(kind, cpu);
                (kind.to_owned(), cpu, count, then)
            })),
            interrupts: moved(paired(&earlier.interrupts, &self.interrupts)),
            drops: drops_since(&earlier.drops, &self.drops),
        }
    }

    fn energy_since(&self, earlier: &Self, cpu: &CpuUse, span_ns: u64) -> Energy {
        let used = self.places.meter.used(&earlier.level, &self.level, span_ns);
        let estimated = used.joules.is_none() && !self.served_cpus.is_empty();
        let model = &self.places.model;
        Energy {
            estimate: estimated.then(|| energy::estimate(model, cpu, &self.served_cpus, span_ns)),
            ..used
        }
    }

    fn cpu_since(&self, earlier: &Self) -> CpuUse {
        let ns = |pick: fn(&Self) -> u64| pick(self).saturating_sub(pick(earlier));
        // Where there is a poller, it is the one thread that the mode brings.
        let poller_ns = match self.has_poller {
            true => ns(|reading| reading.witness.mode_threads_ns),
            false => 0,
        };
        CpuUse {
            poller_ns,
            ksoftirqd_ns: ns(|reading| reading.ksoftirqd_ns),
            server_ns: ns(|reading| reading.server_ns),
            client_ns: ns(|reading| reading.client_ns),
            ..usage::between(&earlier.stat, &self.stat)
        }
    }
}

impl Between {
    /// Puts everything that was counted into a row.
    pub fn fill(self, row: Row) -> Row {
        Row {
            span_ns: self.span_ns,
            witness: self.witness,
            poller: self.poller,
            cpu: Some(self.cpu),
            softirqs: self.softirqs,
            interrupts: self.interrupts,
            drops: self.drops,
            frequency: self.frequency,
            idle_states: self.idle_states,
            energy: Some(self.energy),
            ..row
        }
    }
}

fn witness_since(then: &Witness, now: &Witness) -> Witness {
    Witness {
        net_rx_softirqs: now.net_rx_softirqs.saturating_sub(then.net_rx_softirqs),
        hard_irqs: now.hard_irqs.saturating_sub(then.hard_irqs),
        ksoftirqd_ns: now.ksoftirqd_ns.saturating_sub(then.ksoftirqd_ns),
        mode_threads_ns: now.mode_threads_ns.saturating_sub(then.mode_threads_ns),
        mode_threads_sleeps: since(then.mode_threads_sleeps, now.mode_threads_sleeps),
    }
}

fn poller_since(then: &PollerDelta, now: &PollerDelta) -> PollerDelta {
    PollerDelta {
        busy_ns: now.busy_ns.saturating_sub(then.busy_ns),
        polls: now.polls.saturating_sub(then.polls),
        packets: now.packets.saturating_sub(then.packets),
        handbacks: now.handbacks.saturating_sub(then.handbacks),
        sleeps: now.sleeps.saturating_sub(then.sleeps),
        wakeups: now.wakeups.saturating_sub(then.wakeups),
        empty_polls: since(then.empty_polls, now.empty_polls),
        empty_rounds: since(then.empty_rounds, now.empty_rounds),
        slowdowns: since(then.slowdowns, now.slowdowns),
        speedups: since(then.speedups, now.speedups),
    }
}

/// The difference of a counter that need not be there.
fn since(then: Option<u64>, now: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(then?))
}

/// Name, CPU, count now, count before.
type Pair = (String, u32, u64, Option<u64>);

/// The differences that are not zero. What was not there before began at zero.
fn moved(pairs: impl Iterator<Item = Pair>) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let mut map: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
    for (name, cpu, now, then) in pairs {
        let count = now.saturating_sub(then.unwrap_or(0));
        if count > 0 {
            map.entry(name).or_default().insert(cpu, count);
        }
    }
    map
}

/// Interrupts keep their label; the handler may be another one by now, so that the name is today's.
fn paired<'a>(then: &'a Interrupts, now: &'a Interrupts) -> impl Iterator<Item = Pair> + 'a {
    let before: BTreeMap<(&str, u32), u64> = then
        .counts()
        .map(|(line, cpu, count)| ((line.label.as_str(), cpu), count))
        .collect();
    now.counts().map(move |(line, cpu, count)| {
        let then = before.get(&(line.label.as_str(), cpu)).copied();
        (line.name(), cpu, count, then)
    })
}

fn drops_since(then: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = now.iter().map(|(place, &drops)| {
        let before = then.get(place).copied().unwrap_or(0);
        (place.clone(), drops.saturating_sub(before))
    });
    since.filter(|(_, drops)| *drops > 0).collect()
}

#[cfg(test)]
mod tests;
