// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaching and detaching as plans: made and checked first, shown, then applied as a whole.
//!
//! A plan to attach is the netlink request and the move of the queue's interrupt, for each queue.
//! When a step fails, the earlier ones are undone. What a plan changes is remembered through
//! [`crate::state`]. Pollers are not planned: creating one is a single request.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::client::{Client, ClientError, Control};
use crate::error::Error;
use crate::host::Host;
use crate::irq::QueueVector;
use crate::irq_pin::{self, Release};
use crate::model::{Napi, NapiRef};
use crate::netdev::Interface;
use crate::state::{IrqRecord, StateFile, User};
pub use crate::target::Target;
use crate::target::{means, names, reference};
use crate::uapi::Mode;
use crate::CpuList;

/// How long a poller may take to take up a new instance.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether it did.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Said when an instance was attached by its id and nothing tells which interrupt it has.
const NO_QUEUE_KNOWN: &str =
    "its interrupt stays where it is, because the kernel does not say which queue it serves";

/// A wish to attach.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// What.
    pub target: Target,
    /// CPU of the poller.
    pub cpu: u32,
    /// How it is to be served.
    pub mode: Mode,
    /// Whether the queue's interrupt moves to that CPU too.
    pub move_irq: bool,
}

/// What happens to the interrupt of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "irq_plan", rename_all = "snake_case")]
pub enum IrqPlan {
    /// It goes to the poller's CPU.
    Move {
        /// The interrupt.
        #[serde(flatten)]
        vector: QueueVector,
        /// Where it goes now.
        from: CpuList,
    },
    /// It is looked up once the kernel has said which queue the NAPI instance serves.
    AfterAttach,
    /// It is not touched.
    Keep,
}

/// What happens to one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePlan {
    /// Its NAPI instance.
    pub napi: NapiRef,
    /// Its interrupt.
    pub irq: IrqPlan,
}

/// A plan to attach; nothing has been changed yet.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// CPU of the poller.
    pub cpu: u32,
    /// How the queues are to be served.
    pub mode: Mode,
    /// The queues.
    pub queues: Vec<QueuePlan>,
    /// What a person should know before.
    pub notes: Vec<String>,
}

/// An attached NAPI instance and its interrupt.
#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    /// The instance as the kernel describes it after everything was done.
    #[serde(flatten)]
    pub napi: Napi,
    /// Its interrupt, when it was moved.
    pub vector: Option<QueueVector>,
    /// Why its interrupt was not moved although it was asked for.
    pub note: Option<&'static str>,
}

/// What a detach did.
#[derive(Clone, Debug, Serialize)]
pub struct Detached {
    /// How a person calls the NAPI instance.
    pub napi: String,
    /// Its id.
    pub napi_id: u32,
    /// What became of its interrupts.
    pub irqs: Vec<Release>,
}

/// What the deletion of a poller did.
#[derive(Clone, Debug, Serialize)]
pub struct PollerDeleted {
    /// Its CPU.
    pub cpu: u32,
    /// What was attached to it.
    pub detached: Vec<Detached>,
    /// Interrupts of attachments that had gone away by themselves.
    pub gone: Vec<Release>,
}

impl AttachPlan {
    /// Every change in the order in which it is made, as one sentence each.
    pub fn changes(&self, host: &Host) -> Vec<String> {
        let mut changes = Vec::new();
        for queue in &self.queues {
            changes.push(format!(
                "netlink kbp napi-attach: {} to the poller of CPU {}, mode {}",
                queue.napi, self.cpu, self.mode
            ));
            match &queue.irq {
                IrqPlan::Move { vector, from } => changes.push(format!(
                    "write '{}' to {} ({}, now '{from}')",
                    self.cpu,
                    host.path(&format!("proc/irq/{}/smp_affinity_list", vector.irq))
                        .display(),
                    vector.name
                )),
                IrqPlan::AfterAttach => changes.push(format!(
                    "move the interrupt of the queue that the kernel names for {} to CPU {}",
                    queue.napi, self.cpu
                )),
                IrqPlan::Keep => {}
            }
        }
        changes
    }
}

/// The host, the family and the memory, as attaching and detaching need them together.
pub struct Session<'a> {
    host: &'a Host,
    control: &'a mut dyn Control,
    file: StateFile,
}

