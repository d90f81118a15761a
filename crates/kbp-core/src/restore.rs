// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making it so again: what a file with a [`crate::setup`] says and the host does not have is created and attached, by
//! the same plans as if it were asked for on the command line. What is so already is left alone, what is so in another
//! way is refused, and what can't be done keeps nothing else from being done.
//!
//! What is not there yet may be waited for: interfaces, namespaces and CPUs come up in their own time at boot.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::apply::AttachReport;
use crate::card::{self, Place, Present};
use crate::client::{Client, ClientError, Control};
use crate::differences::difference;
use crate::error::{Class, Error};
use crate::host::Host;
use crate::imagined::Imagined;
use crate::model::{Poller, PollerSpec};
use crate::netns::{self, NetnsError};
use crate::plan::{no_ports, AttachRequest, Session, Target};
use crate::requested::Queue;
use crate::setup::Attachment;
use crate::setup_read::{At, SetupFile};
use crate::uapi::Mode;

mod poller;

/// How often it is looked whether what is waited for has come.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How a setup is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How long to wait for what is not there.
    pub wait: Duration,
    /// Find out what would be changed, and change nothing.
    pub is_dry: bool,
}

/// Something that could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The line of the file that asks for it.
    pub line: usize,
    /// What it is.
    pub what: String,
    /// Why not.
    pub reason: String,
    #[serde(skip)]
    class: Class,
}

/// What became of a setup.
#[derive(Debug, Default)]
pub struct Restored {
    /// The pollers that were created.
    pub pollers: Vec<Poller>,
    /// The pollers that were there and whose backlogs were attached.
    pub backlogs: Vec<Poller>,
    /// What was attached.
    pub reports: Vec<AttachReport>,
    /// What would have been changed, a sentence each, in the order in which it would have been.
    pub changes: Vec<String>,
    /// What was so already.
    pub unchanged: Vec<String>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// What could not be done.
    pub failed: Vec<Failure>,
    /// Why the rest was not tried.
    pub stopped: Option<Error>,
}

impl Restored {
    /// Whether nothing had to be done.
    pub fn is_unchanged(&self) -> bool {
        let nothing = self.pollers.is_empty() && self.backlogs.is_empty();
        nothing && self.reports.is_empty() && self.changes.is_empty()
    }

    /// An error where something could not be done. That the host is left changed is worse than all else.
    pub fn verdict(self, file: &SetupFile, options: Options) -> Result<(), Error> {
        let left = self
            .failed
            .iter()
            .filter(|one| one.class == Class::LeftChanged);
        let mut left: Vec<String> = left.map(|one| one.reason.clone()).collect();
        if !left.is_empty() {
            left.extend(self.stopped.map(|error| error.to_string()));
            return Err(Error::UndoIncomplete(left.join("; ")));
        }
        if let Some(error) = self.stopped {
            return Err(error);
        }
        let what = match self.failed.len() {
            0 => return Ok(()),
            1 => "one thing".into(),
            count => format!("{count} things"),
        };
        let how = match options.is_dry {
            true => "can't be done; all the rest can",
            false => "could not be done; all the rest is",
        };
        let words = format!("{what} that {} asks for {how}", file.name);
        Err(Error::Incomplete(words))
    }
}

