// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Putting back what attachments changed: when they end, when they have gone by themselves, when their poller goes,
//! and when everything goes, with the module or without it.

use serde::Serialize;

use crate::apply::Detached;
use crate::client::{Client, ClientError};
use crate::error::{first_or_all, undo_incomplete, Error};
use crate::governor::{self, Returned};
use crate::host::Host;
use crate::irq_pin::{self, Release};
use crate::irqbalance;
use crate::netns;
use crate::plan::Session;
use crate::queue_cpus::{self, Direction, Wish, Written};
use crate::state::{IrqRecord, QueueCpusRecord, State, StateFile, User};
use crate::CpuList;

/// What became of things that attachments had changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Freed {
    /// Interrupts.
    pub irqs: Vec<Release>,
    /// Files of queues.
    pub queues: Vec<Written>,
    /// Interrupts that irqbalance may move again.
    pub irqbalance: Vec<u32>,
    /// Governors of frequencies.
    pub governors: Vec<Returned>,
}

/// What an undo of everything did.
pub type Undone = Freed;

/// What the deletion of a poller did.
#[derive(Clone, Debug, Serialize)]
pub struct PollerDeleted {
    /// Its CPU.
    pub cpu: u32,
    /// What was attached to it.
    pub detached: Vec<Detached>,
    /// What was put back for attachments that had gone away by themselves, and for what was steered to its CPU.
    pub gone: Freed,
}

impl Freed {
    fn add(&mut self, more: Self) {
        self.irqs.extend(more.irqs);
        self.queues.extend(more.queues);
        self.irqbalance.extend(more.irqbalance);
        self.governors.extend(more.governors);
    }

    /// Whether there was nothing.
    pub fn is_empty(&self) -> bool {
        self.irqs.is_empty()
            && self.queues.is_empty()
            && self.irqbalance.is_empty()
            && self.governors.is_empty()
    }

    /// A sentence for each.
    pub fn sentences(&self) -> Vec<String> {
        let irqs = self.irqs.iter().map(ToString::to_string);
        let queues = self.queues.iter().map(ToString::to_string);
        let irqbalance = self
            .irqbalance
            .iter()
            .map(|irq| format!("irqbalance may move interrupt {irq} again"));
        let governors = self.governors.iter().map(ToString::to_string);
        irqs.chain(queues)
            .chain(irqbalance)
            .chain(governors)
            .collect()
    }
}

impl IntoIterator for &Freed {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.sentences().into_iter()
    }
}

/// Whether this wish was made for this user.
fn is_of(user: &User, record: &QueueCpusRecord, wish: &Wish) -> bool {
    match user {
        User::Queue {
            ifindex,
            queue,
            netns_cookie,
        } => {
            wish.direction == Direction::Transmit
                && (*ifindex, *queue) == (record.ifindex, wish.queue)
                && netns_cookie.is_none_or(|cookie| cookie == record.netns_cookie)
        }
        User::Napi { .. } | User::Other(_) => false,
    }
}

/// Puts back what was changed for these users, interrupts first, so that irqbalance finds them as they were.
/// Everything is tried.
fn free(host: &Host, memory: &mut StateFile, own: u64, users: &[User]) -> Result<Freed, Error> {
    let (mut freed, mut failed) = (Freed::default(), Vec::new());
    for user in users {
        match irq_pin::release(host, memory, user) {
            Ok(irqs) => freed.irqs.extend(irqs),
            Err(error) => failed.push(error),
        }
    }
    let ends =
        |record: &QueueCpusRecord, wish: &Wish| users.iter().any(|user| is_of(user, record, wish));
    match queue_cpus::take_back(host, memory, own, ends) {
        Ok(written) => freed.queues = written,
        Err(error) => failed.push(error),
    }
    match irqbalance::release(host, memory, |user| users.contains(user)) {
        Ok(irqs) => freed.irqbalance = irqs,
        Err(error) => failed.push(error),
    }
    first_or_all(failed)?;
    Ok(freed)
}

