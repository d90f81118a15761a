// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carrying plans out: attach what [`crate::plan`] has planned, as a whole or not at all, and detach.
//!
//! What is changed is remembered before, each by the module that changes it.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{first_or_all, Error};
use crate::irq::QueueVector;
use crate::irq_pin;
use crate::irqbalance::{self, Told};
use crate::model::Napi;
use crate::overview;
use crate::plan::{chosen_queues, deaf_note, AttachPlan, IrqPlan, QueuePlan, Session};
use crate::queue_cpus::{self, Direction, Written};
use crate::state::User;
use crate::steer::{self, Steered};
use crate::target::{means, reference, Target};
use crate::undo::Freed;

/// How long a poller may take to take up a new instance.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether it did.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// Said when an instance was attached by its id and nothing tells which interrupt it has.
const NO_QUEUE_KNOWN: &str =
    "its interrupt stays where it is, because the kernel does not say which queue it serves";

/// An attached NAPI instance and its interrupt.
#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    /// The instance as the kernel describes it after everything was done.
    #[serde(flatten)]
    pub napi: Napi,
    /// Its interrupt, when it was moved.
    pub vector: Option<QueueVector>,
    /// The CPU that its interrupt was moved to.
    pub irq_cpu: Option<u32>,
    /// Why its interrupt was not moved although it was asked for.
    pub note: Option<&'static str>,
}

/// What an attach did.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// The NAPI instances.
    pub attached: Vec<Attached>,
    /// The queues that are steered to a backlog.
    pub steered: Vec<Steered>,
    /// The files of queues.
    pub written: Vec<Written>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// Whether anything was changed that has to be put back when a later step fails.
    changed: bool,
    /// Interrupts of which irqbalance could not be told, with the reason.
    deaf: BTreeMap<u32, String>,
}

/// What is to be detached.
#[derive(Clone, Debug, Default)]
pub struct DetachPlan {
    /// NAPI instances.
    pub napis: Vec<Napi>,
    /// Queues that are steered to a backlog.
    pub steered: Vec<Steered>,
}

/// What a detach did.
#[derive(Clone, Debug, Serialize)]
pub struct Detached {
    /// How a person calls the NAPI instance, or the queue.
    pub napi: String,
    /// Its id; `None` for a queue without a NAPI instance.
    pub napi_id: Option<u32>,
    /// What became of its interrupts, of its interface's queues, and of what irqbalance was told.
    #[serde(flatten)]
    pub freed: Freed,
    /// CPUs whose backlogs are not attached any more, because this was the last queue that was steered there.
    pub backlogs: Vec<u32>,
}

