// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What somebody has asked for and still wants: the pollers, and what is attached to them in every network namespace.
//! The module knows the pollers and the NAPI instances; the rest follows from what is remembered in /run/kbp.
//!
//! What is active is not looked at; that is [`crate::overview`].

use std::collections::BTreeSet;

use crate::card::Card;
use crate::error::Error;
use crate::ethtool;
use crate::governor;
use crate::host::{Host, HostError};
use crate::model::{Napi, Poller, PollerSpec};
use crate::netns;
use crate::plan::Session;
use crate::queue_cpus::{has_file, Direction};
use crate::service::Service;
use crate::setup::{Attachment, Setup};
use crate::state::{State, User};
use crate::uapi::{Backlog, Freq, Owns};

/// A receive queue that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Number of its interface.
    pub(crate) ifindex: u32,
    /// Name of its interface now.
    pub(crate) ifname: String,
    /// The receive queue.
    pub(crate) queue: u32,
    /// CPU of its poller.
    pub(crate) cpu: u32,
    /// How it is to be served; `None` for one without a NAPI instance, which is steered.
    pub(crate) service: Option<Service>,
    /// Whether its interrupt was moved; `None` where there is none to move.
    pub(crate) irq: Option<bool>,
    /// Whether that CPU was given its transmit queue; `None` where there is no choice.
    pub(crate) xps: Option<bool>,
    /// Its interrupt goes to another CPU than its poller's, because it serves other queues too.
    is_guest: bool,
    card: Card,
}

/// What was asked for, and what of it no file can say.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    /// The pollers and attachments.
    pub setup: Setup,
    /// What is not in it, a sentence each.
    pub left_out: Vec<String>,
}

/// Asks the kernel for the address that a card was made with.
type Address<'a> = &'a mut dyn FnMut(&str) -> Result<Option<String>, HostError>;

/// The queues of the network namespace whose files are in sight and whose cookie this is.
fn queues_in(
    host: &Host,
    state: &State,
    napis: &[Napi],
    cookie: u64,
    address: Address<'_>,
) -> Result<Vec<Queue>, Error> {
    let mut queues = Vec::new();
    for napi in napis.iter().filter(|napi| is_in(napi, cookie)) {
        let (Some(ifindex), Some(queue)) = (napi.ifindex, napi.queue) else {
            continue;
        };
        // What is gone by now is not attached any more either.
        let Some(ifname) = host.interface_with_index(ifindex)? else {
            continue;
        };
        let is_physical = host.interface(&ifname)?.device.is_some();
        let user = User::of(napi);
        let record = state.irqs.values().find(|irq| irq.users.contains(&user));
        let one = Queue {
            ifindex,
            queue,
            cpu: napi.cpu,
            service: Some(napi.service()),
            irq: is_physical.then_some(record.is_some()),
            xps: sends(host, state, &ifname, (cookie, ifindex), queue, is_physical)?,
            is_guest: record.is_some_and(|irq| !irq.set.contains(napi.cpu)),
            card: host.card(&ifname, &mut *address)?,
            ifname,
        };
        queues.push(one);
    }
    for record in state
        .queue_cpus
        .iter()
        .filter(|one| one.netns_cookie == cookie)
    {
        let Some(ifname) = host.interface_with_index(record.ifindex)? else {
            continue;
        };
        let steered = record.receive.iter().map(|(queue, cpu)| Queue {
            ifindex: record.ifindex,
            ifname: ifname.clone(),
            queue: *queue,
            cpu: *cpu,
            service: None,
            irq: None,
            xps: None,
            is_guest: false,
            card: Card::default(),
        });
        queues.extend(steered);
    }
    Ok(queues)
}

fn is_in(napi: &Napi, cookie: u64) -> bool {
    napi.netns_cookie.is_none_or(|its| its == cookie)
}

/// Whether the poller's CPU was given the transmit queue of the same number; `None` where there is no such choice.
fn sends(
    host: &Host,
    state: &State,
    ifname: &str,
    (cookie, ifindex): (u64, u32),
    queue: u32,
    is_physical: bool,
) -> Result<Option<bool>, HostError> {
    let mut records = state.queue_cpus.iter();
    let record = records.find(|one| (one.netns_cookie, one.ifindex) == (cookie, ifindex));
    if record.is_some_and(|record| record.transmit.contains_key(&queue)) {
        return Ok(Some(true));
    }
    let has_choice = is_physical && has_file(host, ifname, Direction::Transmit, queue)?;
    Ok(has_choice.then_some(false))
}

