// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A one way run with both ends in this process, each on a thread of its own that is placed.
//!
//! The calling thread reads both counters at the slices' ends, so that neither end has to.
//! Not here: which runs make a table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::ScopedJoinHandle;

use super::ends::{self, Counter, Length, Offer};
use super::link::{self, Mac};
use super::rate::{middle, Rates, Sample};
use super::{Account, ReceiveAt, SendTo, Taken, Technique};
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::result::{OneWay, Row};

/// The run is over when nothing came for this long after the last packet was sent.
const QUIET_NS: u64 = 100_000_000;
/// Packets may be on their way for this long at most, nanoseconds.
const DRAIN_NS_MAX: u64 = 2_000_000_000;
/// The first and the last readings are this close to the sender's, nanoseconds.
const STEP_NS: u64 = 1_000_000;

/// Everything that defines a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// How packets are sent and received.
    pub technique: &'static Technique,
    /// Where the sender runs.
    pub send_place: Place,
    /// Where the receiver runs.
    pub receive_place: Place,
    /// Interface of the sender.
    pub send_dev: String,
    /// Interface of the receiver.
    pub receive_dev: String,
    /// The receiver's address.
    pub addr: std::net::SocketAddr,
    /// Length of a frame, bytes.
    pub frame_len: usize,
    /// What is sent, and when.
    pub offer: Offer,
    /// Length of a slice, nanoseconds.
    pub slice_ns: u64,
}

/// What a run found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What the sender could see.
    pub taken: Taken,
    /// What the receiver counted.
    pub account: Account,
    /// Packets that reached the receiver's socket and found no room.
    pub dropped_at_socket: u64,
    /// The middle of the run.
    pub rates: Rates,
    /// Whether the offered rate was held in the middle of the run.
    pub held: bool,
}

/// Runs both ends.
///
/// # Errors
/// When an end can't be placed or opened, or fails; an interrupt ends the run with an error, because
/// its middle is unknown.
pub fn run(run: &Run) -> Result<Report> {
    run.offer.check()?;
    let marks = &Marks::default();
    let (ready_tx, ready_rx) = mpsc::channel::<Mac>();
    // The nanoseconds tell runs apart; frames that another one left behind are foreign.
    let id = monotonic_ns()? as u32;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_end(run, id, marks, ready_tx));
        let Ok(mac) = ready_rx.recv() else {
            return Err(failure(receiver));
        };
        let sender = scope.spawn(move || send_end(run, id, mac, marks));
        let samples = watch(run, marks, || {
            sender.is_finished() || receiver.is_finished()
        });
        let drained = samples.is_ok() && drain(marks, || receiver.is_finished()).is_ok();
        marks.stop.store(true, Ordering::Relaxed);
        let taken = join(sender, "sender")?;
        let (account, dropped_at_socket) = join(receiver, "receiver")?;
        let samples = samples?;
        if !drained || crate::interrupt::requested() {
            return Err(Error::Program {
                program: run.technique.tool(),
                why: "interrupted before the end of the run".into(),
            });
        }
        let rates = middle(&samples);
        Ok(Report {
            taken,
            account,
            dropped_at_socket,
            held: run.offer.is_held(rates.sent_per_s),
            rates,
        })
    })
}

/// What the threads of a run share.
#[derive(Debug, Default)]
struct Marks {
    sent: Counter,
    received: Counter,
    stop: AtomicBool,
}

impl Marks {
    fn sample(&self) -> Result<Sample> {
        // The receiver's first: what it got was sent before, so it never shows more than was sent.
        let received = self.received.get();
        Ok(Sample {
            received,
            sent: self.sent.get(),
            at_ns: monotonic_ns()?,
        })
    }
}

