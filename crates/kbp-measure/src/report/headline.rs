// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result in plain words: where our mechanism is ahead, where it is not, and what it costs.
//!
//! Every sentence follows from [`Contest`]s and rows. Not here: the figures in tables.

use super::cell::{is_ours, Group};
use super::ratio::{Compared, Contest, Percentile};
use super::run::Run;
use super::text::{count, number_word, ratio, share, time};
use crate::stats::Verdict;

/// Places that are named one by one; more are counted only.
const NAMED_MAX: usize = 4;

/// The sentences, plain text, most important first.
pub fn sentences(runs: &[Run], groups: &[Group], contests: &[Contest]) -> Vec<String> {
    let mut sentences = Vec::new();
    if contests.is_empty() {
        sentences.push(
            "No mechanism of KBP is in these rows, so nothing is said about it; the tables below \
             compare the others."
                .into(),
        );
    }
    sentences.extend(standing(runs, contests));
    sentences.extend(largest_gain(runs, contests));
    sentences.extend(behind(runs, contests));
    sentences.extend(losses(groups));
    sentences.extend(price(groups));
    sentences.extend(partial(runs));
    sentences
}

/// Where a contest was: `vxlan under storm (6.12.94)`.
pub fn place(runs: &[Run], group: &Group) -> String {
    let key = &group.key;
    let mut words = match key.load {
        "idle" => format!("{}, idle", key.path),
        load => format!("{} under {load}", key.path),
    };
    if key.traffic != "ping-pong" {
        words += &format!(", {}", super::names::traffic(key));
    }
    if runs.len() > 1 {
        words += &format!(" ({})", runs[key.run].label);
    }
    words
}

fn standing(runs: &[Run], contests: &[Contest]) -> Option<String> {
    let judged: Vec<&Compared> = contests
        .iter()
        .filter_map(|contest| Some(&contest.rival.as_ref()?.1))
        .collect();
    if judged.is_empty() {
        return None;
    }
    let dimensions = match runs.len() {
        1 => "path × load",
        _ => "path × load × machine",
    };
    Some(format!(
        "Of {} comparisons ({dimensions}) of p99 with the best of the other mechanisms on the same \
         machine, {}.",
        judged.len(),
        verdicts(&judged)
    ))
}

/// "KBP is ahead in two and behind in one; in three no difference is shown".
fn verdicts(judged: &[&Compared]) -> String {
    let count = |is_so: &dyn Fn(&Compared) -> bool| judged.iter().filter(|one| is_so(one)).count();
    let few = |one: &Compared| one.verdict == Some(Verdict::TooFew);
    let level = |one: &Compared| one.is_lower().is_none() && !few(one);
    let sides = [("ahead", Some(true)), ("behind", Some(false))];
    let decided: Vec<String> = sides
        .iter()
        .map(|(word, side)| (word, count(&|one| one.is_lower() == *side)))
        .filter(|(_, count)| *count > 0)
        .map(|(word, count)| format!("{word} in {}", number_word(count)))
        .collect();
    let mut parts = Vec::new();
    if !decided.is_empty() {
        parts.push(format!("KBP is {}", decided.join(" and ")));
    }
    let undecided = [
        (count(&level), "no difference is shown"),
        (count(&few), "there are too few round trips to say"),
    ];
    let named = undecided.iter().filter(|(count, _)| *count > 0);
    parts.extend(named.map(|(count, words)| format!("in {} {words}", number_word(*count))));
    parts.join("; ")
}

fn largest_gain(runs: &[Run], contests: &[Contest]) -> Option<String> {
    let (contest, (stock, compared)) = contests
        .iter()
        .filter_map(|contest| Some((contest, contest.stock.as_ref()?)))
        .filter(|(_, (_, compared))| compared.is_lower() == Some(true))
        .min_by(|(_, a), (_, b)| a.1.value.total_cmp(&b.1.value))?;
    let p99 = |rtt| time(Percentile::P99.of(rtt) as f64);
    Some(format!(
        "Largest gain over {}: {}, where the p99 of {} is {} instead of {} ({}).",
        stock.mode,
        place(runs, contest.group),
        contest.ours.mode,
        p99(&contest.ours.rtt_ns),
        p99(&stock.rtt_ns),
        ratio(compared.value, 1.0)
    ))
}

