// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp monitor`: events as they happen.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use kbp_core::model::Notification;
use kbp_core::Error;

use crate::context::Context;
use crate::print;

/// Arguments of `kbp monitor`.
#[derive(Args)]
pub struct MonitorArgs {
    /// End after this time (10s, 5m); without it, end with an interrupt.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    limit: Option<Duration>,
}

/// Run `kbp monitor`.
pub fn run(args: MonitorArgs, context: &Context) -> Result<()> {
    let mut events = context.client()?.subscribe().map_err(Error::from)?;
    let end = args.limit.map(|limit| Instant::now() + limit);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        for event in events.next(left).map_err(Error::from)? {
            match context.json {
                true => print::json(context, &event)?,
                false => print::line(describe(&event))?,
            }
        }
    }
}

fn describe(event: &Notification) -> String {
    match event {
        Notification::Poller { event, cpu, state } => {
            let state = state.map(|state| format!(", {state}")).unwrap_or_default();
            format!("poller of CPU {cpu}: {event}{state}")
        }
        Notification::Napi {
            event,
            napi_id,
            ifname,
            queue,
            cpu,
            mode_active,
        } => {
            let place = match (ifname, queue) {
                (Some(ifname), Some(queue)) => format!("{ifname} queue {queue} (NAPI {napi_id})"),
                (Some(ifname), None) => format!("{ifname} NAPI {napi_id}"),
                _ => format!("NAPI {napi_id}"),
            };
            let cpu = cpu
                .map(|cpu| format!(", poller of CPU {cpu}"))
                .unwrap_or_default();
            let mode = mode_active
                .map(|mode| format!(", {mode} active"))
                .unwrap_or_default();
            format!("{place}: {event}{cpu}{mode}")
        }
    }
}
