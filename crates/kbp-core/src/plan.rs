// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaching and detaching as plans: made and checked first, shown, then applied as a whole.
//!
//! A plan to attach is, for each queue, the netlink request and the move of its interrupt, which irqbalance is told
//! of; and for each interface the CPUs of its queues. What has no NAPI instance is steered to a backlog
//! ([`crate::steer`]). Carrying plans out is in [`crate::apply`], undoing what others left in [`crate::undo`].
//! Plans for pollers are in [`crate::pollers`].

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::backlog::{self, BacklogPlan};
use crate::client::Control;
use crate::companions;
use crate::error::Error;
use crate::host::Host;
use crate::irq::QueueVector;
use crate::irqbalance::{self, Listener, Reach};
use crate::model::{Napi, NapiRef};
use crate::netdev::Interface;
use crate::netns;
use crate::queue_cpus::{self, has_file, Change, Direction, Whose, Wish};
use crate::service::Service;
use crate::state::{StateFile, User};
use crate::steer::{self, Steered};
use crate::target::names;
use crate::CpuList;

pub use crate::apply::{AttachReport, Attached, DetachPlan, Detached};
pub use crate::target::Target;
pub use crate::undo::{release_all, undo_everything, PollerDeleted, Undone};

/// A wish to attach.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// What.
    pub target: Target,
    /// Which receive queues, where the target is an interface without a queue; empty for all of them.
    pub queues: Vec<u32>,
    /// CPUs of the pollers; the queues are dealt out to them in turn. Where each queue has its own, one may stand there
    /// several times.
    pub cpus: Vec<u32>,
    /// How it is to be served.
    pub service: Service,
    /// Whether the queue's interrupt moves to that CPU too.
    pub move_irq: bool,
    /// Whether that CPU sends through the transmit queue of the same number.
    pub set_xps: bool,
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
        /// Where it is to go: to the poller of the first queue that it serves.
        to: u32,
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
    /// CPU of its poller.
    pub cpu: u32,
    /// Its interrupt.
    pub irq: IrqPlan,
}

/// What happens to the files of an interface's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfacePlan {
    /// The interface.
    pub whose: Whose,
    /// The CPUs that its queues get.
    pub wishes: Vec<Wish>,
    /// What is written for that.
    pub changes: Vec<Change>,
}

/// What irqbalance is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanPlan {
    /// Whom.
    pub listener: Listener,
    /// The interrupts that it is to leave alone, and would move now.
    pub irqs: Vec<u32>,
}

/// A plan to attach; nothing has been changed yet.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// How the queues are to be served.
    pub service: Service,
    /// The queues that have NAPI instances.
    pub queues: Vec<QueuePlan>,
    /// Backlogs that are attached for the sake of what is steered to them.
    pub backlogs: Vec<BacklogPlan>,
    /// The interfaces whose queues get CPUs.
    pub interfaces: Vec<InterfacePlan>,
    /// What irqbalance is told; `None` when it does not run or can't be told.
    pub irqbalance: Option<BanPlan>,
    /// What a person should know before.
    pub notes: Vec<String>,
    /// Where interrupts were moved for what is attached already, with the names of their handlers.
    placed: BTreeMap<u32, (String, CpuList)>,
}

impl AttachPlan {
    /// Every change in the order in which it is made, as one sentence each.
    pub fn changes(&self, host: &Host) -> Vec<String> {
        self.changes_after(host, &mut Vec::new())
    }

    /// The same after other plans, for which irqbalance was `told` of these interrupts.
    pub(crate) fn changes_after(&self, host: &Host, told: &mut Vec<u32>) -> Vec<String> {
        let mut changes = Vec::new();
        for queue in &self.queues {
            changes.push(format!(
                "netlink kbp napi-attach: {} to the poller of CPU {}, mode {}",
                queue.napi, queue.cpu, self.service
            ));
            match &queue.irq {
                IrqPlan::Move { vector, from, to } => {
                    changes.extend(self.ban_change(host, vector.irq, told));
                    changes.push(format!(
                        "write '{to}' to {} ({}, now '{from}')",
                        host.path(&format!("proc/irq/{}/smp_affinity_list", vector.irq))
                            .display(),
                        vector.name
                    ));
                }
                IrqPlan::AfterAttach => changes.push(format!(
                    "move the interrupt of the queue that the kernel names for {} to CPU {}, and have irqbalance \
                     leave it alone if that runs",
                    queue.napi, queue.cpu
                )),
                IrqPlan::Keep => {}
            }
        }
        changes.extend(self.backlogs.iter().map(BacklogPlan::change));
        for change in self.interfaces.iter().flat_map(|plan| &plan.changes) {
            let path = host.path(&change.file);
            let (from, to) = (&change.from, &change.to);
            changes.push(format!("write '{to}' to {} (now '{from}')", path.display()));
        }
        changes
    }

