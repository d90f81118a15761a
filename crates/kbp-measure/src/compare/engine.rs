// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From cells to rows: what is done already is left out, what is measured is saved at once, what can't be is said.
//!
//! The file is marked partial until the last cell. It holds whole cells only, so a run that was cut off at any moment
//! goes on where it was and ends with the same file.
//!
//! Not here: measuring ([`super::bench`]); the order ([`super::plan`]); whether a file may be continued
//! ([`super::resume`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::plan::{batches, Cell};
use crate::error::Result;
use crate::result::{NotRun, ResultFile, Row};

/// What came of a cell.
#[derive(Debug)]
pub enum Measured {
    /// Its rows.
    Rows(Vec<Row>),
    /// It can't be measured on this machine, and why.
    CannotRun(String),
    /// It should have been, and why it was not. Everything was undone.
    Failed(String),
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// With the next cell.
    On,
    /// Undo what is set up and return.
    Stop,
}

/// Who measures.
pub trait Bench {
    /// Measures cells that share their set-up, in order, and hands each to `done` before the next one begins.
    ///
    /// # Errors
    /// What must end the run, such as a change that could not be undone; and those of `done`.
    fn batch(
        &mut self,
        cells: &[&Cell],
        done: &mut dyn FnMut(&Cell, Measured) -> Result<Go>,
    ) -> Result<()>;

    /// Takes down what is still up.
    ///
    /// # Errors
    /// What could not be taken down.
    fn finish(&mut self) -> Result<()>;
}

/// A cell that is over, for whoever shows progress.
#[derive(Debug)]
pub struct Progress<'a> {
    /// The cell.
    pub cell: &'a Cell,
    /// Its rows, or why there are none.
    pub outcome: std::result::Result<&'a [Row], &'a NotRun>,
    /// Cells that are over, and all of them.
    pub over: usize,
    /// All cells of the plan.
    pub all: usize,
    /// Estimate of the time left.
    pub left: Duration,
}

/// What the engine works with.
pub struct Engine<'a> {
    /// All cells, in order.
    pub cells: &'a [Cell],
    /// Whether somebody wants an end.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Keeps the file.
    pub save: &'a mut dyn FnMut(&ResultFile) -> Result<()>,
    /// Is told of every cell.
    pub progress: &'a mut dyn FnMut(&Progress),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every cell was measured or has its reason.
    Complete,
    /// An interrupt came; the file is partial.
    Interrupted,
}

impl Engine<'_> {
    /// Measures what `file` lacks into it.
    ///
    /// # Errors
    /// Those of the bench and of saving. What was measured before is in the file, which is partial.
    pub fn run(mut self, file: &mut ResultFile, bench: &mut dyn Bench) -> Result<End> {
        // A failure may have had a cause that has gone.
        file.not_run.retain(|cell| !cell.failed);
        file.partial = true;
        (self.save)(file)?;
        let measured = self.measure(file, bench);
        let finished = bench.finish();
        let end = measured?;
        finished?;
        if end == End::Complete {
            file.partial = false;
            (self.save)(file)?;
        }
        Ok(end)
    }

    fn measure(&mut self, file: &mut ResultFile, bench: &mut dyn Bench) -> Result<End> {
        let mut estimate = Estimate::default();
        let cells = self.cells;
        for batch in batches(cells) {
            let to_do: Vec<&Cell> = batch.iter().filter(|cell| !is_over(file, cell)).collect();
            if (self.interrupted)() {
                return Ok(End::Interrupted);
            }
            if to_do.is_empty() {
                continue;
            }
            let mut end = End::Complete;
            estimate.begin();
            bench.batch(&to_do, &mut |cell, measured| {
                // What an interrupt cut short is no row.
                if (self.interrupted)() {
                    end = End::Interrupted;
                    return Ok(Go::Stop);
                }
                self.keep(file, cell, measured, &mut estimate)
            })?;
            if end == End::Interrupted {
                return Ok(end);
            }
        }
        Ok(End::Complete)
    }

    fn keep(
        &mut self,
        file: &mut ResultFile,
        cell: &Cell,
        measured: Measured,
        estimate: &mut Estimate,
    ) -> Result<Go> {
        let rows_before = file.rows.len();
        match measured {
            Measured::Rows(rows) => {
                estimate.took(&cell.load);
                file.rows.extend(rows);
            }
            Measured::CannotRun(why) => file.not_run.push(not_run(cell, why, false)),
            Measured::Failed(why) => file.not_run.push(not_run(cell, why, true)),
        }
        (self.save)(file)?;
        let rows = &file.rows[rows_before..];
        let outcome = match file.not_run.last() {
            Some(why) if rows.is_empty() => Err(why),
            _ => Ok(rows),
        };
        let to_do = self.cells.iter().filter(|cell| !is_over(file, cell));
        let left: Vec<&Cell> = to_do.collect();
        (self.progress)(&Progress {
            cell,
            outcome,
            over: self.cells.len() - left.len(),
            all: self.cells.len(),
            left: estimate.of(&left),
        });
        Ok(Go::On)
    }
}

fn not_run(cell: &Cell, why: String, failed: bool) -> NotRun {
    NotRun {
        path: cell.path.clone(),
        load: cell.load.clone(),
        mode: cell.mode.clone(),
        round: failed.then_some(cell.round),
        why,
        failed,
    }
}

/// Whether a cell is in the file, or why it is not. That it can't run is said once, for all its rounds.
fn is_over(file: &ResultFile, cell: &Cell) -> bool {
    let Cell {
        path,
        load,
        mode,
        round,
        ..
    } = cell;
    let measured =
        |row: &Row| (&row.path, &row.load, &row.mode, row.round) == (path, load, mode, *round);
    let refused = |cell: &NotRun| {
        (&cell.path, &cell.load, &cell.mode) == (path, load, mode)
            && cell.round.is_none_or(|failed| failed == *round)
    };
    file.rows.iter().any(measured) || file.not_run.iter().any(refused)
}

