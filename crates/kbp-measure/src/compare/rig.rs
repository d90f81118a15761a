// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench that all rows share: the interfaces, their interrupts on the poller's CPU, the tester's card where that is
//! none of them, and the CPUs of everybody. The interrupts go back when it is taken down.
//!
//! Not here: what serves the interfaces ([`crate::mechanism`]).

use kbp_core::irq::{QueueVector, Vectors};
use kbp_core::irq_pin;
use kbp_core::state::{StateFile, User};
use kbp_core::Host;

use super::tester_card::TesterCard;
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
    /// Every interface that receives on the way of a packet and is to be served by a mechanism: the server's first, then the
    /// tester's, then those between.
    pub links: Vec<Link>,
    /// The tester's card, where it is none of those.
    pub tester_card: Option<TesterCard>,
    /// Who runs on which CPU.
    pub cpus: Cpus,
    /// Receive vectors of those interfaces that have interrupts.
    pub receive_irqs: Vec<u32>,
    /// Those of the tester's card.
    tester_irqs: Vec<u32>,
}

impl Rig {
    /// Moves every interrupt of the interfaces to the poller's CPU and remembers where they were. The receive interrupts of the
    /// tester's card go to its receiver's CPU, the others to housekeeping's: a receiver that spins as `SCHED_FIFO` keeps
    /// ksoftirqd from running, which frees what was sent where it is awake (before Linux 6.5).
    ///
    /// # Errors
    /// When a CPU is not online, an interface does not exist, an interrupt can't be found or moved, or the tester's card
    /// shares one; what was moved is put back then.
    pub fn set_up(links: Vec<Link>, tester_card: Option<TesterCard>, cpus: Cpus) -> Result<Self> {
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
        let of_tester = tester_card.as_ref().map(|card| vectors_of(&card.link));
        let of_tester: Option<Vectors> = of_tester.transpose()?;
        refuse_shared(&vectors, of_tester.as_ref())?;
        let receive = |vectors: &Vectors| vectors.receive.clone();
        let rig = Self {
            links,
            tester_card,
            cpus,
            receive_irqs: vectors.iter().flat_map(receive).collect(),
            tester_irqs: of_tester.iter().flat_map(receive).collect(),
        };
        if let Err(error) = rig.pin(&host, &vectors, of_tester.as_ref()) {
            return Err(match rig.take_down() {
                Ok(()) => error,
                Err(left) => Error::Invalid(format!("{error}; putting it back failed too: {left}")),
            });
        }
        Ok(rig)
    }

    fn pin(&self, host: &Host, vectors: &[Vectors], of_tester: Option<&Vectors>) -> Result<()> {
        pin_all(host, vectors.iter().flat_map(|v| &v.all), self.cpus.poller)?;
        if let (Some(card), Some(vectors)) = (&self.tester_card, of_tester) {
            let (receive, other) = vectors
                .all
                .iter()
                .partition::<Vec<_>, _>(|vector| self.tester_irqs.contains(&vector.irq));
            pin_all(host, receive, card.cpu)?;
            pin_all(host, other, self.cpus.housekeeping)?;
            card.defer()?;
        }
        Ok(())
    }

    /// Checks that the receive interrupts still are where they were put.
    ///
    /// # Errors
    /// When something else moved one of them.
    pub fn verify(&self) -> Result<()> {
        is_at(&self.receive_irqs, self.cpus.poller)?;
        match &self.tester_card {
            Some(card) => card.verify(&self.tester_irqs),
            None => Ok(()),
        }
    }

    /// Puts the interrupts back where they were.
    ///
    /// # Errors
    /// When one of them can't be put back; the others are.
    pub fn take_down(&self) -> Result<()> {
        let undeferred = self
            .tester_card
            .as_ref()
            .map_or(Ok(()), TesterCard::undefer);
        let host = Host::system();
        let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
        irq_pin::release(&host, &mut file, &user())?;
        undeferred
    }
}

/// An interrupt can't be on two CPUs.
fn refuse_shared(served: &[Vectors], of_tester: Option<&Vectors>) -> Result<()> {
    let is_served = |irq: u32| served.iter().flat_map(|v| &v.all).any(|v| v.irq == irq);
    let mut of_tester = of_tester.into_iter().flat_map(|v| &v.all);
    match of_tester.find(|vector| is_served(vector.irq)) {
        None => Ok(()),
        Some(both) => Err(Error::Invalid(format!(
            "--replies-cpu: interrupt {} ({}) serves the tester's card and another one; leave it out",
            both.irq, both.name
        ))),
    }
}

fn pin_all<'a>(
    host: &Host,
    vectors: impl IntoIterator<Item = &'a QueueVector>,
    cpu: u32,
) -> Result<()> {
    let mut file = StateFile::open(host).map_err(kbp_core::Error::from)?;
    for vector in vectors {
        irq_pin::pin(host, &mut file, vector, &user(), cpu)?;
    }
    Ok(())
}

/// Checks that these interrupts go to that CPU and no other.
pub(super) fn is_at(irqs: &[u32], cpu: u32) -> Result<()> {
    let host = Host::system();
    for &irq in irqs {
        let cpus = host.irq_affinity(irq).map_err(kbp_core::Error::from)?;
        if !cpus.contains(cpu) || cpus.len() != 1 {
            return Err(Error::Invalid(format!(
                "interrupt {irq} went from CPU {cpu} to CPU {cpus}: stop what moves it (irqbalance?)"
            )));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_of_both_cards_is_refused() {
        let of_card = |irqs: &[u32]| Vectors {
            receive: irqs.to_vec(),
            all: irqs
                .iter()
                .map(|&irq| QueueVector {
                    irq,
                    name: format!("eth-{irq}"),
                    shared: false,
                })
                .collect(),
        };
        let served = [of_card(&[26, 27])];
        refuse_shared(&served, None).unwrap();
        refuse_shared(&served, Some(&of_card(&[29, 30]))).unwrap();
        let error = refuse_shared(&served, Some(&of_card(&[29, 27]))).unwrap_err();
        assert!(error.to_string().contains("interrupt 27"), "{error}");
    }
}
