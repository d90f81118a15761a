// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is there now: the module, its pollers, what is attached, where the interrupts go.
//!
//! Requested and active are told apart here: the mode of a NAPI instance and the CPU of its
//! interrupt each have both.

use serde::Serialize;

use crate::client::Client;
use crate::error::Error;
use crate::host::Host;
use crate::irq::QueueVector;
use crate::model::{Napi, Poller};
use crate::module::{self, ModuleStatus};
use crate::netns;
use crate::state::{self, State, User};
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
    let napis = napis.into_iter().map(|napi| AttachedNapi {
        irq: irq_of(host, &state, &napi, own),
        napi,
    });
    Ok(Overview {
        module: module::status(host)?,
        pollers: client.pollers()?,
        napis: napis.collect(),
    })
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
        affinity_original: remembered.map(|(_, record)| record.original.clone()),
        vector,
    })
}