/// Mean times of the cells so far, by load: a loaded machine is slower than an idle one on the lab's virtual clock.
#[derive(Debug, Default)]
struct Estimate {
    since: Option<Instant>,
    by_load: BTreeMap<String, (Duration, u32)>,
}

impl Estimate {
    fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    fn took(&mut self, load: &str) {
        let now = Instant::now();
        let took = self.since.replace(now).map_or(Duration::ZERO, |t| now - t);
        let (sum, count) = self.by_load.entry(load.into()).or_default();
        *sum += took;
        *count += 1;
    }

    fn of(&self, cells: &[&Cell]) -> Duration {
        let all = self.by_load.values();
        let (sum, count) = all.fold((Duration::ZERO, 0), |(sum, n), one| {
            (sum + one.0, n + one.1)
        });
        let mean = |load: &str| match self.by_load.get(load) {
            Some((sum, count)) => *sum / *count,
            None => sum / count.max(1),
        };
        cells.iter().map(|cell| mean(&cell.load)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;
    use crate::error::Error;
    use crate::result::tests::sample;
    use std::cell::Cell as Count;

    /// A bench without a machine: rows follow from the cell, some cells can't run.
    struct Fake {
        up: bool,
        measured: usize,
    }

    impl Fake {
        fn of(cell: &Cell) -> Measured {
            match (cell.mode.as_str(), cell.load.as_str()) {
                ("mode1", "load0-1") => Measured::CannotRun("not here".into()),
                _ => Measured::Rows(vec![Row {
                    path: cell.path.clone(),
                    load: cell.load.clone(),
                    mode: cell.mode.clone(),
                    round: cell.round,
                    n: u64::from(cell.round) * 100 + cell.name().len() as u64,
                    ..Row::default()
                }]),
            }
        }
    }

    impl Bench for Fake {
        fn batch(
            &mut self,
            cells: &[&Cell],
            done: &mut dyn FnMut(&Cell, Measured) -> Result<Go>,
        ) -> Result<()> {
            self.up = true;
            for cell in cells {
                self.measured += 1;
                if done(cell, Self::of(cell))? == Go::Stop {
                    break;
                }
            }
            Ok(())
        }

        fn finish(&mut self) -> Result<()> {
            self.up = false;
            Ok(())
        }
    }

    fn empty() -> ResultFile {
        ResultFile {
            rows: vec![],
            ..sample()
        }
    }

    fn run(
        file: &mut ResultFile,
        cells: &[Cell],
        interrupted: &dyn Fn() -> bool,
        save: &mut dyn FnMut(&ResultFile) -> Result<()>,
    ) -> Result<End> {
        let mut bench = Fake {
            up: false,
            measured: 0,
        };
        let end = Engine {
            cells,
            interrupted,
            save,
            progress: &mut |_| {},
        }
        .run(file, &mut bench);
        assert!(!bench.up, "something is still up");
        end
    }

    /// Cut off after k cells, for every k, and continued from what was saved: the same file as in one go.
    #[test]
    fn a_run_that_was_cut_off_ends_with_the_same_file() {
        let cells = plan(2, &[2, 1], 3, 2).cells(5).unwrap();
        let mut whole = empty();
        let end = run(&mut whole, &cells, &|| false, &mut |_| Ok(())).unwrap();
        assert_eq!((end, whole.partial), (End::Complete, false));
        // Two cells can't run, in two rounds each; that is said once.
        assert_eq!(whole.rows.len() + 2 * 2, cells.len());
        assert_eq!(whole.not_run.len(), 2);
        for k in 0..cells.len() {
            let asked = Count::new(0);
            let mut kept = empty();
            let mut file = empty();
            let interrupted = || {
                asked.set(asked.get() + 1);
                asked.get() > k
            };
            let end = run(&mut file, &cells, &interrupted, &mut |file| {
                kept = file.clone();
                Ok(())
            });
            assert_eq!(end.unwrap(), End::Interrupted, "after {k}");
            assert!(kept.partial, "after {k}");
            assert!(kept.rows.len() < whole.rows.len(), "after {k}");
            run(&mut kept, &cells, &|| false, &mut |_| Ok(())).unwrap();
            assert_eq!(kept, whole, "after {k}");
        }
    }

    #[test]
    fn a_full_disk_ends_the_run_and_takes_everything_down() {
        let cells = plan(1, &[1], 3, 2).cells(5).unwrap();
        for k in 0..5 {
            let mut file = empty();
            let mut saves = 0;
            let error = run(&mut file, &cells, &|| false, &mut |_| {
                saves += 1;
                if saves > k {
                    return Err(Error::Invalid("no space left".into()));
                }
                Ok(())
            });
            assert!(error.unwrap_err().to_string().contains("no space"));
            assert!(file.partial);
        }
    }

    #[test]
    fn what_failed_is_tried_again_and_what_cannot_run_is_not() {
        let cells = plan(1, &[2], 2, 1).cells(5).unwrap();
        let mut file = empty();
        run(&mut file, &cells, &|| false, &mut |_| Ok(())).unwrap();
        let whole = file.clone();
        let mut failed = not_run(&cells[0], "the machine was busy".into(), true);
        failed.path = "path0".into();
        file.rows.remove(0);
        file.not_run.push(failed);
        run(&mut file, &cells, &|| false, &mut |_| Ok(())).unwrap();
        assert_eq!(file.not_run, whole.not_run);
        assert_eq!(file.rows.len(), whole.rows.len());
    }
}
