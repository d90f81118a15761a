// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a CPU rested, and at which frequency: what the kernel's cpuidle and cpufreq counted of it.
//!
//! Not here: who sets the frequency, and what rest saves ([`super::energy`]).

use std::collections::BTreeMap;

use kbp_core::cpufreq::{Frequencies, STATE_TICK_NS};
use kbp_core::cpuidle::IdleState;
use kbp_core::Host;

use crate::error::Result;
use crate::result::{FrequencyUse, IdleUse};

/// One reading of a CPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Rest {
    frequencies: Option<Frequencies>,
    states: Vec<IdleState>,
}

impl Rest {
    /// Reads it; what the CPU does not have is left out.
    ///
    /// # Errors
    /// When a counter is there and can't be read.
    pub(super) fn read(host: &Host, cpu: u32) -> Result<Self> {
        let states = host.idle_states(cpu).map_err(kbp_core::Error::from)?;
        Ok(Self {
            frequencies: host.frequencies(cpu).map_err(kbp_core::Error::from)?,
            states: states.unwrap_or_default(),
        })
    }

    /// Changes of the frequency since `then`, where both readings have them.
    pub(super) fn frequency_since(&self, then: &Self) -> Option<FrequencyUse> {
        let (then, now) = then.frequencies.as_ref().zip(self.frequencies.as_ref())?;
        let changes = now.changes?.saturating_sub(then.changes?);
        let times = then.times.as_ref().zip(now.times.as_ref());
        Some(FrequencyUse {
            changes,
            mean_khz: times.and_then(|(then, now)| mean_khz(then, now)),
        })
    }

    /// Rests in each state since `then`.
    pub(super) fn states_since(&self, then: &Self) -> BTreeMap<String, IdleUse> {
        let pairs = then.states.iter().zip(&self.states);
        let same = pairs.filter(|(then, now)| then.name == now.name);
        same.map(|(then, now)| {
            let used = IdleUse {
                entries: now.entries.saturating_sub(then.entries),
                time_ns: now.time_us.saturating_sub(then.time_us) * 1_000,
            };
            (now.name.clone(), used)
        })
        .collect()
    }
}

/// `None` where the counter did not move.
fn mean_khz(then: &BTreeMap<u64, u64>, now: &BTreeMap<u64, u64>) -> Option<f64> {
    let (mut sum_ns, mut cycles) = (0, 0.0);
    for (khz, ticks) in now {
        let before = then.get(khz).copied().unwrap_or(0);
        let ns = ticks.saturating_sub(before) * STATE_TICK_NS;
        sum_ns += ns;
        cycles += *khz as f64 * ns as f64;
    }
    (sum_ns > 0).then(|| cycles / sum_ns as f64)
}
