// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stops the kernel's tracing at the first frame that comes too late, as `cyclictest --breaktrace` does: what the buffer has
//! then are the last moments before, so that the delay can be explained.
//!
//! Not here: which events are traced. The user turns these on before.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// A trace that runs, and when it is to be stopped.
#[derive(Debug)]
pub struct BreakTrace {
    limit_ns: u64,
    marker: File,
    switch: File,
    stopped: AtomicBool,
}

impl BreakTrace {
    /// For frames that take longer than `limit_ns` from when they were sent, nanoseconds. `tracefs` is where that is
    /// mounted.
    ///
    /// # Errors
    /// When tracefs is not there, may not be written, or tracing is off.
    pub fn new(tracefs: &Path, limit_ns: u64) -> Result<Self> {
        let path = tracefs.join("tracing_on");
        let state = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
        if state.trim() == "0" {
            return Err(Error::Invalid(format!(
                "there is no trace to stop: choose events, and then echo 1 > {}",
                path.display()
            )));
        }
        let open = |name: &str| {
            let path = tracefs.join(name);
            let file = File::options().write(true).open(&path);
            file.map_err(|e| Error::file("open", &path, e))
        };
        Ok(Self {
            limit_ns,
            marker: open("trace_marker")?,
            switch: open("tracing_on")?,
            stopped: AtomicBool::new(false),
        })
    }

    /// Frame number `seq` came back `since_sent_ns` after it was sent, nanoseconds. The first that is too late is marked in
    /// the trace and stops it. Not if somebody else has stopped it meanwhile: the kernel takes no mark then.
    pub(super) fn look(&self, seq: u64, since_sent_ns: u64) {
        if since_sent_ns <= self.limit_ns || self.is_stopped() {
            return;
        }
        let line = format!("kbp: frame {seq} took {since_sent_ns} ns");
        let marked = (&self.marker).write_all(line.as_bytes());
        let stopped = marked.and_then(|()| (&self.switch).write_all(b"0"));
        self.stopped.store(stopped.is_ok(), Ordering::Relaxed);
    }

    /// Did a frame stop it?
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracefs(on: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tracing_on"), on).unwrap();
        fs::write(dir.path().join("trace_marker"), "").unwrap();
        dir
    }

    #[test]
    fn the_first_late_frame_stops_it() {
        let dir = tracefs("1\n");
        let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
        let trace = BreakTrace::new(dir.path(), 1_000).unwrap();
        trace.look(0, 1_000);
        assert!(!trace.is_stopped());
        assert_eq!(
            (read("tracing_on"), read("trace_marker")),
            ("1\n".into(), String::new())
        );
        trace.look(7, 1_001);
        trace.look(8, 9_999);
        assert!(trace.is_stopped());
        assert_eq!(read("trace_marker"), "kbp: frame 7 took 1001 ns");
        assert!(read("tracing_on").starts_with('0'));
    }

    #[test]
    fn a_trace_that_takes_no_mark_is_left_alone() {
        let dir = tracefs("1\n");
        let marker = dir.path().join("trace_marker");
        fs::remove_file(&marker).unwrap();
        std::os::unix::fs::symlink("/dev/full", &marker).unwrap();
        let trace = BreakTrace::new(dir.path(), 1_000).unwrap();
        trace.look(7, 1_001);
        assert!(!trace.is_stopped());
        let state = fs::read_to_string(dir.path().join("tracing_on")).unwrap();
        assert_eq!(state, "1\n");
    }

    #[test]
    fn a_trace_that_does_not_run_is_refused() {
        let dir = tracefs("0\n");
        let said = BreakTrace::new(dir.path(), 1_000).unwrap_err().to_string();
        assert!(said.contains("echo 1 >"), "{said}");
    }
}
