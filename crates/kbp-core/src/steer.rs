// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interfaces without NAPI instances of their own (lo, veth, ports of bridges, tunnels): attached to a poller by
//! steering their packets to the backlog of its CPU (RPS), and by having the poller serve that backlog.
//!
//! A backlog that is attached for such an interface goes back to whom it had when the last of them leaves, unless the
//! user has attached it himself. The files are written in [`crate::queue_cpus`].

use std::collections::BTreeSet;

use serde::Serialize;

use crate::backlog::{self, BacklogPlan};
use crate::client::ClientError;
use crate::error::{first_or_all, Error};
use crate::host::Host;
use crate::model::Poller;
use crate::netdev::Interface;
use crate::netns;
use crate::plan::{InterfacePlan, Session};
use crate::queue_cpus::{has_file, Direction, Wish};
use crate::state::{QueueCpusRecord, State};
use crate::uapi::Backlog;
use crate::CpuList;

/// A receive queue whose packets are steered to a poller's backlog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Steered {
    /// Name of the network namespace of its interface, where that has one.
    pub netns: Option<String>,
    /// Cookie of that namespace.
    pub netns_cookie: u64,
    /// Number of its interface there.
    pub ifindex: u32,
    /// Name of its interface.
    pub ifname: String,
    /// The receive queue.
    pub queue: u32,
    /// CPU to whose backlog its packets were asked to go.
    pub cpu_requested: u32,
    /// CPUs to which they go; `None` where that could not be read, because the interface is gone for instance.
    pub cpus_active: Option<CpuList>,
    /// Who serves the backlog of the CPU that was asked for; `None` without a poller there.
    pub backlog_active: Option<Backlog>,
}

/// A wish of the user to attach the backlog of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BacklogWish {
    /// It is attached for interfaces, and is to stay so without them.
    Keep {
        /// The CPU.
        cpu: u32,
    },
    /// It is to be attached.
    Attach(BacklogPlan),
}

impl BacklogWish {
    /// The change, as one sentence.
    pub fn change(&self) -> String {
        match self {
            Self::Keep { cpu } => format!(
                "remember that the backlog of CPU {cpu}, which is attached for interfaces, stays attached when they leave"
            ),
            Self::Attach(plan) => plan.change(),
        }
    }
}

impl Steered {
    /// How a person calls it.
    pub fn label(&self) -> String {
        format!("{} queue {}", self.ifname, self.queue)
    }

    /// Whether the poller gets its packets.
    pub fn is_active(&self) -> bool {
        let there = self.cpus_active.as_ref() == Some(&CpuList::one(self.cpu_requested));
        there && self.backlog_active == Some(Backlog::Attached)
    }

    fn of(record: &QueueCpusRecord, queue: u32, cpu: u32) -> Self {
        Self {
            netns: record.netns.clone(),
            netns_cookie: record.netns_cookie,
            ifindex: record.ifindex,
            ifname: record.ifname.clone(),
            queue,
            cpu_requested: cpu,
            cpus_active: None,
            backlog_active: None,
        }
    }

    /// Whether this wish of this interface is it.
    pub(crate) fn is(&self, record: &QueueCpusRecord, wish: &Wish) -> bool {
        wish.direction == Direction::Receive
            && self.queue == wish.queue
            && self.ifindex == record.ifindex
            && self.netns_cookie == record.netns_cookie
    }
}

/// Every queue that is remembered as steered; what is active is not looked at.
pub(crate) fn remembered(state: &State) -> Vec<Steered> {
    let records = state.queue_cpus.iter();
    records
        .flat_map(|record| {
            let queues = record.receive.iter();
            queues.map(|(queue, cpu)| Steered::of(record, *queue, *cpu))
        })
        .collect()
}

/// The queues with what is active. Those of network namespaces into which the caller may not look stay unknown; `own`
/// is the cookie of the caller's.
pub(crate) fn with_active(
    host: &Host,
    mut all: Vec<Steered>,
    pollers: &[Poller],
    own: u64,
) -> Vec<Steered> {
    for one in &mut all {
        let (ifindex, queue) = (one.ifindex, one.queue);
        // What can't be read is shown as unknown: the list has to come out on a host that changes.
        let looked = netns::inside(own, one.netns_cookie, || look(host, ifindex, queue));
        if let Ok(Some(Some((ifname, cpus)))) = looked {
            one.ifname = ifname;
            one.cpus_active = cpus;
        }
        let mut pollers = pollers.iter();
        let poller = pollers.find(|poller| poller.cpu == one.cpu_requested);
        one.backlog_active = poller.map(|poller| poller.backlog_active);
    }
    all
}

