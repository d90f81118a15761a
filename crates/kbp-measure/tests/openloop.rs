// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The open loop on real paths: loopback with an echo peer that loses, doubles, reorders and delays
//! by seed and keeps a log of it, and a veth pair with the kernel's own stack behind it. The account
//! has to be exact.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kbp_measure::place::{run_at, Place};
use kbp_measure::rng::SplitMix64;
use kbp_measure::tester::backend::{Backend, Ends, Kind, Link, Ring, Target, Udp};
use kbp_measure::tester::openloop::{run, Account, Arrivals, OpenLoopConfig, Probe, Schedule};
use kbp_measure::tester::pingpong::EchoServer;
use kbp_measure::tester::selftest::Floor;
use kbp_measure::tester::throughput::{self, ThroughputConfig, Wall};
use kbp_measure::{Error, Result};

const ANY_PORT: &str = "127.0.0.1:0";
/// Tries against a machine whose other work keeps the tester from its rate.
const TRIES: u32 = 20;

/// Taken by every test here: two at a time would measure each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For threads that wait for each other, so that this machine's other work does not stand between.
const REAL_TIME: Place = Place {
    cpu: None,
    fifo_priority: Some(10),
    netns: None,
};

/// Runs until the rate was held; that this machine is busy is no failure of the account.
fn held<T>(mut work: impl FnMut() -> Result<T>) -> T {
    for _ in 0..TRIES {
        match work() {
            Err(Error::RateNotHeld { .. }) => continue,
            other => return other.unwrap(),
        }
    }
    panic!("this machine did not hold the rate in {TRIES} runs");
}

/// What the peer does with frames.
#[derive(Clone, Copy)]
struct Mischief {
    seed: u64,
    lose_percent: u64,
    double_percent: u64,
    hold_percent: u64,
    delay: Duration,
}

const HONEST: Mischief = Mischief {
    seed: 1,
    lose_percent: 0,
    double_percent: 0,
    hold_percent: 0,
    delay: Duration::ZERO,
};

/// What the peer saw and did, by the tag of the run.
#[derive(Default)]
struct Log {
    received: HashMap<u32, u64>,
    /// Numbers in the order in which they were sent back.
    answered: HashMap<u32, Vec<u64>>,
    foreign_sent: u64,
}

struct Peer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Log>,
}

impl Peer {
    fn start(mischief: Mischief) -> Self {
        let socket = UdpSocket::bind(ANY_PORT).unwrap();
        let limit = Some(Duration::from_millis(30));
        socket.set_read_timeout(limit).unwrap();
        never_overflow(&socket);
        let addr = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || mischief.serve(&socket, &flag));
        Self { addr, stop, thread }
    }

    fn stop(self) -> Log {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// A peer that has to wait for a CPU must not lose what it does not log.
fn never_overflow(socket: &UdpSocket) {
    let bytes: libc::c_int = 8 << 20;
    let (pointer, len): (*const libc::c_int, _) = (&bytes, size_of_val(&bytes));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
    // SAFETY: the kernel reads `len` bytes of a live integer.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer.cast(), len as u32) };
    assert_eq!(result, 0, "this test needs root");
}

impl Mischief {
    fn serve(self, socket: &UdpSocket, stop: &AtomicBool) -> Log {
        let mut rng = SplitMix64::new(self.seed);
        let mut log = Log::default();
        // Held frames and how many frames they still let pass.
        let mut held: Vec<(u64, Vec<u8>, SocketAddr)> = Vec::new();
        let mut buffer = [0; 2048];
        while !stop.load(Ordering::Acquire) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                held.drain(..)
                    .for_each(|(_, bytes, to)| log.answer(socket, &bytes, to));
                continue;
            };
            let came = Instant::now();
            while came.elapsed() < self.delay {
                std::hint::spin_loop();
            }
            let bytes = &buffer[..len];
            let probe = Probe::read(bytes).unwrap();
            *log.received.entry(probe.tag).or_default() += 1;
            let fate = rng.in_range(0, 99);
            if fate < self.lose_percent {
                // Lost; noise in its place.
                socket.send_to(b"garbage", from).unwrap();
                log.foreign_sent += 1;
            } else if fate < self.lose_percent + self.hold_percent {
                held.push((rng.in_range(1, 9), bytes.to_vec(), from));
                continue;
            } else {
                log.answer(socket, bytes, from);
                if fate >= 100 - self.double_percent {
                    log.answer(socket, bytes, from);
                }
            }
            held.iter_mut().for_each(|frame| frame.0 -= 1);
            for (_, bytes, to) in held.extract_if(.., |frame| frame.0 == 0) {
                log.answer(socket, &bytes, to);
            }
        }
        log
    }
}

