// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clocks of a CPU, through the kernel's perf events of kind `msr`.
//!
//! `aperf` counts the cycles that a CPU really ran, `mperf` those of a constant clock over the same time, `tsc` the
//! same clock all the time; the first two stand still while the CPU rests. A virtual machine seldom has them. No other
//! event is here; what two readings mean is not here either.

use std::fs::File;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::host::{Host, HostError};

/// What the kernel says about its `msr` events, from the root of the host.
const DIRECTORY: &str = "sys/bus/event_source/devices/msr";

/// `PERF_FLAG_FD_CLOEXEC` of linux/perf_event.h.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// An event of that kind, as the kernel names it to perf_event_open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrEvent {
    kind: u32,
    config: u64,
}

/// A clock of one CPU that is being counted.
#[derive(Debug)]
pub struct MsrCounter {
    file: File,
    what: String,
}

/// The first version of `struct perf_event_attr`, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Read the text of an event: `event=0x01`.
fn parse_config(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("event=0x")?, 16).ok()
}

impl Host {
    /// The event with this name (`aperf`); `None` where this machine has no such clock.
    ///
    /// # Errors
    /// When it is there and can't be understood.
    pub fn msr_event(&self, name: &str) -> Result<Option<MsrEvent>, HostError> {
        let file = format!("{DIRECTORY}/events/{name}");
        let Some(text) = self.read_optional(&file)? else {
            return Ok(None);
        };
        let config = parse_config(&text)
            .ok_or_else(|| self.malformed(&file, &format!("'{text}' is not like event=0x01")))?;
        Ok(Some(MsrEvent {
            kind: self.read_number(&format!("{DIRECTORY}/type"))?,
            config,
        }))
    }
}

impl MsrCounter {
    /// Counts an event on a CPU of the running machine from now on, whatever runs there.
    ///
    /// # Errors
    /// When the kernel refuses it, without the privilege for instance.
    pub fn open(event: MsrEvent, cpu: u32) -> Result<Self, HostError> {
        let what = format!("count clock {:#x} of CPU {cpu}", event.config);
        let attributes = Attributes {
            kind: event.kind,
            size: size_of::<Attributes>() as u32,
            config: event.config,
            ..Attributes::default()
        };
        // SAFETY: `attributes` has the layout and the size that it says, and lives until the call returns, which only
        // reads it; the other arguments are numbers: every process, this CPU, no group, close on exec.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &attributes,
                -1,
                cpu as libc::c_int,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(HostError::Call { what, source });
        }
        // SAFETY: the kernel just made this descriptor for us, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        Ok(Self {
            file: fd.into(),
            what,
        })
    }

    /// The count since it was opened.
    ///
    /// # Errors
    /// When the CPU went offline.
    pub fn read(&self) -> Result<u64, HostError> {
        let mut bytes = [0; size_of::<u64>()];
        match (&self.file).read_exact(&mut bytes) {
            Ok(()) => Ok(u64::from_ne_bytes(bytes)),
            Err(source) => Err(HostError::Call {
                what: format!("{} (did it go offline?)", self.what),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert_eq!(host.msr_event("aperf").unwrap(), None);
        std::fs::create_dir_all(host.path(&format!("{DIRECTORY}/events"))).unwrap();
        let write = |file: &str, text: &str| {
            std::fs::write(host.path(&format!("{DIRECTORY}/{file}")), text).unwrap();
        };
        write("type", "9\n");
        write("events/aperf", "event=0x1f\n");
        let event = MsrEvent {
            kind: 9,
            config: 0x1f,
        };
        assert_eq!(host.msr_event("aperf").unwrap(), Some(event));
        write("events/aperf", "umask=1\n");
        assert!(host.msr_event("aperf").is_err());
    }

    /// On a machine that has the clock and lets us count it: it goes forward, and no event is taken for another.
    #[test]
    fn the_constant_clock_goes_forward() {
        let host = Host::system();
        let Some(event) = host.msr_event("tsc").unwrap() else {
            return;
        };
        let Ok(counter) = MsrCounter::open(event, 0) else {
            return;
        };
        let first = counter.read().unwrap();
        assert!(counter.read().unwrap() > first);
        let unknown = MsrEvent {
            config: 0xffff,
            ..event
        };
        assert!(MsrCounter::open(unknown, 0).is_err());
    }
}