    fn ban_change(&self, host: &Host, irq: u32, told: &mut Vec<u32>) -> Option<String> {
        let ban = self.irqbalance.as_ref()?;
        if !ban.irqs.contains(&irq) || told.contains(&irq) {
            return None;
        }
        told.push(irq);
        let list = ban.listener.with(told.iter().copied());
        Some(format!(
            "tell irqbalance (process {}) to leave interrupt {irq} alone: '{}' to {}",
            ban.listener.process.pid,
            Listener::command(&list),
            host.path(&ban.listener.socket).display()
        ))
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.interfaces.is_empty()
    }
}

/// The host, the family and the memory, as attaching and detaching need them together.
pub struct Session<'a> {
    pub(crate) host: &'a Host,
    pub(crate) control: &'a mut dyn Control,
    pub(crate) file: StateFile,
    /// Cookie of the network namespace that it works in.
    pub(crate) own: u64,
}

/// What is attached at the time of planning.
struct Now {
    own: u64,
    napis: Vec<Napi>,
    steered: Vec<Steered>,
}

impl Now {
    /// What has this receive queue already: how a person calls it, and the CPU of its poller.
    fn owner(&self, interface: &Interface, queue: u32) -> Option<(String, u32)> {
        let reference = NapiRef::Queue {
            ifname: interface.name.clone(),
            queue,
        };
        let mut steered = self.steered.iter();
        let steered = steered.find(|one| {
            (one.netns_cookie, one.ifindex, one.queue) == (self.own, interface.ifindex, queue)
        });
        match (self.napi(&reference), steered) {
            (Some(napi), _) => Some((napi.label_with_class(), napi.cpu)),
            (None, Some(one)) => Some((one.label(), one.cpu_requested)),
            (None, None) => None,
        }
    }

    fn napi(&self, reference: &NapiRef) -> Option<&Napi> {
        let mut napis = self.napis.iter();
        napis.find(|napi| names(reference, napi, self.own))
    }
}

/// The CPUs of a request, one queue after the other.
type Turns<'t> = dyn Iterator<Item = u32> + 't;

impl<'a> Session<'a> {
    /// Start working; other processes that want to change something wait until this is dropped.
    pub fn open(host: &'a Host, control: &'a mut dyn Control) -> Result<Self, Error> {
        let file = StateFile::open(host)?;
        let own = control.netns_cookie()?;
        Ok(Self {
            host,
            control,
            file,
            own,
        })
    }

    /// Check a wish against the host and make a plan of it. Nothing is changed.
    pub fn plan_attach(&mut self, request: &AttachRequest) -> Result<AttachPlan, Error> {
        self.check_cpus(request)?;
        let mut plan = AttachPlan {
            service: request.service,
            queues: Vec::new(),
            backlogs: Vec::new(),
            interfaces: Vec::new(),
            irqbalance: None,
            notes: Vec::new(),
            placed: BTreeMap::new(),
        };
        let now = Now {
            own: self.own,
            napis: self.control.napis()?,
            steered: steer::remembered(&self.file.state),
        };
        plan.placed = self.placed(&now.napis);
        match &request.target {
            Target::NapiId(id) => plan.queues.push(plan_napi_id(request, *id, &now)?),
            Target::Interface { name, queue } => {
                self.plan_named(request, name, *queue, &now, &mut plan)?;
            }
        }
        plan.backlogs = self.plan_backlogs(&plan.interfaces)?;
        self.plan_irqbalance(&mut plan)?;
        let late = self.late_exits(request)?;
        plan.notes.extend(late);
        Ok(plan)
    }

