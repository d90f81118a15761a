// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is there now: the module, its pollers, what is attached, where the interrupts go.
//!
//! Requested and active are told apart here: the mode of a NAPI instance, the CPU of its
//! interrupt, and the CPU to which packets are steered each have both.

use serde::Serialize;

use crate::client::Client;
use crate::companions;
use crate::error::Error;
use crate::governor;
use crate::host::Host;
use crate::irq::QueueVector;
use crate::irq_pin;
use crate::irqbalance;
use crate::model::{Napi, Poller};
use crate::module::{self, ModuleStatus};
use crate::netns;
use crate::state::{self, State, User};
use crate::steer::{self, Steered};
use crate::uapi::State as PollerState;
use crate::CpuList;

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// The module.
    pub module: ModuleStatus,
    /// The pollers, by CPU.
    pub pollers: Vec<Poller>,
    /// The attached NAPI instances, by id.
    pub napis: Vec<AttachedNapi>,
    /// The queues without NAPI instances whose packets are steered to a poller.
    pub steered: Vec<Steered>,
    /// What is not as it was left, a sentence each.
    pub warnings: Vec<String>,
}

/// An attached NAPI instance with its interrupt.
#[derive(Clone, Debug, Serialize)]
pub struct AttachedNapi {
    /// The instance.
    #[serde(flatten)]
    pub napi: Napi,
    /// Its interrupt; `None` where it has none or its interface is in another network namespace.
    pub irq: Option<Irq>,
}

/// An interrupt of an attached NAPI instance.
#[derive(Clone, Debug, Serialize)]
pub struct Irq {
    /// Number and name.
    #[serde(flatten)]
    pub vector: QueueVector,
    /// Where it was asked to go.
    pub affinity_requested: CpuList,
    /// Where it goes; `None` where the kernel does not say.
    pub affinity_active: Option<CpuList>,
    /// Where it goes back to; `None` when it was not moved.
    pub affinity_original: Option<CpuList>,
}

/// Look at everything. [`crate::client::ClientError::NotLoaded`] when there is no module.
pub fn overview(host: &Host) -> Result<Overview, Error> {
    let mut client = Client::connect()?;
    let own = netns::cookie()?;
    let state = state::peek(host)?;
    let napis = client.napis()?;
    let pollers = client.pollers()?;
    let mut warnings = moved(host, &state, &napis);
    warnings.extend(companions::taken(host, &napis, own));
    warnings.extend(
        pollers
            .iter()
            .filter_map(|poller| frequency_lost(host, poller)),
    );
    let steered = steer::with_active(host, steer::remembered(&state), &pollers, own);
    let napis = napis.into_iter().map(|napi| AttachedNapi {
        irq: irq_of(host, &state, &napi, own),
        napi,
    });
    Ok(Overview {
        module: module::status(host)?,
        pollers,
        napis: napis.collect(),
        steered,
        warnings,
    })
}

/// The interrupts of attached queues that are not where they were put, a sentence each.
pub(crate) fn moved(host: &Host, state: &State, napis: &[Napi]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (irq, record) in &state.irqs {
        let mut napis = napis.iter();
        let Some(napi) = napis.find(|napi| record.users.contains(&User::of(napi))) else {
            continue;
        };
        let mut now = host.irq_affinity(*irq);
        if now.as_ref().is_ok_and(|now| *now != record.set) {
            now = irq_pin::settled(host, *irq);
        }
        match now {
            Ok(now) if now != record.set => sentences.push(format!(
                "interrupt {irq} of {} is on CPU {now}, not on CPU {}: something moved it{}",
                napi.label(),
                record.set,
                suspicion(host, &record.set)
            )),
            // What can't be read is gone, and shown as that elsewhere.
            _ => {}
        }
    }
    sentences
}

/// Why the frequency of a poller's CPU does not follow it, though it was to.
fn frequency_lost(host: &Host, poller: &Poller) -> Option<String> {
    let follows = poller.freq_requested == poller.freq_active;
    if follows || poller.state == PollerState::Offline {
        return None;
    }
    let file = governor::file(poller.cpu, "scaling_governor");
    let again = format!(
        "another governor and then `{}` in /{file} begin anew",
        governor::OURS
    );
    let read = |name| host.read_optional(&governor::file(poller.cpu, name)).ok()?;
    let why = match read("scaling_governor") {
        None => "it has no cpufreq driver any more".into(),
        Some(found) if found != governor::OURS => {
            format!(
                "its governor is {found}, which something else chose; `echo {} > /{file}` has it follow again",
                governor::OURS
            )
        }
        Some(_) => match read("scaling_cur_freq") {
            Some(khz) => {
                format!("its driver refused a change, and has it at {khz} kHz now; {again}")
            }
            None => format!("its driver refused a change; {again}"),
        },
    };
    let cpu = poller.cpu;
    Some(format!(
        "the frequency of CPU {cpu} does not follow its poller: {why}"
    ))
}

/// Who may have moved an interrupt away from these CPUs, in brackets.
fn suspicion(host: &Host, cpus: &CpuList) -> &'static str {
    let online = host.online_cpus().unwrap_or_default();
    if cpus.iter().any(|cpu| !online.contains(cpu)) {
        return " (that CPU is offline)";
    }
    let runs = host.processes_named(irqbalance::NAME);
    match runs.is_ok_and(|tasks| !tasks.is_empty()) {
        true => " (irqbalance runs)",
        false => "",
    }
}

/// What can't be found out about an interrupt is left out: the list has to come out on a host that
/// changes while it is looked at.
fn irq_of(host: &Host, state: &State, napi: &Napi, own: u64) -> Option<Irq> {
    let user = User::of(napi);
    let remembered = state
        .irqs
        .iter()
        .find(|(_, record)| record.users.contains(&user));
    let vector = match remembered {
        Some((irq, record)) => QueueVector {
            irq: *irq,
            name: record.name.clone(),
            shared: record.users.len() > 1,
        },
        None if napi.netns_cookie.is_none_or(|cookie| cookie == own) => {
            let interface = host.interface(napi.ifname.as_deref()?).ok()?;
            host.queue_vector(&interface, napi.queue?).ok()?
        }
        None => return None,
    };
    Some(Irq {
        affinity_requested: host.irq_affinity(vector.irq).ok()?,
        affinity_active: host.irq_effective_affinity(vector.irq).ok()?,
        affinity_original: remembered
            .filter(|(_, record)| record.original != record.set)
            .map(|(_, record)| record.original.clone()),
        vector,
    })
}
