// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which cells are measured, and in which order: a pure function of what is compared and a seed.
//!
//! On each path, for each block of loads: rounds, in each of them every mechanism once, in another order each time;
//! at the end the first mechanism again, so that a drift of the machine would show. A mechanism that is set up stays
//! through the loads of the block, so that what is dear to set up (a live patch) is set up once a round.
//!
//! Not here: measuring a cell ([`super::bench`]), and what of the plan is done already ([`super::engine`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rng::SplitMix64;

/// Orders that are drawn for a round; the one that repeats the least of what came before is taken.
const ORDERS_DRAWN: u32 = 64;
/// Cost of one mechanism right after itself, and of a pair of neighbours that there was already.
const COST_ITSELF: u32 = 1;
const COST_REPEATED: u32 = 2;

/// What is compared. Names are those of the tables of topologies, loads and mechanisms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Topologies.
    pub paths: Vec<String>,
    /// Loads, in blocks.
    pub loads: Vec<Vec<String>>,
    /// Mechanisms; the first is the one that is repeated last.
    pub mechanisms: Vec<String>,
    /// How often each cell is measured, without the repetition at the end.
    pub rounds: u32,
    /// Mechanisms whose idle cells a third party's program measures too, in the first round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub third_party: Vec<String>,
}

/// One measurement to be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Topology.
    pub path: String,
    /// Load.
    pub load: String,
    /// Mechanism.
    pub mode: String,
    /// 1 to the plan's rounds, and one more for the repetition at the end.
    pub round: u32,
    /// Whether a third party's program measures it too.
    pub third_party: bool,
}

impl Cell {
    /// How a person calls it.
    pub fn name(&self) -> String {
        let Self {
            path,
            load,
            mode,
            round,
            ..
        } = self;
        format!("{path}, {load}, {mode}, round {round}")
    }

    /// Whether the two are measured with the mechanism set up once.
    pub fn shares_set_up(&self, other: &Self) -> bool {
        (&self.path, &self.mode, self.round) == (&other.path, &other.mode, other.round)
    }
}

impl Plan {
    /// The cells in the order in which they are measured.
    ///
    /// # Errors
    /// When nothing is compared, or something twice.
    pub fn cells(&self, seed: u64) -> Result<Vec<Cell>> {
        self.check()?;
        let mut cells = Vec::new();
        for path in &self.paths {
            for block in &self.loads {
                let orders = orders(self.mechanisms.len(), self.rounds, seed);
                for (round, order) in (1..).zip(orders) {
                    for mechanism in order {
                        cells.extend(self.batch(path, block, &self.mechanisms[mechanism], round));
                    }
                }
                cells.extend(self.batch(path, block, &self.mechanisms[0], self.rounds + 1));
            }
        }
        Ok(cells)
    }

    fn batch<'a>(
        &'a self,
        path: &'a str,
        block: &'a [String],
        mode: &'a str,
        round: u32,
    ) -> impl Iterator<Item = Cell> + 'a {
        block.iter().map(move |load| Cell {
            path: path.into(),
            load: load.clone(),
            mode: mode.into(),
            round,
            third_party: round == 1 && load == "idle" && self.third_party.iter().any(|m| m == mode),
        })
    }

    fn check(&self) -> Result<()> {
        let loads: Vec<String> = self.loads.concat();
        for (what, names) in [
            ("path", &self.paths),
            ("load", &loads),
            ("mechanism", &self.mechanisms),
        ] {
            if names.is_empty() {
                return Err(Error::Invalid(format!("no {what} is named")));
            }
            if let Some(twice) = twice(names) {
                return Err(Error::Invalid(format!("the {what} {twice} is named twice")));
            }
        }
        if !(1..=100).contains(&self.rounds) {
            let why = format!("{} rounds: it has to be 1 to 100", self.rounds);
            return Err(Error::Invalid(why));
        }
        Ok(())
    }
}

fn twice(names: &[String]) -> Option<&String> {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    names.windows(2).find(|w| w[0] == w[1]).map(|w| w[0])
}

/// Groups of neighbours that share their set-up.
pub fn batches(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    cells.chunk_by(Cell::shares_set_up)
}

/// For each round an order of `count` mechanisms. The first round has them as they were named; of the others no
/// mechanism always follows the same one, where there is more than one round.
fn orders(count: usize, rounds: u32, seed: u64) -> Vec<Vec<usize>> {
    let mut rng = SplitMix64::new(seed);
    let mut chosen: Vec<Vec<usize>> = vec![(0..count).collect()];
    let mut seen = BTreeMap::new();
    note(&chosen[0], &mut seen);
    for round in 2..=rounds {
        let last = chosen.last().and_then(|order| order.last()).copied();
        let is_last_round = round == rounds;
        let drawn = (0..ORDERS_DRAWN).map(|draw| match draw {
            // The one that always helps is among them.
            0 => (0..count).rev().collect(),
            _ => shuffled(count, &mut rng),
        });
        let best = drawn.min_by_key(|order: &Vec<usize>| {
            let mut line: Vec<usize> = last.into_iter().collect();
            line.extend(order);
            line.extend(is_last_round.then_some(0));
            cost(&line, &seen)
        });
        let best = best.unwrap_or_default();
        let mut line: Vec<usize> = last.into_iter().collect();
        line.extend(&best);
        note(&line, &mut seen);
        chosen.push(best);
    }
    chosen
}

