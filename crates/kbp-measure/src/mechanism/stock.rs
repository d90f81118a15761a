// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `softirq`: the stock path. Nothing is set up; what would make it another path is looked for in `common`.

use crate::error::Result;
use crate::mechanism::family::{Bench, Family, Moved, Site};
use crate::result::Row;

/// The stock path.
#[derive(Debug)]
pub(crate) struct Stock;

/// NET_RX has to have run: on the poller's CPU where interrupts bring the packets there, anywhere else on the CPU
/// of the sender.
pub(crate) fn net_rx_ran(
    bench: &Bench<'_>,
    row: &Row,
    moved: &Moved,
) -> std::result::Result<(), String> {
    let all_have_interrupts = bench.rig.links.iter().all(|link| link.has_interrupts);
    let ran = match all_have_interrupts {
        true => row.witness.net_rx_softirqs,
        false => moved.net_rx_softirqs,
    };
    match ran {
        0 => Err("no NET_RX softirq ran".into()),
        _ => Ok(()),
    }
}

impl Family for Stock {
    fn can_run(&self, _site: &Site<'_>) -> std::result::Result<(), String> {
        Ok(())
    }

    fn set_up(&self, _bench: &Bench<'_>) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn verify(&self, _bench: &Bench<'_>, _threads: &[u32]) -> Result<()> {
        Ok(())
    }

    fn verify_row(
        &self,
        bench: &Bench<'_>,
        row: &Row,
        moved: &Moved,
    ) -> std::result::Result<(), String> {
        net_rx_ran(bench, row, moved)
    }

    fn undo(&self, _bench: &Bench<'_>) -> Result<()> {
        Ok(())
    }
}