fn receive_end(
    run: &Run,
    id: u32,
    marks: &Marks,
    ready: mpsc::Sender<Mac>,
) -> Result<(Account, u64)> {
    run.receive_place.apply()?;
    let at = ReceiveAt {
        dev: run.receive_dev.clone(),
        addr: run.addr,
        burst: run.offer.burst,
        busy_poll_us: None,
    };
    let mut receiver = run.technique.receiver(&at)?;
    let mut account = Account::new(id);
    // The other end only goes away after it has heard this.
    let _ = ready.send(link::mac(&run.receive_dev)?);
    ends::receive(&mut *receiver, &mut account, &marks.received, &marks.stop)?;
    ends::empty(&mut *receiver, &mut account, &marks.received)?;
    Ok((account, receiver.drops()?))
}

fn send_end(run: &Run, id: u32, mac: Mac, marks: &Marks) -> Result<Taken> {
    run.send_place.apply()?;
    let to = SendTo {
        dev: run.send_dev.clone(),
        addr: run.addr,
        mac,
        frame_len: run.frame_len,
        burst: run.offer.burst,
        run: id,
    };
    let mut sender = run.technique.sender(&to)?;
    ends::send(&mut *sender, &run.offer, &marks.sent, &marks.stop)
}

/// Reads the counters at the end of every slice until the sender is done.
fn watch(run: &Run, marks: &Marks, is_over: impl Fn() -> bool) -> Result<Vec<Sample>> {
    while marks.sent.get() == 0 && !is_over() {
        sleep_until_ns(monotonic_ns()? + STEP_NS)?;
    }
    let mut samples = vec![marks.sample()?];
    let mut slice_end_ns = samples[0].at_ns + run.slice_ns;
    while !is_over() {
        let now_ns = monotonic_ns()?;
        if now_ns >= slice_end_ns {
            samples.push(marks.sample()?);
            // After a delay the slices that were missed are one long one.
            while slice_end_ns <= now_ns {
                slice_end_ns += run.slice_ns;
            }
        }
        // In steps, so that the end of the sender is seen.
        sleep_until_ns(slice_end_ns.min(now_ns + 10 * STEP_NS))?;
    }
    // A run by number may be shorter than a slice: what there is of it is one.
    if samples.len() == 1 || matches!(run.offer.length, Length::Packets(_)) {
        samples.push(marks.sample()?);
    }
    Ok(samples)
}

/// Waits until what is on its way has come.
fn drain(marks: &Marks, is_over: impl Fn() -> bool) -> Result<()> {
    let start_ns = monotonic_ns()?;
    let (mut received, mut since_ns) = (marks.received.get(), start_ns);
    loop {
        let now_ns = monotonic_ns()?;
        if marks.received.get() != received {
            (received, since_ns) = (marks.received.get(), now_ns);
        }
        let quiet = now_ns - since_ns >= QUIET_NS || received >= marks.sent.get();
        if quiet || now_ns - start_ns >= DRAIN_NS_MAX || is_over() {
            return Ok(());
        }
        sleep_until_ns(now_ns + STEP_NS)?;
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>, name: &'static str) -> Result<T> {
    thread.join().map_err(|_| Error::Panicked(name))?
}

/// Why a receiver ended before it was ready.
fn failure<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => Error::Panicked("receiver"),
    }
}

impl Report {
    /// The row of a run. Mechanism, load, path and round are the caller's to name.
    pub fn row(&self, run: &Run) -> Row {
        let per_packet_bits = run.frame_len as f64 * 8.0;
        let sent = self.taken.sent;
        let places = [
            ("sender", self.taken.refused),
            ("socket", self.dropped_at_socket),
        ];
        Row {
            tool: run.technique.tool(),
            traffic: "one-way".into(),
            size_bytes: run.frame_len as u64,
            rate_bps: run.offer.per_s.map(|rate| (rate * per_packet_bits) as u64),
            lost: sent.saturating_sub(self.account.received),
            span_ns: self.rates.span_ns,
            drops: places
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(place, count)| (place.to_owned(), count))
                .collect(),
            one_way: Some(OneWay {
                sent_per_s: self.rates.sent_per_s,
                received_per_s: self.rates.received_per_s,
                burst: run.offer.burst,
            }),
            ..Row::default()
        }
    }
}
