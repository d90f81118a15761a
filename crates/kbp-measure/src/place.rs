// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a thread runs: CPU, scheduling policy, network namespace.
//!
//! All of it acts on the *calling thread*; children that this thread starts inherit
//! it, which is how unmodified programs are placed without `taskset` and `chrt`.
//!
//! Not here: other threads and kernel threads; those are kbp-core's.

use kbp_core::sched::{set_affinity, set_scheduling, Scheduling};
use kbp_core::{CpuList, Host};

use crate::error::{Error, Result};

/// Placement of one thread. Everything that is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The only CPU the thread may run on.
    pub cpu: Option<u32>,
    /// `SCHED_FIFO` priority, 1 to 99.
    pub fifo_priority: Option<u8>,
    /// Name of a network namespace as `ip netns` knows it.
    pub netns: Option<String>,
}

/// What the kernel calls "the calling thread".
pub(crate) const SELF: u32 = 0;

impl Place {
    /// Moves the calling thread here: namespace first, policy last.
    ///
    /// A thread that enters a namespace also gets its own view of /sys, which shows that
    /// namespace's interfaces. There is no way back: use a thread that ends.
    ///
    /// # Errors
    /// When the namespace does not exist, the CPU is not online, or the privilege for
    /// `SCHED_FIFO` is missing; the sentence says which.
    pub fn apply(&self) -> Result<()> {
        let core = |error: kbp_core::Error| Error::Core(error);
        if let Some(name) = &self.netns {
            kbp_core::netns::enter(name).map_err(|e| core(e.into()))?;
        }
        if let Some(cpu) = self.cpu {
            Host::system().require_online(cpu)?;
            set_affinity(SELF, &CpuList::one(cpu)).map_err(|e| core(e.into()))?;
        }
        if let Some(priority) = self.fifo_priority {
            let fifo = Scheduling::fifo(i32::from(priority));
            set_scheduling(SELF, fifo).map_err(|e| core(e.into()))?;
        }
        Ok(())
    }
}

/// Runs `work` in a thread of its own that was moved to `place`, and waits for it.
///
/// # Errors
/// Those of [`Place::apply`] and of `work`.
pub fn run_at<T: Send>(place: &Place, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            place.apply()?;
            work()
        });
        thread.join().map_err(|_| Error::Panicked("placed"))?
    })
}
