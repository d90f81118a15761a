// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tester's own network card, where who receives the replies has a CPU to itself: no mechanism serves it, for a tester is
//! not what is measured. Its receive interrupts go to that CPU and are deferred, so that the receiver's socket, which prefers busy
//! polling, is who polls it (`Documentation/networking/napi.rst` of the kernel, IRQ mitigation).
//!
//! Not here: that socket ([`crate::tester::backend::Aside`]), and putting the interrupts back ([`super::rig`]).

use super::rig::{is_at, Link};
use crate::error::{Error, Result};
use crate::mechanism::{defer, leftover, other_deferral};

/// How often in a row a poll that finds nothing leaves the interrupts off.
const DEFERRALS: u32 = 100;
/// For how long each time, nanoseconds: longer than the socket is away between two polls.
const DEFERRAL_NS: u64 = 200_000;

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
        defer(&self.link, &deferral())
    }

    /// Checks that it is as it was left.
    ///
    /// # Errors
    /// When somebody else has moved its interrupts or does not defer them any more.
    pub(super) fn verify(&self, irqs: &[u32]) -> Result<()> {
        is_at(irqs, self.cpu)?;
        match other_deferral(&self.link, &deferral())? {
            None => Ok(()),
            Some(other) => Err(Error::Invalid(format!("{other}: stop what writes to it"))),
        }
    }

    /// Puts back how its interrupts were deferred.
    ///
    /// # Errors
    /// When that can't be written.
    pub(super) fn undefer(&self) -> Result<()> {
        leftover::restore_namespace(self.link.netns.as_deref())
    }
}

fn deferral() -> [String; 2] {
    [DEFERRALS.to_string(), DEFERRAL_NS.to_string()]
}
