// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that do a step: nft, modprobe, crun. If this program is killed in the middle of a step they go on for a while;
//! so they carry a mark, and whoever works on topologies next waits for their end first.
//!
//! Not here: what they are called for.

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::error::{Error, Result};

/// The variable in a helper's environment. A container's first process has an environment of its own.
const MARK: &str = "KBP_TOPO_HELPER";
/// How long to wait for the end of helpers whose parent is gone.
const LIMIT: Duration = Duration::from_secs(30);
/// How often to look.
const PERIOD: Duration = Duration::from_millis(20);

/// A command that ends by itself in a short time.
pub(super) fn helper(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env(MARK, "1").stdin(Stdio::null());
    command
}

/// Waits until no helper runs. To be called with the lock, under which all of them are started: so those that run have
/// lost their parent.
pub(super) fn wait_for_orphans() -> Result<()> {
    let begin = Instant::now();
    while let Some(process) = running()? {
        if begin.elapsed() > LIMIT {
            return Err(Error::Busy {
                what: format!("what it has started, {process}, still runs"),
                waited_s: LIMIT.as_secs(),
            });
        }
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

/// A helper that runs.
fn running() -> Result<Option<String>> {
    let mark = format!("{MARK}=1");
    for entry in fs::read_dir("/proc").map_err(Error::sys("read /proc"))? {
        let path = entry.map_err(Error::sys("read /proc"))?.path();
        // Kernel threads have none, and processes end while we look.
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
        {
            return Ok(Some(path.display().to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_lost_its_parent_is_waited_for() {
        // Before the start, because a busy machine may let us go on long after it.
        let begin = Instant::now();
        let mut child = helper("sleep").arg("1").spawn().unwrap();
        // Its environment can be read a moment after it has been started.
        while running().unwrap().is_none() {
            assert!(begin.elapsed() < LIMIT, "nobody runs");
        }
        wait_for_orphans().unwrap();
        assert!(begin.elapsed() > Duration::from_millis(950));
        child.wait().unwrap();
    }
}
