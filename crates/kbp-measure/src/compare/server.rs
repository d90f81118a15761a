// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's end of a row: an echo server on a thread of ours in its namespace, or a process in a container.
//!
//! Not here: what an echo server does ([`crate::tester::pingpong`]).

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kbp_lab::topo;

use super::row::Ends;
use crate::error::{Error, Result};
use crate::place::{run_at, Place};
use crate::tester::pingpong::EchoServer;
use crate::witness::Counted;

/// How long a server in a container may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The word with which a server says that its socket is bound.
const BOUND: &str = "serving ";

/// A running server. Dropping it ends a process; [`Server::stop`] ends both kinds and says how it went.
#[derive(Debug)]
pub enum Server {
    /// A thread, and the namespace that it is in.
    Thread(EchoServer, Place),
    /// A process in a container.
    Process(Contained),
}

/// The process of a container's runtime that holds our program in the container.
#[derive(Debug)]
pub struct Contained(Child);

impl Server {
    /// Starts the server of these ends; it is bound when this returns.
    ///
    /// # Errors
    /// When it can't be placed or its port is in use, with what it said.
    pub fn start(ends: &Ends) -> Result<Self> {
        match &ends.container {
            Some(end) => Contained::start(end, ends).map(Self::Process),
            None => {
                let back = Place {
                    netns: ends.server_place.netns.clone(),
                    ..Place::default()
                };
                let server = EchoServer::start(ends.bind, ends.server_place.clone())?;
                Ok(Self::Thread(server, back))
            }
        }
    }

    /// Who uses its CPU time. `None` when that is not known: a row without it is better than none.
    pub fn counted(&self) -> Option<Counted> {
        match self {
            Self::Thread(server, _) => Some(server.counted()),
            Self::Process(process) => child_of(process.0.id()).map(Counted::Process),
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// What ended the server before, or that it does not end.
    pub fn stop(self) -> Result<()> {
        match self {
            Self::Thread(server, place) => run_at(&place, || server.stop()).map(drop),
            Self::Process(mut process) => process.stop(),
        }
    }
}

impl Contained {
    fn start(end: &topo::End, ends: &Ends) -> Result<Self> {
        let mut command = topo::command_in_container(end)?
            .ok_or_else(|| program_error("its end of the path has no container"))?;
        let child = command
            .args(["/opt/kbp", "measure", "pingpong", "server"])
            .args(["--bind", &ends.bind.to_string()])
            .placed(&ends.server_place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| program_error(e.to_string()))?;
        let mut server = Self(child);
        server.wait_bound()?;
        Ok(server)
    }

    /// Its first line comes when it is bound; an end of its output is an error of its own.
    fn wait_bound(&mut self) -> Result<()> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(|e| program_error(e.to_string()))?;
        }
        if line.starts_with(BOUND) {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(stderr) = &mut self.0.stderr {
            // What can't be read is not said.
            let _ = stderr.read_to_string(&mut said);
        }
        Err(program_error(format!("it did not begin: {}", said.trim())))
    }

    fn stop(&mut self) -> Result<()> {
        // The runtime passes it on to the program.
        // SAFETY: kill takes plain numbers; the child has not been waited for, so its pid is still its own.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        let since = Instant::now();
        while since.elapsed() < END_LIMIT {
            match self.0.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(program_error(error.to_string())),
            }
        }
        Err(program_error(format!("it did not end in {END_LIMIT:?}")))
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

trait Placed {
    /// Adds the arguments of a place, without its namespace: the container has that.
    fn placed(&mut self, place: &Place) -> &mut Self;
}

impl Placed for Command {
    fn placed(&mut self, place: &Place) -> &mut Self {
        if let Some(cpu) = place.cpu {
            self.args(["--cpu", &cpu.to_string()]);
        }
        if let Some(priority) = place.fifo_priority {
            self.args(["--fifo", &priority.to_string()]);
        }
        self
    }
}

/// The program that a container's runtime waits for. Where the kernel does not list children, it is not known.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn program_error(why: impl Into<String>) -> Error {
    Error::Program {
        program: "the echo server in the container".into(),
        why: why.into(),
    }
}
