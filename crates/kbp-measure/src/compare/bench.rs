// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures cells on this machine: the path is up while its cells last, a mechanism through a batch of them, a load
//! for a cell.
//!
//! Not here: which cells, and what is kept of them ([`super::plan`], [`super::engine`]); one row ([`super::row`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::engine::{Bench, Go, Measured};
use super::place_of::{can_run, Path, PathOptions};
use super::plan::{batches, Cell};
use super::row::{self, Label, Traffic};
use super::streams::{self, StreamOptions};
use super::tables;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::load::{Load, LoadConfig, Running};
use crate::mechanism::{leftover, Active, Mechanism, MechanismConfig};
use crate::result::{LoadDone, Row, RowNs};
use crate::tester::openloop::OpenLoopConfig;
use crate::tester::pingpong::{ClientConfig, Stop};
use crate::trace::Trace;
use crate::witness::Watch;

/// The mechanism of the warm-up.
const STOCK: &str = "softirq";
/// Length of the discarded first row of a path, nanoseconds.
const WARM_UP_ROW_NS: u64 = 100_000_000;
/// When a trace begins after the client did, and how long it is.
const TRACE_AFTER: Duration = Duration::from_millis(150);
const TRACE_LENGTH: Duration = Duration::from_millis(60);
const TRACE_ROW_NS: u64 = 300_000_000;

/// How everything is measured, besides what is compared.
#[derive(Debug, Clone)]
pub struct Options {
    /// What all paths share.
    pub path: PathOptions,
    /// The ping-pong; its server and its `stop` are replaced.
    pub client: ClientConfig,
    /// What is sent instead of the ping-pong, a row of each; the spans of open loops are replaced.
    pub frames: Vec<Traffic>,
    /// Length of a row.
    pub row_ns: RowNs,
    /// The mechanisms.
    pub mechanisms: MechanismConfig,
    /// The loads.
    pub loads: LoadConfig,
    /// The load `stream`.
    pub streams: StreamOptions,
    /// Length of a third party's row, seconds.
    pub third_party_s: u32,
    /// Whether all CPUs share one stream of instructions, on which some mechanisms look worse than they are.
    pub virtual_clock: bool,
    /// Folder for traces of the first and the last mechanism under each load; `None` leaves them out.
    pub traces: Option<PathBuf>,
}

/// A mechanism that is set up, and what is read around its rows: looked for once for all of them.
struct Served<'a> {
    active: &'a Active<'a>,
    watch: Watch,
}

/// This machine.
#[derive(Debug)]
pub struct Machine<'a> {
    options: &'a Options,
    /// The loads, with the streams once their cards are up.
    loads: LoadConfig,
    up: Option<Path>,
    /// The path that could not be brought up, and what that is for its cells.
    broken: Option<(String, Broken)>,
    /// Mechanisms that can run on the path that is up. To find that out for a live patch is as dear as rows, and what
    /// changed since is seen when the mechanism is set up.
    possible: BTreeSet<&'static str>,
}

/// Why a path has no cells.
#[derive(Debug, Clone)]
struct Broken {
    why: String,
    failed: bool,
}

impl Broken {
    fn measured(&self) -> Measured {
        match self.failed {
            true => Measured::Failed(self.why.clone()),
            false => Measured::CannotRun(self.why.clone()),
        }
    }
}

impl<'a> Machine<'a> {
    /// A machine on which nothing is up.
    pub fn new(options: &'a Options) -> Self {
        Self {
            options,
            loads: options.loads.clone(),
            up: None,
            broken: None,
            possible: BTreeSet::new(),
        }
    }

    /// Brings the path of a cell up, if it is not, after taking down another one.
    fn go_to(&mut self, path: &str) -> Result<std::result::Result<(), Broken>> {
        if self.up.as_ref().is_some_and(|up| up.name == path) {
            return Ok(Ok(()));
        }
        if let Some((name, broken)) = &self.broken {
            if name == path {
                return Ok(Err(broken.clone()));
            }
        }
        self.take_down()?;
        let broken = match self.bring_up(path) {
            Ok(()) => return Ok(Ok(())),
            Err(broken) => broken,
        };
        self.take_down()?;
        self.broken = Some((path.into(), broken.clone()));
        Ok(Err(broken))
    }

