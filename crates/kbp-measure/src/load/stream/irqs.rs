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
    /// When an interrupt can't be found or moved, or serves both ends; all are where they were then.
    pub(super) fn pin(config: &StreamConfig) -> Result<Self> {
        let host = Host::system();
        claim::sweep(&host, LOAD, put_back)?;
        let Some(cpu) = config.irq_cpu else {
            return Ok(Self { claim: None });
        };
        let receiver = vectors(&config.server)?;
        let sender = vectors(&config.tester)?;
        if let Some(both) = receiver.iter().find(|vector| sender.contains(vector)) {
            return Err(Error::Invalid(format!(
                "interrupt {} ({}) serves {} and {}, two ports of one device: the streams need a device each",
                both.irq, both.name, config.server.ifname, config.tester.ifname
            )));
        }
        let to = |cpu| move |vector| (vector, cpu);
        let moves = receiver.into_iter().map(to(cpu));
        let moves = moves.chain(sender.into_iter().map(to(config.tester.cpu)));
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

/// All vectors of an end; an error where a receive queue has none.
fn vectors(end: &StreamEnd) -> Result<Vec<QueueVector>> {
    run_at(&end.namespace(), || {
        let host = Host::system();
        Ok(host.vectors(&host.interface(&end.ifname)?)?.all)
    })
}
