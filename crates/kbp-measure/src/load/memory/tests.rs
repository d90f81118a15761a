// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load `memory` for real: cgroups, processes and a file, and nothing left of them. Needs root.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::load::{LoadConfig, Running};

fn config(dir: &Path) -> LoadConfig {
    let mut config = LoadConfig::against(0, "/nonexistent".as_ref(), 1);
    config.memory.groups = 6;
    config.memory.page_period_us = 2_000;
    config.memory.file_bytes = 3 << 20;
    // A directory on this machine's disk, if its temporary one is on a disk.
    let on_disk = files::check(&Host::system(), dir).is_ok();
    config.memory.files = on_disk.then(|| dir.to_owned());
    config
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let mine = format!("kbp-load-memory.{}.", std::process::id());
    let entries = std::fs::read_dir(path).unwrap().flatten();
    let names = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&mine));
    names.map(|entry| entry.path()).collect()
}

#[test]
fn everything_moves_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let hierarchy =
        Hierarchy::find(&Host::system()).expect("this test needs cgroups with memory statistics");
    let root = hierarchy.root();
    let running = Running::start(Load::Memory, &config).expect("this test needs root");
    let groups = directories(root);
    assert_eq!(groups.len(), 1);
    let inside = std::fs::read_to_string(groups[0].join("3/cgroup.procs")).unwrap();
    assert_eq!(
        inside.lines().count(),
        1,
        "a process in each cgroup: {inside}"
    );
    let before = running.progress().unwrap();
    std::thread::sleep(Duration::from_millis(150));
    let did = running.require_moved_since(&before).unwrap();
    assert_eq!(
        did.counts.len(),
        3 + usize::from(config.memory.files.is_some())
    );
    running.stop().unwrap();
    assert!(directories(root).is_empty(), "cgroups are left");
    assert!(directories(dir.path()).is_empty(), "the file is left");
    let pid: u32 = inside.trim().parse().unwrap();
    assert!(
        !Host::system().exists(&format!("proc/{pid}")),
        "process {pid} is left"
    );
}

#[test]
fn what_a_dead_process_left_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let root = Hierarchy::find(&Host::system())
        .expect("memory cgroups")
        .root()
        .to_owned();
    let parent = root.join(format!("kbp-load-memory.{}.dead", std::process::id()));
    std::fs::create_dir_all(parent.join("0")).expect("this test needs root");
    let files = dir.path().join("left");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("data"), "x").unwrap();
    undo(&format!("{} {}", files::THING, files.display())).unwrap();
    undo(&format!("{} {}", groups::THING_GROUP, parent.display())).unwrap();
    undo(&format!("{} {}", groups::THING_GROUP, parent.display())).unwrap();
    assert!(!parent.exists() && !files.exists());
    assert!(undo("spoon 7").unwrap_err().to_string().contains("spoon 7"));
}