    /// The idle states whose exits `--max-wake-latency` does not see where interrupts wake the poller.
    fn late_exits(&mut self, request: &AttachRequest) -> Result<Vec<String>, Error> {
        let Some(limit_us) = request.service.max_wake_latency_us else {
            return Ok(Vec::new());
        };
        let cpus: BTreeSet<u32> = request.cpus.iter().copied().collect();
        let mut notes = Vec::new();
        for poller in self.control.pollers()? {
            let limited = poller.max_cstate_latency_us;
            if !cpus.contains(&poller.cpu) || limited.is_some_and(|us| us <= limit_us) {
                continue;
            }
            // Without an answer there is nothing to say.
            let deepest = self.host.deepest_idle_exit_us(poller.cpu).ok().flatten();
            if let Some(us) = deepest.filter(|us| *us > limit_us.into()) {
                notes.push(format!(
                    "the deepest idle state of CPU {0} takes {us} us to leave, which is not seen where an interrupt wakes the \
                     poller: a limit of {limit_us} us needs a poller with --max-cstate-latency {limit_us}, too",
                    poller.cpu
                ));
            }
        }
        Ok(notes)
    }

    /// Where the interrupts of what is attached are to be.
    fn placed(&self, napis: &[Napi]) -> BTreeMap<u32, (String, CpuList)> {
        let users: Vec<User> = napis.iter().map(User::of).collect();
        let records = self.file.state.irqs.iter();
        let used =
            records.filter(|(_, record)| users.iter().any(|user| record.users.contains(user)));
        used.map(|(irq, record)| (*irq, (record.name.clone(), record.set.clone())))
            .collect()
    }

    fn check_cpus(&mut self, request: &AttachRequest) -> Result<(), Error> {
        let cpus = &request.cpus;
        if cpus.is_empty() {
            return Err(Error::Usage("no CPU of a poller is named".into()));
        }
        let mut seen = BTreeSet::new();
        for &cpu in cpus {
            if !seen.insert(cpu) {
                if cpus.len() == request.queues.len() {
                    continue;
                }
                return Err(Error::Usage(format!("CPU {cpu} is named twice")));
            }
            self.host.require_online(cpu)?;
            self.require_poller(cpu)?;
        }
        Ok(())
    }

    pub(crate) fn require_poller(&mut self, cpu: u32) -> Result<(), Error> {
        backlog::poller_of(self.control, cpu).map(drop)
    }

    fn plan_named(
        &mut self,
        request: &AttachRequest,
        name: &str,
        queue: Option<u32>,
        now: &Now,
        plan: &mut AttachPlan,
    ) -> Result<(), Error> {
        let chosen = match (queue, request.queues.as_slice()) {
            (Some(queue), []) => vec![queue],
            (None, queues) => queues.to_vec(),
            (Some(_), _) => {
                return Err(Error::Usage(
                    "the queue is named twice: in DEV:QUEUE and in a list".into(),
                ))
            }
        };
        let mut turns = request.cpus.iter().copied().cycle();
        if let Some(ports) = self.host.bridge_ports(name)? {
            if !chosen.is_empty() {
                return Err(Error::Usage(format!(
                    "{name} is a bridge and has no receive queues; its ports have: {}",
                    ports.join(", ")
                )));
            }
            return self.plan_bridge(request, name, &ports, now, &mut turns, plan);
        }
        let interface = self.host.interface(name)?;
        let queues = chosen_queues(&interface, &chosen)?;
        for &queue in &queues {
            if let Some((what, cpu)) = now.owner(&interface, queue) {
                return Err(Error::AlreadyAttached { what, cpu });
            }
        }
        self.plan_interface(request, &interface, &queues, &mut turns, plan)
    }

    /// A bridge receives nothing itself; its ports do. Those that are attached already stay as they are.
    fn plan_bridge(
        &mut self,
        request: &AttachRequest,
        name: &str,
        ports: &[String],
        now: &Now,
        turns: &mut Turns<'_>,
        plan: &mut AttachPlan,
    ) -> Result<(), Error> {
        if ports.is_empty() {
            return Err(no_ports(name));
        }
        plan.notes.push(format!(
            "{name} is a bridge: its packets arrive by its ports ({}), which are attached; ports that join later are \
             not",
            ports.join(", ")
        ));
        let mut attached = None;
        for port in ports {
            let interface = self.host.interface(port)?;
            let mut queues = chosen_queues(&interface, &[])?;
            queues.retain(|&queue| match now.owner(&interface, queue) {
                Some((what, cpu)) => {
                    plan.notes.push(format!(
                        "{what} is attached to the poller of CPU {cpu} already and stays so"
                    ));
                    attached = Some(cpu);
                    false
                }
                None => true,
            });
            self.plan_interface(request, &interface, &queues, turns, plan)?;
        }
        match attached {
            Some(cpu) if plan.is_empty() => Err(Error::AlreadyAttached {
                what: format!("every port of {name}"),
                cpu,
            }),
            _ => Ok(()),
        }
    }