/// The way to the module from a network namespace.
pub trait Reach {
    /// Does `work` in the network namespace of this name, or in that of the caller.
    fn reach(&mut self, netns: Option<&str>, work: Work<'_>) -> Result<(), Error>;
}

/// What is done with a connection to the module.
pub type Work<'w> = &'w mut (dyn FnMut(&mut dyn Control) -> Result<(), Error> + Send);

/// The way to the module in the running kernel.
pub struct Kernel;

impl Reach for Kernel {
    fn reach(&mut self, netns: Option<&str>, work: Work<'_>) -> Result<(), Error> {
        let mut work = || work(&mut Client::connect()?);
        match netns {
            Some(name) => netns::in_named(name, work)?,
            None => work(),
        }
    }
}

/// Make a host what the file says. `waits` is told once for what is waited, with the reasons.
///
/// What could not be done is in the result, and so is the error that everything after it would have met too.
pub fn restore(
    host: &Host,
    reach: &mut dyn Reach,
    file: &SetupFile,
    options: Options,
    waits: &mut dyn FnMut(&[String]),
) -> Restored {
    let deadline = Instant::now() + options.wait;
    let mut run = Run {
        host,
        file,
        is_dry: options.is_dry,
        is_last: false,
        imagined: Vec::new(),
        told: Vec::new(),
        late: BTreeSet::new(),
        attached: BTreeSet::new(),
        ports: BTreeSet::new(),
        restored: Restored::default(),
    };
    let mut tasks = tasks(file);
    let mut has_told = false;
    loop {
        run.is_last = Instant::now() >= deadline;
        let mut missing = Vec::new();
        let mut later = Vec::new();
        for task in tasks {
            match run.attempt(reach, &task) {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    missing.push(format!("{} ({reason})", task.label()));
                    later.push(task);
                }
                Err(error) => {
                    run.restored.stopped = Some(error);
                    return run.restored;
                }
            }
        }
        if later.is_empty() {
            return run.restored;
        }
        if !has_told {
            waits(&missing);
            has_told = true;
        }
        tasks = later;
        sleep(LOOK_EVERY);
    }
}

/// One thing that a file asks for.
enum Task {
    Poller(At<PollerSpec>),
    Attachment(At<Attachment>),
}

impl Task {
    fn line(&self) -> usize {
        match self {
            Self::Poller(poller) => poller.line,
            Self::Attachment(attachment) => attachment.line,
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Poller(poller) => poller_label(poller.it.cpu),
            Self::Attachment(attachment) => attachment.it.label(),
        }
    }

    fn netns(&self) -> Option<&str> {
        match self {
            Self::Poller(_) => None,
            Self::Attachment(attachment) => attachment.it.netns.as_deref(),
        }
    }
}

fn poller_label(cpu: u32) -> String {
    format!("the poller of CPU {cpu}")
}

/// Pollers first. The queues of an interface that go to several CPUs are one plan, as on the command line.
fn tasks(file: &SetupFile) -> Vec<Task> {
    let mut merged: Vec<At<Attachment>> = Vec::new();
    for At { line, it } in &file.attachments {
        let cpus = it.cpus.iter().copied().cycle().take(it.queues.len());
        let mut new = it.clone();
        if !it.queues.is_empty() {
            new.cpus = cpus.collect();
        }
        let same = |other: &At<Attachment>| {
            let (queues, cpus) = (new.queues.clone(), new.cpus.clone());
            let other = &other.it;
            !new.queues.is_empty()
                && !other.queues.is_empty()
                && new
                    == Attachment {
                        queues,
                        cpus,
                        ..other.clone()
                    }
        };
        match merged.iter().position(same) {
            Some(at) => {
                merged[at].it.queues.extend(new.queues);
                merged[at].it.cpus.extend(new.cpus);
            }
            None => merged.push(At {
                line: *line,
                it: new,
            }),
        }
    }
    let pollers = file.pollers.iter().cloned().map(Task::Poller);
    pollers
        .chain(merged.into_iter().map(Task::Attachment))
        .collect()
}

struct Run<'r> {
    host: &'r Host,
    file: &'r SetupFile,
    is_dry: bool,
    /// What is not there now is not waited for any more.
    is_last: bool,
    /// Of a dry run: the pollers as they would be by now.
    imagined: Vec<Poller>,
    /// Of a dry run: the interrupts of which irqbalance would have been told by now.
    told: Vec<u32>,
    /// The CPUs whose pollers are waited for.
    late: BTreeSet<u32>,
    /// What this run has attached, which it may meet again.
    attached: BTreeSet<String>,
    /// Ports of bridges that were dealt with, by the line that asks for the bridge, while other ports are waited for.
    ports: BTreeSet<(usize, String)>,
    restored: Restored,
}

