// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this machine can tell apart: the clock, the fastest round trip that the tester can see at
//! all, and how long the machine takes the CPU away from a thread that only looks at the clock.
//!
//! The *floor* of a back end is the shortest time from its send to its receive with nobody in
//! between: a UDP socket connected to itself over loopback, rings on loopback, a unix socket
//! connected to itself. A path with another end in it takes longer, so a shorter figure is not a
//! round trip and is refused.
//!
//! Not here: the machine's description ([`crate::machine`]).

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::time::{clock_getres, ClockId};
use serde::Serialize;

use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::result::RttNs;
use crate::tester::backend::{Backend, Kind, Ring, Station, Udp, Wire};
use crate::tester::pingpong::RoundTrips;

/// Round trips to itself.
const ROUNDS: u32 = 1_000;
/// First ones that do not count.
const WARMUP: u32 = 50;
/// A datagram to itself that takes longer is lost, nanoseconds. Long, because a busy host of a virtual machine may take the
/// CPU away for some hundred milliseconds.
const LOST_NS: u64 = 1_000_000_000;
/// A datagram to itself that takes longer is waited for asleep, nanoseconds: before 6.5 loopback's softirq is left to
/// ksoftirqd when that is awake (decision 004), and a thread of SCHED_FIFO that spins on the same CPU keeps it from running.
const LATE_NS: u64 = 1_000_000;
/// How long it sleeps until it looks again. The arrival does not end the sleep: the tester would take the CPU from ksoftirqd
/// before that has gone to sleep, and the next datagram would be late, too.
const NAP: Duration = Duration::from_micros(100);
/// How long the clock is looked at, nanoseconds.
const LOOK_NS: u64 = 30_000_000;
/// Payload of the round trips: that of a 64-byte frame.
const PAYLOAD_LEN: usize = 18;

/// What this machine can tell apart.
#[derive(Debug, Clone, Serialize)]
pub struct Floor {
    /// The back end.
    pub backend: Kind,
    /// The tester to itself: send, receive, nothing else.
    pub self_ns: RttNs,
    /// Resolution that the kernel states for the clock, nanoseconds.
    pub clock_resolution_ns: u64,
    /// Median distance of two looks at the clock, nanoseconds.
    pub clock_step_ns: u64,
    /// The looking thread was away for this long or less in 99.9 % of its looks, nanoseconds.
    pub gap_ns_p999: u64,
    /// Longest time that the looking thread was away, nanoseconds: what the machine itself adds to a
    /// tail.
    pub gap_ns_max: u64,
}

impl Floor {
    /// The floor of `kind` on this machine, measured once in the life of the process, on the thread
    /// that asks first: place it as the tester is placed.
    ///
    /// # Errors
    /// Those of [`Floor::measure`].
    pub fn of(kind: Kind) -> Result<Self> {
        static KNOWN: Mutex<Option<HashMap<Kind, Floor>>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
        let known = known.get_or_insert_with(HashMap::new);
        if let Some(floor) = known.get(&kind) {
            return Ok(floor.clone());
        }
        let floor = Self::measure(kind)?;
        known.insert(kind, floor.clone());
        Ok(floor)
    }

    /// Measures the floor of `kind` on the calling thread.
    ///
    /// # Errors
    /// When loopback is down and can't be made, or the back end needs a privilege that is missing.
    pub fn measure(kind: Kind) -> Result<Self> {
        let self_ns = match kind {
            Kind::Udp => with_loopback(|| to_itself(&mut Udp::to_itself()?))?,
            Kind::Ring => with_loopback(|| to_itself(&mut mirrored(Ring::open("lo")?)))?,
            Kind::Wire => {
                let folder = Folder::make()?;
                to_itself(&mut mirrored(Wire::to_itself(&folder.0)?))?
            }
        };
        let gaps = look_at_the_clock()?;
        let resolution = clock_getres(ClockId::CLOCK_MONOTONIC)
            .map_err(|errno| Error::sys("read the resolution of CLOCK_MONOTONIC", errno))?;
        Ok(Self {
            backend: kind,
            self_ns,
            clock_resolution_ns: resolution.tv_sec() as u64 * 1_000_000_000
                + resolution.tv_nsec() as u64,
            clock_step_ns: gaps.percentile_ns(50.0),
            gap_ns_p999: gaps.percentile_ns(99.9),
            gap_ns_max: gaps.max_ns(),
        })
    }

