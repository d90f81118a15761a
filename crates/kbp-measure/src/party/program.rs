// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program of somebody else as a child: started at a place, waited for, ended with its owner.
//!
//! It does not outlive this process, however that ends: the kernel kills a child when the thread
//! that started it is gone, so each child has a thread that waits with it.
//!
//! Not here: what the programs are told and what they say.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::interrupt;
use crate::place::{run_at, Place};

/// How long a server may take until its port is bound.
const BIND_LIMIT: Duration = Duration::from_secs(10);
/// How often a child is looked at.
const STEP: Duration = Duration::from_millis(10);
/// Of what a program says on its standard error, the end is kept, bytes.
const SAID_LEN: usize = 2_000;

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, listening.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Whether the tables below a directory like /proc/PID/net hold the local port.
    fn is_bound(self, net: &str, port: u16) -> bool {
        let (files, state) = match self {
            Self::Tcp => (["tcp", "tcp6"], Some(LISTEN)),
            Self::Udp => (["udp", "udp6"], None),
        };
        files.iter().any(|file| {
            let table = std::fs::read_to_string(format!("{net}/{file}")).unwrap_or_default();
            holds(&table, port, state)
        })
    }
}

/// `TCP_LISTEN`, as the kernel prints it.
const LISTEN: &str = "0A";

/// Whether a table in the form of /proc/net/udp holds the local port, in a state if one is asked for.
fn holds(table: &str, port: u16, state: Option<&str>) -> bool {
    let ending = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        matches!(fields[..], [_, local, _, now, ..]
            if local.ends_with(&ending) && state.is_none_or(|state| state == now))
    })
}

/// An error of a program.
pub fn error(program: &str, why: impl Into<String>) -> Error {
    Error::Program {
        program: program.into(),
        why: why.into(),
    }
}

/// Checks that a server can have its port.
///
/// # Errors
/// When somebody else has it there, or the namespace can't be entered.
pub fn require_free(
    program: &str,
    place: &Place,
    protocol: Protocol,
    addr: SocketAddr,
) -> Result<()> {
    let there = Place {
        netns: place.netns.clone(),
        ..Place::default()
    };
    let is_bound = run_at(&there, || {
        Ok(protocol.is_bound("/proc/thread-self/net", addr.port()))
    })?;
    if is_bound {
        let why = format!(
            "{} port {} is in use where the server shall run: choose another port, or end the \
             program that has it",
            protocol.name(),
            addr.port()
        );
        return Err(error(program, why));
    }
    Ok(())
}

