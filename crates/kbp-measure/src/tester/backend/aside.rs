// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A UDP socket that is read on a CPU of its own, whatever its sender does meanwhile: a reply has the time at which it came,
//! not that at which the sender's thread had a moment to look, and the sender has no work with it but its account.
//!
//! Not here: that CPU's choice ([`crate::compare`]).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::udp::POLL_NS;
use super::{Arrival, Backend, Drops, Udp};
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::place::Place;
use crate::tester::openloop::{Pause, Turns, PROBE_LEN};
use crate::tester::pingpong::PAYLOAD_LEN_MAX;

/// Payloads that may wait for the sender's account: more than come while it is held up.
const WAITING_MAX: usize = 1 << 16;
/// Longest sleep of who waits for a payload, nanoseconds. Nobody wakes him: that would cost the reader.
const SLEEP_NS_MAX: u64 = 1_000_000;

/// For how long a reader that has polled in vain ([`Udp::poll`]) leaves its CPU to others before it polls anew. The end of the
/// wait between its polls may leave the card's softirq to ksoftirqd, which a reader in class FIFO keeps waiting, and the card with
/// it. Here ksoftirqd has its turn, before frames begin.
const NAP: Duration = Duration::from_micros(100);

/// Longest time until a reader that polls begins anew, nanoseconds: its CPU is its own.
const SETTLE_NS_MAX: u64 = 2_000_000_000;

/// What the reader hands over of a payload.
type Read = (Arrival, [u8; PROBE_LEN]);

/// What both threads know.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    /// Since when the reader has been waiting for a payload.
    waits_since_ns: AtomicU64,
    /// Payloads for which there was no room.
    dropped: AtomicU64,
}

impl Shared {
    fn waits_from(&self, now_ns: u64) {
        self.waits_since_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Whether a reader that polls goes on for `ahead_ns` more ([`Udp::poll`]).
    fn polls_on(&self, now_ns: u64, ahead_ns: u64) -> bool {
        let polled_ns = now_ns.saturating_sub(self.waits_since_ns.load(Ordering::Relaxed));
        polled_ns + ahead_ns <= POLL_NS
    }
}

/// Who reads a socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reader {
    /// Where it runs. It spins, so this has to be another CPU than the sender's: on one CPU, each keeps the other from
    /// running.
    pub place: Place,
    /// Whether it polls the card that the packets come from, instead of waiting for who serves that.
    pub polls: bool,
}

/// A socket and the thread that reads it.
pub struct Aside {
    socket: Udp,
    arrivals: Receiver<Read>,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<Result<()>>>,
}

impl Aside {
    /// Has `socket` read until this is dropped.
    ///
    /// # Errors
    /// Those of [`Place::apply`]; when there are no more threads or file descriptors; when the socket can't poll.
    pub fn read_by(socket: Udp, reader: &Reader) -> Result<Self> {
        if reader.polls {
            socket.poll()?;
        }
        Self::with_room(WAITING_MAX, socket, reader)
    }

    fn with_room(waiting_max: usize, socket: Udp, reader: &Reader) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.waits_from(monotonic_ns()?);
        let (arrived, arrivals) = mpsc::sync_channel(waiting_max);
        let (ready, is_ready) = mpsc::channel();
        let reader = {
            let (socket, shared, reader) = (socket.share()?, shared.clone(), reader.clone());
            let read = move || {
                let placed = reader.place.apply();
                let is_placed = placed.is_ok();
                // Who started this waits for it.
                ready.send(placed).ok();
                match is_placed {
                    true => read(socket, &arrived, &shared, reader.polls),
                    false => Ok(()),
                }
            };
            std::thread::Builder::new()
                .name("kbp-receiver".into())
                .spawn(read)
                .map_err(|e| Error::sys("start the receiver's thread", e))?
        };
        is_ready.recv().map_err(|_| Error::Panicked("receiver"))??;
        Ok(Self {
            socket,
            arrivals,
            shared,
            reader: Some(reader),
        })
    }

    /// The reader has ended before it was told to: why?
    fn ended(&mut self) -> Error {
        match self.reader.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => Error::Panicked("receiver"),
        }
    }
}

