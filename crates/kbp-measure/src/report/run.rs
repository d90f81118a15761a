// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Result files as the runs of one page: which files belong together, and what each run is called.
//!
//! Not here: what is made of their rows ([`super::cell`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::result::{Config, ResultFile, Row};

/// What was measured on one machine: a file, or several whose rows complement each other.
#[derive(Debug, Clone)]
pub struct Run {
    /// A short name that no other run of the page has: the kernel, and what else tells them apart.
    pub label: String,
    /// The files, as they were named on the command line.
    pub sources: Vec<PathBuf>,
    /// The first file, with the rows of all.
    pub file: ResultFile,
    /// Every different command that made the files.
    pub commands: Vec<String>,
}

/// What makes two rows measurements of the same thing on one machine.
type Place<'a> = (
    &'a str,
    &'a str,
    &'a str,
    &'a str,
    &'a str,
    u64,
    Option<u64>,
    Option<&'a str>,
    u32,
);

fn place(row: &Row) -> Place<'_> {
    let burst = row.one_way.map_or(0, |one_way| one_way.burst);
    (
        &row.path,
        &row.load,
        &row.mode,
        &row.tool,
        &row.traffic,
        row.size_bytes,
        row.rate_bps,
        row.arrivals.as_deref(),
        burst,
    )
}

impl Run {
    fn new(source: &Path, file: ResultFile) -> Self {
        let command = file.config.as_ref().map(|config| config.command.clone());
        Self {
            label: file.kernel.clone(),
            sources: vec![source.to_owned()],
            commands: command
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect(),
            file,
        }
    }

    /// Whether `file` is of the same machine and source, and measures nothing that is here already.
    fn is_completed_by(&self, file: &ResultFile) -> bool {
        let ours = &self.file;
        let same = ours.kernel == file.kernel
            && ours.clock == file.clock
            && ours.qemu == file.qemu
            && ours.cmdline == file.cmdline
            && ours.git == file.git
            && settings(ours) == settings(file);
        let places: BTreeSet<Place> = ours.rows.iter().map(place).collect();
        same && !file.rows.iter().any(|row| places.contains(&place(row)))
    }

    fn complete(&mut self, other: Run) {
        self.sources.extend(other.sources);
        for command in other.commands {
            if !self.commands.contains(&command) {
                self.commands.push(command);
            }
        }
        self.file.partial |= other.file.partial;
        self.file.rows.extend(other.file.rows);
        self.file.not_run.extend(other.file.not_run);
    }
}

/// How a file was measured, without what may differ between parts of one study.
fn settings(file: &ResultFile) -> Option<Config> {
    file.config.clone().map(|config| Config {
        command: String::new(),
        plan: None,
        loads: BTreeMap::new(),
        ..config
    })
}

/// Reads result files and puts those of one machine together.
///
/// # Errors
/// When one can't be read or is no result of a known schema.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Run>> {
    let mut files = Vec::new();
    for path in paths {
        files.push((path.clone(), ResultFile::load(path)?));
    }
    Ok(merge(files))
}

/// Puts files of one machine together. A file that measures again what another has measured stays a
/// run of its own: two runs are compared, not mixed.
pub fn merge(files: Vec<(PathBuf, ResultFile)>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (path, file) in files {
        match runs.iter_mut().find(|run| run.is_completed_by(&file)) {
            Some(run) => run.complete(Run::new(&path, file)),
            None => runs.push(Run::new(&path, file)),
        }
    }
    let labels = labels(&runs);
    for (run, label) in runs.iter_mut().zip(labels) {
        run.label = label;
    }
    runs
}

/// The kernel, and then as much as is needed until no two are the same: the clock, words of the
/// kernel's command line that others lack, the file, the place in the list.
fn labels(runs: &[Run]) -> Vec<String> {
    let mut labels: Vec<String> = runs.iter().map(|run| run.file.kernel.clone()).collect();
    let steps: [fn(&Run, &[&Run]) -> String; 4] = [
        |run, _| format!("{} clock", run.file.clock),
        boot_words,
        |run, _| source_name(run, false),
        |run, _| source_name(run, true),
    ];
    for step in steps {
        refine(&mut labels, runs, step);
    }
    for i in 0..labels.len() {
        let before = labels[..i]
            .iter()
            .filter(|label| **label == labels[i])
            .count();
        if before > 0 {
            labels[i] = format!("{} ({})", labels[i], before + 1);
        }
    }
    labels
}

