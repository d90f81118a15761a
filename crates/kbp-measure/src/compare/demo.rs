// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo: which rows are measured in which order, and their measurement.
//!
//! The modes are interleaved, the stock path is measured first and again last, so that a
//! drift of the machine would show. A warm-up row is discarded. The order is data.
//! Not here: the parts that a row is made of ([`crate::compare::row`], [`crate::mechanism`],
//! [`crate::load`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::compare::rig::Rig;
use crate::compare::row::{self, Ends, Label};
use crate::error::{Error, Result};
use crate::load::{Load, Running, StormConfig};
use crate::mechanism::{Active, Mode, ModeConfig};
use crate::result::{ResultFile, Row, RowNs, TOOL_KBP, TOOL_SOCKPERF};
use crate::tester::pingpong::{ClientConfig, Stop};
use crate::trace::Trace;

/// A mode that is set up once under a load, and the tools that measure it.
#[derive(Debug, Clone, Copy)]
struct Step {
    mode: Mode,
    round: u32,
    tools: &'static [&'static str],
}

const BOTH: &[&str] = &[TOOL_KBP, TOOL_SOCKPERF];
const OURS: &[&str] = &[TOOL_KBP];

/// What is measured under each load, in this order.
const STEPS: [Step; 5] = [
    Step {
        mode: Mode::Softirq,
        round: 1,
        tools: BOTH,
    },
    Step {
        mode: Mode::Threaded,
        round: 1,
        tools: OURS,
    },
    Step {
        mode: Mode::ThreadedFifo,
        round: 1,
        tools: OURS,
    },
    Step {
        mode: Mode::KbpBusy,
        round: 1,
        tools: BOTH,
    },
    Step {
        mode: Mode::Softirq,
        round: 2,
        tools: OURS,
    },
];
const LOADS: [Load; 2] = [Load::Idle, Load::Storm];

/// Length of the discarded first row, nanoseconds.
const WARM_UP_ROW_NS: u64 = 300_000_000;
/// When a trace begins after the client did, and how long it is.
const TRACE_AFTER: Duration = Duration::from_millis(150);
const TRACE_LENGTH: Duration = Duration::from_millis(60);
const TRACE_ROW_NS: u64 = 300_000_000;

/// Everything that the demo needs.
#[derive(Debug)]
pub struct Demo {
    /// The bench, set up.
    pub rig: Rig,
    /// Both ends.
    pub ends: Ends,
    /// The ping-pong; its `stop` is replaced by the length of the row.
    pub client: ClientConfig,
    /// The modes.
    pub modes: ModeConfig,
    /// The storm.
    pub storm: StormConfig,
    /// Length of a row by load.
    pub row_ns: RowNs,
    /// Length of a sockperf row, seconds; 0 leaves these rows out.
    pub sockperf_s: u32,
    /// Directory for traces of a storm row; `None` leaves them out.
    pub traces: Option<PathBuf>,
    /// File that is written after every mode.
    pub result_path: PathBuf,
}

impl Demo {
    /// Measures everything into `result`, which is saved after every mode.
    ///
    /// `on_row` is called with every finished row, for progress.
    ///
    /// # Errors
    /// The first thing that failed. Modes and loads are undone, the rows of finished modes
    /// are saved.
    pub fn run(&self, result: &mut ResultFile, mut on_row: impl FnMut(&Row)) -> Result<()> {
        self.warm_up()?;
        for load in LOADS {
            for step in STEPS {
                result.rows.extend(self.step(load, step, &mut on_row)?);
                result.save(&self.result_path)?;
            }
        }
        if let Some(dir) = &self.traces {
            self.trace(Mode::Softirq, dir)?;
            self.trace(Mode::KbpBusy, dir)?;
        }
        Ok(())
    }