    /// Refuses round trips that are shorter than the tester can see; an empty record passes.
    ///
    /// # Errors
    /// [`Error::BelowFloor`].
    pub fn check(&self, rtt: &RttNs) -> Result<()> {
        if rtt.max > 0 && rtt.p50 < self.self_ns.min {
            return Err(Error::BelowFloor {
                what: "a median round trip",
                found_ns: rtt.p50,
                floor_ns: self.self_ns.min,
            });
        }
        Ok(())
    }

    /// The smallest difference of two times that this machine can show, nanoseconds.
    pub fn resolution_ns(&self) -> u64 {
        self.clock_resolution_ns.max(self.clock_step_ns)
    }
}

/// Does `work` where loopback is up: here, or else in a network namespace that lives only as long, on
/// a thread that inherits CPU and policy. A tester's namespace often has no loopback.
fn with_loopback<T: Send>(work: impl Fn() -> Result<T> + Sync) -> Result<T> {
    let all = getifaddrs().map_err(|e| Error::sys("list this namespace's interfaces", e))?;
    let mut loopbacks = all.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_LOOPBACK));
    if loopbacks.any(|entry| entry.flags.contains(InterfaceFlags::IFF_UP)) {
        return work();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            own_loopback().map_err(|e| {
                let what = "loopback is down here, and making a namespace with one failed \
                            (`ip link set lo up` helps too)";
                Error::sys(what, e)
            })?;
            work()
        });
        thread.join().map_err(|_| Error::Panicked("self-test"))?
    })
}

/// Gives the calling thread a network namespace of its own, in which `lo` is up.
fn own_loopback() -> std::io::Result<()> {
    // SAFETY: no pointers; only this thread changes its namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all fields of this structure may be 0.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: a live request whose name ends with 0; the kernel only reads it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A station that is its own peer. Its MAC is nobody's, so that the kernel leaves its frames alone.
fn mirrored<L: crate::tester::backend::Link>(link: L) -> Station<L> {
    // From the addresses for benchmarks of networks (RFC 2544, appendix C.2.2).
    let socket = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 0x4b42);
    let own = ([0x02, 0x4b, 0x42, 0x50, 0xff, 0xff], socket);
    Station::between(link, own, own)
}

fn to_itself(backend: &mut dyn Backend) -> Result<RttNs> {
    let mut rtts = RoundTrips::new();
    let mut buffer = [0; 64];
    for round in 0..ROUNDS + WARMUP {
        let mut payload = [0; PAYLOAD_LEN];
        payload[..4].copy_from_slice(&round.to_le_bytes());
        let sent_ns = monotonic_ns()?;
        let mut is_sent = backend.send(&payload)?;
        let back_ns = loop {
            match backend.recv(&mut buffer)? {
                Some(arrival) if arrival.len == PAYLOAD_LEN && buffer[..PAYLOAD_LEN] == payload => {
                    break arrival.at_ns;
                }
                _ => {}
            }
            let now_ns = monotonic_ns()?;
            if now_ns - sent_ns > LOST_NS {
                return Err(Error::SelfTest(format!(
                    "{} did not bring back what was sent to it within {} ms",
                    backend.describe(),
                    LOST_NS / 1_000_000
                )));
            }
            if !is_sent {
                is_sent = backend.send(&payload)?;
            }
            if now_ns - sent_ns > LATE_NS {
                std::thread::sleep(NAP);
            }
            std::hint::spin_loop();
        };
        if round >= WARMUP {
            rtts.record(back_ns - sent_ns);
        }
    }
    Ok(RttNs::from(&rtts))
}