/// Adds what `words` says of a run to labels that are not unique, where it says different things.
fn refine(labels: &mut [String], runs: &[Run], words: fn(&Run, &[&Run]) -> String) {
    let before = labels.to_vec();
    for label in &before {
        let twins: Vec<usize> = (0..runs.len()).filter(|i| before[*i] == *label).collect();
        let of_twins: Vec<&Run> = twins.iter().map(|i| &runs[*i]).collect();
        let said: Vec<String> = of_twins.iter().map(|run| words(run, &of_twins)).collect();
        let differ = said.iter().any(|one| *one != said[0]);
        for (i, one) in twins.iter().zip(said) {
            let is_new = labels[*i] == *label;
            if differ && is_new && !one.is_empty() {
                labels[*i] = format!("{label}, {one}");
            }
        }
    }
}

/// Words of the kernel's command line that not all of the others have.
fn boot_words(run: &Run, others: &[&Run]) -> String {
    let is_common = |word: &str| {
        others
            .iter()
            .all(|other| other.file.cmdline.split_whitespace().any(|own| own == word))
    };
    let words = run
        .file
        .cmdline
        .split_whitespace()
        .filter(|word| !is_common(word));
    words.take(3).collect::<Vec<_>>().join(" ")
}

/// The file's name, or the directory's where all files have one name; all of the path at last.
fn source_name(run: &Run, whole: bool) -> String {
    let path = &run.sources[0];
    if whole {
        return path.display().to_string();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let parent = path.parent().and_then(Path::file_name);
    match parent.filter(|_| stem == "result") {
        Some(parent) => parent.to_string_lossy().into_owned(),
        None => stem.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn labels_of(files: Vec<(&str, ResultFile)>) -> Vec<String> {
        let files = files.into_iter().map(|(path, file)| (path.into(), file));
        merge(files.collect())
            .into_iter()
            .map(|run| run.label)
            .collect()
    }

    fn changed(change: impl FnOnce(&mut ResultFile)) -> ResultFile {
        let mut file = sample();
        change(&mut file);
        file
    }

    #[test]
    fn a_label_says_what_tells_runs_apart_and_no_more() {
        let newer = || changed(|file| file.kernel = "7.3.1".into());
        assert_eq!(
            labels_of(vec![("a", sample()), ("b", newer())]),
            ["6.1.0-55-amd64", "7.3.1"]
        );
        let real = changed(|file| file.clock = "real".into());
        assert_eq!(
            labels_of(vec![("a", sample()), ("b", real), ("c", newer())]),
            [
                "6.1.0-55-amd64, virtual clock",
                "6.1.0-55-amd64, real clock",
                "7.3.1"
            ]
        );
        let boot = changed(|file| file.cmdline += " thread_backlog_napi");
        assert_eq!(
            labels_of(vec![("a", sample()), ("b", boot)]),
            ["6.1.0-55-amd64", "6.1.0-55-amd64, thread_backlog_napi"]
        );
        assert_eq!(
            labels_of(vec![
                ("x/one/result.json", sample()),
                ("x/two/result.json", sample())
            ]),
            ["6.1.0-55-amd64, one", "6.1.0-55-amd64, two"]
        );
        assert_eq!(
            labels_of(vec![("a", sample()), ("a", sample())]),
            ["6.1.0-55-amd64", "6.1.0-55-amd64 (2)"]
        );
    }

    #[test]
    fn files_of_one_machine_are_one_run_when_they_do_not_overlap() {
        let half = |load: &str| changed(|file| file.rows.retain(|row| row.load == load));
        let mut storm = half("storm");
        storm.partial = true;
        let runs = merge(vec![("a".into(), half("idle")), ("b".into(), storm)]);
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].file.rows.len(), sample().rows.len());
        assert!(runs[0].file.partial, "what is incomplete stays so");
        assert_eq!(
            runs[0].commands,
            [sample().config.unwrap().command],
            "the same command once"
        );

        let again = merge(vec![("a".into(), half("idle")), ("b".into(), half("idle"))]);
        assert_eq!(again.len(), 2, "a repeated run is compared, not mixed");
        let other = changed(|file| {
            file.rows.retain(|row| row.load == "storm");
            file.git = "fedcba9".into();
        });
        let runs = merge(vec![("a".into(), half("idle")), ("b".into(), other)]);
        assert_eq!(runs.len(), 2, "another source is another run");
        let mut other = half("storm");
        other.config.as_mut().unwrap().period_ns *= 2;
        let runs = merge(vec![("a".into(), half("idle")), ("b".into(), other)]);
        assert_eq!(runs.len(), 2, "so is another way of asking");
    }
}