/// The queues of an interface that go to one CPU in one way are one attachment.
fn attachments(netns: Option<&str>, mut queues: Vec<Queue>) -> Vec<Attachment> {
    // A shared interrupt goes to the poller of the queue that is attached first.
    queues.sort_by(|a, b| {
        let key = |one: &Queue| (one.ifname.clone(), one.is_guest, one.queue);
        key(a).cmp(&key(b))
    });
    let mut all: Vec<Attachment> = Vec::new();
    for one in queues {
        let new = Attachment {
            netns: netns.map(Into::into),
            device: one.ifname,
            card: one.card,
            queues: Vec::new(),
            cpus: vec![one.cpu],
            service: one.service,
            irq: one.irq.unwrap_or(true),
            xps: one.xps.unwrap_or(true),
        };
        let same = |other: &Attachment| {
            let queues = other.queues.clone();
            *other
                == Attachment {
                    queues,
                    ..new.clone()
                }
        };
        match all.iter().position(same) {
            Some(at) => all[at].queues.push(one.queue),
            None => all.push(Attachment {
                queues: vec![one.queue],
                ..new
            }),
        }
    }
    all
}

/// Who was asked to serve the backlog of a poller's CPU, apart from what was attached for the sake of interfaces.
pub(crate) fn backlog_of(state: &State, poller: &Poller) -> Backlog {
    let lent = state.backlogs.get(&poller.cpu);
    let original = lent.and_then(|raw| Backlog::from_raw(*raw));
    original.unwrap_or(poller.backlog_requested)
}

/// What the module takes for the backlog of a new poller where it can.
fn default_backlog(owns: Owns) -> Backlog {
    match owns {
        Owns::All => Backlog::Owned,
        Owns::Attached => Backlog::Softirq,
    }
}

fn spec_of(state: &State, poller: &Poller) -> PollerSpec {
    let backlog = backlog_of(state, poller);
    PollerSpec {
        cpu: poller.cpu,
        owns: Some(poller.owns),
        schedule: Some(poller.schedule),
        budget: Some(poller.budget),
        watchdog_ms: Some(poller.watchdog_ms),
        // A kernel on which no poller can serve a backlog refuses to be asked for it, and takes the default.
        backlog: Some(backlog).filter(|backlog| *backlog != default_backlog(poller.owns)),
        freq: Some(poller.freq_requested).filter(|freq| *freq != Freq::Off),
        freq_shared: governor::is_shared(state, poller.cpu).then_some(true),
        max_cstate_latency_us: poller.max_cstate_latency_us,
        deep_exit_us: None,
    }
}

impl Session<'_> {
    /// The queues that are attached in this network namespace.
    pub(crate) fn requested_here(&mut self) -> Result<Vec<Queue>, Error> {
        let napis = self.control.napis()?;
        self.queues_here(&napis)
    }

    fn queues_here(&mut self, napis: &[Napi]) -> Result<Vec<Queue>, Error> {
        let control = &mut *self.control;
        let mut address = |ifname: &str| control.permanent_address(ifname);
        queues_in(self.host, &self.file.state, napis, self.own, &mut address)
    }

    /// Everything that was asked for, in all network namespaces of which the caller sees the attachments.
    pub fn requested(&mut self) -> Result<Requested, Error> {
        let pollers = self.control.pollers()?;
        let napis = self.control.napis()?;
        let mut requested = Requested::default();
        let specs = pollers
            .iter()
            .map(|poller| spec_of(&self.file.state, poller));
        requested.setup.pollers = specs.collect();
        let nameless = napis.iter().filter(|napi| napi.queue.is_none());
        requested.left_out.extend(nameless.map(|napi| {
            format!(
                "{} was attached by its id, which is another one after a restart; attach its interface by name",
                napi.label()
            )
        }));
        requested.setup.attachments = attachments(None, self.queues_here(&napis)?);
        self.add_others(&napis, &mut requested)?;
        Ok(requested)
    }

    fn add_others(&self, napis: &[Napi], requested: &mut Requested) -> Result<(), Error> {
        let named = napis.iter().filter(|napi| napi.queue.is_some());
        let cookies = named.filter_map(|napi| napi.netns_cookie);
        let steered = self.file.state.queue_cpus.iter();
        let steered = steered.filter(|record| !record.receive.is_empty());
        let steered = steered.map(|record| record.netns_cookie);
        let mut cookies: BTreeSet<u64> = cookies.chain(steered).collect();
        cookies.remove(&self.own);
        if cookies.is_empty() {
            return Ok(());
        }
        let names = netns::named()?;
        let mut others = Vec::new();
        for cookie in cookies {
            let (host, state) = (self.host, &self.file.state);
            let look = || queues_in(host, state, napis, cookie, &mut ethtool::permanent_address);
            // Without its namespace an attachment is gone.
            let Some(queues) = netns::inside(self.own, cookie, look)? else {
                continue;
            };
            let queues = queues?;
            let mut named = names.iter().filter(|(_, its)| *its == cookie);
            match named.next() {
                Some((name, _)) => others.push((name, queues)),
                None => requested.left_out.extend(queues.iter().map(nameless_netns)),
            }
        }
        others.sort_by_key(|(name, _)| *name);
        for (name, queues) in others {
            let more = attachments(Some(name), queues);
            requested.setup.attachments.extend(more);
        }
        Ok(())
    }
}

fn nameless_netns(one: &Queue) -> String {
    format!(
        "{} queue {} is in a network namespace without a name; give it one (`ip netns attach NAME PID`)",
        one.ifname, one.queue
    )
}
