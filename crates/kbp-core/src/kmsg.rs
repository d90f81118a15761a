// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel logged since a moment, for the reasons that an errno does not carry.
//!
//! Nothing here writes to the log or waits for it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use crate::host::Host;

/// Longest record that the kernel hands out, bytes.
const RECORD_LEN_MAX: usize = 8192;
/// How many records are read at most; a flood is no explanation.
const RECORDS_MAX: usize = 1000;

/// A position in the kernel's log.
pub struct Mark(Option<File>);

impl Mark {
    /// The present end of the log. A log that may not be read gives no lines later.
    pub fn now(host: &Host) -> Self {
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(host.path("dev/kmsg"));
        let at_end = |mut file: File| file.seek(SeekFrom::End(0)).map(|_| file);
        Self(open.and_then(at_end).ok())
    }

    /// The lines logged since the mark that contain one of the words.
    pub fn lines_with(&mut self, words: &[&str]) -> Vec<String> {
        let Some(file) = &mut self.0 else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        let mut buffer = vec![0; RECORD_LEN_MAX];
        for _ in 0..RECORDS_MAX {
            // A read gives one record; the end is an error, "would block".
            let Ok(length @ 1..) = file.read(&mut buffer) else {
                break;
            };
            let record = String::from_utf8_lossy(&buffer[..length]);
            lines.extend(
                text_of(&record).filter(|text| words.iter().any(|word| text.contains(word))),
            );
        }
        lines
    }
}

/// `6,339,5140900,-;the text\n KEY=value` holds `the text`.
fn text_of(record: &str) -> Option<String> {
    let (_, text) = record.split_once(';')?;
    Some(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_record() {
        assert_eq!(
            text_of("3,1,5,-;kbp: no\n SUBSYSTEM=x\n").as_deref(),
            Some("kbp: no")
        );
        assert_eq!(text_of("garbage"), None);
    }
}
