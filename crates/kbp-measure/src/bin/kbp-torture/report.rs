// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Markdown made of results: a table of runs, one of actions, one of paths, the refusals, and what was found.
//!
//! Every figure is from a result file; nothing is said that none of them holds.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::result::{ActionCount, PathCount, TortureResult};

/// Refusals shown for each kind of action.
const REASONS_SHOWN: usize = 6;

/// The page.
pub fn page(results: &[TortureResult]) -> String {
    let mut text = String::from(
        "# Torture\n\nWhat `make torture` and `make torture-short` did and found; what they do is in \
         [torture](../reference/torture.md).\nMade by `kbp-torture report` from the result files.\n\n",
    );
    runs(&mut text, results);
    let actions = sum(results, |result| &result.actions, ActionCount::add);
    let paths = sum(results, |result| &result.paths, PathCount::add);
    action_table(&mut text, &actions);
    path_table(&mut text, &paths);
    drop_table(&mut text, results);
    refusals(&mut text, &actions);
    failures(&mut text, results);
    text
}

/// The same table of all runs, added up.
fn sum<T: Default>(
    results: &[TortureResult],
    table: fn(&TortureResult) -> &BTreeMap<String, T>,
    add: fn(&mut T, &T),
) -> BTreeMap<String, T> {
    let mut total: BTreeMap<String, T> = BTreeMap::new();
    for (name, value) in results.iter().flat_map(table) {
        add(total.entry(name.clone()).or_default(), value);
    }
    total
}

/// Writing to a string can't fail.
fn line(text: &mut String, arguments: std::fmt::Arguments) {
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

fn runs(text: &mut String, results: &[TortureResult]) {
    text.push_str(
        "| kernel | checkers | module | seed | minutes | clean phases | actions | packets | lost | counted as dropped | \
         splats | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for result in results {
        let done: u64 = result.actions.values().map(|count| count.done).sum();
        let sent: u64 = result.paths.values().map(|count| count.sent).sum();
        let lost: u64 = result.paths.values().map(|count| count.lost).sum();
        let checkers = match result.checkers.is_empty() {
            true => "-".into(),
            false => result.checkers.join(", "),
        };
        line(
            text,
            format_args!(
                "| {} | {checkers} | {} | {} | {:.1} | {} | {done} | {sent} | {lost} | {} | {} | {} |",
                result.kernel,
                result.module_version,
                result.seed,
                result.run_seconds / 60.0,
                result.phases_clean,
                result.drops.values().sum::<u64>(),
                result.complaints.len(),
                match result.failures.is_empty() {
                    true => "clean",
                    false => "failed, see below",
                }
            ),
        );
    }
}

fn action_table(text: &mut String, actions: &BTreeMap<String, ActionCount>) {
    text.push_str(
        "\n## Actions, all runs\n\n| action | done | refused | longest, ms |\n|---|---|---|---|\n",
    );
    for (name, count) in actions {
        let (done, refused, longest_ms) = (count.done, count.refused_total(), count.longest_ms);
        line(
            text,
            format_args!("| {name} | {done} | {refused} | {longest_ms} |"),
        );
    }
}

fn path_table(text: &mut String, paths: &BTreeMap<String, PathCount>) {
    text.push_str(
        "\n## Packets, all runs\n\nA packet counts as sent when the stack took it; what it did not take (an interface \
         that is down) is beside it.\n\n| path | sent | received | lost | twice | overtaken | not taken |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, count) in paths {
        line(
            text,
            format_args!(
                "| {name} | {} | {} | {} | {} | {} | {} |",
                count.sent,
                count.received,
                count.lost,
                count.duplicated,
                count.reordered,
                count.not_taken
            ),
        );
    }
}

fn drop_table(text: &mut String, results: &[TortureResult]) {
    let drops = sum(
        results,
        |result| &result.drops,
        |total, count| *total += count,
    );
    text.push_str("\n## Counted as dropped, all runs\n\n");
    if drops.is_empty() {
        text.push_str("Nothing.\n");
        return;
    }
    text.push_str("| place | packets |\n|---|---|\n");
    for (place, count) in &drops {
        line(text, format_args!("| {place} | {count} |"));
    }
}

fn refusals(text: &mut String, actions: &BTreeMap<String, ActionCount>) {
    text.push_str("\n## Why actions were refused\n\nN stands for any number.\n\n");
    for (name, count) in actions {
        if let Some(reason) = &count.not_possible {
            line(
                text,
                format_args!("* {name}: not possible on some of these machines: {reason}"),
            );
        }
        let mut reasons: Vec<(&String, &u64)> = count.refused.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons.iter().take(REASONS_SHOWN) {
            line(text, format_args!("* {name}, {count} times: {reason}"));
        }
        if reasons.len() > REASONS_SHOWN {
            let more = reasons.len() - REASONS_SHOWN;
            line(text, format_args!("* {name}: {more} other reasons"));
        }
    }
}

fn failures(text: &mut String, results: &[TortureResult]) {
    for result in results.iter().filter(|result| !result.failures.is_empty()) {
        line(
            text,
            format_args!("\n## Failure on {}, seed {}\n", result.kernel, result.seed),
        );
        for failure in result.failures.iter().chain(&result.complaints) {
            line(text, format_args!("* {}", failure.replace('\n', "\n  ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_up_and_a_failure_is_told() {
        let run = |done: u64, failures: &[&str]| TortureResult {
            kernel: "6.1.0".into(),
            actions: [(
                "attach".to_string(),
                ActionCount {
                    done,
                    longest_ms: 10 * done,
                    refused: [("why".to_string(), 2)].into(),
                    not_possible: None,
                },
            )]
            .into(),
            paths: [(
                "lo".to_string(),
                PathCount {
                    sent: 10,
                    received: 10,
                    ..PathCount::default()
                },
            )]
            .into(),
            failures: failures.iter().map(|f| (*f).to_string()).collect(),
            ..TortureResult::default()
        };
        let text = page(&[run(3, &[]), run(4, &["a packet is missing"])]);
        for part in [
            "| attach | 7 | 4 | 40 |",
            "| lo | 20 | 20 | 0 | 0 | 0 | 0 |",
            "* attach, 4 times: why",
            "| clean |",
            "| failed, see below |",
            "* a packet is missing",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