fn shuffled(count: usize, rng: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for place in (1..count).rev() {
        order.swap(place, rng.in_range(0, place as u64) as usize);
    }
    order
}

fn note(line: &[usize], seen: &mut BTreeMap<(usize, usize), u32>) {
    for pair in line.windows(2) {
        *seen.entry((pair[0], pair[1])).or_default() += 1;
    }
}

/// What speaks against a line: neighbours that are the same, or that were neighbours before.
fn cost(line: &[usize], seen: &BTreeMap<(usize, usize), u32>) -> u32 {
    let mut seen = seen.clone();
    let of = |pair: &[usize]| {
        let times = seen.entry((pair[0], pair[1])).or_default();
        *times += 1;
        COST_ITSELF * u32::from(pair[0] == pair[1]) + COST_REPEATED * (*times - 1)
    };
    line.windows(2).map(of).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A plan of this many of each.
    pub(crate) fn plan(paths: usize, blocks: &[usize], mechanisms: usize, rounds: u32) -> Plan {
        let names = |what: &str, count: usize| -> Vec<String> {
            (0..count).map(|i| format!("{what}{i}")).collect()
        };
        let loads = blocks
            .iter()
            .enumerate()
            .map(|(block, count)| names(&format!("load{block}-"), *count))
            .collect();
        Plan {
            paths: names("path", paths),
            loads,
            mechanisms: names("mode", mechanisms),
            rounds,
            third_party: vec![],
        }
    }

    fn count(cells: &[Cell], of: &Cell) -> usize {
        let same =
            |cell: &&Cell| (&cell.path, &cell.load, &cell.mode) == (&of.path, &of.load, &of.mode);
        cells.iter().filter(same).count()
    }

    #[test]
    fn every_cell_has_its_rounds_and_the_first_is_repeated_last() {
        for seed in 0..20 {
            let (mechanisms, rounds) = (1 + seed as usize % 6, 1 + seed as u32 % 4);
            let plan = plan(2, &[1, 3], mechanisms, rounds);
            let cells = plan.cells(seed).unwrap();
            let unique: BTreeSet<&Cell> = cells.iter().collect();
            assert_eq!(unique.len(), cells.len(), "a cell is there twice");
            for cell in &cells {
                let repeated = usize::from(cell.mode == "mode0");
                assert_eq!(count(&cells, cell), rounds as usize + repeated, "{cell:?}");
            }
            for block in cells.chunk_by(|a, b| {
                a.path == b.path && a.load.starts_with("load0") == b.load.starts_with("load0")
            }) {
                let (first, last) = (&block[0], block.last().unwrap());
                assert_eq!(first.mode, last.mode);
                assert_eq!((first.round, last.round), (1, rounds + 1));
            }
        }
    }

    #[test]
    fn no_mechanism_always_follows_the_same() {
        for mechanisms in 2..=9 {
            for rounds in 2..=5 {
                for seed in 0..10 {
                    let cells = plan(1, &[1], mechanisms, rounds).cells(seed).unwrap();
                    let mut before: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
                    for pair in cells.windows(2) {
                        before.entry(&pair[1].mode).or_default().push(&pair[0].mode);
                    }
                    for (mode, others) in &before {
                        let different: BTreeSet<&&str> = others.iter().collect();
                        assert!(
                            different.len() > 1,
                            "{mode} after {others:?}: {mechanisms} mechanisms, {rounds} rounds, seed {seed}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_mechanism_stays_through_the_loads_of_a_block() {
        let cells = plan(1, &[3], 4, 2).cells(1).unwrap();
        let sizes: Vec<usize> = batches(&cells).map(<[Cell]>::len).collect();
        assert_eq!(sizes, [3; 9]);
        let apart = plan(1, &[1, 1], 2, 1).cells(1).unwrap();
        assert_eq!(batches(&apart).count(), 6);
    }

    #[test]
    fn a_seed_is_an_order() {
        let plan = plan(1, &[1], 6, 3);
        assert_eq!(plan.cells(4).unwrap(), plan.cells(4).unwrap());
        let orders: BTreeSet<Vec<Cell>> = (0..20).map(|seed| plan.cells(seed).unwrap()).collect();
        assert!(orders.len() > 5, "{}", orders.len());
    }

    #[test]
    fn plans_of_nothing_and_doubles_are_refused() {
        let refusal = |plan: Plan| plan.cells(1).unwrap_err().to_string();
        assert!(refusal(plan(0, &[1], 1, 1)).contains("no path"));
        assert!(refusal(plan(1, &[], 1, 1)).contains("no load"));
        assert!(refusal(plan(1, &[1], 1, 0)).contains("0 rounds"));
        let mut double = plan(1, &[1], 1, 1);
        double.mechanisms.push("mode0".into());
        assert!(refusal(double).contains("mode0 is named twice"));
    }
}
