// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mechanism that is set up: verified before and after rows, and undone.
//!
//! Not here: what each family does (the other files of this room).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::compare::rig::{Link, Rig};
use crate::error::{Error, Result};
use crate::mechanism::common::{self, Counters};
use crate::mechanism::family::Bench;
use crate::mechanism::{leftover, KeepModule, Mechanism, MechanismConfig};
use crate::result::{Row, NO_TRAFFIC};
use crate::turns;
use crate::witness::{Port, Watch};

/// A mechanism that serves the interfaces of a rig. Undo it with [`Active::undo`]; dropping it undoes it too, but
/// can't say what failed.
#[derive(Debug)]
pub struct Active<'a> {
    mechanism: &'static Mechanism,
    bench: Bench<'a>,
    /// Threads that the mechanism brings.
    threads: Vec<u32>,
    /// The counters as they were after the set-up or the last verified row.
    seen: Mutex<Option<Counters>>,
    /// Whether there is something to undo.
    is_up: AtomicBool,
}

impl<'a> Active<'a> {
    /// Sets a mechanism up and reads back that it is active. What a process that died has left is undone first.
    ///
    /// # Errors
    /// When another process has a mechanism set up, a step fails, or something else than the mechanism is active;
    /// what was changed is undone then.
    pub fn set_up(
        mechanism: &'static Mechanism,
        rig: &'a Rig,
        config: &'a MechanismConfig,
    ) -> Result<Self> {
        let bench = Bench {
            name: mechanism.name,
            rig,
            config,
        };
        match mechanism.changes_machine {
            true => leftover::begin(mechanism.name)?,
            false => drop(leftover::recover()?),
        }
        let mut active = Self {
            mechanism,
            bench,
            threads: Vec::new(),
            seen: Mutex::new(None),
            is_up: AtomicBool::new(true),
        };
        if let Err(error) = turns::quickly(|| active.bring_up()) {
            return Err(match active.undo() {
                Ok(()) => error,
                Err(left) => Error::Invalid(format!("{error}; undoing it failed too: {left}")),
            });
        }
        Ok(active)
    }

    fn bring_up(&mut self) -> Result<()> {
        if !self.mechanism.changes.poller && self.bench.config.keep_module != KeepModule::Always {
            leftover::release_module()?;
        }
        self.threads = self.mechanism.family.set_up(&self.bench)?;
        self.verify()?;
        self.swap_counters()?;
        Ok(())
    }

    /// Reads the counters, keeps them, and returns those of before with them.
    fn swap_counters(&self) -> Result<(Counters, Option<Counters>)> {
        let now = Counters::read(&self.bench)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((now, seen.replace(now)))
    }

    /// The mechanism's name.
    pub fn name(&self) -> &'static str {
        self.mechanism.name
    }

    /// The mechanism.
    pub fn mechanism(&self) -> &'static Mechanism {
        self.mechanism
    }

    /// What is to be read around a row of this mechanism.
    pub fn watch(&self) -> Watch {
        Watch {
            cpu: self.bench.cpu(),
            served_cpus: self.served_cpus(),
            receive_irqs: self.bench.rig.receive_irqs.clone(),
            mode_threads: self.threads.clone(),
            has_poller: self.mechanism.changes.poller,
            ports: self.ports(),
            ..Watch::default()
        }
    }

    /// Where packets may be dropped.
    fn ports(&self) -> Vec<Port> {
        let of_tester = self.bench.rig.tester_card.iter().map(|card| &card.link);
        let links = self.bench.rig.links.iter().chain(of_tester);
        links.map(Link::port).collect()
    }

    /// The CPUs of the machine that receives. The tester and what keeps house would be another one.
    fn served_cpus(&self) -> Vec<u32> {
        let cpus = self.bench.rig.cpus;
        let mut served = vec![cpus.poller, cpus.application];
        served.dedup();
        served
    }

    /// Reads back what serves the interfaces, and that nothing else than the mechanism does.
    ///
    /// # Errors
    /// [`Error::ModeNotActive`] with what was seen instead.
    pub fn verify(&self) -> Result<()> {
        common::verify(&self.bench, &self.mechanism.changes)?;
        self.mechanism.family.verify(&self.bench, &self.threads)
    }

    /// Checks a finished row: the mechanism that was set up has to have done the work, where there was any.
    ///
    /// # Errors
    /// [`Error::ModeNotActive`] with the counter that did not move.
    pub fn verify_row(&self, row: &Row) -> Result<()> {
        let (now, then) = self.swap_counters()?;
        if row.traffic == NO_TRAFFIC {
            return Ok(());
        }
        let moved = then.map(|then| now.since(&then)).unwrap_or_default();
        let family = self.mechanism.family;
        let verified = family
            .verify_row(&self.bench, row, &moved)
            .and_then(|()| common::tester_polled(&self.bench, row, &moved));
        verified.map_err(|why| self.bench.inactive(format!("{why} in row {}", row.name())))
    }

    /// Undoes the mechanism; the stock path serves all interfaces afterwards. Undoing twice is no error.
    ///
    /// # Errors
    /// The first step that failed; the others are done, and what is left is remembered.
    pub fn undo(&self) -> Result<()> {
        if !self.is_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        turns::quickly(|| self.mechanism.family.undo(&self.bench))?;
        if self.mechanism.changes_machine {
            leftover::end()?;
        }
        self.is_up.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        // On this path another error is on its way already; what can't be undone stays remembered.
        let _ = self.undo();
    }
}
