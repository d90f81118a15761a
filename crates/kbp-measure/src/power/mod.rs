// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a machine uses while something runs: energy, and what its CPUs did meanwhile.
//!
//! Energy is counted where the machine counts it ([`meter`]: powercap, the management controller); elsewhere a model
//! estimates what busy CPUs draw more than resting ones ([`model`]). Everything else is read at both ends ([`reading`])
//! and subtracted ([`span`]).
//! Not here: energy of a row of `kbp compare` ([`crate::witness`], by the same counters); arguments and text
//! ([`crate::cli`]).

pub(crate) mod ipmi;
mod meter;
pub mod model;
mod reading;
pub mod report;
mod span;

use std::time::Duration;

use kbp_core::{CpuList, Host};

use self::meter::{Readings, Zones};
use self::model::Model;
use self::reading::{ClockCounters, Reading};
use self::report::{
    EnergyReport, InterfacePackets, Known, PacketReport, Packets, PerPacket, PowerReport,
};
use self::span::seconds;
pub(crate) use self::span::PLAUSIBLE_WATTS;
use crate::clock::suspended_ns;
use crate::error::{Error, Result};

/// A machine that was suspended for less than this was not, nanoseconds: two clocks are never read at once.
const SUSPENDED_NS_MIN: u64 = 1_000_000;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Request {
    /// How often the zones of powercap are read.
    pub interval: Duration,
    /// CPUs that are looked at; they have to be online.
    pub cpus: CpuList,
    /// Interfaces whose packets count.
    pub interfaces: Vec<String>,
    /// Model of an estimate beside what is counted; the default one where nothing is.
    pub model: Option<Model>,
}

/// Both ends of a measurement.
struct Ends {
    first: Reading,
    last: Reading,
    zones: Zones,
    suspended_ns: u64,
}

/// Measures while `run` runs; returns what that returned, too.
///
/// # Errors
/// When `run` fails, a CPU or an interface is not there, or what every machine has can't be read.
pub fn measure<T>(
    host: &Host,
    request: &Request,
    run: impl FnOnce() -> Result<T>,
) -> Result<(PowerReport, T)> {
    for cpu in request.cpus.iter() {
        host.require_online(cpu)?;
    }
    for name in &request.interfaces {
        host.interface(name)?;
    }
    let clocks = ClockCounters::open(host, &request.cpus);
    let read = || Reading::take(host, &request.cpus, &clocks, &request.interfaces);
    let (done, readings) = meter::watch_ipmi(host, || -> Result<(Ends, T)> {
        let suspended_before_ns = suspended_ns()?;
        let first = read()?;
        let mut zones = Zones::begin(host)?;
        let done = zones.watch(host, request.interval, run)??;
        let ends = Ends {
            first,
            last: read()?,
            zones,
            suspended_ns: suspended_ns()?.saturating_sub(suspended_before_ns),
        };
        Ok((ends, done))
    })?;
    let (ends, done) = done?;
    Ok((report(request, &ends, &readings)?, done))
}

fn report(request: &Request, ends: &Ends, readings: &Readings) -> Result<PowerReport> {
    let Ends { first, last, .. } = ends;
    let span_ns = last.at_ns.saturating_sub(first.at_ns);
    if span_ns == 0 {
        return Err(Error::Invalid(
            "no time passed between the two readings: measure for longer".into(),
        ));
    }
    let zones = span::zones(&ends.zones);
    let mut energy = EnergyReport {
        readings: ends.zones.readings,
        longest_gap_seconds: seconds(ends.zones.longest_gap_ns),
        total: span::total(&zones),
        ipmi: span::ipmi(readings, span_ns),
        zones,
        estimate: None,
    };
    let cpus: Vec<_> = request
        .cpus
        .iter()
        .map(|cpu| span::cpu(cpu, first, last))
        .collect();
    let is_counted = energy.total.get().is_some() || energy.ipmi.get().is_some();
    if request.model.is_some() || !is_counted {
        let model = request
            .model
            .clone()
            .map_or_else(|| Model::load(None), Ok)?;
        energy.estimate = Some(model.estimate(&cpus, seconds(span_ns)));
    }
    let packets = (!request.interfaces.is_empty()).then(|| {
        let interfaces = span::packets(&request.interfaces, first, last);
        PacketReport {
            per_packet: per_packet(&interfaces, &energy).into(),
            interfaces,
        }
    });
    Ok(PowerReport {
        span_seconds: seconds(span_ns),
        partial: false,
        command: None,
        energy,
        context_switches_per_second: span::context_switches(first, last),
        cpus,
        packets,
        notes: notes(ends),
    })
}

fn notes(ends: &Ends) -> Vec<String> {
    let mut notes = Vec::new();
    let unsure = span::maybe_wrapped(&ends.zones);
    if !unsure.is_empty() {
        notes.push(format!(
            "{} may have gone round unseen, so that energy is missing: {:.1} s passed between two readings, in which \
             {PLAUSIBLE_WATTS} W go round; a shorter --interval helps",
            unsure.join(", "),
            seconds(ends.zones.longest_gap_ns),
        ));
    }
    if ends.suspended_ns >= SUSPENDED_NS_MIN {
        notes.push(format!(
            "the machine was suspended for {:.1} s meanwhile, which is not in the time: measure again",
            seconds(ends.suspended_ns)
        ));
    }
    notes
}

/// The best energy there is, in this order: counted, said by the controller, estimated.
fn best_energy(energy: &EnergyReport) -> Option<(f64, String)> {
    if let Known::Is(total) = &energy.total {
        let zones = total.zones.join(" + ");
        return Some((total.energy_joules, format!("powercap: {zones}")));
    }
    if let Known::Is(ipmi) = &energy.ipmi {
        return Some((ipmi.energy_joules, "IPMI: the whole machine".into()));
    }
    let estimate = energy.estimate.as_ref()?.get()?;
    let source = format!(
        "estimate of the extra energy of busy CPUs, model {}",
        estimate.model
    );
    Some((estimate.extra_energy_joules, source))
}

fn per_packet(
    interfaces: &[InterfacePackets],
    energy: &EnergyReport,
) -> std::result::Result<PerPacket, String> {
    let mut received_packets = 0;
    for one in interfaces {
        match &one.packets {
            Known::Is(Packets {
                received_packets: received,
                ..
            }) => received_packets += received,
            Known::Not { why_not } => {
                return Err(format!("{} has no figure: {why_not}", one.interface));
            }
        }
    }
    if received_packets == 0 {
        return Err("no packet was received".into());
    }
    let (joules, energy_source) =
        best_energy(energy).ok_or("there is no energy, not even an estimate")?;
    Ok(PerPacket {
        energy_per_received_packet_joules: joules / received_packets as f64,
        received_packets,
        energy_source,
    })
}

#[cfg(test)]
mod tests;