impl Session<'_> {
    pub(crate) fn free(&mut self, users: &[User]) -> Result<Freed, Error> {
        free(self.host, &mut self.file, self.own, users)
    }

    /// Stop a poller and put back what was changed for the sake of what was attached to it.
    pub fn delete_poller(&mut self, cpu: u32) -> Result<PollerDeleted, Error> {
        if let Err(error) = self.require_poller(cpu) {
            self.release_orphans()?;
            return Err(error);
        }
        let napis = self.control.napis()?;
        let (napis, others): (Vec<_>, Vec<_>) = napis.into_iter().partition(|napi| napi.cpu == cpu);
        self.control.poller_del(cpu)?;
        // Its backlog went with it.
        self.file.state.backlogs.remove(&cpu);
        self.file.save()?;
        let mut deleted = PollerDeleted {
            cpu,
            detached: Vec::new(),
            gone: Freed::default(),
        };
        let mut failed = Vec::new();
        for napi in napis {
            match self.free(&[User::of(&napi)]) {
                Ok(freed) => deleted.detached.push(Detached::of(&napi, freed)),
                Err(error) => failed.push(error),
            }
        }
        // Without its poller no attachment needs an interrupt there, not even one that went away by
        // itself in a network namespace that does not exist any more. (One that is served elsewhere shares it.)
        let others: Vec<User> = others.iter().map(User::of).collect();
        let records = self.file.state.irqs.values();
        let mut users = attachments(records.filter(|record| record.set == CpuList::one(cpu)));
        users.retain(|user| !others.contains(user));
        match self.free(&users) {
            Ok(freed) => deleted.gone = freed,
            Err(error) => failed.push(error),
        }
        let there = |_: &QueueCpusRecord, wish: &Wish| wish.cpu == cpu;
        match queue_cpus::take_back(self.host, &mut self.file, self.own, there) {
            Ok(written) => deleted.gone.queues.extend(written),
            Err(error) => failed.push(error),
        }
        match self.release_governors(|of| of == cpu) {
            Ok(governors) => deleted.gone.governors.extend(governors),
            Err(error) => failed.push(error),
        }
        // What is left of attachments to other pollers stays remembered where it can't be put back.
        if let Ok(freed) = self.forget_gone() {
            deleted.gone.add(freed);
        }
        let _ = self.return_backlogs();
        first_or_all(failed)?;
        Ok(deleted)
    }

    /// Put back what was changed for instances that went away by themselves (device removed), without the backlogs
    /// that were attached for them, which may be needed again at once.
    ///
    /// Only those of this network namespace are judged, because the list of what is attached may
    /// leave out the others.
    pub fn forget_gone(&mut self) -> Result<Freed, Error> {
        let known: Vec<User> = self.control.napis()?.iter().map(User::of).collect();
        let mut users = users_of(&self.file.state);
        users.retain(|user| user.is_attachment_in(self.own) && !known.contains(user));
        let mut freed = self.free(&users)?;
        let gone = self.gone_interfaces()?;
        let ends = |record: &QueueCpusRecord, _: &Wish| {
            record.netns_cookie == self.own && gone.contains(&record.ifindex)
        };
        let written = queue_cpus::take_back(self.host, &mut self.file, self.own, ends)?;
        freed.queues.extend(written);
        freed.governors.extend(self.release_orphans()?);
        Ok(freed)
    }

    /// Interfaces of this network namespace that are remembered and are not there any more.
    fn gone_interfaces(&self) -> Result<Vec<u32>, Error> {
        let mut gone = Vec::new();
        for record in &self.file.state.queue_cpus {
            let here = record.netns_cookie == self.own;
            if here && self.host.interface_with_index(record.ifindex)?.is_none() {
                gone.push(record.ifindex);
            }
        }
        Ok(gone)
    }

    /// Undo everything: delete every poller, put everything back that was changed for an attachment.
    pub fn undo_all(&mut self) -> Result<Undone, Error> {
        let mut failed = Vec::new();
        for poller in self.control.pollers()? {
            failed.extend(self.control.poller_del(poller.cpu).err().map(Error::from));
        }
        match release_everything(self.host, &mut self.file, self.own) {
            Ok(undone) => first_or_all(failed).map(|()| undone),
            Err(error) => {
                failed.push(error);
                Err(undo_incomplete(failed))
            }
        }
    }
}

/// Undo everything that pollers and attachments changed, whether the module is still there or not.
pub fn undo_everything(host: &Host) -> Result<Undone, Error> {
    match Client::connect() {
        Ok(mut client) => Session::open(host, &mut client)?.undo_all(),
        Err(ClientError::NotLoaded) => release_all(host, &mut StateFile::open(host)?),
        Err(error) => Err(error.into()),
    }
}

/// Put back everything that was changed for an attachment, whoever attached it; for when the module is gone already.
pub fn release_all(host: &Host, file: &mut StateFile) -> Result<Undone, Error> {
    release_everything(host, file, netns::cookie()?)
}

fn release_everything(host: &Host, file: &mut StateFile, own: u64) -> Result<Undone, Error> {
    file.state.backlogs.clear();
    file.save()?;
    let users = users_of(&file.state);
    let mut failed = Vec::new();
    let mut undone = free(host, file, own, &users).unwrap_or_else(|error| {
        failed.push(error);
        Freed::default()
    });
    // What is steered has no user, and may be in any network namespace.
    match queue_cpus::take_back_all(host, file, own) {
        Ok(written) => undone.queues.extend(written),
        Err(error) => failed.push(error),
    }
    match governor::release(host, file, |_| true) {
        Ok(governors) => undone.governors.extend(governors),
        Err(error) => failed.push(error),
    }
    first_or_all(failed)?;
    Ok(undone)
}

/// The attachments, of any network namespace, that want these interrupts where they are.
fn attachments<'r>(records: impl Iterator<Item = &'r IrqRecord>) -> Vec<User> {
    let users = records.flat_map(|record| record.users.clone());
    users
        .filter(|user| !matches!(user, User::Other(_)))
        .collect()
}

/// Every attachment for which something was changed.
fn users_of(state: &State) -> Vec<User> {
    let mut users = attachments(state.irqs.values());
    let bans = state.irqbalance.iter().flat_map(|told| told.bans.values());
    users.extend(bans.flatten().cloned());
    let queues = state.queue_cpus.iter().flat_map(|record| {
        record.transmit.keys().map(|queue| User::Queue {
            ifindex: record.ifindex,
            queue: *queue,
            netns_cookie: Some(record.netns_cookie),
        })
    });
    users.extend(queues);
    users.sort();
    users.dedup();
    users
}