fn look(host: &Host, ifindex: u32, queue: u32) -> Option<(String, Option<CpuList>)> {
    let ifname = host.interface_with_index(ifindex).ok()??;
    let file = format!("sys/class/net/{ifname}/queues/rx-{queue}/rps_cpus");
    let mask = host.read_trimmed(&file).ok();
    Some((ifname, mask.and_then(|text| CpuList::from_mask(&text))))
}

/// What a person should know before an interface is steered.
pub(crate) fn notes(host: &Host, interface: &Interface) -> Vec<String> {
    let name = &interface.name;
    let is_on = |file: &str| {
        let value = host.read_optional(file).ok().flatten();
        value.is_some_and(|value| value != "0")
    };
    let flows = |queue: u32| {
        is_on(&format!(
            "sys/class/net/{name}/queues/rx-{queue}/rps_flow_cnt"
        ))
    };
    // Only the first network namespace shows the size of the table, which is of all.
    let table = "proc/sys/net/core/rps_sock_flow_entries";
    let rfs = (is_on(table) || !host.exists(table)) && (0..interface.rx_queues).any(flows);
    rfs.then(|| {
        format!("{name}: RFS is on (rps_flow_cnt) and sends packets to the CPUs of the programs that read them, not to the poller")
    })
    .into_iter()
    .collect()
}

/// The kernel sends no packets to CPUs that are kept free of its own work.
pub(crate) fn isolated(cpus: &CpuList) -> Error {
    Error::Unsupported(format!(
        "the kernel steers no packets to CPU {cpus}, because it is isolated (isolcpus or nohz_full); have what \
         sends run on CPU {cpus}, or use `kbp attach backlog --cpu` with it"
    ))
}

fn check_isolated(host: &Host, cpu: u32) -> Result<(), Error> {
    for file in ["isolated", "nohz_full"] {
        let text = host.read_optional(&format!("sys/devices/system/cpu/{file}"))?;
        // A kernel that keeps no CPU free says "(null)".
        let cpus: Option<CpuList> = text.and_then(|text| text.parse().ok());
        if cpus.is_some_and(|cpus| cpus.contains(cpu)) {
            return Err(isolated(&CpuList::one(cpu)));
        }
    }
    Ok(())
}