impl<'a> Session<'a> {
    /// Start working; other processes that want to change something wait until this is dropped.
    pub fn open(host: &'a Host, control: &'a mut dyn Control) -> Result<Self, Error> {
        let file = StateFile::open(host)?;
        Ok(Self {
            host,
            control,
            file,
        })
    }

    /// Check a wish against the host and make a plan of it. Nothing is changed.
    pub fn plan_attach(&mut self, request: &AttachRequest) -> Result<AttachPlan, Error> {
        self.host.require_online(request.cpu)?;
        self.require_poller(request.cpu)?;
        let queues = match &request.target {
            Target::NapiId(id) => {
                let irq = if request.move_irq {
                    IrqPlan::AfterAttach
                } else {
                    IrqPlan::Keep
                };
                vec![QueuePlan {
                    napi: NapiRef::Id(*id),
                    irq,
                }]
            }
            Target::Interface { name, queue } => {
                self.plan_queues(name, *queue, request.move_irq)?
            }
        };
        self.refuse_attached(&queues)?;
        Ok(AttachPlan {
            cpu: request.cpu,
            mode: request.mode,
            queues,
            notes: self.notes(request)?,
        })
    }

    fn require_poller(&mut self, cpu: u32) -> Result<(), Error> {
        match self.control.poller_get(cpu) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENOENT)) => {
                Err(Error::NoPoller { cpu })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn plan_queues(
        &self,
        name: &str,
        queue: Option<u32>,
        move_irq: bool,
    ) -> Result<Vec<QueuePlan>, Error> {
        let interface = self.host.interface(name)?;
        let queues = match queue {
            Some(queue) if queue >= interface.rx_queues => {
                return Err(Error::UnknownQueue {
                    ifname: name.into(),
                    queue,
                    queues: interface.rx_queues,
                });
            }
            Some(queue) => queue..queue + 1,
            None => 0..interface.rx_queues,
        };
        queues
            .map(|queue| self.plan_queue(&interface, queue, move_irq))
            .collect()
    }

    fn plan_queue(
        &self,
        interface: &Interface,
        queue: u32,
        move_irq: bool,
    ) -> Result<QueuePlan, Error> {
        let napi = NapiRef::Queue {
            ifname: interface.name.clone(),
            queue,
        };
        // A virtual interface has no interrupt that could be moved; that is no reason to refuse.
        if !move_irq || interface.device.is_none() {
            return Ok(QueuePlan {
                napi,
                irq: IrqPlan::Keep,
            });
        }
        let vector = self.host.queue_vector(interface, queue)?;
        let from = self.host.irq_affinity(vector.irq)?;
        Ok(QueuePlan {
            napi,
            irq: IrqPlan::Move { vector, from },
        })
    }

    /// The kernel refuses these too; this is for the sake of `--dry-run`.
    fn refuse_attached(&mut self, queues: &[QueuePlan]) -> Result<(), Error> {
        let cookie = self.control.netns_cookie()?;
        let napis = self.control.napis()?;
        for queue in queues {
            if let Some(napi) = napis.iter().find(|napi| names(&queue.napi, napi, cookie)) {
                return Err(Error::AlreadyAttached {
                    what: napi.label(),
                    cpu: napi.cpu,
                });
            }
        }
        Ok(())
    }

    fn notes(&self, request: &AttachRequest) -> Result<Vec<String>, Error> {
        let mut notes = Vec::new();
        if request.move_irq && !self.host.processes_named("irqbalance")?.is_empty() {
            notes.push(
                "irqbalance runs and will move the interrupt away; ban it there or stop it".into(),
            );
        }
        Ok(notes)
    }

    /// Carry a plan out. When a step fails, the earlier ones are undone.
    pub fn attach(&mut self, plan: &AttachPlan) -> Result<Vec<Attached>, Error> {
        // What earlier attachments left and can't be put back now is no reason to refuse this one;
        // it stays remembered.
        let _ = self.forget_gone();
        let mut done = Vec::new();
        for queue in &plan.queues {
            if let Err(cause) = self.attach_queue(plan, queue, &mut done) {
                return Err(self.roll_back(format!("attaching {}", queue.napi), cause, done));
            }
        }
        done.iter_mut().for_each(|attached| self.settle(attached));
        Ok(done)
    }

    /// The poller takes a new instance up a little after the request. Wait for that, and describe
    /// what is really so; an interface that is down stays "requested".
    fn settle(&mut self, attached: &mut Attached) {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            if let Ok(napi) = self.control.napi_get(&reference(&attached.napi)) {
                attached.napi = napi;
            }
            let settled = attached.napi.mode_active == attached.napi.mode_requested;
            if settled || Instant::now() >= deadline {
                return;
            }
            sleep(SETTLE_LOOK_EVERY);
        }
    }

    fn attach_queue(
        &mut self,
        plan: &AttachPlan,
        queue: &QueuePlan,
        done: &mut Vec<Attached>,
    ) -> Result<(), Error> {
        let napi = self.control.napi_attach(&queue.napi, plan.cpu, plan.mode)?;
        let user = User::of(&napi);
        // From here on this queue has something to undo, whatever happens to its interrupt.
        done.push(Attached {
            napi,
            vector: None,
            note: None,
        });
        let last = done.len() - 1;
        let vector = match &queue.irq {
            IrqPlan::Keep => return Ok(()),
            IrqPlan::Move { vector, .. } => vector.clone(),
            IrqPlan::AfterAttach => match self.vector_of(&done[last].napi)? {
                Some(vector) => vector,
                None => {
                    done[last].note = Some(NO_QUEUE_KNOWN);
                    return Ok(());
                }
            },
        };
        irq_pin::pin(self.host, &mut self.file, &vector, &user, plan.cpu)?;
        done[last].vector = Some(vector);
        Ok(())
    }

    /// The interrupt of an attached instance; `None` for one of a virtual interface or of another
    /// network namespace, whose /sys is not in sight.
    fn vector_of(&mut self, napi: &Napi) -> Result<Option<QueueVector>, Error> {
        let (Some(ifname), Some(queue)) = (&napi.ifname, napi.queue) else {
            return Ok(None);
        };
        if napi
            .netns_cookie
            .is_some_and(|cookie| self.control.netns_cookie().is_ok_and(|own| own != cookie))
        {
            return Ok(None);
        }
        let interface = self.host.interface(ifname)?;
        if interface.device.is_none() {
            return Ok(None);
        }
        self.host.queue_vector(&interface, queue).map(Some)
    }

    fn roll_back(&mut self, step: String, cause: Error, done: Vec<Attached>) -> Error {
        let cause = Box::new(cause);
        let changed = !done.is_empty();
        let mut left = Vec::new();
        for attached in done.iter().rev() {
            left.extend(
                self.detach_one(&attached.napi)
                    .err()
                    .map(|error| error.to_string()),
            );
        }
        match (changed, left.is_empty()) {
            (false, _) => *cause,
            (true, true) => Error::RolledBack { step, cause },
            (true, false) => Error::LeftChanged {
                step,
                cause,
                left: left.join("; "),
            },
        }
    }

    /// The attached instances that a target means; an error when there is none.
    pub fn plan_detach(&mut self, target: &Target) -> Result<Vec<Napi>, Error> {
        let cookie = self.control.netns_cookie()?;
        let mut napis = self.control.napis()?;
        napis.retain(|napi| means(target, napi, cookie));
        if !napis.is_empty() {
            return Ok(napis);
        }
        // Tell a typing error from a queue that is merely not attached.
        if let Target::Interface { name, queue } = target {
            self.plan_queues(name, *queue, false)?;
        }
        Err(Error::NotAttached {
            what: target.to_string(),
        })
    }

    /// Give instances back to softirq and put their interrupts back. All are tried; the error names
    /// those that failed.
    pub fn detach(&mut self, napis: &[Napi]) -> Result<Vec<Detached>, Error> {
        let mut done = Vec::new();
        let mut failed = Vec::new();
        for napi in napis {
            match self.detach_one(napi) {
                Ok(detached) => done.push(detached),
                Err(error) => failed.push(error),
            }
        }
        first_or_all(failed)?;
        Ok(done)
    }

    fn detach_one(&mut self, napi: &Napi) -> Result<Detached, Error> {
        match self.control.napi_detach(&reference(napi)) {
            Ok(()) => {}
            // It may have gone away by itself between the question and the order.
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV)) => {
                if self
                    .control
                    .napis()?
                    .iter()
                    .any(|other| User::of(other) == User::of(napi))
                {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        let irqs = irq_pin::release(self.host, &mut self.file, &User::of(napi))?;
        Ok(Detached {
            napi: napi.label(),
            napi_id: napi.napi_id,
            irqs,
        })
    }

    /// Stop a poller and put back the interrupts of what was attached to it.
    pub fn delete_poller(&mut self, cpu: u32) -> Result<PollerDeleted, Error> {
        self.require_poller(cpu)?;
        let mut napis = self.control.napis()?;
        napis.retain(|napi| napi.cpu == cpu);
        self.control.poller_del(cpu)?;
        let mut deleted = PollerDeleted {
            cpu,
            detached: Vec::new(),
            gone: Vec::new(),
        };
        let mut failed = Vec::new();
        for napi in napis {
            match irq_pin::release(self.host, &mut self.file, &User::of(&napi)) {
                Ok(irqs) => deleted.detached.push(Detached {
                    napi: napi.label(),
                    napi_id: napi.napi_id,
                    irqs,
                }),
                Err(error) => failed.push(error),
            }
        }
        // Without its poller no attachment needs an interrupt there, not even one that went away by
        // itself in a network namespace that does not exist any more.
        let records = self
            .file
            .state
            .irqs
            .values()
            .filter(|record| record.set == CpuList::one(cpu));
        let users = attachments(records);
        match release_users(self.host, &mut self.file, users) {
            Ok(irqs) => deleted.gone = irqs,
            Err(error) => failed.push(error),
        }
        first_or_all(failed)?;
        Ok(deleted)
    }

    /// Put back the interrupts of instances that went away by themselves (device removed).
    ///
    /// Only those of this network namespace are judged, because the list of what is attached may
    /// leave out the others.
    pub fn forget_gone(&mut self) -> Result<Vec<Release>, Error> {
        let own = self.control.netns_cookie()?;
        let known: Vec<User> = self.control.napis()?.iter().map(User::of).collect();
        let gone = |user: &User| user.is_attachment_in(own) && !known.contains(user);
        let users: Vec<User> = self
            .file
            .state
            .irqs
            .values()
            .flat_map(|record| &record.users)
            .filter(|user| gone(user))
            .cloned()
            .collect();
        release_users(self.host, &mut self.file, users)
    }

    /// Undo everything: delete every poller, put every interrupt of an attached instance back.
    pub fn undo_all(&mut self) -> Result<Vec<Release>, Error> {
        let mut failed = Vec::new();
        for poller in self.control.pollers()? {
            failed.extend(self.control.poller_del(poller.cpu).err().map(Error::from));
        }
        let released = release_all(self.host, &mut self.file);
        failed.extend(
            released
                .as_ref()
                .err()
                .map(|error| Error::UndoIncomplete(error.to_string())),
        );
        first_or_all(failed)?;
        released
    }
}