/// What a program said until its end.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
}

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    // The thread that started the child waits for the other end of this to be dropped.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Program {
    /// Starts a program at a place.
    ///
    /// # Errors
    /// When the place can't be had, or the program is not installed.
    pub fn start(name: &'static str, place: &Place, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(name);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if WITH_CHILDREN.contains(&name) {
            command.process_group(0);
        }
        let (child, keeper) = keep(name, place.clone(), command, end_signal(name))?;
        let mut program = Self {
            name,
            child,
            stdout: None,
            stderr: None,
            keeper: Some(keeper),
        };
        let stdout = program.child.stdout.take();
        let stderr = program.child.stderr.take();
        program.stdout = stdout.map(|pipe| std::thread::spawn(move || read_all(pipe)));
        program.stderr = stderr.map(|pipe| std::thread::spawn(move || read_end(pipe)));
        Ok(program)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has bound a port.
    ///
    /// # Errors
    /// When it ends before, takes too long, or an interrupt came.
    pub fn wait_bound(&mut self, protocol: Protocol, addr: SocketAddr) -> Result<()> {
        let since = Instant::now();
        let net = format!("/proc/{}/net", self.pid());
        while since.elapsed() < BIND_LIMIT {
            if self.has_ended()? {
                let output = self.output()?;
                return Err(error(self.name, format!("the server {}", ended(&output))));
            }
            if protocol.is_bound(&net, addr.port()) {
                return Ok(());
            }
            self.pause()?;
        }
        let why = format!(
            "the server did not bind {} {addr} in {BIND_LIMIT:?}",
            protocol.name()
        );
        Err(error(self.name, why))
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    /// When it takes longer than `limit`, or an interrupt came; then it is killed. How it ended is not
    /// judged.
    pub fn wait_end(mut self, limit: Duration) -> Result<Output> {
        let since = Instant::now();
        while !self.has_ended()? {
            if since.elapsed() > limit {
                let why = format!("it did not end in {limit:?} and was killed");
                return Err(error(self.name, why));
            }
            self.pause()?;
        }
        self.output()
    }

    /// Waits for its end as [`Program::wait_end`] does, as long as the others run.
    ///
    /// # Errors
    /// Those of [`Program::wait_end`], and the end of one of the others.
    pub fn wait_end_beside(
        mut self,
        limit: Duration,
        others: &mut [&mut Program],
    ) -> Result<Output> {
        let since = Instant::now();
        while !self.has_ended()? && since.elapsed() <= limit {
            for other in &mut *others {
                other.require_running()?;
            }
            self.pause()?;
        }
        self.wait_end(Duration::ZERO)
    }

    /// Checks that it runs.
    ///
    /// # Errors
    /// When it has ended, with how and what it said last.
    pub fn require_running(&mut self) -> Result<()> {
        match self.has_ended()? {
            false => Ok(()),
            true => {
                let output = self.output()?;
                let why = format!("it died while it was needed: it {}", ended(&output));
                Err(error(self.name, why))
            }
        }
    }

    /// What somebody made of this server: where that is an error and the server has ended, its end is the reason.
    ///
    /// # Errors
    /// That of `made`, or the end of the program.
    pub fn explain<T>(&mut self, made: Result<T>) -> Result<T> {
        match made {
            Ok(made) => Ok(made),
            // A connection that the server's end closed is seen before the process is gone.
            Err(error) => {
                std::thread::sleep(STEP);
                self.require_running()?;
                Err(error)
            }
        }
    }

    /// Lets a program that has processes of its own end them, which a kill would leave.
    fn ask_to_end(&mut self) {
        let signal = end_signal(self.name);
        if signal == libc::SIGKILL || self.has_ended().unwrap_or(true) {
            return;
        }
        // SAFETY: kill takes plain numbers; the child has not been waited for, so its pid is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        let since = Instant::now();
        while since.elapsed() < END_LIMIT && !self.has_ended().unwrap_or(true) {
            std::thread::sleep(STEP);
        }
    }

    /// Ends what a program that was killed has left of its own processes: they hold its port, and the pipes that are read to
    /// their end.
    fn end_group(&self) {
        if WITH_CHILDREN.contains(&self.name) {
            // SAFETY: kill takes plain numbers. The group was made for this program; no other has its number while one of its
            // processes lives, and without one this is an error without an effect.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
        }
    }

    fn has_ended(&mut self) -> Result<bool> {
        match self.child.try_wait() {
            Ok(status) => Ok(status.is_some()),
            Err(e) => Err(error(self.name, format!("wait for it: {e}"))),
        }
    }

    fn pause(&self) -> Result<()> {
        if interrupt::requested() {
            return Err(error(self.name, "interrupted; it was ended"));
        }
        std::thread::sleep(STEP);
        Ok(())
    }

    /// What a program that has ended said.
    fn output(&mut self) -> Result<Output> {
        let status = self.child.wait();
        self.end_group();
        let said = |reader: Option<JoinHandle<String>>| {
            reader.map_or_else(|| Ok(String::new()), JoinHandle::join)
        };
        let panicked = |_| Error::Panicked("reading");
        Ok(Output {
            status: status.map_err(|e| error(self.name, format!("wait for it: {e}")))?,
            stdout: said(self.stdout.take()).map_err(panicked)?,
            stderr: said(self.stderr.take()).map_err(panicked)?,
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.ask_to_end();
        // Both fail only for a child that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.end_group();
        if let Some((hold, thread)) = self.keeper.take() {
            drop(hold);
            let _ = thread.join();
        }
    }
}

/// How a program ended, and what it said last.
pub fn ended(output: &Output) -> String {
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        said => said,
    };
    match said {
        "" => format!("ended with {} and said nothing", output.status),
        said => format!("ended with {}; it said: {said}", output.status),
    }
}

/// Programs with processes of their own, which they end when they are asked to and leave when they are killed.
const WITH_CHILDREN: [&str; 1] = ["kamailio"];
/// How long such a program may take.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The signal that ends a program, also when this process is gone.
fn end_signal(name: &str) -> i32 {
    match WITH_CHILDREN.contains(&name) {
        true => libc::SIGTERM,
        false => libc::SIGKILL,
    }
}

/// Programs whose Debian package has another name.
const PACKAGES: [(&str, &str); 1] = [("sipp", "sip-tester")];

fn not_installed(name: &str) -> String {
    let other = PACKAGES.iter().find(|(program, _)| *program == name);
    let package = other.map_or(name, |(_, package)| package);
    format!("{name} is not installed: apt install {package}")
}

/// Whether a program can be started here.
///
/// # Errors
/// One sentence that says what to install.
pub fn can_run(name: &str) -> std::result::Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
        true => Ok(()),
        false => Err(not_installed(name)),
    }
}

type Keeper = (mpsc::Sender<()>, JoinHandle<()>);