impl Run<'_> {
    /// Do one thing. The reason comes back where it is to be tried again.
    fn attempt(&mut self, reach: &mut dyn Reach, task: &Task) -> Result<Option<String>, Error> {
        let tried = reach.reach(task.netns(), &mut |control| self.tackle(control, task));
        let reason = match tried {
            Ok(()) => None,
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) if self.may_come(&error) => Some(error.to_string()),
            Err(error) => {
                self.fail(task.line(), task.label(), &error);
                None
            }
        };
        if let Task::Poller(poller) = task {
            match reason.is_some() {
                true => self.late.insert(poller.it.cpu),
                false => self.late.remove(&poller.it.cpu),
            };
        }
        Ok(reason)
    }

    fn tackle(&mut self, control: &mut dyn Control, task: &Task) -> Result<(), Error> {
        let host = self.host;
        if !self.is_dry {
            return self.tackle_in(&mut Session::open(host, control)?, task);
        }
        let mut imagined = Imagined::new(control, std::mem::take(&mut self.imagined));
        let tried = Session::open(host, &mut imagined)
            .and_then(|mut session| self.tackle_in(&mut session, task));
        self.imagined = imagined.into_pollers();
        tried
    }

    fn tackle_in(&mut self, session: &mut Session<'_>, task: &Task) -> Result<(), Error> {
        match task {
            Task::Poller(poller) => self.poller(session, poller),
            Task::Attachment(attachment) => self.attachment(session, attachment),
        }
    }

    fn fail(&mut self, line: usize, what: String, error: &Error) {
        let failure = Failure {
            line,
            what,
            reason: error.to_string(),
            class: error.class(),
        };
        push_new(&mut self.restored.failed, failure);
    }

    /// Whether it may be otherwise soon, and there is time to wait for that.
    fn may_come(&self, error: &Error) -> bool {
        !self.is_last && (is_early(self.host, error) || self.has_late_poller(error))
    }

    fn has_late_poller(&self, error: &Error) -> bool {
        match error {
            Error::NoPoller { cpu } => self.late.contains(cpu),
            Error::RolledBack { cause, .. } => self.has_late_poller(cause),
            _ => false,
        }
    }

    fn attachment(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<Attachment>,
    ) -> Result<(), Error> {
        let ifname = self.ifname(session, &wish.it)?;
        let ports = match wish.it.queues.is_empty() {
            true => self.host.bridge_ports(&ifname)?,
            false => None,
        };
        let now = session.requested_here()?;
        let mut turns = wish.it.cpus.iter().copied().cycle();
        let ports = match ports {
            Some(ports) if ports.is_empty() => return Err(no_ports(&ifname)),
            Some(ports) => ports,
            None => return self.interface(session, wish, &ifname, &now, &mut turns),
        };
        let mut early = None;
        for port in ports {
            match self.interface(session, wish, &port, &now, &mut turns) {
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) if self.may_come(&error) => {
                    early = Some(error);
                    continue;
                }
                Err(error) => self.fail(wish.line, interface_label(&wish.it, &port), &error),
                Ok(()) => {}
            }
            self.ports.insert((wish.line, port));
        }
        early.map_or(Ok(()), Err)
    }

    /// Attach what is wanted and not attached of one interface.
    fn interface(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<Attachment>,
        name: &str,
        now: &[Queue],
        turns: &mut impl Iterator<Item = u32>,
    ) -> Result<(), Error> {
        let interface = self.host.interface(name)?;
        let queues = match wish.it.queues.is_empty() {
            true => (0..interface.rx_queues).collect(),
            false => wish.it.queues.clone(),
        };
        // Its turns are taken also where nothing is left to be done.
        let queues: Vec<(u32, u32)> = queues.into_iter().zip(turns).collect();
        if self.ports.contains(&(wish.line, name.to_owned())) {
            return Ok(());
        }
        let mut missing = Vec::new();
        for (queue, cpu) in queues {
            let is_it = |one: &&Queue| (one.ifindex, one.queue) == (interface.ifindex, queue);
            match now.iter().find(is_it) {
                Some(one) => self.compare(wish, one, cpu),
                None => missing.push((queue, cpu)),
            }
        }
        self.attach(session, wish, name, &missing)
    }

    /// The name that the wanted interface has now.
    fn ifname(&mut self, session: &mut Session<'_>, wish: &Attachment) -> Result<String, Error> {
        let device = &wish.device;
        let present = self.host.present(session.control)?;
        match card::place(device, &wish.card, &present) {
            Place::AsNamed => Ok(device.clone()),
            Place::Renamed(other) => Ok(self.renamed(wish, other)),
            Place::Elsewhere(other)
                if self.is_last && !self.is_of_another(wish, &other.ifname, &present) =>
            {
                Ok(self.renamed(wish, other.ifname))
            }
            Place::Elsewhere(other) => Err(Error::NotFound(format!(
                "{device} is not there ({}); {} has its address, but another name and place ({}). If that is the one that \
                 is meant, write its bus into the file",
                wish.card, other.ifname, other.card
            ))),
            Place::Replaced(card) => Err(Error::NotFound(format!(
                "{device} is another card now ({card}), and the one that is meant is not there ({}); if it was replaced, \
                 take mac and bus out of the file",
                wish.card
            ))),
            Place::Missing => Err(Error::UnknownInterface {
                name: device.clone(),
            }),
            Place::Several(names) => Err(Error::Conflict(format!(
                "{} are all meant ({}); write down which one, with its bus",
                names.join(" and "),
                wish.card
            ))),
        }
    }

    fn renamed(&mut self, wish: &Attachment, other: String) -> String {
        let note = format!("{} is called {other} now ({})", wish.device, wish.card);
        push_new(&mut self.restored.notes, note);
        other
    }

    /// Whether something else in the file means an interface that is there.
    fn is_of_another(&self, wish: &Attachment, ifname: &str, present: &[Present]) -> bool {
        let mut others = self.file.attachments.iter().map(|at| &at.it);
        others.any(|one| {
            let is_other = (&one.device, &one.card) != (&wish.device, &wish.card);
            let place = card::place(&one.device, &one.card, present);
            one.netns == wish.netns && is_other && place.ifname(&one.device) == Some(ifname)
        })
    }

    /// A queue that is attached already, as it is wanted or otherwise.
    fn compare(&mut self, wish: &At<Attachment>, now: &Queue, cpu: u32) {
        let label = queue_label(&wish.it, &now.ifname, now.queue);
        match difference(&wish.it, now, cpu) {
            None if self.attached.contains(&label) => {}
            None => push_new(&mut self.restored.unchanged, label),
            Some(words) => {
                let words = format!(
                    "it is attached already, but {words}; detach it first with `kbp detach`, or change the file"
                );
                self.fail(wish.line, label, &Error::Conflict(words));
            }
        }
    }

    /// Attach queues of an interface together; where that can't be done, those of them that can be.
    fn attach(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<Attachment>,
        name: &str,
        queues: &[(u32, u32)],
    ) -> Result<(), Error> {
        if queues.is_empty() {
            return Ok(());
        }
        let Err(error) = self.attach_together(session, &wish.it, name, queues) else {
            return Ok(());
        };
        if is_hopeless(&error) || queues.len() == 1 || self.may_come(&error) {
            return Err(error);
        }
        let mut failed = Vec::new();
        let mut hopeless = None;
        for one in queues {
            match self.attach_together(session, &wish.it, name, &[*one]) {
                Ok(()) => {}
                Err(error) if is_hopeless(&error) => {
                    hopeless = Some(error);
                    break;
                }
                Err(error) => failed.push((one.0, error)),
            }
        }
        // One reason for all of them is told once.
        if failed.len() == queues.len() {
            return Err(error);
        }
        for (queue, error) in failed {
            self.fail(wish.line, queue_label(&wish.it, name, queue), &error);
        }
        hopeless.map_or(Ok(()), Err)
    }

    fn attach_together(
        &mut self,
        session: &mut Session<'_>,
        wish: &Attachment,
        name: &str,
        queues: &[(u32, u32)],
    ) -> Result<(), Error> {
        let request = AttachRequest {
            target: Target::Interface {
                name: name.into(),
                queue: None,
            },
            queues: queues.iter().map(|(queue, _)| *queue).collect(),
            cpus: queues.iter().map(|(_, cpu)| *cpu).collect(),
            service: wish.service.unwrap_or(Mode::Busy.into()),
            move_irq: wish.irq,
            set_xps: wish.xps,
        };
        // Asked before: one that comes up after the plan has failed was down for the plan, and the next one may succeed.
        let was_up = self.host.is_up(name);
        let plan = match session.plan_attach(&request) {
            Err(Error::NoVector { .. }) if !was_up? => {
                return Err(Error::NotFound(format!(
                    "{name} is down, and its driver takes interrupts when it comes up; set it up, or write `irq = false` \
                     to leave them where they are"
                )))
            }
            plan => plan?,
        };
        for note in &plan.notes {
            push_new(&mut self.restored.notes, note.clone());
        }
        if self.is_dry {
            let changes = plan.changes_after(self.host, &mut self.told);
            self.restored.changes.extend(changes);
            for backlog in &plan.backlogs {
                session
                    .control
                    .poller_set_backlog(backlog.cpu, backlog.to)?;
            }
            return Ok(());
        }
        let report = session.attach(&plan)?;
        let labels = queues
            .iter()
            .map(|(queue, _)| queue_label(wish, name, *queue));
        self.attached.extend(labels);
        self.restored.reports.push(report);
        Ok(())
    }
}

