// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench that all rows share: the interfaces, their interrupts on the poller's CPU,
//! and the CPUs of everybody. The interrupts go back when it is taken down.
//!
//! Not here: what serves the interfaces ([`crate::mechanism`]).

use kbp_core::irq::Vectors;
use kbp_core::irq_pin;
use kbp_core::state::{StateFile, User};
use kbp_core::Host;

use crate::error::{Error, Result};
use crate::place::{run_at, Place};
use crate::result::Cpus;
use crate::witness::Port;

/// An interface on the way of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Name of the interface.
    pub ifname: String,
    /// Name of the network namespace that it is in; `None` for the caller's own.
    pub netns: Option<String>,
    /// Whether interrupts bring its packets. Without, they come through the backlog of a CPU (lo, veth) or through
    /// gro_cells (vxlan).
    pub has_interrupts: bool,
}

impl Link {
    /// Where it counts what it drops.
    pub fn port(&self) -> Port {
        Port {
            ifname: self.ifname.clone(),
            netns: self.netns.clone(),
        }
    }

    /// Runs `work` on a thread that sees this interface.
    ///
    /// # Errors
    /// When the namespace can't be entered, and those of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce(&str) -> Result<T> + Send) -> Result<T> {
        let place = Place {
            netns: self.netns.clone(),
            ..Place::default()
        };
        run_at(&place, || work(&self.ifname))
    }
}

/// The bench. Take it down with [`Rig::take_down`].
#[derive(Debug)]
pub struct Rig {
    /// Every interface that receives on the way of a packet: the server's first, then the tester's, then those between.
    pub links: Vec<Link>,
    /// Who runs on which CPU.
    pub cpus: Cpus,
    /// Receive vectors of the interfaces that have interrupts.
    pub receive_irqs: Vec<u32>,
}

impl Rig {
    /// Moves every interrupt of both interfaces to the poller's CPU and remembers where
    /// they were.
    ///
    /// # Errors
    /// When a CPU is not online, an interface does not exist, or an interrupt can't be
    /// found or moved; what was moved is put back then.
    pub fn set_up(links: Vec<Link>, cpus: Cpus) -> Result<Self> {
        let host = Host::system();
        for cpu in [
            cpus.housekeeping,
            cpus.tester,
            cpus.poller,
            cpus.application,
        ] {
            host.require_online(cpu)?;
        }
        let with_interrupts = links.iter().filter(|link| link.has_interrupts);
        let vectors: Vec<Vectors> = with_interrupts.map(vectors_of).collect::<Result<_>>()?;
        let receive_irqs = vectors.iter().flat_map(|v| v.receive.clone()).collect();
        let rig = Self {
            links,
            cpus,
            receive_irqs,
        };
        if let Err(error) = rig.pin(&host, &vectors) {
            return Err(match rig.take_down() {
                Ok(()) => error,
                Err(left) => Error::Invalid(format!("{error}; putting it back failed too: {left}")),
            });
        }
        Ok(rig)
    }

    fn pin(&self, host: &Host, vectors: &[Vectors]) -> Result<()> {
        let mut file = StateFile::open(host).map_err(kbp_core::Error::from)?;
        for vector in vectors.iter().flat_map(|v| &v.all) {
            irq_pin::pin(host, &mut file, vector, &user(), self.cpus.poller)?;
        }
        Ok(())
    }

    /// Checks that the receive interrupts still are where they were put.
    ///
    /// # Errors
    /// When something else moved one of them.
    pub fn verify(&self) -> Result<()> {
        let host = Host::system();
        for &irq in &self.receive_irqs {
            let cpus = host.irq_affinity(irq).map_err(kbp_core::Error::from)?;
            if !cpus.contains(self.cpus.poller) || cpus.len() != 1 {
                return Err(Error::Invalid(format!(
                    "interrupt {irq} went from CPU {} to CPU {cpus}: stop what moves it (irqbalance?)",
                    self.cpus.poller
                )));
            }
        }
        Ok(())
    }

    /// Puts the interrupts back where they were.
    ///
    /// # Errors
    /// When one of them can't be put back; the others are.
    pub fn take_down(&self) -> Result<()> {
        let host = Host::system();
        let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
        irq_pin::release(&host, &mut file, &user())?;
        Ok(())
    }
}

/// Whose interrupts these are, in kbp-core's memory.
fn user() -> User {
    User::Other("kbp measure".into())
}

fn vectors_of(link: &Link) -> Result<Vectors> {
    link.run(|ifname| {
        let host = Host::system();
        Ok(host.vectors(&host.interface(ifname)?)?)
    })
}
