// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's `kamailio`, unmodified, as a SIP proxy, and Debian's `sipp` as caller and callee, as in paper 003, section 4.3:
//! how long the proxy takes to forward each message, seen from the callers' side.
//!
//! * [`texts`]: what the programs are told. * [`message`]: SIP, as far as it has to be read. * [`pairing`]: the same message
//!   before and behind the proxy. * [`capture`]: the messages with the kernel's times.
//!
//! Other than in the paper, SIPp is not modified: calls begin at a constant rate and wait a random time of whole
//! milliseconds each, which follows from SIPp's own random numbers and not from our seed.
//!
//! Not here: the path between both sides.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::capture::Capture;
use self::pairing::{Account, Pairing};
use super::program::{self, Program, Protocol};
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::place::{run_at, Place};
use crate::result::{Row, RttNs, TOOL_KAMAILIO, TRAFFIC_SIP};

pub mod capture;
pub mod message;
pub mod pairing;
pub mod texts;

/// The proxy, as it is called, and its package.
pub const TOOL: &str = TOOL_KAMAILIO;
/// The tester.
pub const TESTER: &str = "sipp";

/// Messages of a call that the proxy forwards.
pub const MESSAGES_OF_A_CALL: u64 = 6;
const CALLER_PORT: u16 = 5_062;
const CALLEE_PORT: u16 = 5_070;
/// The allocator for speed instead of the one for finding bugs, which is the default and searches for so long that it is all
/// that is measured: on 6.1 in the lab a message took 0.3 to 2 ms with it, and 0.05 to 0.15 ms without. 64 MiB hold the
/// transactions of some seconds.
const MEMORY: [&str; 6] = ["-x", "fm", "-X", "fm", "-m", "64"];
/// Calls before those that count.
const WARM_UP_CALLS: u64 = 10;
/// How long a call waits at most before it begins, milliseconds: many times the distance of two calls, so that their
/// beginnings are all but independent.
const WAIT_MS: u32 = 200;
/// How long the calls may take beyond the time in which they begin. One that is never answered takes SIPp 32 s.
const END_LIMIT: Duration = Duration::from_secs(60);
/// How often the capture looks whether the run is over.
const LOOK: Duration = Duration::from_millis(20);

/// The calls of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SipLoad {
    /// Calls that begin a second.
    pub calls_per_s: u32,
    /// How long calls begin, nanoseconds.
    pub span_ns: u64,
}

impl SipLoad {
    fn calls(&self) -> u64 {
        (u128::from(self.calls_per_s) * u128::from(self.span_ns) / 1_000_000_000).max(1) as u64
    }

    fn check(&self) -> Result<()> {
        match (1..=1_000).contains(&self.calls_per_s) {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{} calls a second: it has to be 1 to 1000 (the paper has 17 to 167)",
                self.calls_per_s
            ))),
        }
    }
}

/// What a run found.
#[derive(Debug)]
pub struct SipReport {
    /// Calls that were made, all of them to their end.
    pub calls: u64,
    /// What became of their messages.
    pub account: Account,
    /// Length of the run, nanoseconds.
    pub span_ns: u64,
}

/// A proxy that runs, and the folder of its configuration. Both go with it.
#[derive(Debug)]
pub struct Proxy {
    // Dropped first: it ends before its folder goes.
    program: Program,
    folder: Folder,
    at: SocketAddrV4,
    callee: SocketAddrV4,
}

impl Proxy {
    /// Starts a proxy at `at` whose calls go to the callee of [`Proxy::load`] in the namespace of `client_place`.
    ///
    /// # Errors
    /// When a program is not installed, a port is in use, or the address is none of IPv4.
    pub fn start(at: SocketAddr, place: &Place, client_place: &Place) -> Result<Self> {
        let SocketAddr::V4(at) = at else {
            return Err(program::error(TOOL, "it is measured over IPv4 only"));
        };
        program::require_free(TOOL, place, Protocol::Udp, at.into())?;
        let there = in_namespace_of(client_place);
        let own = run_at(&there, || own_address(at))?;
        let callee = SocketAddrV4::new(own, CALLEE_PORT);
        for port in [CALLER_PORT, CALLEE_PORT] {
            let socket = SocketAddrV4::new(own, port).into();
            program::require_free(TESTER, client_place, Protocol::Udp, socket)?;
        }
        let folder = Folder::make(at)?;
        let config = folder.write("kamailio.cfg", &texts::proxy(at, callee))?;
        let run = folder.0.display().to_string();
        // Errors go to our pipe; its files of a running system, such as the control socket, to our folder.
        let mut arguments = vec!["-f", &config, "-DD", "-E", "-Y", &run, "-w", &run];
        arguments.extend_from_slice(&MEMORY);
        let mut program = Program::start(TOOL, place, &arguments)?;
        program.wait_bound(Protocol::Udp, at.into())?;
        Ok(Self {
            program,
            folder,
            at,
            callee,
        })
    }

    /// Its process, and those that it started.
    pub fn pids(&self) -> Vec<u32> {
        let pid = self.program.pid();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        std::iter::once(pid).chain(children).collect()
    }

