// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pollers of a setup: created where there is none, with what of their wishes this machine can do.

use super::{poller_label, push_new, Run};
use crate::backlog;
use crate::differences::differences;
use crate::error::{Class, Error};
use crate::host::Host;
use crate::model::{Poller, PollerSpec};
use crate::plan::Session;
use crate::pollers::{deep_exit, plan_governor, PollerPlan};
use crate::requested::backlog_of;
use crate::setup_read::At;
use crate::state::State;
use crate::uapi::{Backlog, Freq};

/// What a poller can do without: on another machine it still serves what is attached to it.
struct Extra {
    key: &'static str,
    label: fn(u32) -> String,
    /// Why it can't be.
    check: fn(&Host, &State, &PollerSpec) -> Result<(), Error>,
    remove: fn(&mut PollerSpec),
    is_missed: fn(&Poller) -> bool,
    /// Whether its driver may come as late as a card.
    comes_late: bool,
}

const EXTRAS: [Extra; 2] = [
    Extra {
        key: "freq",
        label: |cpu| format!("the frequency of CPU {cpu}"),
        check: |host, state, spec| plan_governor(host, state, spec).map(|_| ()),
        remove: |spec| (spec.freq, spec.freq_shared) = (None, None),
        is_missed: |there| there.freq_requested == Freq::Off,
        comes_late: true,
    },
    Extra {
        key: "max_cstate_latency_us",
        label: |cpu| format!("the idle states of CPU {cpu}"),
        check: |host, _, spec| deep_exit(host, spec).map(|_| ()),
        remove: |spec| spec.max_cstate_latency_us = None,
        is_missed: |there| there.max_cstate_latency_us.is_none(),
        comes_late: false,
    },
];

impl Run<'_> {
    pub(super) fn poller(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<PollerSpec>,
    ) -> Result<(), Error> {
        let spec = &wish.it;
        let pollers = session.control.pollers()?;
        let Some(there) = pollers.iter().find(|poller| poller.cpu == spec.cpu) else {
            return self.new_poller(session, wish);
        };
        let backlog = backlog_of(&session.file.state, there);
        let mut differences = differences(spec, there, backlog);
        // As an earlier run has left it, without what can't be here.
        for extra in EXTRAS {
            if (extra.is_missed)(there) && self.is_impossible(session, wish, &extra) {
                differences.retain(|words| !words.starts_with(&format!("{} ", extra.key)));
            }
        }
        if !differences.is_empty() {
            return Err(Error::Conflict(format!(
                "it is there already and has {}; delete it first with `kbp poller del --cpu {}`, or change the file",
                differences.join(", "),
                spec.cpu
            )));
        }
        if spec.backlog != Some(Backlog::Attached) || backlog == Backlog::Attached {
            push_new(&mut self.restored.unchanged, poller_label(spec.cpu));
            return Ok(());
        }
        let wish = session.plan_backlog(spec.cpu)?;
        if self.is_dry {
            self.restored.changes.push(wish.change());
            return Ok(());
        }
        let poller = session.attach_backlog(&wish)?;
        self.restored.backlogs.push(poller);
        Ok(())
    }

    fn new_poller(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<PollerSpec>,
    ) -> Result<(), Error> {
        let spec = &wish.it;
        let plan = self.plan_poller(session, wish)?;
        let create = |session: &mut Session<'_>, plan: &PollerPlan| match self.is_dry {
            true => Ok(session.control.poller_new(&plan.spec).map(|()| None)?),
            false => session.add_poller(plan).map(Some),
        };
        let created = match create(session, &plan) {
            Err(error) if error.class() == Class::Unsupported && spec.backlog.is_some() => {
                // A kernel of another kind: without the backlog the poller still serves what is attached to it.
                let created = create(session, &plan.without_backlog())?;
                self.fail(wish.line, backlog::label(spec.cpu), &error);
                created
            }
            created => created?,
        };
        match created {
            Some(poller) => self.restored.pollers.push(poller),
            None => self.restored.changes.extend(plan.changes()),
        }
        self.restored.notes.extend(plan.notes);
        Ok(())
    }

    /// The plan for what of a wish can be here.
    fn plan_poller(
        &mut self,
        session: &mut Session<'_>,
        wish: &At<PollerSpec>,
    ) -> Result<PollerPlan, Error> {
        let mut spec = wish.it.clone();
        let mut removed = Vec::new();
        self.host.require_online(spec.cpu)?;
        for extra in EXTRAS {
            match (extra.check)(self.host, &session.file.state, &spec) {
                Ok(()) => {}
                Err(Error::Unsupported(words)) if extra.comes_late && !self.is_last => {
                    return Err(Error::NotFound(words))
                }
                Err(error) if self.may_come(&error) => return Err(error),
                Err(error) => {
                    (extra.remove)(&mut spec);
                    removed.push(((extra.label)(spec.cpu), error));
                }
            }
        }
        let plan = session.plan_poller(&spec)?;
        for (what, error) in removed {
            self.fail(wish.line, what, &error);
        }
        Ok(plan)
    }

    /// Whether this machine can't do that; then it is told.
    fn is_impossible(
        &mut self,
        session: &Session<'_>,
        wish: &At<PollerSpec>,
        extra: &Extra,
    ) -> bool {
        let checked = (extra.check)(self.host, &session.file.state, &wish.it);
        let Err(error) = checked else {
            return false;
        };
        self.fail(wish.line, (extra.label)(wish.it.cpu), &error);
        true
    }
}
