// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbered packets on every path at once, in both directions, and who counts them at the other end.
//!
//! One thread sends and one receives in each of the two network namespaces. A path can be held: then nothing is sent
//! on it until the hold is dropped, and the hold begins when what is on the way has arrived.
//!
//! Not here: which paths there are ([`crate::wiring`]), and whether a loss was counted ([`crate::drops`]).

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, JoinHandle};
use std::time::{Duration, Instant};

use kbp_core::sched::set_affinity;
use kbp_core::CpuList;
use kbp_measure::place::Place;
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use crate::ledger::{Account, Packet, PACKETS_MAX, PAYLOAD_LEN_MAX};
use crate::wiring::{End, FAR};

/// Packets of one burst, at most.
const BURST_MAX: u64 = 4;
/// Receive buffer of a socket, bytes: it holds what comes while its reader does not run for seconds.
const RECEIVE_BUFFER_LEN: usize = 8 << 20;
/// Port of flow 0; the others follow.
const PORT_FIRST: u16 = 7800;
/// How often the threads look whether they shall end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A path on which nothing has arrived for so long has lost what is still missing.
const QUIET: Duration = Duration::from_secs(3);
/// The same where QEMU, the poller or a debug kernel may be slow.
const QUIET_AT_THE_END: Duration = Duration::from_secs(10);

/// A stream of packets in one direction of a path.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Its name, `veth there-here`.
    pub name: String,
    /// Number of its path.
    pub path: usize,
    /// Where it is sent.
    pub from: End,
    /// The address that it is sent to.
    pub to: Ipv4Addr,
}

#[derive(Debug)]
struct FlowState {
    flow: Flow,
    sent: AtomicU64,
    /// Packets that the stack did not take from the sender: not sent, so not lost.
    not_taken: AtomicU64,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Shared {
    flows: Vec<FlowState>,
    /// For each path, how many hold it.
    gates: Vec<Mutex<u32>>,
    phase: AtomicU32,
    stop: AtomicBool,
}

/// One flow's counts at a moment at which everything was held.
#[derive(Debug, Clone)]
pub struct FlowCount {
    /// Name of the flow.
    pub name: String,
    /// Number of its path.
    pub path: usize,
    /// Packets that the stack took.
    pub sent: u64,
    /// Packets that the stack refused to take.
    pub not_taken: u64,
    /// What arrived.
    pub account: Account,
}

impl FlowCount {
    /// Packets that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.account.received)
    }
}