fn push_new<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

fn interface_label(wish: &Attachment, ifname: &str) -> String {
    match &wish.netns {
        Some(netns) => format!("{ifname} in network namespace {netns}"),
        None => ifname.into(),
    }
}

fn queue_label(wish: &Attachment, ifname: &str, queue: u32) -> String {
    interface_label(wish, &format!("{ifname} queue {queue}"))
}

/// The next thing would meet the same: the module or a network namespace can't be reached, or nothing remembered. That
/// one file can't be written is no such thing: nobody may move an interrupt that the kernel manages.
fn is_fatal(error: &Error) -> bool {
    match error {
        Error::State(_)
        | Error::Client(ClientError::NotLoaded | ClientError::NoPrivilege { .. }) => true,
        Error::Netns(error) => error.class() == Class::NoPrivilege,
        Error::RolledBack { cause, .. } => is_fatal(cause),
        _ => false,
    }
}

/// Nothing more is tried with this interface: the next queue would meet the same, or what a failure has left.
fn is_hopeless(error: &Error) -> bool {
    is_fatal(error) || error.class() == Class::LeftChanged
}

/// Whether something is missing that comes by itself at boot.
fn is_early(host: &Host, error: &Error) -> bool {
    match error {
        Error::UnknownInterface { .. } | Error::UnknownQueue { .. } | Error::NotFound(_) => true,
        Error::Netns(NetnsError::Unknown { .. } | NetnsError::NotMounted { .. }) => true,
        Error::CpuOffline { cpu, .. } => {
            let possible = host.read_cpu_list("sys/devices/system/cpu/possible");
            possible.is_ok_and(|cpus| cpus.contains(*cpu))
        }
        Error::RolledBack { cause, .. } => is_early(host, cause),
        _ => false,
    }
}
