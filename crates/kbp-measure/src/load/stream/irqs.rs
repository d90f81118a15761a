// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interrupts of the streams' interfaces: moved, remembered, put back.
//!
//! All of them, those that only send too: where a card has such (e1000e), its handler frees what was sent, and who waited
//! for that sends on at once and on that CPU.
//!
//! Not here: the interrupts of the measured path ([`crate::compare::rig`]).

use kbp_core::irq::QueueVector;
use kbp_core::irq_pin;
use kbp_core::state::{StateFile, User};
use kbp_core::Host;

use super::{StreamConfig, StreamEnd};
use crate::error::{Error, Result};
use crate::load::claim::{self, Claim};
use crate::place::run_at;

const LOAD: &str = "stream";

/// Moved interrupts. Dropping this puts them back too; [`Irqs::release`] also reports failures.
#[derive(Debug)]
pub(super) struct Irqs {
    claim: Option<Claim>,
}

impl Irqs {
    /// Moves the interrupts of both ends to their CPUs. Those that a process of ours left moved when it died
    /// are put back first.
    ///
    /// # Errors
    /// When an interrupt can't be found or moved, or serves both ends, which are on two CPUs; all are where they were
    /// then.
    pub(super) fn pin(config: &StreamConfig) -> Result<Self> {
        let host = Host::system();
        claim::sweep(&host, LOAD, put_back)?;
        let Some(cpu) = config.irq_cpu else {
            return Ok(Self { claim: None });
        };
        let moves = moves(
            (vectors(&config.server)?, cpu),
            (vectors(&config.tester)?, config.tester.cpu),
        )?;
        let mut claim = Claim::new(&host, LOAD)?;
        let id = claim.id().to_owned();
        claim.remember(&id)?;
        let irqs = Self { claim: Some(claim) };
        let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
        for (vector, cpu) in moves {
            irq_pin::pin(&host, &mut file, &vector, &user(&id), cpu)?;
        }
        Ok(irqs)
    }

    /// Puts the interrupts back where they were.
    ///
    /// # Errors
    /// When one of them can't be put back; the next run tries again.
    pub(super) fn release(&mut self) -> Result<()> {
        let Some(claim) = self.claim.take() else {
            return Ok(());
        };
        put_back(claim.id())?;
        claim.release()
    }
}

impl Drop for Irqs {
    fn drop(&mut self) {
        // On this path another error is on its way already, and that one is reported.
        let _ = self.release();
    }
}

/// Whose interrupts these are, in kbp-core's memory.
fn user(id: &str) -> User {
    User::Other(format!("kbp measure load {id}"))
}

fn put_back(id: &str) -> Result<()> {
    let host = Host::system();
    let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
    irq_pin::release(&host, &mut file, &user(id))?;
    Ok(())
}

/// What goes where; refuses an interrupt that would have to be in two places.
fn moves(
    (receiver, receiver_cpu): (Vec<QueueVector>, u32),
    (sender, sender_cpu): (Vec<QueueVector>, u32),
) -> Result<Vec<(QueueVector, u32)>> {
    let is_senders = |irq| sender.iter().any(|vector| vector.irq == irq);
    let both = receiver.iter().find(|vector| is_senders(vector.irq));
    if let Some(both) = both.filter(|_| receiver_cpu != sender_cpu) {
        return Err(Error::Invalid(format!(
            "interrupt {} ({}) serves both ends of the streams and can't be on CPU {receiver_cpu} and CPU {sender_cpu}",
            both.irq, both.name
        )));
    }
    let receiver = receiver.into_iter().map(|vector| (vector, receiver_cpu));
    let sender = sender.into_iter().map(|vector| (vector, sender_cpu));
    Ok(receiver.chain(sender).collect())
}

/// All vectors of an end; an error where a receive queue has none.
fn vectors(end: &StreamEnd) -> Result<Vec<QueueVector>> {
    run_at(&end.namespace(), || {
        let host = Host::system();
        Ok(host.vectors(&host.interface(&end.ifname)?)?.all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_of_both_ends_is_on_one_cpu_or_refused() {
        let vector = |irq: u32| QueueVector {
            irq,
            name: format!("eth{irq}"),
            shared: false,
        };
        let ends = |cpu| {
            moves(
                (vec![vector(1), vector(2)], 2),
                (vec![vector(3), vector(2)], cpu),
            )
        };
        let refusal = ends(0).unwrap_err().to_string();
        assert!(refusal.contains("interrupt 2"), "{refusal}");
        let places: Vec<_> = ends(2)
            .unwrap()
            .into_iter()
            .map(|(v, cpu)| (v.irq, cpu))
            .collect();
        assert_eq!(places, [(1, 2), (2, 2), (3, 2), (2, 2)]);
        let apart = moves((vec![vector(1)], 2), (vec![vector(3)], 0)).unwrap();
        let places: Vec<_> = apart.into_iter().map(|(v, cpu)| (v.irq, cpu)).collect();
        assert_eq!(places, [(1, 2), (3, 0)]);
    }
}