/// Running traffic; ended when dropped.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Nothing is sent on some paths while this lives.
#[derive(Debug)]
pub struct Hold<'a> {
    shared: &'a Shared,
    paths: Vec<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked ends the program with a failure anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traffic {
    /// Starts all flows, held. `rate_pps` is that of each flow; the threads run on `cpus`.
    ///
    /// # Errors
    /// When a socket or a thread can't be made.
    pub fn start(
        flows: Vec<Flow>,
        paths: usize,
        rate_pps: u64,
        cpus: &CpuList,
        seed: u64,
    ) -> Result<Self> {
        let state = |flow| FlowState {
            flow,
            sent: AtomicU64::new(0),
            not_taken: AtomicU64::new(0),
            account: Mutex::default(),
        };
        let shared = Arc::new(Shared {
            flows: flows.into_iter().map(state).collect(),
            gates: (0..paths).map(|_| Mutex::new(1)).collect(),
            phase: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        let mut traffic = Self {
            shared,
            threads: Vec::new(),
        };
        for end in [End::Here, End::There] {
            let sender_seed = seed ^ u64::from(end == End::There) << 63;
            traffic.spawn(end, cpus, open_receivers, receive)?;
            traffic.spawn(
                end,
                cpus,
                |_, _| open_sender(),
                move |shared, end, socket| send(shared, end, &socket, rate_pps, sender_seed),
            )?;
        }
        Ok(traffic)
    }

    /// Starts a thread at an end of the paths; returns when its sockets are open.
    fn spawn<S: 'static>(
        &mut self,
        end: End,
        cpus: &CpuList,
        open: impl FnOnce(&Shared, End) -> Result<S> + Send + 'static,
        work: impl FnOnce(&Shared, End, S) + Send + 'static,
    ) -> Result<()> {
        let (shared, cpus) = (Arc::clone(&self.shared), cpus.clone());
        let (ready, opened) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("traffic-{end:?}").to_lowercase())
            .spawn(move || {
                let place = Place {
                    netns: (end == End::There).then(|| FAR.to_owned()),
                    ..Place::default()
                };
                let sockets = place.apply().and_then(|()| {
                    set_affinity(0, &cpus).map_err(kbp_core::Error::from)?;
                    open(&shared, end)
                });
                match sockets {
                    Ok(sockets) => {
                        // The starter waits for this and goes on afterwards.
                        let _ = ready.send(Ok(()));
                        work(&shared, end, sockets);
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(|e| Error::sys("start a thread of the traffic", e))?;
        self.threads.push(thread);
        opened.recv().map_err(|_| Error::Panicked("traffic"))?
    }

    /// Forgets the counts and numbers the next packets from 0. Everything is held.
    pub fn begin(&self, phase: u32) {
        for state in &self.shared.flows {
            state.sent.store(0, Ordering::SeqCst);
            state.not_taken.store(0, Ordering::SeqCst);
            *lock(&state.account) = Account::default();
        }
        self.shared.phase.store(phase, Ordering::SeqCst);
    }

    /// Lets the traffic of every path that nobody else holds go on.
    pub fn resume_all(&self) {
        self.shared.gates.iter().for_each(|gate| *lock(gate) -= 1);
    }

    /// Holds every path and waits until what is on the way has arrived, or nothing more arrives.
    pub fn pause_all(&self) {
        self.shared.gates.iter().for_each(|gate| *lock(gate) += 1);
        let all: Vec<usize> = (0..self.shared.gates.len()).collect();
        self.shared.drain(&all, QUIET_AT_THE_END);
    }

    /// Holds some paths. What is on the way has arrived when this returns, or it does not come.
    pub fn hold(&self, paths: &[usize]) -> Hold<'_> {
        let paths = paths.to_vec();
        paths
            .iter()
            .for_each(|&path| *lock(&self.shared.gates[path]) += 1);
        self.shared.drain(&paths, QUIET);
        Hold {
            shared: &self.shared,
            paths,
        }
    }

    /// The counts of all flows.
    pub fn counts(&self) -> Vec<FlowCount> {
        let count = |state: &FlowState| FlowCount {
            name: state.flow.name.clone(),
            path: state.flow.path,
            sent: state.sent.load(Ordering::SeqCst),
            not_taken: state.not_taken.load(Ordering::SeqCst),
            account: lock(&state.account).clone(),
        };
        self.shared.flows.iter().map(count).collect()
    }

    /// Waits until every flow has sent `packets` more; `false` when the limit passes before.
    pub fn wait_for(&self, packets: u64, limit: Duration) -> bool {
        let sent = || -> Vec<u64> {
            let flows = self.shared.flows.iter();
            flows.map(|s| s.sent.load(Ordering::SeqCst)).collect()
        };
        let (before, since) = (sent(), Instant::now());
        while since.elapsed() < limit {
            if sent()
                .iter()
                .zip(&before)
                .all(|(now, before)| now - before >= packets)
            {
                return true;
            }
            sleep(LOOK_EVERY);
        }
        false
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        for &path in &self.paths {
            *lock(&self.shared.gates[path]) -= 1;
        }
    }
}

impl Shared {
    fn drain(&self, paths: &[usize], quiet: Duration) {
        let on_the_way = || -> u64 {
            let flows = self.flows.iter().filter(|s| paths.contains(&s.flow.path));
            flows
                .map(|s| {
                    let sent = s.sent.load(Ordering::SeqCst);
                    sent.saturating_sub(lock(&s.account).received)
                })
                .sum()
        };
        let (mut before, mut since) = (on_the_way(), Instant::now());
        while before > 0 && since.elapsed() < quiet {
            sleep(Duration::from_millis(5));
            let now = on_the_way();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }
}

fn port(flow: usize) -> u16 {
    PORT_FIRST + flow as u16
}

fn open_sender() -> Result<UdpSocket> {
    let failed = |e| Error::sys("open the sender's socket", e);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(socket)
}

/// A socket for each flow that ends here, with the number of the flow.
fn open_receivers(shared: &Shared, end: End) -> Result<Vec<(usize, UdpSocket)>> {
    let ends_here = |(_, state): &(usize, &FlowState)| match state.flow.to.is_loopback() {
        true => state.flow.from == end,
        false => state.flow.from != end,
    };
    let flows = shared.flows.iter().enumerate().filter(ends_here);
    let open = |(number, _): (usize, &FlowState)| {
        let failed = |e: std::io::Error| Error::sys("open a receiver's socket", e);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port(number))).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_LEN)
            .map_err(|e| Error::sys("make a receiver's buffer large", e))?;
        Ok((number, socket))
    };
    flows.map(open).collect()
}

fn send(shared: &Shared, end: End, socket: &UdpSocket, rate_pps: u64, seed: u64) {
    let mut rng = SplitMix64::new(seed);
    let mut buffer = [0; PAYLOAD_LEN_MAX];
    let mean_burst_us = 1_000_000 * (1 + BURST_MAX) / 2 / rate_pps.max(1);
    while !shared.stop.load(Ordering::Relaxed) {
        for (number, state) in shared.flows.iter().enumerate() {
            if state.flow.from == end {
                let burst = rng.in_range(1, BURST_MAX);
                (0..burst).for_each(|_| send_one(shared, number, state, socket, &mut buffer));
            }
        }
        sleep(Duration::from_micros(
            rng.in_range(mean_burst_us / 2, mean_burst_us * 3 / 2),
        ));
    }
}

fn send_one(
    shared: &Shared,
    number: usize,
    state: &FlowState,
    socket: &UdpSocket,
    buffer: &mut [u8; PAYLOAD_LEN_MAX],
) {
    // Kept until the packet is counted, so that whoever holds the path knows of all of them.
    let gate = lock(&shared.gates[state.flow.path]);
    let seq = state.sent.load(Ordering::SeqCst);
    if *gate > 0 || seq >= PACKETS_MAX {
        return;
    }
    let packet = Packet {
        flow: number as u32,
        phase: shared.phase.load(Ordering::SeqCst),
        seq,
    };
    let to = SocketAddr::V4(SocketAddrV4::new(state.flow.to, port(number)));
    match socket.send_to(packet.write(buffer), to) {
        Ok(_) => state.sent.fetch_add(1, Ordering::SeqCst),
        Err(_) => state.not_taken.fetch_add(1, Ordering::SeqCst),
    };
    drop(gate);
}

fn receive(shared: &Shared, _end: End, sockets: Vec<(usize, UdpSocket)>) {
    let mut buffer = [0; 2 * PAYLOAD_LEN_MAX];
    let look_every = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::ZERO);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut waiting: Vec<PollFd> = sockets
            .iter()
            .map(|(_, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        // An interrupted wait is looked at like one whose time is over.
        let _ = poll(&mut waiting, look_every);
        for (number, socket) in &sockets {
            while let Ok(len) = socket.recv(&mut buffer) {
                let phase = shared.phase.load(Ordering::SeqCst);
                lock(&shared.flows[*number].account).book(*number as u32, phase, &buffer[..len]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On loopback, the only path that needs no namespace.
    #[test]
    fn what_is_sent_arrives_and_a_hold_is_kept() {
        let flow = Flow {
            name: "lo".into(),
            path: 0,
            from: End::Here,
            to: Ipv4Addr::LOCALHOST,
        };
        let shared = Shared {
            flows: vec![FlowState {
                flow,
                sent: AtomicU64::new(0),
                not_taken: AtomicU64::new(0),
                account: Mutex::default(),
            }],
            gates: vec![Mutex::new(0)],
            phase: AtomicU32::new(7),
            stop: AtomicBool::new(false),
        };
        let sender = open_sender().unwrap();
        let receivers = open_receivers(&shared, End::Here).expect("this test needs root");
        let mut buffer = [0; PAYLOAD_LEN_MAX];
        let mut burst = || {
            (0..50).for_each(|_| send_one(&shared, 0, &shared.flows[0], &sender, &mut buffer));
        };
        burst();
        *lock(&shared.gates[0]) += 1;
        burst();
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&shared, End::Here, receivers));
            shared.drain(&[0], QUIET);
            shared.stop.store(true, Ordering::SeqCst);
        });
        let account = lock(&shared.flows[0].account).clone();
        assert_eq!((account.received, account.foreign), (50, 0));
        assert_eq!(shared.flows[0].sent.load(Ordering::SeqCst), 50);
    }
}