    fn bring_up(&mut self, path: &str) -> std::result::Result<(), Broken> {
        let failed = |error: Error| Broken {
            why: error.to_string(),
            failed: true,
        };
        can_run(path, &self.options.path).map_err(|why| Broken { why, failed: false })?;
        let up = Path::up(path, &self.options.path).map_err(failed)?;
        let up = self.up.insert(up);
        warm_up(up, self.options).map_err(failed)
    }

    fn can_run(&mut self, mechanism: &'static Mechanism) -> std::result::Result<(), String> {
        if let Some(up) = self
            .up
            .as_ref()
            .filter(|_| !self.possible.contains(mechanism.name))
        {
            mechanism.can_run(&up.rig)?;
            self.possible.insert(mechanism.name);
        }
        Ok(())
    }

    fn take_down(&mut self) -> Result<()> {
        self.possible.clear();
        self.up.take().map_or(Ok(()), Path::down)
    }

    /// Traces rows that are in no result: of two mechanisms under each load on the path that is up.
    ///
    /// # Errors
    /// When the path does not come up, and those of a row.
    pub fn trace(&mut self, path: &str, loads: &[&str], modes: &[&str]) -> Result<()> {
        let Some(dir) = self.options.traces.clone() else {
            return Ok(());
        };
        if let Err(broken) = self.go_to(path)? {
            return Err(Error::Invalid(format!(
                "no trace of {path}: {}",
                broken.why
            )));
        }
        for mode in modes {
            for load in loads {
                let file = dir.join(format!("trace-{load}-{mode}.txt"));
                self.trace_row(tables::mechanism(mode)?, tables::load(load)?, &file)?;
            }
        }
        Ok(())
    }

    /// What came of a cell whose mechanism is up.
    fn measured(&self, cell: &Cell, up: &Path, active: &Served) -> Result<Measured> {
        let load = tables::load(&cell.load)?;
        let can_run = match load {
            Load::Stream if self.loads.stream.is_none() => streams::can_run(&self.options.streams),
            _ => load.can_run(&self.loads),
        };
        let can_serve = || {
            let mut services = self.options.frames.iter().filter_map(Traffic::service);
            services.try_for_each(|service| service.can_run(&up.ends))
        };
        if let Err(why) = can_run.and_then(|()| can_serve()) {
            return Ok(Measured::CannotRun(why));
        }
        Ok(
            match rows(cell, load, up, active, self.options, &self.loads) {
                Ok(rows) => Measured::Rows(rows),
                Err(error) => Measured::Failed(error.to_string()),
            },
        )
    }

