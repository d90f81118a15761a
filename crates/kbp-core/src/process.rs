// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which process did something, so that another one can tell later whether it still runs.
//!
//! A number alone is given to other processes after a while; with the time of its start it is not.

use serde::{Deserialize, Serialize};

use crate::host::{Host, HostError};

/// A process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks after boot.
    pub started_ticks: u64,
}

/// Where the start stands among the words after the name (proc(5): field 22, and the name is field 2).
const START_AFTER_NAME: usize = 19;

/// The name may hold blanks and brackets, so the fields are counted from the last bracket.
fn parse_start(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(START_AFTER_NAME)?.parse().ok()
}

impl Process {
    /// The running process with this number; `None` when there is none.
    pub fn with_pid(host: &Host, pid: u32) -> Result<Option<Self>, HostError> {
        let file = format!("proc/{pid}/stat");
        let Some(text) = host.read_optional(&file)? else {
            return Ok(None);
        };
        let started_ticks = parse_start(&text)
            .ok_or_else(|| host.malformed(&file, "it does not say when the process was started"))?;
        Ok(Some(Self { pid, started_ticks }))
    }

    /// The calling process.
    pub fn own(host: &Host) -> Result<Self, HostError> {
        let pid = std::process::id();
        let own = Self::with_pid(host, pid)?;
        own.ok_or_else(|| host.malformed(&format!("proc/{pid}"), "this process is not in it"))
    }

    /// Whether it still runs.
    pub fn is_alive(&self, host: &Host) -> Result<bool, HostError> {
        Ok(Self::with_pid(host, self.pid)? == Some(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_an_odd_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4711 8 9";
        assert_eq!(parse_start(stat), Some(4711));
        assert_eq!(parse_start("7 (cut"), None);
    }

    #[test]
    fn the_caller_lives_and_an_earlier_process_of_its_number_does_not() {
        let host = Host::system();
        let own = Process::own(&host).unwrap();
        assert!(own.is_alive(&host).unwrap());
        let earlier = Process {
            started_ticks: own.started_ticks - 1,
            ..own
        };
        assert!(!earlier.is_alive(&host).unwrap());
    }
}
