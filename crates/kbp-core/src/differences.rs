// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of something that is there is otherwise than a file with a [`crate::setup`] wants it, in words.

use crate::model::{Poller, PollerSpec};
use crate::requested::Queue;
use crate::service::Service;
use crate::setup::Attachment;
use crate::uapi::{Backlog, Freq, Mode};

/// What of a poller is otherwise than wanted, as `has` goes on. That a backlog is to be attached is no difference: it
/// can be.
pub(crate) fn differences(spec: &PollerSpec, there: &Poller, backlog: Backlog) -> Vec<String> {
    fn differs<T: PartialEq + std::fmt::Display>(
        what: &str,
        wanted: Option<T>,
        now: T,
    ) -> Option<String> {
        let wanted = wanted.filter(|wanted| *wanted != now)?;
        Some(format!("{what} {now}, not {wanted}"))
    }
    let limit = |us: Option<u32>| us.map_or("any".into(), |us| us.to_string());
    let wanted = spec.backlog.filter(|wanted| *wanted != Backlog::Attached);
    let schedule = spec.schedule.map(|schedule| schedule.to_string());
    [
        differs("owns", spec.owns, there.owns),
        differs("priority", schedule, there.schedule.to_string()),
        differs("budget", spec.budget, there.budget),
        differs("watchdog_ms", spec.watchdog_ms, there.watchdog_ms),
        differs("backlog", wanted, backlog),
        differs(
            "freq",
            Some(spec.freq.unwrap_or(Freq::Off)),
            there.freq_requested,
        ),
        differs(
            "max_cstate_latency_us",
            Some(limit(spec.max_cstate_latency_us)),
            limit(there.max_cstate_latency_us),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What of an attached queue is otherwise than wanted.
pub(crate) fn difference(wish: &Attachment, now: &Queue, cpu: u32) -> Option<String> {
    if now.cpu != cpu {
        return Some(format!(
            "to the poller of CPU {}, not of CPU {cpu}",
            now.cpu
        ));
    }
    // Who names neither mode nor class wants what `kbp attach` takes; what is steered is served so and not otherwise.
    let busy = Service::from(Mode::Busy);
    let (is, wanted) = (now.service.unwrap_or(busy), wish.service.unwrap_or(busy));
    if is != wanted {
        return Some(format!("with mode {is}, not {wanted}"));
    }
    if now.irq.is_some_and(|irq| irq != wish.irq) {
        return Some(match wish.irq {
            true => "its interrupt was not moved (--no-irq)".into(),
            false => "its interrupt was moved".into(),
        });
    }
    now.xps
        .filter(|xps| *xps != wish.xps)
        .map(|_| match wish.xps {
            true => "its transmit queue was not given to that CPU (--no-xps)".into(),
            false => "its transmit queue was given to that CPU".into(),
        })
}
