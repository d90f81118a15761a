// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one clock of a measurement: `CLOCK_MONOTONIC`, in nanoseconds.
//!
//! Not here: any second clock. Round trips are stamped on the client only, because
//! two clocks that nobody synchronised can't be subtracted.

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, clock_nanosleep, ClockId, ClockNanosleepFlags};

use crate::error::{Error, Result};

const NS_PER_S: u64 = 1_000_000_000;

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
///
/// # Errors
/// Only where the kernel has no such clock.
pub fn monotonic_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_err(|errno| Error::sys("read CLOCK_MONOTONIC", errno))?;
    Ok(now.tv_sec() as u64 * NS_PER_S + now.tv_nsec() as u64)
}

/// How long this machine has been suspended since it booted, nanoseconds: `CLOCK_BOOTTIME` goes on
/// then and `CLOCK_MONOTONIC` does not. Exact to the time between two looks at the clocks.
///
/// # Errors
/// Only where the kernel has no such clocks.
pub fn suspended_ns() -> Result<u64> {
    // Of a few tries the least is the one that was disturbed the least.
    let mut least_ns = u64::MAX;
    for _ in 0..5 {
        let before_ns = monotonic_ns()?;
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME)
            .map_err(|errno| Error::sys("read CLOCK_BOOTTIME", errno))?;
        let boot_ns = boot.tv_sec() as u64 * NS_PER_S + boot.tv_nsec() as u64;
        least_ns = least_ns.min(boot_ns.saturating_sub(before_ns));
    }
    Ok(least_ns)
}

/// Sleeps until `deadline_ns` of `CLOCK_MONOTONIC`; returns at once if it has passed.
///
/// # Errors
/// When the kernel refuses the sleep; a signal only restarts it.
pub fn sleep_until_ns(deadline_ns: u64) -> Result<()> {
    let deadline = TimeSpec::new(
        (deadline_ns / NS_PER_S) as libc::time_t,
        (deadline_ns % NS_PER_S) as libc::c_long,
    );
    loop {
        match clock_nanosleep(
            ClockId::CLOCK_MONOTONIC,
            ClockNanosleepFlags::TIMER_ABSTIME,
            &deadline,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(Error::sys("sleep on CLOCK_MONOTONIC", errno)),
        }
    }
}

/// Spins until `deadline_ns` of `CLOCK_MONOTONIC`.
///
/// Every turn holds a PAUSE, so that on the lab's virtual clock the other CPUs get
/// their turn.
///
/// # Errors
/// See [`monotonic_ns`].
pub fn spin_until_ns(deadline_ns: u64) -> Result<()> {
    while monotonic_ns()? < deadline_ns {
        std::hint::spin_loop();
    }
    Ok(())
}