/// Reads until it is over. A socket that `polls` returns without a payload only after a while.
fn read(mut socket: Udp, arrived: &SyncSender<Read>, shared: &Shared, polls: bool) -> Result<()> {
    let mut turns = Turns::of_this_thread(Pause::Spin)?;
    // One byte more than a payload has, so that a longer one is not taken for it.
    let mut buffer = vec![0; PAYLOAD_LEN_MAX + 1];
    while !shared.is_over.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer)? {
            Some(arrival) => {
                shared.waits_from(arrival.at_ns);
                let mut head = [0; PROBE_LEN];
                head.copy_from_slice(&buffer[..PROBE_LEN]);
                if arrived.try_send((arrival, head)).is_err() {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                }
                turns.look(arrival.at_ns)?;
            }
            None => {
                match polls {
                    true => std::thread::sleep(NAP),
                    false => std::hint::spin_loop(),
                }
                let now_ns = monotonic_ns()?;
                shared.waits_from(now_ns);
                turns.look(now_ns)?;
            }
        }
    }
    Ok(())
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Aside").field(&self.socket).finish()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

impl Backend for Aside {
    fn describe(&self) -> String {
        self.socket.describe()
    }

    fn overhead(&self) -> u32 {
        self.socket.overhead()
    }

    fn send(&mut self, payload: &[u8]) -> Result<bool> {
        self.socket.send(payload)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Arrival>> {
        match self.arrivals.try_recv() {
            Ok((arrival, head)) => {
                let kept = head.len().min(buffer.len());
                buffer[..kept].copy_from_slice(&head[..kept]);
                Ok(Some(arrival))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.ended()),
        }
    }

    /// A reader that has polled in vain sleeps for some milliseconds before it polls again: frames must not begin then.
    fn settle(&mut self, ahead_ns: u64) -> Result<()> {
        let deadline_ns = monotonic_ns()? + SETTLE_NS_MAX;
        loop {
            let now_ns = monotonic_ns()?;
            if self.shared.polls_on(now_ns, ahead_ns) || interrupt::requested() {
                return Ok(());
            }
            if self.reader.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(self.ended());
            }
            if now_ns >= deadline_ns {
                return Err(Error::Invalid(
                    "the reader of replies does not run: its CPU is taken by something else".into(),
                ));
            }
            std::thread::sleep(Duration::from_nanos(SLEEP_NS_MAX));
        }
    }

    fn wait(&mut self, until_ns: u64) -> Result<()> {
        let left_ns = until_ns.saturating_sub(monotonic_ns()?);
        std::thread::sleep(Duration::from_nanos(left_ns.min(SLEEP_NS_MAX)));
        Ok(())
    }