/// Starts the child from a thread at its place; that thread stays for as long as the child.
fn keep(
    name: &'static str,
    place: Place,
    mut command: Command,
    end_signal: i32,
) -> Result<(Child, Keeper)> {
    // SAFETY: the closure makes one system call and touches no memory, as is allowed between fork
    // and exec.
    unsafe {
        command.pre_exec(
            move || match libc::prctl(libc::PR_SET_PDEATHSIG, end_signal) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            },
        );
    }
    let (child_tx, child_rx) = mpsc::channel();
    let (hold_tx, hold_rx) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(format!("kbp-{name}"))
        .spawn(move || {
            let spawned = place.apply().and_then(|()| {
                command.spawn().map_err(|e| match e.kind() {
                    std::io::ErrorKind::NotFound => error(name, not_installed(name)),
                    _ => error(name, format!("start it: {e}")),
                })
            });
            // The owner only goes away after it has heard this.
            let _ = child_tx.send(spawned);
            // Ends when the owner drops its end.
            let _ = hold_rx.recv();
        })
        .map_err(|e| Error::sys("start a thread for a child", e))?;
    let child = child_rx.recv().map_err(|_| Error::Panicked("starting"))?;
    Ok((child?, (hold_tx, thread)))
}

fn read_all(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is there.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads to the end and keeps the last [`SAID_LEN`] bytes.
fn read_end(mut pipe: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; SAID_LEN];
    while let Ok(len @ 1..) = pipe.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..len]);
        let excess = kept.len().saturating_sub(SAID_LEN);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_port_is_found() {
        let table = "  sl  local_address rem_address   st\n  9: 0100007F:2BE7 00000000:0000 07\n";
        assert!(holds(table, 11_239, None) && holds(table, 11_239, Some("07")));
        assert!(!holds(table, 0x2BE6, None));
        assert!(!holds(table, 11_239, Some(LISTEN)));
    }

    #[test]
    fn what_is_not_there_or_fails_is_a_sentence() {
        let here = Place::default();
        let missing = Program::start("no-such-program-of-kbp", &here, &[]).unwrap_err();
        let said = missing.to_string();
        assert!(
            said.contains("apt install no-such-program-of-kbp"),
            "{said}"
        );
        assert!(can_run("no-such-program-of-kbp").is_err());
        can_run("sh").unwrap();
        assert!(not_installed("sipp").ends_with("apt install sip-tester"));
        let fails = Program::start("sh", &here, &["-c", "echo lost >&2; exit 3"]).unwrap();
        let output = fails.wait_end(Duration::from_secs(5)).unwrap();
        let said = ended(&output);
        assert!(
            said.contains("status: 3") && said.ends_with("lost"),
            "{said}"
        );
    }

    #[test]
    fn who_waits_for_one_program_hears_of_the_end_of_another() {
        let here = Place::default();
        let start = |script: &str| Program::start("sh", &here, &["-c", script]).unwrap();
        let mut server = start("echo no memory >&2; exit 3");
        let client = start("sleep 60");
        let since = Instant::now();
        let limit = Duration::from_secs(50);
        let error = client
            .wait_end_beside(limit, &mut [&mut server])
            .unwrap_err();
        let said = error.to_string();
        assert!(said.contains("died while it was needed"), "{said}");
        assert!(said.contains("no memory"), "{said}");
        assert!(since.elapsed() < limit);

        let mut server = start("exit 7");
        let lost = Err::<(), _>(Error::Invalid("the connection is closed".into()));
        let said = server.explain(lost).unwrap_err().to_string();
        assert!(said.contains("status: 7"), "{said}");
        let mut server = start("sleep 60");
        let lost = Err::<(), _>(Error::Invalid("the connection is closed".into()));
        let said = server.explain(lost).unwrap_err().to_string();
        assert_eq!(said, "the connection is closed");
        server.explain(Ok(())).unwrap();
    }

    #[test]
    fn a_child_ends_with_its_owner_and_not_before() {
        let since = Instant::now();
        let program = Program::start("sleep", &Place::default(), &["60"]).unwrap();
        let process = format!("/proc/{}", program.pid());
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            std::fs::exists(&process).unwrap(),
            "it died with its thread"
        );
        drop(program);
        assert!(!std::fs::exists(&process).unwrap());
        assert!(since.elapsed() < Duration::from_secs(10));
        let program = Program::start("sleep", &Place::default(), &["60"]).unwrap();
        let error = program.wait_end(Duration::from_millis(30)).unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_a_sentence() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let free = |protocol| require_free("x", &Place::default(), protocol, addr);
        let error = free(Protocol::Tcp).unwrap_err().to_string();
        assert!(
            error.contains(&format!("TCP port {} is in use", addr.port())),
            "{error}"
        );
        drop(listener);
        free(Protocol::Tcp).unwrap();
    }
}