/// Distances of two looks at the clock; without PAUSE, because that would be measured too.
fn look_at_the_clock() -> Result<RoundTrips> {
    let mut gaps = RoundTrips::new();
    let start_ns = monotonic_ns()?;
    let mut last_ns = start_ns;
    while last_ns < start_ns + LOOK_NS {
        let now_ns = monotonic_ns()?;
        gaps.record(now_ns - last_ns);
        last_ns = now_ns;
    }
    Ok(gaps)
}

/// A folder for a unix socket, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn make() -> Result<Self> {
        let name = format!("kbp-selftest-{}-{}", std::process::id(), monotonic_ns()?);
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|e| Error::file("create", &path, e))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The socket in it was removed by its owner.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{getrusage, UsageWho};

    use super::*;
    use crate::tester::backend::{Arrival, Drops};

    #[test]
    fn every_back_end_has_a_floor_on_this_machine() {
        for kind in [Kind::Udp, Kind::Ring, Kind::Wire] {
            let floor = Floor::of(kind).unwrap();
            assert!(floor.self_ns.min > 0 && floor.self_ns.p50 >= floor.self_ns.min);
            assert!(floor.clock_resolution_ns > 0 && floor.gap_ns_max >= floor.clock_step_ns);
            let same = Floor::of(kind).unwrap();
            assert_eq!(same.self_ns, floor.self_ns, "it is measured once");
        }
    }

    #[test]
    fn a_namespace_without_loopback_has_a_floor_too() {
        let thread = std::thread::spawn(|| {
            // SAFETY: no pointers; the thread ends with the test.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "this test needs root");
            Udp::to_itself().unwrap_err();
            Floor::measure(Kind::Udp).unwrap()
        });
        assert!(thread.join().unwrap().self_ns.min > 0);
    }

    /// Brings the first back only to who has slept, as ksoftirqd does on the CPU of a SCHED_FIFO thread.
    #[derive(Debug, Default)]
    struct BehindOne {
        sent: Vec<u8>,
        sleeps: i64,
    }

    impl BehindOne {
        fn sleeps() -> i64 {
            let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
            usage.voluntary_context_switches()
        }
    }

    impl Backend for BehindOne {
        fn describe(&self) -> String {
            "behind the tester".into()
        }

        fn overhead(&self) -> u32 {
            0
        }

        fn send(&mut self, payload: &[u8]) -> Result<bool> {
            let is_first = self.sent.is_empty();
            self.sent = payload.into();
            if is_first {
                self.sleeps = Self::sleeps();
            }
            Ok(true)
        }

        fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Arrival>> {
            if Self::sleeps() <= self.sleeps {
                return Ok(None);
            }
            buffer[..self.sent.len()].copy_from_slice(&self.sent);
            Ok(Some(Arrival {
                len: self.sent.len(),
                at_ns: monotonic_ns()?,
            }))
        }

        fn wait(&mut self, _until_ns: u64) -> Result<()> {
            Ok(())
        }

        fn drops(&mut self) -> Result<Drops> {
            Ok(Drops::default())
        }
    }

    #[test]
    fn who_has_to_bring_it_back_is_let_run() {
        to_itself(&mut BehindOne::default()).unwrap();
    }

    #[test]
    fn what_is_below_the_floor_is_refused() {
        let floor = Floor::of(Kind::Udp).unwrap();
        let rtt = |p50| RttNs {
            p50,
            max: 1 << 40,
            ..RttNs::default()
        };
        floor.check(&rtt(floor.self_ns.min)).unwrap();
        floor.check(&RttNs::default()).unwrap();
        let error = floor.check(&rtt(floor.self_ns.min - 1)).unwrap_err();
        assert!(error.to_string().contains("below"), "{error}");
    }
}
