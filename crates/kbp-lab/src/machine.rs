// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A running QEMU with its connections: console, control lines, the script's output, and the data stream.
//!
//! Every connection is a Unix socket that we listen on and QEMU opens. Threads read them, so that the guest never waits
//! for us; what they read comes through one channel, so that one wait serves all and a time limit always holds.
//!
//! Not here: what is said on the control port ([`crate::run`]).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::error::{tail, Error, IoContext, Result};
use crate::hostcpu::Follower;
use crate::qemu::Qemu;
use crate::qmp::Qmp;

/// Longest wait for QEMU to open its connections.
const CONNECT: Duration = Duration::from_secs(20);
/// Longest wait for QEMU's end after it was asked to quit.
const QUIT: Duration = Duration::from_secs(3);
/// What the first process of the guest says on the console before all else.
const INIT_SEEN: &str = "kbp-lab: init";

/// Where the guest's console goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Console {
    /// Kept for messages and for `console.log`.
    Kept,
    /// Kept, and copied to standard error.
    Shown,
    /// The terminal itself, for a person to type.
    Terminal,
}

/// How to start a machine.
pub(crate) struct Start<'a> {
    pub qemu: &'a Qemu,
    pub arguments: &'a [String],
    /// The snapshot to go on from.
    pub incoming: Option<&'a Path>,
    pub console: Console,
    /// Open QEMU's own control connection. It has a thread in QEMU that every timer of the virtual clock wakes, so a
    /// machine that measures goes without.
    pub controlled: bool,
    /// Keep QEMU on one of the host's CPUs at a time.
    pub one_cpu: bool,
}

/// What comes from the guest, or the news that nothing more will.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A line on the control port.
    Line(String),
    /// The machine is gone.
    Gone,
    /// The time is over.
    TimedOut,
}

/// The running machine. It is ended when dropped.
#[derive(Debug)]
pub(crate) struct Machine {
    /// On the virtual clock. It ends before the child is waited for: then the child's number may be another's.
    follower: Option<Follower>,
    child: Child,
    qmp: Option<Qmp>,
    control: UnixStream,
    output: Option<UnixStream>,
    data: UnixStream,
    lines: Receiver<String>,
    console: Arc<Mutex<Vec<u8>>>,
    threads: Vec<JoinHandle<()>>,
    errors: PathBuf,
    _sockets: tempfile::TempDir,
}

impl Machine {
    /// Starts QEMU and waits for its connections.
    ///
    /// # Errors
    /// [`Error::Qemu`] with QEMU's words when it ends at once.
    pub(crate) fn start(start: &Start) -> Result<Machine> {
        let sockets = tempfile::Builder::new()
            .prefix("kbp-lab-")
            .tempdir()
            .at("make a temporary folder in", "/tmp")?;
        let dir = sockets.path();
        let mut names = vec!["control", "output", "data"];
        if start.console != Console::Terminal {
            names.push("console");
        }
        if start.controlled {
            names.push("qmp");
        }
        let listeners: Vec<UnixListener> = names
            .iter()
            .map(|name| UnixListener::bind(dir.join(name)).at("listen on", dir.join(name)))
            .collect::<Result<_>>()?;
        let errors = dir.join("stderr");
        let error_file = std::fs::File::create(&errors).at("make", &errors)?;
        let mut command = start.qemu.command(start.one_cpu)?;
        command.args(start.arguments).args(connections(dir, &names));
        if let Some(path) = start.incoming {
            command
                .arg("-incoming")
                .arg(format!("file:{}", path.display()));
        }
        if start.console != Console::Terminal {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let mut child = command
            .stderr(error_file)
            .spawn()
            .map_err(|source| Error::Qemu {
                detail: source.to_string(),
            })?;
        let mut streams = Vec::new();
        for listener in &listeners {
            match accept(listener, &mut child) {
                Ok(stream) => streams.push(stream),
                Err(detail) => {
                    // It may have ended by itself; what counts is what it said.
                    let _ = child.kill();
                    let _ = child.wait();
                    let said = std::fs::read_to_string(&errors).unwrap_or_default();
                    return Err(Error::Qemu {
                        detail: format!("{detail}: {}", tail(&said, 5)),
                    });
                }
            }
        }
        Machine::connect(child, streams, start, errors, sockets)
    }

    fn connect(
        child: Child,
        streams: Vec<UnixStream>,
        start: &Start,
        errors: PathBuf,
        sockets: tempfile::TempDir,
    ) -> Result<Machine> {
        let mut streams = streams.into_iter();
        let mut next = || {
            streams.next().ok_or_else(|| Error::Qemu {
                detail: "a connection is missing".into(),
            })
        };
        let (control, output, data) = (next()?, next()?, next()?);
        let console = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        if start.console != Console::Terminal {
            let (stream, kept, show) = (
                next()?,
                Arc::clone(&console),
                start.console == Console::Shown,
            );
            threads.push(std::thread::spawn(move || {
                keep_console(stream, &kept, show)
            }));
        }
        let (sender, lines) = channel();
        let reader = control.try_clone().at("copy", "the control connection")?;
        threads.push(std::thread::spawn(move || read_lines(reader, &sender)));
        let qmp = if start.controlled {
            Some(Qmp::start(next()?)?)
        } else {
            None
        };
        Ok(Machine {
            follower: start.one_cpu.then(|| Follower::start(child.id())),
            child,
            qmp,
            control,
            output: Some(output),
            data,
            lines,
            console,
            threads,
            errors,
            _sockets: sockets,
        })
    }

    /// Writes the machine's state into a file; the machine is stopped then. It has to be `controlled`.
    ///
    /// # Errors
    /// [`Error::Qemu`] when it fails or takes longer than `limit`.
    pub(crate) fn save(&mut self, path: &Path, limit: Duration) -> Result<()> {
        match &mut self.qmp {
            Some(qmp) => qmp.save(&path.display().to_string(), limit),
            None => Err(Error::Qemu {
                detail: "this machine has no control connection".into(),
            }),
        }
    }

    /// The next line of the guest, until the deadline.
    pub(crate) fn event(&self, deadline: Instant) -> Event {
        match self
            .lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(line) => Event::Line(line),
            Err(RecvTimeoutError::Timeout) => Event::TimedOut,
            Err(RecvTimeoutError::Disconnected) => Event::Gone,
        }
    }

