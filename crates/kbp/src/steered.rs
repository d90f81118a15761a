// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `kbp show` and `kbp attach` print of queues that are steered to a poller, and of what is not as it was left.

use anyhow::Result;
use kbp_core::overview::Overview;
use kbp_core::steer::Steered;

use crate::print;

/// Print the queues that are steered as a table, and the warnings; nothing where there are none.
pub fn print(overview: &Overview) -> Result<()> {
    if !overview.steered.is_empty() {
        print::line("")?;
        print_table(&overview.steered)?;
    }
    overview.warnings.iter().for_each(print::note);
    Ok(())
}

fn print_table(steered: &[Steered]) -> Result<()> {
    let row = |one: &Steered| {
        vec![
            one.ifname.clone(),
            one.queue.to_string(),
            print::or_dash(one.netns.as_ref()),
            one.cpu_requested.to_string(),
            print::or_dash(one.cpus_active.as_ref().map(ToString::to_string)),
            print::or_dash(one.backlog_active),
            word(one).to_owned(),
        ]
    };
    let header = [
        "STEERED",
        "QUEUE",
        "NETNS",
        "CPU-REQUESTED",
        "CPU-ACTIVE",
        "BACKLOG",
        "ACTIVE",
    ];
    print::table(&header, steered.iter().map(row).collect(), header.len())
}

fn word(one: &Steered) -> &'static str {
    match one.is_active() {
        true => "yes",
        false => "no",
    }
}

/// A queue that is steered, as a sentence.
pub fn describe(one: &Steered) -> String {
    let cpu = one.cpu_requested;
    match one.is_active() {
        true => format!(
            "{}: through the backlog of CPU {cpu}, attached",
            one.label()
        ),
        false => format!(
            "{}: through the backlog of CPU {cpu} requested; active: CPU {}, backlog {}",
            one.label(),
            print::or_dash(one.cpus_active.as_ref()),
            print::or_dash(one.backlog_active)
        ),
    }
}