    /// Makes the calls between a caller and a callee at `client_place`. `on_warm` is called, on the calling thread, between
    /// some calls that do not count and the first one that does.
    ///
    /// # Errors
    /// When a program ends before its time, a call fails, or the capture lost a frame.
    pub fn load(
        &mut self,
        load: &SipLoad,
        client_place: &Place,
        on_warm: &mut dyn FnMut() -> Result<()>,
    ) -> Result<SipReport> {
        load.check()?;
        let mut callee = self.callee(client_place)?;
        let warm_up = self.caller(client_place, WARM_UP_CALLS, load.calls_per_s)?;
        self.wait(warm_up, END_LIMIT, &mut callee)?;
        on_warm()?;
        let begun_ns = monotonic_ns()?;
        let limit = Duration::from_nanos(load.span_ns) + END_LIMIT;
        let account = captured(self.at, &in_namespace_of(client_place), || {
            let caller = self.caller(client_place, load.calls(), load.calls_per_s)?;
            self.wait(caller, limit, &mut callee)
        })?;
        Ok(SipReport {
            calls: load.calls(),
            account,
            span_ns: monotonic_ns()? - begun_ns,
        })
    }

    fn callee(&self, place: &Place) -> Result<Program> {
        let scenario = self.folder.write("callee.xml", &texts::callee())?;
        let mut callee = sipp(place, &scenario, self.callee, &[])?;
        callee.wait_bound(Protocol::Udp, self.callee.into())?;
        Ok(callee)
    }

    fn caller(&self, place: &Place, calls: u64, calls_per_s: u32) -> Result<Program> {
        let scenario = self.folder.write("caller.xml", &texts::caller(WAIT_MS))?;
        let from = SocketAddrV4::new(*self.callee.ip(), CALLER_PORT);
        let (proxy, calls, rate) = (
            self.at.to_string(),
            calls.to_string(),
            calls_per_s.to_string(),
        );
        // All calls may be on their way at once: the limit is none.
        let more = [proxy.as_str(), "-m", &calls, "-r", &rate, "-l", &calls];
        sipp(place, &scenario, from, &more)
    }

    /// Waits for the caller's end while the others run, and sees that every call came to its end.
    fn wait(&mut self, caller: Program, limit: Duration, callee: &mut Program) -> Result<()> {
        let output = caller.wait_end_beside(limit, &mut [&mut self.program, callee])?;
        let why = match output.status.code() {
            Some(0) => return Ok(()),
            Some(1) => "a call failed".into(),
            _ => program::ended(&output),
        };
        Err(program::error(TESTER, why))
    }
}

impl SipReport {
    /// The row of a run. Mechanism, load, path and round are the caller's to name.
    pub fn row(&self) -> Row {
        let delays = &self.account.delays;
        Row {
            tool: TOOL.into(),
            traffic: TRAFFIC_SIP.into(),
            n: delays.count(),
            lost: self.account.lost,
            dup: self.account.dup,
            span_ns: self.span_ns,
            rtt_ns: RttNs::from(delays),
            histogram_ns: delays.cells(),
            ..Row::default()
        }
    }
}

fn sipp(place: &Place, scenario: &str, at: SocketAddrV4, more: &[&str]) -> Result<Program> {
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let mut arguments = vec![
        "-sf", scenario, "-i", &ip, "-p", &port, "-s", "app", "-nostdin",
    ];
    arguments.extend_from_slice(more);
    Program::start(TESTER, place, &arguments)
}

/// Captures in a namespace while `work` runs, and pairs what was captured.
fn captured(
    proxy: SocketAddrV4,
    place: &Place,
    work: impl FnOnce() -> Result<()>,
) -> Result<Account> {
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    let (ready_tx, ready_rx) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            run_at(place, move || {
                let mut capture = Capture::begin(proxy)?;
                // Who waits for it waits for the end of this thread, too.
                let _ = ready_tx.send(());
                pair(&mut capture, is_over)
            })
        });
        // Without the word, the thread has ended, and says why.
        let done = ready_rx.recv().map(|()| work());
        is_over.store(true, Ordering::Relaxed);
        let account = thread.join();
        let account = account.unwrap_or(Err(Error::Panicked("capturing")));
        match done {
            Ok(Err(error)) => Err(error),
            _ => account,
        }
    })
}

fn pair(capture: &mut Capture, is_over: &AtomicBool) -> Result<Account> {
    let mut pairing = Pairing::default();
    loop {
        // What came before the end is taken after it.
        let is_last = is_over.load(Ordering::Relaxed);
        capture.take(LOOK, |datagram| {
            let entered = pairing.enter(datagram.way, datagram.at_ns, datagram.payload);
            entered.map_err(|why| program::error(TOOL, why))
        })?;
        if is_last {
            break;
        }
    }
    match capture.drops()? {
        0 => Ok(pairing.finish()),
        drops => Err(program::error(
            TOOL,
            format!("{drops} frames of its messages were not captured: make fewer calls"),
        )),
    }
}

/// The namespace of a place, on whatever CPU.
fn in_namespace_of(place: &Place) -> Place {
    Place {
        netns: place.netns.clone(),
        ..Place::default()
    }
}

/// The address from which this namespace reaches another one.
fn own_address(peer: SocketAddrV4) -> Result<Ipv4Addr> {
    let asked = || -> std::io::Result<SocketAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(peer)?;
        socket.local_addr()
    };
    match asked() {
        Ok(SocketAddr::V4(own)) => Ok(*own.ip()),
        Ok(SocketAddr::V6(_)) => Err(program::error(TESTER, "it is measured over IPv4 only")),
        Err(error) => Err(Error::sys(format!("find the way to {peer}"), error)),
    }
}

/// A folder that goes when it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(at: SocketAddrV4) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!("kbp-sip-{}-{}", std::process::id(), at.port());
        let path = std::env::temp_dir().join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::file("create", &path, e))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|e| Error::file("write", &path, e))?;
        Ok(path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays does no harm, and nobody is left to be told.
        let _ = fs::remove_dir_all(&self.0);
    }
}
