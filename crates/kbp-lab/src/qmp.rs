// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small client of QEMU's machine protocol: just what taking a snapshot needs.
//!
//! Not here: when to use it ([`crate::machine`], [`crate::snapshot`]).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::error::{Error, Result};

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection on which commands are accepted.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets QEMU on a fresh connection.
    ///
    /// # Errors
    /// [`Error::Qemu`] when it does not answer.
    pub(crate) fn start(stream: UnixStream) -> Result<Qmp> {
        stream.set_read_timeout(Some(ANSWER)).map_err(lost)?;
        let reader = BufReader::new(stream.try_clone().map_err(lost)?);
        let mut qmp = Qmp { stream, reader };
        qmp.answer()?; // the greeting
        qmp.command("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Sends a command and returns its result.
    ///
    /// # Errors
    /// [`Error::Qemu`] with QEMU's words when it refuses.
    pub(crate) fn command(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let mut message = json!({ "execute": name });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        writeln!(self.stream, "{message}").map_err(lost)?;
        let mut answer = self.answer()?;
        match answer["error"]["desc"].as_str() {
            Some(words) => Err(Error::Qemu {
                detail: format!("{name}: {words}"),
            }),
            None => Ok(answer["return"].take()),
        }
    }

    /// Writes the machine's state into a file and leaves the machine stopped.
    ///
    /// It is running until then, because a machine that was stopped before would wait for a command when it is loaded.
    ///
    /// # Errors
    /// [`Error::Qemu`] when it fails or takes longer than `limit`.
    pub(crate) fn save(&mut self, path: &str, limit: Duration) -> Result<()> {
        self.command("migrate", json!({ "uri": format!("file:{path}") }))?;
        let deadline = Instant::now() + limit;
        loop {
            let state = self.command("query-migrate", Value::Null)?;
            match state["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let detail = state["error-desc"].as_str().unwrap_or("no reason given");
                    return Err(Error::Qemu {
                        detail: format!("the snapshot failed: {detail}"),
                    });
                }
                _ if Instant::now() > deadline => {
                    return Err(Error::Qemu {
                        detail: "the snapshot takes too long".into(),
                    })
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The next message that is no event.
    fn answer(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).map_err(lost)? == 0 {
                return Err(Error::Qemu {
                    detail: "it closed its control connection".into(),
                });
            }
            let message: Value = serde_json::from_str(&line).map_err(|error| Error::Qemu {
                detail: error.to_string(),
            })?;
            if message.get("event").is_none() {
                return Ok(message);
            }
        }
    }
}

fn lost(source: std::io::Error) -> Error {
    Error::Qemu {
        detail: format!("its control connection failed: {source}"),
    }
}
