// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is remembered of topologies: `/run/kbp-topo/NAME.json`, written before anything is made, valid for one boot.
//!
//! Not here: what is done with it ([`super::apply`]).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::container;
use super::error::{Error, Result};
use super::helper::wait_for_orphans;
use super::step::{Plan, Step};

/// The folder of the files.
const DIRECTORY: &str = "/run/kbp-topo";
/// How a file's name ends while it is being written.
const UNFINISHED: &str = "new";
/// The form of the files. A change that an older program would misread raises it.
const VERSION: u32 = 1;
/// How long to wait for another process that adds or removes a topology.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// How often to look whether it has ended.
const LOCK_PERIOD: Duration = Duration::from_millis(50);

/// A remembered topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    version: u32,
    boot: String,
    /// Whether all steps were done.
    pub complete: bool,
    pub plan: Plan,
}

impl State {
    /// What is remembered before the first step.
    pub(super) fn begun(plan: &Plan) -> Result<State> {
        Ok(State {
            version: VERSION,
            boot: boot()?,
            complete: false,
            plan: plan.clone(),
        })
    }

    /// The name of the topology.
    pub(super) fn name(&self) -> &str {
        &self.plan.topology.spec.name
    }

    /// Writes the file, whole or not at all.
    pub(super) fn write(&self) -> Result<()> {
        let path = file(self.name());
        let temporary = path.with_extension(UNFINISHED);
        let failed = || Error::sys(format!("write {}", path.display()));
        let text =
            serde_json::to_vec(self).map_err(|error| failed()(std::io::Error::from(error)))?;
        let mut out = File::create(&temporary).map_err(failed())?;
        out.write_all(&text).map_err(failed())?;
        fs::rename(&temporary, &path).map_err(failed())
    }

    /// Removes the file.
    pub(super) fn forget(&self) -> Result<()> {
        let path = file(self.name());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::sys(format!("remove {}", path.display()))(error))
            }
            _ => Ok(()),
        }
    }
}

/// The folder in which a topology's pod keeps which addresses are in use.
pub(super) fn pod_directory(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.cni"))
}

/// The folder for the files of a topology's container.
pub(super) fn bundle_directory(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.container"))
}

fn file(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.json"))
}

fn boot() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path).map_err(Error::sys(format!("read {path}")))?;
    Ok(text.trim().to_owned())
}

/// Keeps other processes from adding and removing topologies, until it is dropped. Waits for what a killed one has
/// started; forgets topologies that a reboot ended.
pub(super) fn lock(name: &str, interrupted: &dyn Fn() -> bool) -> Result<Flock<File>> {
    fs::create_dir_all(DIRECTORY).map_err(Error::sys(format!("create {DIRECTORY}")))?;
    let path = format!("{DIRECTORY}/lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::sys(format!("open {path}")))?;
    let begin = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                wait_for_orphans()?;
                sweep()?;
                return Ok(lock);
            }
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            Err((_, errno)) => return Err(Error::sys(format!("lock {path}"))(errno)),
        }
        if interrupted() {
            return Err(Error::Interrupted { name: name.into() });
        }
        if begin.elapsed() > LOCK_LIMIT {
            let waited_s = LOCK_LIMIT.as_secs();
            let what = format!("it holds {path}");
            return Err(Error::Busy { what, waited_s });
        }
        std::thread::sleep(LOCK_PERIOD);
    }
}

/// Removes what nobody needs any more, under the lock: what was being written when its writer was killed, and of a
/// topology of an earlier boot the files, which is all that is left if `/run` is on a disk.
fn sweep() -> Result<()> {
    for path in files(UNFINISHED)? {
        fs::remove_file(&path).map_err(Error::sys(format!("remove {}", path.display())))?;
    }
    let boot = boot()?;
    for state in read_all()?.iter().filter(|state| state.boot != boot) {
        for step in &state.plan.steps {
            if let Step::Bundle { bundle } = step {
                container::remove_bundle(bundle)?;
            }
        }
        state.forget()?;
    }
    Ok(())
}

fn parse(path: &Path, text: &[u8]) -> Result<State> {
    let malformed = |detail: String| Error::Malformed {
        what: path.display().to_string(),
        detail,
    };
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| malformed(damaged(&error)))?;
    match value["version"].as_u64() {
        Some(version) if version == u64::from(VERSION) => {}
        _ => {
            return Err(malformed(
                "another version of kbp wrote it; remove the topology with that one, or delete its namespaces (`ip netns`) and then this file".into(),
            ))
        }
    }
    serde_json::from_value(value).map_err(|error| malformed(damaged(&error)))
}

fn damaged(error: &serde_json::Error) -> String {
    format!("{error}; delete the topology's namespaces (`ip netns`), then this file")
}

/// What is remembered of a topology of this boot.
pub(super) fn read(name: &str) -> Result<Option<State>> {
    let path = file(name);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::sys(format!("read {}", path.display()))(error)),
    };
    let state = parse(&path, &text)?;
    Ok((state.boot == boot()?).then_some(state))
}

/// All topologies of this boot, by name.
pub(super) fn all() -> Result<Vec<State>> {
    let boot = boot()?;
    let mut states = read_all()?;
    states.retain(|state| state.boot == boot);
    Ok(states)
}

/// The remembered files whose names end so.
fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let failed = || Error::sys(format!("read {DIRECTORY}"));
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed()(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed())?.path();
        if path.extension().is_some_and(|end| end == extension) {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn read_all() -> Result<Vec<State>> {
    let mut states = Vec::new();
    for path in files("json")? {
        match fs::read(&path) {
            Ok(text) => states.push(parse(&path, &text)?),
            // Removed since the folder was read.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::sys(format!("read {}", path.display()))(error)),
        }
    }
    states.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(states)
}
