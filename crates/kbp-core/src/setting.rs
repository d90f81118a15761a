// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single values in files of /proc/sys and /sys: written, remembered before, put back.
//!
//! A file is named from the root of the host and seen from the calling thread's network namespace;
//! for another one the caller enters it first ([`crate::netns::enter`]). What somebody else wrote
//! to the same file meanwhile is overwritten by the original: that is what was there before us.
//! Which values make sense is not known here.

use crate::error::Error;
use crate::host::Host;
use crate::netns;
use crate::state::{SettingRecord, StateFile};

/// Writes `value` to `file` and remembers what was there. `netns` is the name of the calling thread's
/// network namespace, by which another process finds it again; `None` for the one that a login has.
///
/// Writing the same file again keeps the first original. Where the value is there already, nothing
/// is written and nothing is remembered.
pub fn set(
    host: &Host,
    state: &mut StateFile,
    netns: Option<&str>,
    file: &str,
    value: &str,
) -> Result<(), Error> {
    let original = host.read_trimmed(file)?;
    if original == value {
        return Ok(());
    }
    let netns_cookie = netns::cookie()?;
    let before = state.state.clone();
    let settings = &mut state.state.settings;
    if !settings
        .iter()
        .any(|record| record.file == file && record.netns_cookie == netns_cookie)
    {
        settings.push(SettingRecord {
            file: file.into(),
            netns: netns.map(Into::into),
            netns_cookie,
            original,
        });
    }
    state.save()?;
    if let Err(error) = host.write(file, value) {
        state.state = before;
        state.save()?;
        return Err(error.into());
    }
    Ok(())
}

/// Puts back everything that was set in the network namespace of this name, newest first; the calling
/// thread has to be in it. What can't be put back stays remembered and is named in the error.
pub fn restore(host: &Host, state: &mut StateFile, netns: Option<&str>) -> Result<(), Error> {
    let cookie = netns::cookie()?;
    let mut failed = Vec::new();
    for record in state.state.settings.clone().into_iter().rev() {
        if record.netns.as_deref() != netns {
            continue;
        }
        match restore_one(host, &record, cookie) {
            Ok(()) => {
                state.state.settings.retain(|other| *other != record);
                state.save()?;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::UndoIncomplete(failed.join("; "))),
    }
}

fn restore_one(host: &Host, record: &SettingRecord, cookie: u64) -> Result<(), Error> {
    if record.netns_cookie != cookie {
        return match record.netns {
            // The namespace was deleted, and its files with it; another one has its name now.
            Some(_) => Ok(()),
            None => Err(Error::Conflict(format!(
                "{} was set in another network namespace that has no name; run this there",
                host.path(&record.file).display()
            ))),
        };
    }
    match host.write(&record.file, &record.original) {
        // An interface that is gone has nothing to put back.
        Err(error) if error.is_missing() => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/random/boot_id", "this-boot\n");
        write("proc/sys/net/core/busy_read", "0\n");
        write("sys/class/net/eth0/gro_flush_timeout", "77\n");
        let host = Host::at(dir.path());
        (dir, host)
    }

    const SYSCTL: &str = "proc/sys/net/core/busy_read";
    const SYSFS: &str = "sys/class/net/eth0/gro_flush_timeout";

    /// The process that set dies after each number of saves; another one that opens the state puts back.
    #[test]
    fn another_process_puts_back_what_one_that_died_has_set() {
        let (_dir, host) = tree();
        {
            let mut state = StateFile::open(&host).unwrap();
            set(&host, &mut state, None, SYSCTL, "50").unwrap();
            set(&host, &mut state, None, SYSFS, "20000").unwrap();
            set(&host, &mut state, None, SYSCTL, "60").unwrap();
        }
        assert_eq!(host.read_trimmed(SYSCTL).unwrap(), "60");
        let mut state = StateFile::open(&host).unwrap();
        assert_eq!(state.state.settings.len(), 2, "the first original is kept");
        restore(&host, &mut state, None).unwrap();
        let now = (
            host.read_trimmed(SYSCTL).unwrap(),
            host.read_trimmed(SYSFS).unwrap(),
        );
        assert_eq!(now, ("0".into(), "77".into()));
        assert!(state.state.settings.is_empty());
    }

    #[test]
    fn what_could_not_be_written_is_not_remembered_and_what_is_gone_is_forgotten() {
        let (dir, host) = tree();
        let mut state = StateFile::open(&host).unwrap();
        assert!(set(&host, &mut state, None, "sys/class/net/eth1/x", "1").is_err());
        assert!(state.state.settings.is_empty());
        set(&host, &mut state, None, SYSFS, "20000").unwrap();
        std::fs::remove_file(dir.path().join(SYSFS)).unwrap();
        restore(&host, &mut state, None).unwrap();
        assert!(state.state.settings.is_empty());
    }

    #[test]
    fn another_namespace_is_not_touched() {
        let (_dir, host) = tree();
        let mut state = StateFile::open(&host).unwrap();
        set(&host, &mut state, Some("tester"), SYSFS, "20000").unwrap();
        restore(&host, &mut state, None).unwrap();
        assert_eq!(host.read_trimmed(SYSFS).unwrap(), "20000");
        // A new namespace under the old name has files of its own.
        state.state.settings[0].netns_cookie += 1;
        restore(&host, &mut state, Some("tester")).unwrap();
        assert_eq!(host.read_trimmed(SYSFS).unwrap(), "20000");
        assert!(state.state.settings.is_empty());
    }
}