impl Log {
    fn answer(&mut self, socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
        socket.send_to(bytes, to).unwrap();
        let probe = Probe::read(bytes).unwrap();
        self.answered.entry(probe.tag).or_default().push(probe.seq);
    }

    /// The account that the log of the longest run asks for.
    fn account(&self) -> Account {
        let (tag, sent) = self.received.iter().max_by_key(|(_, sent)| **sent).unwrap();
        let mut account = Account {
            sent: *sent,
            ..Account::default()
        };
        let mut seen = HashSet::new();
        for seq in &self.answered[tag] {
            if seen.contains(seq) {
                account.duplicated += 1;
            } else {
                account.reordered += u64::from(seen.iter().any(|earlier| earlier > seq));
                account.returned += u64::from(seen.insert(*seq));
            }
        }
        account.lost = account.sent - account.returned;
        account
    }
}

fn config(frame_bytes: u32, frames_per_s: u64, span_ms: u64) -> OpenLoopConfig {
    let rate_bps = frames_per_s * u64::from(frame_bytes) * 8;
    OpenLoopConfig {
        span_ns: span_ms * 1_000_000,
        drain_ns: 500_000_000,
        ..OpenLoopConfig::new(frame_bytes, rate_bps)
    }
}

#[test]
fn loss_duplicates_and_reordering_are_counted_exactly() {
    let _alone = alone();
    for (seed, frame_bytes) in [(11, 64), (12, 512), (13, 1518)] {
        let mischief = Mischief {
            seed,
            lose_percent: 5,
            double_percent: 7,
            hold_percent: 6,
            ..HONEST
        };
        let (report, log) = held(|| {
            let peer = Peer::start(mischief);
            let found = Udp::connect(peer.addr)
                .and_then(|mut udp| run(&mut udp, &config(frame_bytes, 8_000, 300), || Ok(())));
            let log = peer.stop();
            found.map(|report| (report, log))
        });
        let wanted = log.account();
        assert_eq!(wanted.sent, 2_400, "the path to the peer loses nothing");
        let found = Account {
            foreign: 0,
            ..report.account
        };
        assert_eq!(found, wanted, "seed {seed}");
        assert!(wanted.lost > 50 && wanted.duplicated > 50 && wanted.reordered > 50);
        // The rest of the noise came in the warm-up.
        let noise = report.account.foreign + report.warmup.foreign;
        assert_eq!(noise, log.foreign_sent, "seed {seed}");
        assert_eq!(report.rtts.count(), wanted.returned);
        assert_eq!(report.drops.tester, 0);
        let row = report.row("softirq", "idle", 1);
        assert_eq!(
            (row.n, row.lost, row.size_bytes),
            (wanted.returned, wanted.lost, u64::from(frame_bytes))
        );
        assert!(!row.timeline_ns.is_empty() && row.timeline_ns.len() <= 500);
    }
}

/// Frames at random, grouped and recorded times: as many as were due, all of them back, and named in the row. A rate that
/// nobody holds is found whatever the times are.
#[test]
fn frames_arrive_as_they_were_asked_to() {
    let _alone = alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    // Ten frames at once, then 9 ms without any.
    std::fs::write(file.path(), "0\n".repeat(9) + "10000000\n").unwrap();
    let trace = format!("trace:{}", file.path().display());
    let server = EchoServer::start(ANY_PORT.parse().unwrap(), Place::default()).unwrap();
    for text in ["poisson", "onoff:3:7", &trace] {
        let arrivals = Arrivals::parse(text).unwrap();
        let steady = config(64, 1_000, 300);
        let config = OpenLoopConfig {
            rate_bps: arrivals.own_rate_bps(64).unwrap_or(steady.rate_bps),
            arrivals: arrivals.clone(),
            seed: 5,
            ..steady
        };
        let report = held(|| {
            let mut udp = Udp::connect(server.addr())?;
            run(&mut udp, &config, || Ok(()))
        });
        let schedule = Schedule::new(64, config.rate_bps, 1)
            .and_then(|steady| steady.arriving(&arrivals, 5, config.span_ns, 0))
            .unwrap();
        let frames = schedule.frames_in(config.span_ns);
        assert!((240..=360).contains(&frames), "{text}: {frames}");
        let whole = Account {
            sent: frames,
            returned: frames,
            ..Account::default()
        };
        assert_eq!(report.account, whole, "{text}");
        assert!(report.span_ns >= schedule.due_ns(frames - 1), "{text}");
        let row = report.row("softirq", "idle", 1);
        assert_eq!(row.arrivals, Some(arrivals.to_string()));

        if config.arrivals.own_rate_bps(64).is_none() {
            let config = OpenLoopConfig {
                rate_bps: 100_000_000_000,
                ..config
            };
            let mut udp = Udp::connect(server.addr()).unwrap();
            let error = run(&mut udp, &config, || Ok(())).unwrap_err();
            assert!(matches!(error, Error::RateNotHeld { .. }), "{error}");
        }
    }
    server.stop().unwrap();
}

