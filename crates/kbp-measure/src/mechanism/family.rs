// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every family of mechanisms has to answer, and what it is told.
//!
//! Not here: the families themselves, and what has to be so under all of them (`common`).

use std::fmt::Debug;

use kbp_core::pollers::IRQ_THREAD_PRIORITY;
use kbp_core::sched::Scheduling;
use kbp_core::state::StateFile;
use kbp_core::Host;

use crate::compare::rig::{Link, Rig};
use crate::error::{Error, Result};
use crate::mechanism::MechanismConfig;
use crate::result::Row;

/// A machine, and the interfaces that are to be served.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The machine, or a captured tree of its files.
    pub host: &'a Host,
    /// Interfaces on the way of a packet; none asks for the machine only.
    pub links: &'a [Link],
    /// CPU that would have the poller.
    pub cpu: u32,
}

/// Where a mechanism is set up, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench<'a> {
    pub name: &'static str,
    pub rig: &'a Rig,
    pub config: &'a MechanismConfig,
}

/// What moved since the mechanism was set up, or since the row before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// `NET_RX` softirqs on all CPUs.
    pub net_rx_softirqs: u64,
    /// Packets that sockets took by polling, in the namespaces of all interfaces.
    pub busy_poll_packets: u64,
    /// The same in the namespace of the tester's card, where no mechanism serves that.
    pub tester_poll_packets: u64,
}

/// How the mechanisms of a family are set up, seen to be active, and undone.
pub(crate) trait Family: Debug + Sync {
    /// Whether it can run here; else the reason.
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String>;

    /// Sets it up and returns the threads that it brings. Whatever it changed before a failure is undone by
    /// [`Family::undo`].
    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>>;

    /// Reads back what is specific to the family; [`Error::ModeNotActive`] with what was seen instead.
    fn verify(&self, bench: &Bench<'_>, threads: &[u32]) -> Result<()>;

    /// Whether the counters of a finished row are those of this mechanism; else which is not.
    fn verify_row(
        &self,
        bench: &Bench<'_>,
        row: &Row,
        moved: &Moved,
    ) -> std::result::Result<(), String>;

    /// Undoes it, wherever [`Family::set_up`] came to; undoing twice is no error.
    fn undo(&self, bench: &Bench<'_>) -> Result<()>;
}

impl Bench<'_> {
    /// The error of a mechanism that is not what serves the packets.
    pub fn inactive(&self, why: impl Into<String>) -> Error {
        Error::ModeNotActive {
            mode: self.name.into(),
            why: why.into(),
        }
    }

    /// CPU of the poller.
    pub fn cpu(&self) -> u32 {
        self.rig.cpus.poller
    }

    /// The `SCHED_FIFO` scheduling of the configuration, for threads that are no pollers of ours: on PREEMPT_RT below
    /// the threads of interrupts, which wake them and would wait until they have nothing to do.
    pub fn fifo(&self) -> Scheduling {
        let priority = match Host::system().is_preempt_rt() {
            true => self.config.fifo_priority.min(IRQ_THREAD_PRIORITY as u8 - 1),
            false => self.config.fifo_priority,
        };
        Scheduling::fifo(i32::from(priority))
    }

    /// The network namespaces of all interfaces, each once.
    pub fn namespaces(&self) -> Vec<Option<String>> {
        let mut names: Vec<_> = self.rig.links.iter().map(|l| l.netns.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Packets of a row that came to the interfaces at least: round trips are received by two, one direction by one, and
    /// what comes to the tester's own card is not for the mechanism.
    pub fn received_min(&self, row: &Row) -> u64 {
        match row.traffic.as_str() {
            "one-way" => row.n,
            _ if self.rig.tester_card.is_some() => row.n,
            _ => 2 * row.n,
        }
    }
}

/// The memory of what was changed. Others wait while it is open, so it is dropped before a link or a session is
/// entered that opens it too.
pub(crate) fn memory() -> Result<StateFile> {
    Ok(StateFile::open(&Host::system()).map_err(kbp_core::Error::from)?)
}