/// Undo everything that pollers and attachments changed, whether the module is still there or not.
pub fn undo_everything(host: &Host) -> Result<Vec<Release>, Error> {
    match Client::connect() {
        Ok(mut client) => Session::open(host, &mut client)?.undo_all(),
        Err(ClientError::NotLoaded) => release_all(host, &mut StateFile::open(host)?),
        Err(error) => Err(error.into()),
    }
}

/// Put back every interrupt that was moved for an attached instance, whoever attached it; for when
/// the module is gone already.
pub fn release_all(host: &Host, file: &mut StateFile) -> Result<Vec<Release>, Error> {
    let users = attachments(file.state.irqs.values());
    release_users(host, file, users)
}

/// The attachments, of any network namespace, that want these interrupts where they are.
fn attachments<'r>(records: impl Iterator<Item = &'r IrqRecord>) -> Vec<User> {
    let users = records.flat_map(|record| record.users.clone());
    users
        .filter(|user| !matches!(user, User::Other(_)))
        .collect()
}

fn release_users(
    host: &Host,
    file: &mut StateFile,
    users: Vec<User>,
) -> Result<Vec<Release>, Error> {
    let mut released = Vec::new();
    let mut failed = Vec::new();
    for user in users {
        match irq_pin::release(host, file, &user) {
            Ok(irqs) => released.extend(irqs),
            Err(error) => failed.push(error),
        }
    }
    first_or_all(failed)?;
    Ok(released)
}

/// One failure keeps its own words and class; several become one sentence.
fn first_or_all(mut failed: Vec<Error>) -> Result<(), Error> {
    match failed.len() {
        0 => Ok(()),
        1 => Err(failed.remove(0)),
        _ => {
            let words: Vec<String> = failed.iter().map(ToString::to_string).collect();
            Err(Error::UndoIncomplete(words.join("; ")))
        }
    }
}
