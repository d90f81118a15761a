// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tester's own network card, where who receives the replies has a CPU to itself: no mechanism serves it, for a tester is
//! not what is measured. Its receive interrupts go to that CPU and are deferred, so that the receiver's socket, which prefers busy
//! polling, is who polls it (`Documentation/networking/napi.rst` of the kernel, IRQ mitigation).
//!
//! Not here: that socket ([`crate::tester::backend::Aside`]), and putting the interrupts back ([`super::rig`]).

use kbp_core::setting;
use kbp_core::Host;

use super::rig::{is_at, Link};
use crate::error::{Error, Result};
use crate::mechanism::{deferral_files, memory};

/// How often in a row a poll that finds nothing leaves the interrupts off.
const DEFERRALS: &str = "100";
/// For how long each time, nanoseconds: longer than the socket is away between two polls.
const DEFERRAL_NS: &str = "200000";

/// The card, and who polls it.
#[derive(Debug, Clone)]
pub struct TesterCard {
    /// The card, in a network namespace of its own.
    pub link: Link,
    /// CPU of the receiver.
    pub cpu: u32,
}

impl TesterCard {
    /// Defers its interrupts and remembers what was there.
    ///
    /// # Errors
    /// When the kernel does not take the values.
    pub(super) fn defer(&self) -> Result<()> {
        self.link.run(|ifname| {
            let (host, mut state) = (Host::system(), memory()?);
            for (file, value) in deferral_files(ifname).iter().zip([DEFERRALS, DEFERRAL_NS]) {
                setting::set(&host, &mut state, self.link.netns.as_deref(), file, value)?;
            }
            Ok(())
        })
    }

    /// Checks that it is as it was left.
    ///
    /// # Errors
    /// When somebody else has moved its interrupts or does not defer them any more.
    pub(super) fn verify(&self, irqs: &[u32]) -> Result<()> {
        is_at(irqs, self.cpu)?;
        self.link.run(|ifname| {
            for (file, want) in deferral_files(ifname).iter().zip([DEFERRALS, DEFERRAL_NS]) {
                let now = Host::system().read_trimmed(file);
                let now = now.map_err(kbp_core::Error::from)?;
                if now != want {
                    return Err(Error::Invalid(format!(
                        "/{file} went from {want} to {now}: stop what writes to it"
                    )));
                }
            }
            Ok(())
        })
    }

    /// Puts back how its interrupts were deferred.
    ///
    /// # Errors
    /// When that can't be written.
    pub(super) fn undefer(&self) -> Result<()> {
        let netns = self.link.netns.as_deref();
        self.link
            .run(|_| Ok(setting::restore(&Host::system(), &mut memory()?, netns)?))
    }
}
