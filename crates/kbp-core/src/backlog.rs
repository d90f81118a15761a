// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backlog of a CPU as something that is attached to the poller there, and detached.
//!
//! What lo, veth, bridges, tunnels and RPS receive has no NAPI instance of its own; it goes through the backlog of a
//! CPU. A plan is made and checked first, shown, then carried out, as in [`crate::plan`]; it changes nothing but the
//! poller, so there is nothing to remember. What is attached for the sake of an interface is in [`crate::steer`].

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::client::Control;
use crate::error::Error;
use crate::host::Host;
use crate::model::Poller;
use crate::uapi::{Backlog, Owns};

/// How long a poller may take to take the backlog.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether it did.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// A change of who serves a backlog; nothing has been changed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BacklogPlan {
    /// The CPU.
    pub cpu: u32,
    /// Who is asked to serve it now.
    pub from: Backlog,
    /// Who shall.
    pub to: Backlog,
}

impl BacklogPlan {
    /// The change, as one sentence.
    pub fn change(&self) -> String {
        format!(
            "netlink kbp poller-set: the backlog of CPU {} is {} (now {})",
            self.cpu, self.to, self.from
        )
    }
}

/// Plan to attach the backlog of a CPU to the poller there.
///
/// Errors: no such CPU or poller; attached already.
pub fn plan_attach(host: &Host, control: &mut dyn Control, cpu: u32) -> Result<BacklogPlan, Error> {
    host.require_online(cpu)?;
    let poller = poller_of(control, cpu)?;
    if poller.backlog_requested == Backlog::Attached {
        return Err(Error::AlreadyAttached {
            what: label(cpu),
            cpu,
        });
    }
    Ok(plan(&poller, Backlog::Attached))
}

/// Plan to detach it: a poller that owns all keeps it as one of the things it owns, another gives it to softirq.
///
/// Errors: no such poller; not attached.
pub fn plan_detach(control: &mut dyn Control, cpu: u32) -> Result<BacklogPlan, Error> {
    let poller = poller_of(control, cpu)?;
    if poller.backlog_requested != Backlog::Attached {
        return Err(Error::NotAttached { what: label(cpu) });
    }
    let to = match poller.owns {
        Owns::All => Backlog::Owned,
        Owns::Attached => Backlog::Softirq,
    };
    Ok(plan(&poller, to))
}

/// Carry a plan out. The poller comes back as the kernel describes it when it has taken the backlog, or after a
/// second in which it has not: then requested and active differ.
pub fn apply(control: &mut dyn Control, plan: &BacklogPlan) -> Result<Poller, Error> {
    control.poller_set_backlog(plan.cpu, plan.to)?;
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let poller = control.poller_get(plan.cpu)?;
        // A poller without work leaves a backlog that it merely owns with softirq.
        let settled = poller.backlog_active == plan.to || plan.to == Backlog::Owned;
        if settled || Instant::now() >= deadline {
            return Ok(poller);
        }
        sleep(SETTLE_LOOK_EVERY);
    }
}

fn plan(poller: &Poller, to: Backlog) -> BacklogPlan {
    BacklogPlan {
        cpu: poller.cpu,
        from: poller.backlog_requested,
        to,
    }
}

pub(crate) fn label(cpu: u32) -> String {
    format!("the backlog of CPU {cpu}")
}

/// The poller of a CPU; the error says how to make one.
pub(crate) fn poller_of(control: &mut dyn Control, cpu: u32) -> Result<Poller, Error> {
    match control.poller_get(cpu) {
        Ok(poller) => Ok(poller),
        Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENOENT)) => {
            Err(Error::NoPoller { cpu })
        }
        Err(error) => Err(error.into()),
    }
}