impl Session<'_> {
    /// Carry a plan out. When a step fails, the earlier ones are undone.
    pub fn attach(&mut self, plan: &AttachPlan) -> Result<AttachReport, Error> {
        // What earlier attachments left and can't be put back now is no reason to refuse this one;
        // it stays remembered.
        let _ = self.forget_gone();
        let mut report = AttachReport::default();
        if let Err((step, cause)) = self.carry_out(plan, &mut report) {
            return Err(self.roll_back(step, cause, plan, &report));
        }
        let _ = self.return_backlogs();
        for attached in &mut report.attached {
            self.settle(attached);
        }
        self.describe(plan, &mut report);
        Ok(report)
    }

    fn carry_out(
        &mut self,
        plan: &AttachPlan,
        report: &mut AttachReport,
    ) -> Result<(), (String, Error)> {
        for queue in &plan.queues {
            self.attach_queue(plan, queue, report)
                .map_err(|cause| (format!("attaching {}", queue.napi), cause))?;
        }
        for backlog in &plan.backlogs {
            let step = || format!("attaching the backlog of CPU {}", backlog.cpu);
            self.lend_backlog(backlog)
                .map_err(|cause| (step(), cause))?;
            report.changed = true;
        }
        for interface in &plan.interfaces {
            let step = || format!("giving queues of {} to CPUs", interface.whose.ifname);
            report.changed = true;
            let (whose, wishes) = (&interface.whose, &interface.wishes);
            let written = queue_cpus::give(self.host, &mut self.file, whose, wishes)
                .map_err(|cause| (step(), cause))?;
            report.written.extend(written);
        }
        Ok(())
    }

    /// What is so now: the queues that are steered, and interrupts that are not where they were put. Everything is
    /// done by now, so what can't be found out is no failure.
    fn describe(&mut self, plan: &AttachPlan, report: &mut AttachReport) {
        let planned = |one: &Steered| {
            plan.interfaces.iter().any(|interface| {
                let whose = &interface.whose;
                let mut wishes = interface.wishes.iter();
                (one.netns_cookie, one.ifindex) == (whose.netns_cookie, whose.ifindex)
                    && wishes
                        .any(|wish| wish.direction == Direction::Receive && wish.queue == one.queue)
            })
        };
        let mut steered = steer::remembered(&self.file.state);
        steered.retain(planned);
        let pollers = self.control.pollers().unwrap_or_default();
        report.steered = steer::with_active(self.host, steered, &pollers, self.own);
        let napis = self.control.napis().unwrap_or_default();
        if let Some(reason) = report.deaf.values().next() {
            let irqs: Vec<u32> = report.deaf.keys().copied().collect();
            report.notes.push(deaf_note(&irqs, reason));
        }
        let moved = overview::moved(self.host, &self.file.state, &napis);
        report.notes.extend(moved);
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
        report: &mut AttachReport,
    ) -> Result<(), Error> {
        let napi = self
            .control
            .napi_attach(&queue.napi, queue.cpu, &plan.service)?;
        let user = User::of(&napi);
        // From here on this queue has something to undo, whatever happens to its interrupt.
        report.changed = true;
        report.attached.push(Attached {
            napi,
            vector: None,
            irq_cpu: None,
            note: None,
        });
        let last = report.attached.len() - 1;
        let (vector, cpu) = match &queue.irq {
            IrqPlan::Keep => return Ok(()),
            IrqPlan::Move { vector, to, .. } => (vector.clone(), *to),
            IrqPlan::AfterAttach => match self.vector_of(&report.attached[last].napi)? {
                Some(vector) => (vector, queue.cpu),
                None => {
                    report.attached[last].note = Some(NO_QUEUE_KNOWN);
                    return Ok(());
                }
            },
        };
        let told = irqbalance::ban(self.host, &mut self.file, vector.irq, &user)?;
        // Of an irqbalance that could not be told when the plan was made the plan has said it.
        let unsaid = queue.irq == IrqPlan::AfterAttach || plan.tells_of(vector.irq);
        if let (Told::Deaf { reason }, true) = (told, unsaid) {
            report.deaf.insert(vector.irq, reason);
        }
        irq_pin::pin(self.host, &mut self.file, &vector, &user, cpu)?;
        report.attached[last].vector = Some(vector);
        report.attached[last].irq_cpu = Some(cpu);
        Ok(())
    }

    /// The interrupt of an attached instance; `None` for one of a virtual interface or of another
    /// network namespace, whose /sys is not in sight.
    fn vector_of(&mut self, napi: &Napi) -> Result<Option<QueueVector>, Error> {
        let (Some(ifname), Some(queue)) = (&napi.ifname, napi.queue) else {
            return Ok(None);
        };
        if napi.netns_cookie.is_some_and(|cookie| cookie != self.own) {
            return Ok(None);
        }
        let interface = self.host.interface(ifname)?;
        if interface.device.is_none() {
            return Ok(None);
        }
        self.host.queue_vector(&interface, queue).map(Some)
    }

    fn roll_back(
        &mut self,
        step: String,
        cause: Error,
        plan: &AttachPlan,
        report: &AttachReport,
    ) -> Error {
        let cause = Box::new(cause);
        let mut left = Vec::new();
        let planned = plan.interfaces.iter().map(|interface| &interface.whose);
        let planned: Vec<(u64, u32)> = planned
            .map(|whose| (whose.netns_cookie, whose.ifindex))
            .collect();
        let wishes: Vec<_> = plan
            .interfaces
            .iter()
            .flat_map(|interface| interface.wishes.clone())
            .collect();
        let masks = queue_cpus::take_back(self.host, &mut self.file, self.own, |record, wish| {
            planned.contains(&(record.netns_cookie, record.ifindex)) && wishes.contains(wish)
        });
        left.extend(masks.err());
        left.extend(self.return_backlogs().err());
        for attached in report.attached.iter().rev() {
            left.extend(self.detach_one(&attached.napi).err());
        }
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        match (report.changed, left.is_empty()) {
            (false, _) => *cause,
            (true, true) => Error::RolledBack { step, cause },
            (true, false) => Error::LeftChanged {
                step,
                cause,
                left: left.join("; "),
            },
        }
    }

    /// What a target means of what is attached; an error when there is nothing. A bridge means its ports.
    pub fn plan_detach(&mut self, target: &Target) -> Result<DetachPlan, Error> {
        let napis = self.control.napis()?;
        let steered = steer::remembered(&self.file.state);
        let mut plan = DetachPlan::default();
        for target in self.parts(target)? {
            let named = napis.iter().filter(|napi| means(&target, napi, self.own));
            plan.napis.extend(named.cloned());
            let named = steered.iter().filter(|one| self.is_steered(&target, one));
            plan.steered.extend(named.cloned());
        }
        if !plan.napis.is_empty() || !plan.steered.is_empty() {
            return Ok(plan);
        }
        // Tell a typing error from a queue that is merely not attached.
        if let Target::Interface { name, queue } = target {
            let chosen: Vec<u32> = queue.iter().copied().collect();
            chosen_queues(&self.host.interface(name)?, &chosen)?;
        }
        Err(Error::NotAttached {
            what: target.to_string(),
        })
    }

    fn parts(&self, target: &Target) -> Result<Vec<Target>, Error> {
        let ports = match target {
            Target::Interface { name, queue: None } => self.host.bridge_ports(name)?,
            _ => None,
        };
        let Some(ports) = ports else {
            return Ok(vec![target.clone()]);
        };
        let port = |name| Target::Interface { name, queue: None };
        Ok(ports.into_iter().map(port).collect())
    }

    /// An interface may have been renamed since it was steered, so it is found by its number.
    fn is_steered(&self, target: &Target, one: &Steered) -> bool {
        let Target::Interface { name, queue } = target else {
            return false;
        };
        let is_it = match self.host.interface(name) {
            Ok(interface) => interface.ifindex == one.ifindex,
            Err(_) => one.ifname == *name,
        };
        one.netns_cookie == self.own && is_it && queue.is_none_or(|queue| queue == one.queue)
    }

    /// Give NAPI instances and backlogs back to softirq and put everything back that was changed for them. All are
    /// tried; the error names those that failed.
    pub fn detach(&mut self, plan: &DetachPlan) -> Result<Vec<Detached>, Error> {
        // As in an attach; what is left of others' is no reason to refuse.
        let _ = self.forget_gone();
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for napi in &plan.napis {
            match self.detach_one(napi) {
                Ok(detached) => done.push(detached),
                Err(error) => failed.push(error),
            }
        }
        for one in &plan.steered {
            match self.detach_steered(one) {
                Ok(detached) => done.push(detached),
                Err(error) => failed.push(error),
            }
        }
        // Those that were attached for interfaces that have gone; with a queue that is steered they went above.
        let _ = self.return_backlogs();
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
        let freed = self.free(&[User::of(napi)])?;
        Ok(Detached::of(napi, freed))
    }

    fn detach_steered(&mut self, one: &Steered) -> Result<Detached, Error> {
        let queues = queue_cpus::take_back(self.host, &mut self.file, self.own, |record, wish| {
            one.is(record, wish)
        })?;
        Ok(Detached {
            napi: one.label(),
            napi_id: None,
            freed: Freed {
                queues,
                ..Freed::default()
            },
            backlogs: self.return_backlogs()?,
        })
    }
}

impl Detached {
    pub(crate) fn of(napi: &Napi, freed: Freed) -> Self {
        Self {
            napi: napi.label(),
            napi_id: Some(napi.napi_id),
            freed,
            backlogs: Vec::new(),
        }
    }
}
