// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /sys/kernel/livepatch says, and which tasks hold a transition up.
//!
//! Starting and ending a transition is in [`crate::module`].

use serde::Serialize;

use crate::host::{Host, HostError};
use crate::procfs::Task;

/// Where the kernel shows its live patches.
pub const DIRECTORY: &str = "sys/kernel/livepatch";

/// A live patch that the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Livepatch {
    /// Name of its module.
    pub name: String,
    /// Whether its functions are to be used.
    pub enabled: bool,
    /// Whether tasks are still being moved to the state that `enabled` asks for.
    pub transition: bool,
    /// Replaced functions as `object/function,position`.
    pub functions: Vec<String>,
}

/// A task that has not yet been moved, and what it was doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockingTask {
    /// The task.
    #[serde(flatten)]
    pub task: Task,
    /// The innermost kernel functions of its stack, innermost first; empty when it runs or when
    /// the stack may not be read.
    pub stack: Vec<String>,
}

impl std::fmt::Display for BlockingTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.task.comm, self.task.tid)?;
        match self.stack.first() {
            Some(function) => write!(f, " in {function}"),
            None => Ok(()),
        }
    }
}

/// How many functions of a stack are kept.
const STACK_DEPTH: usize = 8;

impl Host {
    /// Whether this kernel has live patching at all.
    pub fn has_livepatch(&self) -> bool {
        self.exists(DIRECTORY)
    }

    /// The live patch of a module, or `None` when the kernel knows none of that name.
    pub fn livepatch(&self, name: &str) -> Result<Option<Livepatch>, HostError> {
        let base = format!("{DIRECTORY}/{name}");
        let Some(enabled) = self.read_optional(&format!("{base}/enabled"))? else {
            return Ok(None);
        };
        let transition = self.read_optional(&format!("{base}/transition"))?;
        let mut functions = Vec::new();
        for object in self.list(&base)? {
            if self.path(&format!("{base}/{object}")).is_dir() {
                let names = self.list(&format!("{base}/{object}"))?;
                functions.extend(
                    names
                        .iter()
                        .filter(|n| n.contains(','))
                        .map(|n| format!("{object}/{n}")),
                );
            }
        }
        Ok(Some(Livepatch {
            name: name.into(),
            enabled: enabled != "0",
            transition: transition.as_deref() == Some("1"),
            functions,
        }))
    }

    /// Every live patch that the kernel knows.
    pub fn livepatches(&self) -> Result<Vec<Livepatch>, HostError> {
        let mut patches = Vec::new();
        for name in self.list(DIRECTORY)? {
            patches.extend(self.livepatch(&name)?);
        }
        Ok(patches)
    }

    /// What a task is doing in the kernel, innermost function first; `task` is its directory (`proc/7/task/9`). Empty
    /// when it runs, has ended, or when its stack may not be read.
    pub fn kernel_stack(&self, task: &str) -> Vec<String> {
        parse_stack(&self.read(&format!("{task}/stack")).unwrap_or_default())
    }

    /// The tasks that have not reached the state of a transition: `to_patched` says which one.
    ///
    /// The idle task of a CPU has no entry in /proc, so a transition can be held up by something
    /// that is not in this list.
    pub fn blocking_tasks(&self, to_patched: bool) -> Result<Vec<BlockingTask>, HostError> {
        let behind = if to_patched { "0" } else { "1" };
        let mut blocking = Vec::new();
        for task in self.threads()? {
            let base = format!("proc/{}/task/{}", task.pid, task.tid);
            // A task that ended meanwhile blocks nothing.
            let state = self
                .read_trimmed(&format!("{base}/patch_state"))
                .unwrap_or_default();
            if state == behind {
                let stack = self.kernel_stack(&base);
                blocking.push(BlockingTask { task, stack });
            }
        }
        Ok(blocking)
    }
}

/// `[<0>] schedule_timeout+0x8a/0x160` is `schedule_timeout`.
fn parse_stack(text: &str) -> Vec<String> {
    let function = |line: &str| {
        Some(
            line.split_whitespace()
                .nth(1)?
                .split('+')
                .next()?
                .to_owned(),
        )
    };
    text.lines()
        .filter_map(function)
        .take(STACK_DEPTH)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_lines() {
        let text = "[<0>] do_nanosleep+0x67/0x190\n[<0>] hrtimer_nanosleep+0xbe/0x1a0\n";
        assert_eq!(parse_stack(text), ["do_nanosleep", "hrtimer_nanosleep"]);
    }
}