/// 2 ms of delay, injected by spinning, come out within 2 % and the tester's own floor. What is compared is the
/// quickest frame of several rounds with the delay and of as many without: on a shared machine the median of a round
/// wanders by more than the 2 %, and nothing makes a frame quicker than its way is.
#[test]
fn an_injected_delay_comes_out() {
    const ROUNDS: u32 = 3;
    let _alone = alone();
    let quickest_ns = |delay| {
        run_at(&REAL_TIME, || {
            // The peer's thread inherits the policy.
            let peer = Peer::start(Mischief { delay, ..HONEST });
            let report = held(|| {
                let mut udp = Udp::connect(peer.addr)?;
                run(&mut udp, &config(64, 200, 600), || Ok(()))
            });
            peer.stop();
            assert_eq!(report.account.lost, 0);
            Ok(report.rtts.min_ns())
        })
        .expect("a thread with SCHED_FIFO (run this test as root)")
    };
    let floor = Floor::of(Kind::Udp).unwrap();
    let delay = Duration::from_millis(2);
    let (mut late_ns, mut prompt_ns) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        late_ns = late_ns.min(quickest_ns(delay));
        prompt_ns = prompt_ns.min(quickest_ns(Duration::ZERO));
    }
    let found_ns = late_ns as i64 - prompt_ns as i64;
    let off_ns = found_ns.abs_diff(delay.as_nanos() as i64);
    assert!(
        off_ns <= delay.as_nanos() as u64 / 50 + floor.self_ns.min,
        "2 ms came out as {found_ns} ns: {late_ns} with, {prompt_ns} without"
    );
}

#[test]
fn what_cannot_be_is_said() {
    let _alone = alone();
    let server = EchoServer::start(ANY_PORT.parse().unwrap(), Place::default()).unwrap();
    let mut udp = Udp::connect(server.addr()).unwrap();
    let started = Instant::now();
    let error = run(&mut udp, &OpenLoopConfig::new(64, 100_000_000_000), || {
        Ok(())
    })
    .unwrap_err();
    match error {
        Error::RateNotHeld {
            asked_bps,
            held_bps,
            ..
        } => {
            assert!(held_bps > 0 && held_bps < asked_bps / 2, "{error}");
        }
        other => panic!("{other}"),
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "it is ended soon"
    );
    server.stop().unwrap();

    let mute = UdpSocket::bind(ANY_PORT).unwrap();
    let mut udp = Udp::connect(mute.local_addr().unwrap()).unwrap();
    let error = run(&mut udp, &config(64, 1_000, 100), || Ok(())).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NothingReturned {
                sent: 20,
                foreign: 0,
                ..
            }
        ),
        "{error}"
    );
    let free = mute.local_addr().unwrap();
    drop(mute);
    let error = run(&mut udp, &config(64, 1_000, 100), || Ok(())).unwrap_err();
    assert!(
        matches!(error, Error::NobodyListens { addr } if addr == free),
        "{error}"
    );
    let error = run(&mut udp, &config(63, 1_000, 100), || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn the_search_ends_on_a_real_path() {
    let _alone = alone();
    let server = EchoServer::start(ANY_PORT.parse().unwrap(), Place::default()).unwrap();
    let mut udp = Udp::connect(server.addr()).unwrap();
    let config = ThroughputConfig {
        trial_ns: 40_000_000,
        settle_ns: 0,
        ..ThroughputConfig::lab(512, 4_000_000)
    };
    let mut noted = 0;
    let report = throughput::run(&mut udp, &config, |_, _| noted += 1).unwrap();
    server.stop().unwrap();
    let row = report.row("softirq", "idle", 1);
    assert_eq!(report.throughput.trials, noted);
    assert_ne!(
        report.wall,
        Wall::Path,
        "loopback loses nothing at 1000 frames a second"
    );
    assert!(report.throughput.limited_by_tester && report.throughput.bps > 0.0);
    assert_eq!(
        (row.lost, row.n),
        (0, row.histogram_ns.iter().map(|cell| cell[1]).sum())
    );
    assert!(report.runs.len() >= 3, "the rate was confirmed");
}

/// A network namespace of this thread with a veth pair; both go when the thread ends. One end has an
/// address of the kernel's, the other carries frames of a tester that the kernel knows nothing of.
fn with_veth(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: no pointers; the thread ends with the namespace.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(
            result, 0,
            "this test makes a network namespace: run it as root"
        );
        for words in [
            "link set lo up",
            "link add tester type veth peer name server",
            "addr add 198.18.0.2/24 dev server",
            "link set tester up",
            "link set server up",
        ] {
            let status = Command::new("ip").args(words.split(" ")).status();
            let status = status.expect("this test needs the program ip (iproute2)");
            assert!(status.success(), "ip {words}");
        }
        REAL_TIME
            .apply()
            .expect("SCHED_FIFO (run this test as root)");
        work();
    });
    thread.join().unwrap();
}