    fn plan_interface(
        &mut self,
        request: &AttachRequest,
        interface: &Interface,
        queues: &[u32],
        turns: &mut Turns<'_>,
        plan: &mut AttachPlan,
    ) -> Result<(), Error> {
        let dealt: Vec<(u32, u32)> = queues.iter().copied().zip(turns).collect();
        if dealt.is_empty() {
            return Ok(());
        }
        let is_virtual = interface.device.is_none();
        if is_virtual && !self.control.has_queue_napis(&interface.name)? {
            request.service.check_backlog(&interface.name)?;
            plan.notes.extend(steer::notes(self.host, interface));
            let steered = self.plan_steering(interface, &dealt)?;
            plan.interfaces.push(steered);
            return Ok(());
        }
        companions::check(interface)?;
        plan.notes.extend(companions::notes(
            self.host,
            interface,
            request.service.mode,
        ));
        if is_virtual {
            plan.notes.push(format!(
                "{0} receives through its NAPI instances what an XDP program looks at, or what its peer sends without \
                 segmentation offload (ethtool -K PEER tso off); the rest goes through a backlog",
                interface.name
            ));
        }
        for &(queue, cpu) in &dealt {
            let queue = self.plan_queue(request, interface, queue, cpu, plan)?;
            plan.queues.push(queue);
        }
        if request.set_xps && !is_virtual {
            let sending = self.plan_sending(interface, &dealt)?;
            plan.interfaces.extend(sending);
        }
        Ok(())
    }

    fn plan_queue(
        &self,
        request: &AttachRequest,
        interface: &Interface,
        queue: u32,
        cpu: u32,
        plan: &mut AttachPlan,
    ) -> Result<QueuePlan, Error> {
        let napi = NapiRef::Queue {
            ifname: interface.name.clone(),
            queue,
        };
        // A virtual interface has no interrupt that could be moved; that is no reason to refuse.
        if !request.move_irq || interface.device.is_none() {
            let irq = IrqPlan::Keep;
            return Ok(QueuePlan { napi, cpu, irq });
        }
        let vector = self.host.queue_vector(interface, queue)?;
        let from = self.host.irq_affinity(vector.irq)?;
        let to = plan.target_of(&vector).unwrap_or(cpu);
        if to != cpu {
            plan.notes.push(format!(
                "interrupt {} ({}) serves several queues; it goes to CPU {to}, {napi} is served on CPU {cpu}",
                vector.irq, vector.name
            ));
        }
        let irq = IrqPlan::Move { vector, from, to };
        Ok(QueuePlan { napi, cpu, irq })
    }

    /// The transmit queues that go with receive queues; `None` for an interface without a choice of them.
    fn plan_sending(
        &self,
        interface: &Interface,
        dealt: &[(u32, u32)],
    ) -> Result<Option<InterfacePlan>, Error> {
        let mut wishes = Vec::new();
        for &(queue, cpu) in dealt {
            let direction = Direction::Transmit;
            if has_file(self.host, &interface.name, direction, queue)? {
                wishes.push(Wish {
                    direction,
                    queue,
                    cpu,
                });
            }
        }
        match wishes.is_empty() {
            true => Ok(None),
            false => self.plan_masks(interface, wishes).map(Some),
        }
    }

    pub(crate) fn plan_masks(
        &self,
        interface: &Interface,
        wishes: Vec<Wish>,
    ) -> Result<InterfacePlan, Error> {
        let whose = Whose {
            netns: netns::own_name(),
            netns_cookie: self.own,
            ifindex: interface.ifindex,
            ifname: interface.name.clone(),
        };
        let changes = queue_cpus::preview(self.host, &self.file.state, &whose, &wishes)?;
        Ok(InterfacePlan {
            whose,
            wishes,
            changes,
        })
    }