    /// Says a line to the guest. A machine that is gone shows at the next [`Machine::event`].
    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.control, "{line}");
    }

    /// Copies what the script prints to `sink` as it comes.
    pub(crate) fn stream_output(&mut self, mut sink: Box<dyn Write + Send>) {
        let Some(mut stream) = self.output.take() else {
            return;
        };
        self.threads.push(std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                // A closed standard output must not stop the guest.
                let _ = sink.write_all(&buffer[..length]);
                let _ = sink.flush();
            }
        }));
    }

    /// Sends bytes on the data port, aside.
    ///
    /// # Errors
    /// [`Error::Io`] when the connection cannot be used.
    pub(crate) fn send_data(&mut self, bytes: Vec<u8>) -> Result<()> {
        let mut stream = self.data.try_clone().at("copy", "the data connection")?;
        self.threads.push(std::thread::spawn(move || {
            // A guest that is gone shows at the control port.
            let _ = stream.write_all(&bytes);
        }));
        Ok(())
    }

    /// Unpacks the tar stream that the guest sends into a folder, aside; without a folder it is thrown away. What is
    /// returned says when the last of it is there, and what became of it: until then the machine has to live, since
    /// what QEMU has not yet passed on ends with it.
    ///
    /// # Errors
    /// [`Error::Io`] when the connection cannot be used.
    pub(crate) fn receive_data(
        &mut self,
        folder: Option<&Path>,
    ) -> Result<Receiver<std::io::Result<()>>> {
        let stream = self.data.try_clone().at("copy", "the data connection")?;
        let folder = folder.map(Path::to_path_buf);
        let (say, arrived) = channel();
        self.threads
            .push(std::thread::spawn(move || unpack(stream, folder, &say)));
        Ok(arrived)
    }

    /// Waits until the machine ends by itself; false when it does not in time.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> bool {
        self.follower = None;
        let deadline = Instant::now() + limit;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Ends the machine and returns all that its console said.
    pub(crate) fn end(&mut self) -> String {
        self.follower = None;
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), i32::try_from(self.child.id())) {
            // QEMU ends in order on this signal: it gives back the terminal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + QUIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for thread in self.threads.drain(..) {
            // A reader that panicked has nothing more to say.
            let _ = thread.join();
        }
        self.console_text()
    }

    /// What the console said so far.
    pub(crate) fn console_text(&self) -> String {
        let bytes = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// What QEMU itself complained about.
    pub(crate) fn complaints(&self) -> String {
        let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
        text.lines()
            .filter(|line| !is_known_warning(line))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Unpacks a tar stream, says at the archive's end what became of it, and goes on to read what is behind it: the guest
/// must not wait for us there.
fn unpack(stream: UnixStream, folder: Option<PathBuf>, say: &Sender<std::io::Result<()>>) {
    let mut archive = tar::Archive::new(stream);
    let unpacked = folder.map_or(Ok(()), |folder| archive.unpack(folder));
    // Nobody may be left to hear it.
    let _ = say.send(unpacked);
    let _ = std::io::copy(&mut archive.into_inner(), &mut std::io::sink());
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.follower = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the guest's first process had begun by this console text.
pub(crate) fn init_seen(console: &str) -> bool {
    console.contains(INIT_SEEN)
}

/// QEMU says these of every machine of ours.
fn is_known_warning(line: &str) -> bool {
    line.contains("is not connected to host network")
        || line.contains("icount sleep disabled and no active timers")
}

/// The arguments for the connections and the devices behind them.
fn connections(dir: &Path, names: &[&str]) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut add = |name: &str, value: String| arguments.extend([name.to_string(), value]);
    for name in names {
        add(
            "-chardev",
            format!("socket,id={name},path={}", dir.join(name).display()),
        );
    }
    if names.contains(&"qmp") {
        add("-mon", "chardev=qmp,mode=control".into());
    }
    add("-device", "virtio-serial-pci,addr=0x3,max_ports=8".into());
    for (index, name) in ["control", "output", "data"].iter().enumerate() {
        add(
            "-device",
            format!(
                "virtserialport,chardev={name},name=kbp.{name},nr={}",
                index + 1
            ),
        );
    }
    if names.contains(&"console") {
        add("-serial", "chardev:console".into());
    } else {
        add("-chardev", "stdio,id=terminal,signal=off".into());
        add("-serial", "chardev:terminal".into());
    }
    arguments
}

fn accept(listener: &UnixListener, child: &mut Child) -> std::result::Result<UnixStream, String> {
    listener
        .set_nonblocking(true)
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + CONNECT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream
                    .set_nonblocking(false)
                    .map_err(|error| error.to_string())?;
                return Ok(stream);
            }
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(error.to_string())
            }
            Err(_) => {}
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it ended with {status}"));
        }
        if Instant::now() > deadline {
            return Err("it does not open its connections".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn keep_console(mut stream: UnixStream, kept: &Mutex<Vec<u8>>, show: bool) {
    let mut buffer = [0u8; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        kept.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(&buffer[..length]);
        if show {
            let _ = std::io::stderr().write_all(&buffer[..length]);
        }
    }
}

fn read_lines(stream: UnixStream, sender: &Sender<String>) {
    for line in BufReader::new(stream)
        .lines()
        .map_while(std::result::Result::ok)
    {
        if sender.send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar stream with one file.
    fn archive(name: &str, contents: &[u8]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, contents).unwrap();
        tar.into_inner().unwrap()
    }

    /// A guest's end of a connection, and when what it sends has been unpacked into a folder.
    fn receiving(folder: &Path) -> (UnixStream, Receiver<std::io::Result<()>>) {
        let (guest, host) = UnixStream::pair().unwrap();
        let (say, arrived) = channel();
        let folder = Some(folder.to_path_buf());
        std::thread::spawn(move || unpack(host, folder, &say));
        (guest, arrived)
    }

    /// Files are there when they are said to be, while the guest still lives, and not before.
    #[test]
    fn data_have_arrived_at_the_end_of_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let contents = vec![7; 300_000];
        let sent = archive("result", &contents);
        let (mut guest, arrived) = receiving(folder.path());
        let (most, last) = sent.split_at(150_000);
        guest.write_all(most).unwrap();
        let early = arrived.recv_timeout(Duration::from_millis(100));
        assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
        guest.write_all(last).unwrap();
        let unpacked = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
        unpacked.unwrap();
        assert_eq!(
            std::fs::read(folder.path().join("result")).unwrap(),
            contents
        );
    }

    /// A guest that ends in the middle is no success.
    #[test]
    fn half_an_archive_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let sent = archive("result", &[7; 300_000]);
        let (mut guest, arrived) = receiving(folder.path());
        guest.write_all(&sent[..150_000]).unwrap();
        drop(guest);
        assert!(arrived.recv().unwrap().is_err());
    }
}
