// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The module as it would be after changes that were planned and not made: a dry run plans attachments to pollers that
//! are not there yet. Questions go to the real module, changes of pollers are imagined, and nothing else is changed.

use crate::attr::Attrs;
use crate::client::{ClientError, Control};
use crate::host::HostError;
use crate::model::{Napi, NapiRef, Poller, PollerSpec, Schedule, Stats};
use crate::netns::NetnsError;
use crate::service::Service;
use crate::uapi::{Backlog, Freq, Owns, State, POLLER_COUNTERS};
use crate::waits::Waits;

/// A [`Control`] that changes nothing.
pub(crate) struct Imagined<'a> {
    real: &'a mut dyn Control,
    /// Pollers that are other than the real ones.
    pollers: Vec<Poller>,
}

impl<'a> Imagined<'a> {
    pub(crate) fn new(real: &'a mut dyn Control, pollers: Vec<Poller>) -> Self {
        Self { real, pollers }
    }

    /// The pollers that were imagined.
    pub(crate) fn into_pollers(self) -> Vec<Poller> {
        self.pollers
    }

    fn set(&mut self, poller: Poller) {
        self.pollers.retain(|other| other.cpu != poller.cpu);
        self.pollers.push(poller);
    }
}

impl Control for Imagined<'_> {
    fn poller_new(&mut self, spec: &PollerSpec) -> Result<(), ClientError> {
        let owns = spec.owns.unwrap_or(Owns::All);
        let backlog = spec.backlog.unwrap_or(match owns {
            Owns::All => Backlog::Owned,
            Owns::Attached => Backlog::Softirq,
        });
        let no_counters = Attrs::default();
        let stats = Stats::from_attrs(POLLER_COUNTERS, no_counters)
            .map_err(|error| ClientError::new("imagine a poller", error.into()))?;
        self.set(Poller {
            cpu: spec.cpu,
            owns,
            schedule: spec.schedule.unwrap_or(Schedule::Other { nice: 0 }),
            budget: spec.budget.unwrap_or_default(),
            watchdog_ms: spec.watchdog_ms.unwrap_or_default(),
            state: State::Idle,
            pid: 0,
            napis: 0,
            backlog_requested: backlog,
            backlog_active: backlog,
            wake_latency_ns: None,
            freq_requested: spec.freq.unwrap_or(Freq::Off),
            freq_active: spec.freq.unwrap_or(Freq::Off),
            max_cstate_latency_us: spec.max_cstate_latency_us,
            cstates_limited: spec.max_cstate_latency_us.map(|_| true),
            rt_waits: Waits::default(),
            normal_waits: Waits::default(),
            bh_waits: None,
            stats,
        });
        Ok(())
    }

    fn poller_get(&mut self, cpu: u32) -> Result<Poller, ClientError> {
        let imagined = self.pollers.iter().find(|poller| poller.cpu == cpu);
        match imagined {
            Some(poller) => Ok(poller.clone()),
            None => self.real.poller_get(cpu),
        }
    }

    fn poller_set_backlog(&mut self, cpu: u32, backlog: Backlog) -> Result<(), ClientError> {
        let poller = self.poller_get(cpu)?;
        self.set(Poller {
            backlog_requested: backlog,
            ..poller
        });
        Ok(())
    }

    fn poller_del(&mut self, cpu: u32) -> Result<(), ClientError> {
        self.poller_get(cpu).map(drop)
    }

    fn pollers(&mut self) -> Result<Vec<Poller>, ClientError> {
        let mut all = self.real.pollers()?;
        all.retain(|real| self.pollers.iter().all(|imagined| imagined.cpu != real.cpu));
        all.extend(self.pollers.iter().cloned());
        all.sort_by_key(|poller| poller.cpu);
        Ok(all)
    }

    fn napi_attach(&mut self, napi: &NapiRef, _: u32, _: &Service) -> Result<Napi, ClientError> {
        self.real.napi_get(napi)
    }

    fn napi_detach(&mut self, napi: &NapiRef) -> Result<(), ClientError> {
        self.real.napi_get(napi).map(drop)
    }

    fn napi_get(&mut self, napi: &NapiRef) -> Result<Napi, ClientError> {
        self.real.napi_get(napi)
    }

    fn napis(&mut self) -> Result<Vec<Napi>, ClientError> {
        self.real.napis()
    }

    fn netns_cookie(&mut self) -> Result<u64, NetnsError> {
        self.real.netns_cookie()
    }

    fn has_queue_napis(&mut self, ifname: &str) -> Result<bool, HostError> {
        self.real.has_queue_napis(ifname)
    }

    fn permanent_address(&mut self, ifname: &str) -> Result<Option<String>, HostError> {
        self.real.permanent_address(ifname)
    }
}