impl Session<'_> {
    /// Plan to steer queues of an interface; each comes with the CPU of its poller.
    pub(crate) fn plan_steering(
        &self,
        interface: &Interface,
        queues: &[(u32, u32)],
    ) -> Result<InterfacePlan, Error> {
        let name = &interface.name;
        let lower = self.host.received_by(name)?;
        if !lower.is_empty() {
            return Err(Error::Unsupported(format!(
                "{name} has no NAPI instance: its packets are those that {} receives; attach that",
                lower.join(", ")
            )));
        }
        let mut wishes = Vec::new();
        for &(queue, cpu) in queues {
            if !has_file(self.host, name, Direction::Receive, queue)? {
                return Err(Error::Unsupported(format!(
                    "{name} has no NAPI instance, and this kernel can't steer its packets to a CPU (it is without RPS)"
                )));
            }
            check_isolated(self.host, cpu)?;
            wishes.push(Wish {
                direction: Direction::Receive,
                queue,
                cpu,
            });
        }
        self.plan_masks(interface, wishes)
    }

    /// The backlogs that have to be attached so that the pollers get what is steered to their CPUs.
    pub(crate) fn plan_backlogs(
        &mut self,
        interfaces: &[InterfacePlan],
    ) -> Result<Vec<BacklogPlan>, Error> {
        let wishes = interfaces.iter().flat_map(|plan| &plan.wishes);
        let receive = wishes.filter(|wish| wish.direction == Direction::Receive);
        let cpus: BTreeSet<u32> = receive.map(|wish| wish.cpu).collect();
        let mut plans = Vec::new();
        for cpu in cpus {
            let poller = backlog::poller_of(self.control, cpu)?;
            if poller.backlog_requested != Backlog::Attached {
                plans.push(BacklogPlan {
                    cpu,
                    from: poller.backlog_requested,
                    to: Backlog::Attached,
                });
            }
        }
        Ok(plans)
    }

    /// Attach a backlog for the sake of interfaces.
    pub(crate) fn lend_backlog(&mut self, plan: &BacklogPlan) -> Result<(), Error> {
        self.file.state.backlogs.insert(plan.cpu, plan.from.raw());
        self.file.save()?;
        if let Err(error) = backlog::apply(self.control, plan) {
            self.file.state.backlogs.remove(&plan.cpu);
            self.file.save()?;
            return Err(error);
        }
        Ok(())
    }

    /// Give back the backlogs that were attached for interfaces of which none is steered there any more. Returns
    /// their CPUs.
    pub(crate) fn return_backlogs(&mut self) -> Result<Vec<u32>, Error> {
        let in_use: BTreeSet<u32> = remembered(&self.file.state)
            .iter()
            .map(|steered| steered.cpu_requested)
            .collect();
        let lent = self.file.state.backlogs.clone();
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (cpu, original) in lent.into_iter().filter(|(cpu, _)| !in_use.contains(cpu)) {
            match self.return_backlog(cpu, original) {
                Ok(true) => done.push(cpu),
                Ok(false) => {}
                Err(error) => {
                    failed.push(error);
                    continue;
                }
            }
            self.file.state.backlogs.remove(&cpu);
            self.file.save()?;
        }
        first_or_all(failed)?;
        Ok(done)
    }

    fn return_backlog(&mut self, cpu: u32, original: u32) -> Result<bool, Error> {
        let poller = match self.control.poller_get(cpu) {
            Ok(poller) => poller,
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if poller.backlog_requested != Backlog::Attached {
            return Ok(false);
        }
        let plan = BacklogPlan {
            cpu,
            from: Backlog::Attached,
            to: Backlog::from_raw(original).unwrap_or(Backlog::Softirq),
        };
        backlog::apply(self.control, &plan)?;
        Ok(true)
    }

    /// Whether the backlog of a CPU is attached for the sake of interfaces.
    pub fn is_lent(&self, cpu: u32) -> bool {
        self.file.state.backlogs.contains_key(&cpu)
    }

    /// Plan to attach the backlog of a CPU because the user asks for it.
    ///
    /// Errors: no such CPU or poller; the user has attached it already.
    pub fn plan_backlog(&mut self, cpu: u32) -> Result<BacklogWish, Error> {
        let is_attached = |poller: Poller| poller.backlog_requested == Backlog::Attached;
        if self.is_lent(cpu) && backlog::poller_of(self.control, cpu).is_ok_and(is_attached) {
            return Ok(BacklogWish::Keep { cpu });
        }
        let plan = backlog::plan_attach(self.host, self.control, cpu)?;
        Ok(BacklogWish::Attach(plan))
    }

    /// Carry such a plan out; the poller comes back as in [`backlog::apply`].
    pub fn attach_backlog(&mut self, wish: &BacklogWish) -> Result<Poller, Error> {
        match wish {
            BacklogWish::Keep { cpu } => {
                self.adopt_backlog(*cpu)?;
                backlog::poller_of(self.control, *cpu)
            }
            BacklogWish::Attach(plan) => {
                // What was remembered of it is not so any more.
                self.adopt_backlog(plan.cpu)?;
                backlog::apply(self.control, plan)
            }
        }
    }

    /// The user asks for the backlog of a CPU himself: it stays attached when the interfaces leave for whose sake it
    /// was. Returns the poller, or `None` where it was not attached for interfaces.
    pub fn adopt_backlog(&mut self, cpu: u32) -> Result<Option<Poller>, Error> {
        if self.file.state.backlogs.remove(&cpu).is_none() {
            return Ok(None);
        }
        self.file.save()?;
        let poller = backlog::poller_of(self.control, cpu)?;
        Ok(Some(poller).filter(|poller| poller.backlog_requested == Backlog::Attached))
    }

    /// The user detaches the backlog of a CPU himself: it is not attached for interfaces any more. Returns those that
    /// are still steered there.
    pub fn disown_backlog(&mut self, cpu: u32) -> Result<Vec<Steered>, Error> {
        self.file.state.backlogs.remove(&cpu);
        self.file.save()?;
        let mut left = remembered(&self.file.state);
        left.retain(|steered| steered.cpu_requested == cpu);
        Ok(left)
    }
}

fn is_gone(error: &ClientError) -> bool {
    matches!(error.errno(), Some(libc::ENXIO | libc::ENOENT))
}
