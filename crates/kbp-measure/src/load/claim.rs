// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a running load has changed on the machine, remembered in `/run/kbp/load` before it is changed.
//!
//! A file for each load that runs, locked as long as its process lives: a file that nobody has locked was left by a
//! process that died, and whoever starts a load of that name undoes what it says ([`sweep`]). A fork has the lock, too,
//! until it closes its files: one that is on its way when its parent dies is waited for.
//! Not here: how things are undone; the load that made them knows.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use kbp_core::process::Process;
use kbp_core::Host;

use crate::error::{Error, Result};

/// Directory of the files, from the root of the host.
const DIRECTORY: &str = "run/kbp/load";

/// How long the forks of a process that died may keep its lock.
const FORKS_LIMIT: Duration = Duration::from_secs(5);

/// How often they are looked at.
const FORKS_PAUSE: Duration = Duration::from_millis(1);

/// The memory of one running load. [`Claim::release`] it when everything is undone; dropped before, it stays for the
/// next one to find.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    path: PathBuf,
    id: String,
}

impl Claim {
    /// Begins an empty memory for a load.
    ///
    /// # Errors
    /// When the file can't be made.
    pub(super) fn new(host: &Host, load: &str) -> Result<Self> {
        let directory = host.path(DIRECTORY);
        fs::create_dir_all(&directory).map_err(|e| Error::file("create", &directory, e))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let id = format!(
            "{load}.{}.{}",
            std::process::id(),
            now.unwrap_or_default().as_nanos()
        );
        // Nobody may see it before it is locked.
        let hidden = directory.join(format!(".{id}"));
        let path = directory.join(&id);
        let file = File::create_new(&hidden).map_err(|e| Error::file("create", &hidden, e))?;
        file.lock().map_err(|e| Error::file("lock", &hidden, e))?;
        fs::rename(&hidden, &path).map_err(|e| Error::file("rename", &hidden, e))?;
        Ok(Self { file, path, id })
    }

    /// A name that no other running load has.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Remembers a thing, one line, that is about to be made or changed.
    ///
    /// # Errors
    /// When it can't be written; then it must not be made.
    pub(super) fn remember(&mut self, thing: &str) -> Result<()> {
        self.file
            .write_all(format!("{thing}\n").as_bytes())
            .map_err(|e| Error::file("write", &self.path, e))
    }

    /// Everything is undone: forgets it. Once more does no harm.
    ///
    /// # Errors
    /// When the file can't be removed.
    pub(super) fn release(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::file("remove", &self.path, error))
            }
            _ => Ok(()),
        }
    }
}

/// Undoes what loads of this name left whose process died: `undo` is called with each thing, last one first, and must
/// not mind one that is gone already.
///
/// # Errors
/// The first that can't be undone; it stays remembered.
pub(super) fn sweep(
    host: &Host,
    load: &str,
    mut undo: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let prefix = format!("{load}.");
    for name in host.list(DIRECTORY).map_err(kbp_core::Error::from)? {
        if !name.starts_with(&prefix) {
            continue;
        }
        let path = host.path(DIRECTORY).join(&name);
        let Ok(mut file) = File::open(&path) else {
            continue; // It was released meanwhile.
        };
        if !takes_lock(host, &file, &name)? {
            continue; // Its process lives.
        }
        let mut things = String::new();
        file.read_to_string(&mut things)
            .map_err(|e| Error::file("read", &path, e))?;
        for thing in things.lines().rev() {
            undo(thing)?;
        }
        // Another process may have swept at the same time.
        let _ = fs::remove_file(&path);
    }
    Ok(())
}

/// Whether the lock of a claim can be had: not while its process lives, and soon after that one died.
fn takes_lock(host: &Host, file: &File, id: &str) -> Result<bool> {
    let begin = Instant::now();
    loop {
        if file.try_lock().is_ok() {
            return Ok(true);
        }
        if owner_lives(host, id)? || begin.elapsed() > FORKS_LIMIT {
            return Ok(false);
        }
        std::thread::sleep(FORKS_PAUSE);
    }
}

/// Whether a process has the number in a claim's name.
fn owner_lives(host: &Host, id: &str) -> Result<bool> {
    let pid = id.split('.').nth(1).and_then(|pid| pid.parse().ok());
    let Some(pid) = pid else {
        return Ok(false);
    };
    let owner = Process::with_pid(host, pid).map_err(kbp_core::Error::from)?;
    Ok(owner.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swept(host: &Host, load: &str) -> Vec<String> {
        let mut things = Vec::new();
        let collect = |thing: &str| {
            things.push(thing.to_owned());
            Ok(())
        };
        sweep(host, load, collect).unwrap();
        things
    }

    /// Makes the calling process one of this host.
    fn show_own_process(host: &Host) {
        let stat = format!("proc/{}/stat", std::process::id());
        let shown = host.path(&stat);
        fs::create_dir_all(shown.parent().unwrap()).unwrap();
        fs::copy(Host::system().path(&stat), shown).unwrap();
    }

    #[test]
    fn only_what_dead_processes_left_is_swept_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert!(swept(&host, "memory").is_empty());
        show_own_process(&host);
        let mut living = Claim::new(&host, "memory").unwrap();
        living.remember("mine").unwrap();
        let mut dead = Claim::new(&host, "memory").unwrap();
        dead.remember("first").unwrap();
        dead.remember("second").unwrap();
        drop(dead);
        assert!(swept(&host, "storm").is_empty());
        assert_eq!(swept(&host, "memory"), ["second", "first"]);
        assert!(swept(&host, "memory").is_empty());
        living.release().unwrap();
        assert_eq!(host.list(DIRECTORY).unwrap(), Vec::<String>::new());
    }

    /// The last fork of a process that died has its files a little longer than the process.
    #[test]
    fn a_fork_that_still_has_the_lock_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        // Nobody runs on this host.
        let host = Host::at(dir.path());
        let mut dead = Claim::new(&host, "memory").unwrap();
        dead.remember("mine").unwrap();
        let fork = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(dead);
        });
        assert_eq!(swept(&host, "memory"), ["mine"]);
        fork.join().unwrap();
    }

    #[test]
    fn what_can_not_be_undone_stays_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        let mut dead = Claim::new(&host, "memory").unwrap();
        dead.remember("stuck").unwrap();
        drop(dead);
        let refuse = |_: &str| Err(Error::Invalid("it is stuck".into()));
        sweep(&host, "memory", refuse).unwrap_err();
        assert_eq!(swept(&host, "memory"), ["stuck"]);
    }
}