    fn drops(&mut self) -> Result<Drops> {
        let of_socket = self.socket.drops()?.tester;
        let of_account = self.shared.dropped.swap(0, Ordering::Relaxed);
        Ok(Drops {
            tester: of_socket + of_account,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::tester::openloop::{self, OpenLoopConfig};

    fn aside() -> Aside {
        Aside::read_by(Udp::to_itself().unwrap(), &Reader::default()).unwrap()
    }

    /// The next payload, which is on its way.
    fn next(aside: &mut Aside, buffer: &mut [u8]) -> Arrival {
        let deadline_ns = monotonic_ns().unwrap() + 10_000_000_000;
        loop {
            if let Some(arrival) = aside.recv(buffer).unwrap() {
                return arrival;
            }
            assert!(monotonic_ns().unwrap() < deadline_ns, "nothing comes");
        }
    }

    /// What comes while the sender does something else has the time at which it came.
    #[test]
    fn a_reply_is_not_late_because_nobody_asks_for_it() {
        let mut aside = aside();
        let mut best_ns = u64::MAX;
        for _ in 0..20 {
            let sent_ns = monotonic_ns().unwrap();
            assert!(aside.send(&[7; 32]).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            let mut buffer = [0; 32];
            let arrival = next(&mut aside, &mut buffer);
            assert_eq!((arrival.len, buffer[0]), (32, 7));
            best_ns = best_ns.min(arrival.at_ns - sent_ns);
        }
        assert!(best_ns < 10_000_000, "{best_ns} ns");
        assert_eq!(aside.recv(&mut [0; 32]).unwrap(), None);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_lengths_are_true() {
        let socket = Udp::to_itself().unwrap();
        let mut aside = Aside::with_room(1, socket, &Reader::default()).unwrap();
        for len in [4, 8, PAYLOAD_LEN_MAX] {
            assert!(aside.send(&vec![1; len]).unwrap());
        }
        let deadline_ns = monotonic_ns().unwrap() + 10_000_000_000;
        let mut dropped = 0;
        while dropped < 2 {
            dropped += aside.drops().unwrap().tester;
            assert!(monotonic_ns().unwrap() < deadline_ns, "{dropped} dropped");
        }
        let mut buffer = [0; 32];
        assert_eq!(next(&mut aside, &mut buffer).len, 4);
        assert!(aside.send(&[2; PAYLOAD_LEN_MAX]).unwrap());
        assert_eq!(next(&mut aside, &mut buffer).len, PAYLOAD_LEN_MAX);
    }

    /// The thread that notices is another one than the one that asks.
    #[test]
    fn nobody_there_is_said() {
        let gone = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut aside = Aside::read_by(Udp::connect(gone).unwrap(), &Reader::default()).unwrap();
        let deadline_ns = monotonic_ns().unwrap() + 10_000_000_000;
        let error = loop {
            let told = aside.send(&[0; 32]).and(aside.recv(&mut [0; 32]));
            match told {
                Err(error) => break error,
                Ok(_) => assert!(monotonic_ns().unwrap() < deadline_ns, "nothing is said"),
            }
        };
        assert!(matches!(error, Error::NobodyListens { .. }), "{error}");
    }

    #[test]
    fn frames_begin_when_the_reader_polls_for_long_enough() {
        let shared = Shared::default();
        shared.waits_from(1_000);
        assert!(shared.polls_on(1_000, POLL_NS));
        assert!(shared.polls_on(1_000 + POLL_NS - 5, 5));
        assert!(!shared.polls_on(1_000 + POLL_NS - 5, 6));
        assert!(!shared.polls_on(1_000 + 2 * POLL_NS, 0));
    }

    /// Its reader seems to have polled for long, then begins anew.
    #[test]
    fn who_settles_waits_for_the_reader() {
        let mut aside = aside();
        let begin_ns = monotonic_ns().unwrap();
        let shared = Arc::new(Shared::default());
        shared.waits_from(begin_ns.saturating_sub(POLL_NS));
        let of_reader = std::mem::replace(&mut aside.shared, shared.clone());
        let polls_again = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            shared.waits_from(monotonic_ns().unwrap());
        });
        let settled = aside.settle(1_000_000);
        let took_ns = monotonic_ns().unwrap() - begin_ns;
        // Before anything fails: dropped, it has to end its reader.
        aside.shared = of_reader;
        polls_again.join().unwrap();
        settled.unwrap();
        assert!(took_ns >= 30_000_000, "{took_ns} ns");
    }

    #[test]
    fn every_frame_is_accounted_for() {
        let config = OpenLoopConfig {
            span_ns: 200_000_000,
            ..OpenLoopConfig::new(64, 2_560_000)
        };
        let report = openloop::run(&mut aside(), &config, || Ok(())).unwrap();
        assert_eq!((report.account.sent, report.account.lost), (1_000, 0));
        assert_eq!(report.account.foreign, 0);
        assert_eq!(report.drops, Drops::default());
    }

    /// Its reader waits, and it ends all the same; its sender does not wait.
    #[test]
    fn a_socket_that_polls_has_the_same_account() {
        let reader = Reader {
            polls: true,
            ..Reader::default()
        };
        let mut polled = Aside::read_by(Udp::to_itself().unwrap(), &reader).unwrap();
        let config = OpenLoopConfig {
            span_ns: 200_000_000,
            ..OpenLoopConfig::new(64, 2_560_000)
        };
        let report = openloop::run(&mut polled, &config, || Ok(())).unwrap();
        assert_eq!((report.account.sent, report.account.lost), (1_000, 0));
        let begin_ns = monotonic_ns().unwrap();
        drop(polled);
        let took_ns = monotonic_ns().unwrap() - begin_ns;
        assert!(took_ns < 2_000_000_000, "{took_ns} ns to end");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_said() {
        let nowhere = Reader {
            place: Place {
                cpu: Some(9_999),
                ..Place::default()
            },
            polls: false,
        };
        let error = Aside::read_by(Udp::to_itself().unwrap(), &nowhere).unwrap_err();
        assert!(error.to_string().contains("9999"), "{error}");
    }
}