    /// The first row of a machine is never like the others: caches, page faults, code that
    /// is translated for the first time.
    fn warm_up(&self) -> Result<()> {
        let label = Label {
            mode: "warm-up",
            load: "idle",
            round: 0,
        };
        let active = Active::set_up(Mode::Softirq, &self.rig, &self.modes)?;
        let client = ClientConfig {
            stop: Stop::AfterNs(WARM_UP_ROW_NS),
            ..self.client.clone()
        };
        let row = row::ping_pong(&self.ends, &client, &active.watch(), label);
        active.undo()?;
        match row? {
            row if row.n == 0 => Err(Error::Invalid(format!(
                "no ping came back from {} in the warm-up: is the wire between the interfaces up?",
                self.ends.server
            ))),
            _ => Ok(()),
        }
    }

    fn step(&self, load: Load, step: Step, on_row: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
        let active = Active::set_up(step.mode, &self.rig, &self.modes)?;
        let rows = self.loaded(load, || {
            let mut rows = Vec::new();
            for tool in step.tools {
                if *tool == TOOL_KBP || self.has_second_witness(load) {
                    let row = self.row(&active, load, step.round, tool)?;
                    on_row(&row);
                    rows.push(row);
                }
            }
            Ok(rows)
        });
        // Undone whatever happened; the row's own error is the one to tell.
        let verified = rows.and_then(|rows| active.verify().map(|()| rows));
        let undone = active.undo();
        let rows = verified?;
        undone.map(|()| rows)
    }

    /// The third party confirms the idle figures. In the storm a row of it would cost minutes on
    /// the virtual clock.
    fn has_second_witness(&self, load: Load) -> bool {
        self.sockperf_s > 0 && load == Load::Idle
    }

    /// Does `work` while `load` runs, and sees that it ran.
    fn loaded<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let running = Running::start(load, &self.storm)?;
        let before = running.totals()?;
        let done = work();
        let after = running.totals()?;
        running.stop()?;
        let done = done?;
        let moved = before.zip(after).is_none_or(|(before, after)| {
            after.bursts > before.bursts && after.packets > before.packets
        });
        if moved {
            return Ok(done);
        }
        let why = format!("its totals stood still: {before:?}, then {after:?}");
        Err(Error::Load {
            load: load.name().into(),
            why,
        })
    }

    fn row(&self, active: &Active, load: Load, round: u32, tool: &str) -> Result<Row> {
        let label = Label {
            mode: active.mode().name(),
            load: load.name(),
            round,
        };
        let watch = active.watch();
        let row = if tool == TOOL_SOCKPERF {
            row::sockperf(
                &self.ends,
                self.client.payload_len,
                self.sockperf_s,
                &watch,
                label,
            )?
        } else {
            let row_ns = match load {
                Load::Idle => self.row_ns.idle,
                Load::Storm => self.row_ns.storm,
            };
            let client = ClientConfig {
                stop: Stop::AfterNs(row_ns),
                ..self.client.clone()
            };
            row::ping_pong(&self.ends, &client, &watch, label)?
        };
        active.verify_row(&row)?;
        Ok(row)
    }

    /// Traces a storm row that is in no result.
    fn trace(&self, mode: Mode, dir: &Path) -> Result<()> {
        let path = dir.join(format!("trace-storm-{}.txt", mode.name()));
        let active = Active::set_up(mode, &self.rig, &self.modes)?;
        let traced = self.loaded(Load::Storm, || {
            let trace = Trace::set_up(self.rig.cpus.poller)?;
            let label = Label {
                mode: mode.name(),
                load: "storm",
                round: 0,
            };
            let client = ClientConfig {
                stop: Stop::AfterNs(TRACE_ROW_NS),
                ..self.client.clone()
            };
            std::thread::scope(|scope| {
                let row =
                    scope.spawn(|| row::ping_pong(&self.ends, &client, &active.watch(), label));
                std::thread::sleep(TRACE_AFTER);
                let recorded = trace.record(TRACE_LENGTH, &path);
                row.join().map_err(|_| Error::Panicked("traced row"))??;
                recorded
            })
        });
        let undone = active.undo();
        traced.and(undone)
    }
}