    fn cells_of(
        &self,
        cells: &[&Cell],
        up: &Path,
        active: &Active,
        done: &mut dyn FnMut(&Cell, Measured) -> Result<Go>,
    ) -> Result<()> {
        let served = Served {
            active,
            watch: active.watch(),
        };
        for cell in cells {
            if done(cell, self.measured(cell, up, &served)?)? == Go::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Puts the cards of the streams on their wire, if a cell wants them and they are not.
    fn bring_up_streams(&mut self, cells: &[&Cell]) -> Result<()> {
        let options = &self.options.streams;
        let wanted = cells.iter().any(|cell| cell.load == Load::Stream.name());
        if wanted && self.loads.stream.is_none() && streams::can_run(options).is_ok() {
            self.loads.stream = Some(streams::up(options, self.options.path.cpus)?);
        }
        Ok(())
    }

    fn take_down_streams(&mut self) -> Result<()> {
        self.loads.stream.take().map_or(Ok(()), |_| streams::down())
    }

    fn trace_row(
        &self,
        mode: &'static Mechanism,
        load: Load,
        file: &std::path::Path,
    ) -> Result<()> {
        let Some(up) = &self.up else { return Ok(()) };
        let active = Active::set_up(mode, &up.rig, &self.options.mechanisms)?;
        let traced = loaded(load, &self.loads, |_| {
            let trace = Trace::set_up(up.rig.cpus.poller)?;
            let label = Label {
                path: &up.name,
                mode: mode.name,
                load: load.name(),
                round: 0,
            };
            let traffic = Traffic::PingPong(self.options.client_for(TRACE_ROW_NS));
            std::thread::scope(|scope| {
                let row = scope.spawn(|| row::ours(&up.ends, &traffic, &active.watch(), label));
                std::thread::sleep(TRACE_AFTER);
                let recorded = trace.record(TRACE_LENGTH, file);
                row.join().map_err(|_| Error::Panicked("traced row"))??;
                recorded
            })
        });
        let undone = active.undo();
        traced.and(undone)
    }
}

/// What a cell takes besides its rows: server, warm-up pings, waiting for late replies, the load.
const CELL_MORE: Duration = Duration::from_millis(200);
/// What setting up and undoing a mechanism takes; for one that needs the live patch, two transitions.
const SET_UP: Duration = Duration::from_millis(50);
const SET_UP_PATCHED: Duration = Duration::from_secs(4);

impl Options {
    /// Roughly how long these cells take, in this machine's own time.
    pub fn estimate(&self, cells: &[Cell]) -> Duration {
        let of_cell = |cell: &Cell| {
            let row_ns = self.row_ns.of(&cell.load);
            let third_s = u64::from(self.third_party_s) * u64::from(cell.third_party);
            let rows_ns: u64 = self.traffics(row_ns).iter().map(span_ns).sum();
            Duration::from_nanos(rows_ns) + CELL_MORE + Duration::from_secs(third_s)
        };
        let of_batch = |batch: &[Cell]| match batch.first() {
            Some(cell) if cell.mode.starts_with("kbp-") => SET_UP_PATCHED,
            _ => SET_UP,
        };
        let set_up: Duration = batches(cells).map(of_batch).sum();
        set_up + cells.iter().map(of_cell).sum::<Duration>()
    }

    fn client_for(&self, row_ns: u64) -> ClientConfig {
        ClientConfig {
            stop: Stop::AfterNs(row_ns),
            ..self.client.clone()
        }
    }

    /// What a cell's rows are made of.
    fn traffics(&self, row_ns: u64) -> Vec<Traffic> {
        let of_length = |traffic: &Traffic| match traffic {
            Traffic::OpenLoop(config) => Traffic::OpenLoop(OpenLoopConfig {
                span_ns: row_ns,
                ..config.clone()
            }),
            Traffic::Nothing(_) => Traffic::Nothing(row_ns),
            Traffic::Service(service) => Traffic::Service(service.lasting(row_ns)),
            other => other.clone(),
        };
        match self.frames.is_empty() {
            true => vec![Traffic::PingPong(self.client_for(row_ns))],
            false => self.frames.iter().map(of_length).collect(),
        }
    }
}

/// Trials that a search takes, roughly: it halves a range down to its resolution.
const TRIALS: u64 = 8;

/// Roughly how long a row takes.
fn span_ns(traffic: &Traffic) -> u64 {
    match traffic {
        Traffic::PingPong(client) => match client.stop {
            Stop::AfterNs(ns) => ns,
            Stop::Pings(pings) => pings * client.period_ns,
        },
        Traffic::OpenLoop(config) => config.span_ns,
        Traffic::Nothing(span_ns) => *span_ns,
        Traffic::Service(service) => service.span_ns(),
        Traffic::Throughput(config) => (config.trial_ns + config.settle_ns) * TRIALS,
    }
}

impl Bench for Machine<'_> {
    fn batch(
        &mut self,
        cells: &[&Cell],
        done: &mut dyn FnMut(&Cell, Measured) -> Result<Go>,
    ) -> Result<()> {
        let Some(first) = cells.first() else {
            return Ok(());
        };
        if let Err(broken) = self.go_to(&first.path)? {
            return all(cells, done, || broken.measured());
        }
        self.bring_up_streams(cells)?;
        let mechanism = tables::mechanism(&first.mode)?;
        if let Err(why) = self.can_run(mechanism) {
            return all(cells, done, || Measured::CannotRun(why.clone()));
        }
        let Some(up) = &self.up else { return Ok(()) };
        let active = match Active::set_up(mechanism, &up.rig, &self.options.mechanisms) {
            Ok(active) => active,
            Err(error) => return all(cells, done, || Measured::Failed(error.to_string())),
        };
        let measured = self.cells_of(cells, up, &active, done);
        // Undone whatever happened. What can't be undone ends the run: later rows would not be what they say.
        let undone = active.undo();
        measured.and(undone)
    }

    fn finish(&mut self) -> Result<()> {
        let taken_down = self.take_down();
        let streams_down = self.take_down_streams();
        let released = leftover::release_module();
        taken_down.and(streams_down).and(released)
    }
}

fn all(
    cells: &[&Cell],
    done: &mut dyn FnMut(&Cell, Measured) -> Result<Go>,
    measured: impl Fn() -> Measured,
) -> Result<()> {
    for cell in cells {
        if done(cell, measured())? == Go::Stop {
            break;
        }
    }
    Ok(())
}

/// The rows of a cell: ours, and a third party's where the plan wants one.
fn rows(
    cell: &Cell,
    load: Load,
    up: &Path,
    Served { active, watch }: &Served,
    options: &Options,
    loads: &LoadConfig,
) -> Result<Vec<Row>> {
    let label = Label {
        path: &cell.path,
        mode: &cell.mode,
        load: &cell.load,
        round: cell.round,
    };
    let mut rows = loaded(load, loads, |running| {
        let mut rows = Vec::new();
        for traffic in options.traffics(options.row_ns.of(load.name())) {
            let row = beside(running, || row::ours(&up.ends, &traffic, watch, label))?;
            rows.push(proved(active, row)?);
            if interrupt::requested() {
                return Ok(rows);
            }
        }
        if cell.third_party && options.third_party_s > 0 && !interrupt::requested() {
            let (size, seconds) = (options.client.payload_len, options.third_party_s);
            let row = beside(running, || {
                row::sockperf(&up.ends, size, seconds, watch, label)
            })?;
            rows.push(proved(active, row)?);
        }
        Ok(rows)
    })?;
    if let Some(note) = active
        .mechanism()
        .clock_note
        .filter(|_| options.virtual_clock)
    {
        for row in &mut rows {
            let own = row.note.take().map(|own| format!("{own}; "));
            row.note = Some(own.unwrap_or_default() + note);
        }
    }
    if !interrupt::requested() {
        active.verify()?;
    }
    Ok(rows)
}

/// A row, if the counters that moved since the last one say that the mechanism did its work. A row that an interrupt
/// cut short proves nothing, and is thrown away by the engine.
fn proved(active: &Active, row: Row) -> Result<Row> {
    if !interrupt::requested() {
        active.verify_row(&row)?;
    }
    Ok(row)
}

/// Does `work` while `load` runs, and sees that it ran.
fn loaded<T>(
    load: Load,
    loads: &LoadConfig,
    work: impl FnOnce(&Running) -> Result<T>,
) -> Result<T> {
    let running = Running::start(load, loads)?;
    let before = running.progress()?;
    let done = work(&running);
    let moved = running.require_moved_since(&before);
    running.stop()?;
    let done = done?;
    if !interrupt::requested() {
        moved?;
    }
    Ok(done)
}

/// A row, with what the load beside it did meanwhile.
fn beside(running: &Running, measure: impl FnOnce() -> Result<Row>) -> Result<Row> {
    let (before, begin) = (running.progress()?, Instant::now());
    let mut row = measure()?;
    let done = running.progress()?.since(&before);
    let counts = done.counts.iter();
    let counts: BTreeMap<_, _> = counts
        .map(|count| (count.name.to_owned(), count.total))
        .collect();
    row.load_done = (!counts.is_empty()).then(|| LoadDone {
        span_ns: begin.elapsed().as_nanos() as u64,
        counts,
    });
    Ok(row)
}

/// The first row of a path is never like the others: caches, page faults, code that is translated for the first time.
fn warm_up(up: &Path, options: &Options) -> Result<()> {
    let label = Label {
        path: &up.name,
        mode: "warm-up",
        load: "idle",
        round: 0,
    };
    let active = Active::set_up(tables::mechanism(STOCK)?, &up.rig, &options.mechanisms)?;
    let traffic = Traffic::PingPong(options.client_for(WARM_UP_ROW_NS));
    let row = row::ours(&up.ends, &traffic, &active.watch(), label);
    active.undo()?;
    match row? {
        row if row.n == 0 && !interrupt::requested() => Err(Error::Invalid(format!(
            "no ping came back from {} in the warm-up of the path {}",
            up.ends.target, up.name
        ))),
        _ => Ok(()),
    }
}