fn behind(runs: &[Run], contests: &[Contest]) -> Option<String> {
    let mut worse: Vec<_> = contests
        .iter()
        .filter_map(|contest| Some((contest, contest.rival.as_ref()?)))
        .filter(|(_, (_, compared))| compared.is_lower() == Some(false))
        .collect();
    worse.sort_by(|(_, a), (_, b)| b.1.value.total_cmp(&a.1.value));
    if worse.is_empty() {
        return None;
    }
    let name = |(contest, (rival, compared)): &(&Contest, &(&super::cell::Cell, Compared))| {
        format!(
            "{} ({} takes {} as long as {})",
            place(runs, contest.group),
            contest.ours.mode,
            ratio(compared.value, 1.0),
            rival.mode
        )
    };
    let named: Vec<String> = worse.iter().take(NAMED_MAX).map(name).collect();
    let rest = match worse.len() - named.len() {
        0 => String::new(),
        rest => format!("; and {} more", number_word(rest)),
    };
    Some(format!(
        "A rival has the lower p99 here: {}{rest}.",
        named.join("; ")
    ))
}

fn losses(groups: &[Group]) -> Option<String> {
    let sums = |ours: bool| {
        let cells = groups.iter().filter(|group| group.is_headline());
        let cells = cells
            .flat_map(|group| &group.cells)
            .filter(|cell| is_ours(cell.mode) == ours);
        cells.fold((0, 0), |(lost, all), cell| {
            (lost + cell.lost(), all + cell.n() + cell.lost())
        })
    };
    let ((lost, all), (others_lost, others)) = (sums(true), sums(false));
    (all > 0).then(|| {
        format!(
            "Lost with KBP: {} of {}; with the other mechanisms: {} of {}.",
            count(lost),
            count(all),
            count(others_lost),
            count(others)
        )
    })
}

fn price(groups: &[Group]) -> Option<String> {
    let cells = groups.iter().flat_map(|group| &group.cells);
    let shares: Vec<f64> = cells
        .filter(|cell| is_ours(cell.mode))
        .filter_map(|cell| cell.cpu_share())
        .collect();
    let low = shares.iter().copied().reduce(f64::min)?;
    let high = shares.iter().copied().reduce(f64::max)?;
    let range = match (share(low), share(high)) {
        (low, high) if low == high => high,
        (low, high) => format!("{low} to {high}"),
    };
    Some(format!(
        "The price: the poller took {range} of one CPU while it was measured."
    ))
}

fn partial(runs: &[Run]) -> Option<String> {
    let cut: Vec<&str> = runs
        .iter()
        .filter(|run| run.file.partial)
        .map(|run| run.label.as_str())
        .collect();
    (!cut.is_empty()).then(|| {
        format!(
            "The run is not complete ({}): rows are missing.",
            cut.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_names_only_what_there_is() {
        let words = |verdicts_of: &[Verdict]| {
            let compared = verdicts_of.iter().map(|verdict| Compared {
                value: 1.0,
                low: None,
                high: None,
                verdict: Some(*verdict),
            });
            let compared: Vec<Compared> = compared.collect();
            verdicts(&compared.iter().collect::<Vec<_>>())
        };
        use Verdict::{Higher, Lower, NoDifferenceShown, TooFew};
        assert_eq!(words(&[Lower, Lower]), "KBP is ahead in two");
        assert_eq!(
            words(&[Lower, Higher, NoDifferenceShown, TooFew]),
            "KBP is ahead in one and behind in one; in one no difference is shown; \
             in one there are too few round trips to say"
        );
        assert_eq!(words(&[NoDifferenceShown]), "in one no difference is shown");
    }
}