    fn plan_irqbalance(&self, plan: &mut AttachPlan) -> Result<(), Error> {
        let mut irqs: Vec<u32> = plan.moves().map(|(irq, _)| irq).collect();
        irqs.sort_unstable();
        irqs.dedup();
        if irqs.is_empty() {
            return Ok(());
        }
        match irqbalance::reach(self.host)? {
            Reach::Absent => {}
            Reach::Deaf { reason } => plan.notes.push(deaf_note(&irqs, &reason)),
            Reach::Listens(listener) => {
                irqs.retain(|irq| !listener.banned.contains(irq));
                if !irqs.is_empty() {
                    plan.notes.push(format!(
                        "irqbalance runs and is told to leave the interrupts alone, which it does until it is \
                         restarted; for good: {} in /etc/default/irqbalance",
                        irqbalance::configuration(&irqs)
                    ));
                    plan.irqbalance = Some(BanPlan { listener, irqs });
                }
            }
        }
        Ok(())
    }
}

impl AttachPlan {
    /// The interrupts that move, each with its new CPU.
    fn moves(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.queues.iter().filter_map(|queue| match &queue.irq {
            IrqPlan::Move { vector, to, .. } => Some((vector.irq, *to)),
            IrqPlan::AfterAttach | IrqPlan::Keep => None,
        })
    }

    /// Where an interrupt goes or went for another queue that it serves too.
    fn target_of(&self, vector: &QueueVector) -> Option<u32> {
        let mut moves = self.moves();
        let planned = moves.find(|(irq, _)| *irq == vector.irq);
        let placed = self.placed.get(&vector.irq);
        let placed = placed.filter(|(name, _)| *name == vector.name);
        planned
            .map(|(_, to)| to)
            .or_else(|| placed.and_then(|(_, cpus)| cpus.iter().next()))
    }

    /// Whether irqbalance is to be told of this interrupt.
    pub(crate) fn tells_of(&self, irq: u32) -> bool {
        let ban = self.irqbalance.as_ref();
        ban.is_some_and(|ban| ban.irqs.contains(&irq))
    }
}

/// What to say when irqbalance runs and can't be told.
pub(crate) fn deaf_note(irqs: &[u32], reason: &str) -> String {
    format!(
        "irqbalance runs, will move the interrupts away and can't be told ({reason}); put {} into \
         /etc/default/irqbalance and restart it",
        irqbalance::configuration(irqs)
    )
}

fn plan_napi_id(request: &AttachRequest, id: u32, now: &Now) -> Result<QueuePlan, Error> {
    let (&[cpu], []) = (request.cpus.as_slice(), request.queues.as_slice()) else {
        return Err(Error::Usage(
            "a NAPI instance is one queue and goes to one CPU: name it with --cpu".into(),
        ));
    };
    let napi = NapiRef::Id(id);
    if let Some(attached) = now.napi(&napi) {
        return Err(Error::AlreadyAttached {
            what: attached.label_with_class(),
            cpu: attached.cpu,
        });
    }
    let irq = match request.move_irq {
        true => IrqPlan::AfterAttach,
        false => IrqPlan::Keep,
    };
    Ok(QueuePlan { napi, cpu, irq })
}

/// A bridge receives nothing itself.
pub(crate) fn no_ports(name: &str) -> Error {
    Error::NotFound(format!(
        "{name} is a bridge without ports; its packets arrive by ports, so there is nothing to attach yet"
    ))
}

/// The receive queues that were chosen, or all of them.
pub(crate) fn chosen_queues(interface: &Interface, chosen: &[u32]) -> Result<Vec<u32>, Error> {
    let unknown = chosen.iter().find(|queue| **queue >= interface.rx_queues);
    if let Some(&queue) = unknown {
        return Err(Error::UnknownQueue {
            ifname: interface.name.clone(),
            queue,
            queues: interface.rx_queues,
        });
    }
    let distinct: BTreeSet<u32> = chosen.iter().copied().collect();
    if distinct.len() < chosen.len() {
        return Err(Error::Usage("a queue is named twice".into()));
    }
    match chosen.is_empty() {
        true => Ok((0..interface.rx_queues).collect()),
        false => Ok(chosen.to_vec()),
    }
}