fn ends() -> Ends {
    Ends {
        address: Ipv4Addr::new(198, 18, 0, 9),
        server: "198.18.0.2:7700".parse().unwrap(),
        next_hop: None,
    }
}

/// Every frame comes back from the kernel's stack behind the veth pair.
fn everything_comes_back(backend: &mut dyn Backend, frame_bytes: u32) {
    let report = held(|| run(backend, &config(frame_bytes, 4_000, 250), || Ok(())));
    let whole = Account {
        sent: 1_000,
        returned: 1_000,
        ..Account::default()
    };
    assert_eq!(
        report.account,
        whole,
        "{frame_bytes} bytes over {}",
        backend.describe()
    );
}

#[test]
fn the_rings_reach_a_server_behind_a_veth_pair() {
    let _alone = alone();
    with_veth(|| {
        let server =
            EchoServer::start("198.18.0.2:7700".parse().unwrap(), Place::default()).unwrap();
        let interface = "tester".to_string();
        let target = Target::Ring {
            interface,
            ends: ends(),
        };
        let mut backend = target.open().unwrap();
        for frame_bytes in [64, 512, 1518] {
            everything_comes_back(&mut *backend, frame_bytes);
        }
        let taken = Target::Ring {
            interface: "tester".into(),
            ends: Ends {
                address: Ipv4Addr::new(198, 18, 0, 2),
                ..ends()
            },
        };
        let error = taken.open().unwrap_err().to_string();
        assert!(error.contains("is an address of server here"), "{error}");
        server.stop().unwrap();
    });
}

/// The wire with a pump behind it, which does what QEMU does: datagrams in, frames out.
#[test]
fn the_wire_reaches_a_server_behind_a_pump() {
    let _alone = alone();
    with_veth(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wire");
        let stop = Arc::new(AtomicBool::new(false));
        let server =
            EchoServer::start("198.18.0.2:7700".parse().unwrap(), Place::default()).unwrap();
        let guest = UnixDatagram::bind(folder.path().join("wire.guest")).unwrap();
        let pump = std::thread::spawn({
            let (stop, tester) = (Arc::clone(&stop), folder.path().join("wire.tester"));
            move || pump(&guest, &tester, &stop)
        });
        let mut backend = Target::Wire { path, ends: ends() }.open().unwrap();
        for frame_bytes in [64, 1518] {
            everything_comes_back(&mut *backend, frame_bytes);
        }
        stop.store(true, Ordering::Release);
        pump.join().unwrap();
        server.stop().unwrap();
    });
}

fn pump(guest: &UnixDatagram, tester: &std::path::Path, stop: &AtomicBool) {
    guest.set_nonblocking(true).unwrap();
    let mut ring = Ring::open("tester").unwrap();
    let mut buffer = [0; 2048];
    let waited_for = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    while !stop.load(Ordering::Acquire) {
        let mut both = [waited_for(guest.as_raw_fd()), waited_for(ring.fd())];
        // SAFETY: two live entries.
        unsafe { libc::poll(both.as_mut_ptr(), 2, 20) };
        while let Ok(len) = guest.recv(&mut buffer) {
            assert!(ring.send_frame(&buffer[..len]).unwrap());
        }
        while let Some(len) = ring.recv_frame(&mut buffer).unwrap() {
            while guest.send_to(&buffer[..len], tester).is_err() && !stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}
