// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One end of a one way run: the loop that sends on time, and the loop that receives.
//!
//! Both run on the calling thread, which stays where it was placed, and tell what they did
//! through a counter that others read. Not here: both ends together ([`super::run`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Account, Receive, Send, Taken};
use crate::clock::{monotonic_ns, sleep_until_ns, spin_until_ns};
use crate::error::{Error, Result};
use crate::interrupt;

/// A sender sleeps towards its next burst until this long before it, nanoseconds; then it spins.
const WAKE_EARLY_NS: u64 = 200_000;
/// Most reads of what a run has left in the socket; more than any buffer holds.
const TAKES_MAX: u32 = 100_000;
/// Share of the offered rate that has to be reached for it to count as held.
const HELD: f64 = 0.99;

/// A count that one thread writes and another reads, on a cache line of its own, so that the
/// reading does not slow the writing down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counter(AtomicU64);

impl Counter {
    /// Sets it. Nothing else is published with it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// When a sender ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// After this many packets.
    Packets(u64),
    /// After this long, nanoseconds.
    ForNs(u64),
}

/// What a sender sends, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Packets of a burst.
    pub burst: u32,
    /// Packets a second; `None` is as fast as they are taken.
    pub per_s: Option<f64>,
    /// The end.
    pub length: Length,
}

impl Offer {
    /// Checks what a person may have said.
    ///
    /// # Errors
    /// When the rate is no rate.
    pub fn check(&self) -> Result<()> {
        match self.per_s {
            Some(rate) if !(rate.is_finite() && rate > 0.0 && rate <= 1e9) => {
                Err(Error::Invalid(format!(
                    "a rate of {rate} packets a second: it has to be above 0 and at most 1000000000"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether a rate that was reached is the one that was asked for.
    pub fn is_held(&self, sent_per_s: f64) -> bool {
        self.per_s.is_none_or(|rate| sent_per_s >= rate * HELD)
    }

    /// When burst `n` is due after the start.
    fn due_ns(&self, n: u64) -> u64 {
        self.per_s.map_or(0, |rate| {
            (n as f64 * f64::from(self.burst) / rate * 1e9) as u64
        })
    }
}

/// Sends until the end, an interrupt or `stop`; `sent` follows what the kernel took.
///
/// A burst that is late is sent at once and the next one is due as before, so that a sender which
/// can hold its rate on average does. One that can't sends less; the counts say so.
///
/// # Errors
/// Those of [`Send::burst`].
pub fn send(
    sender: &mut dyn Send,
    offer: &Offer,
    sent: &Counter,
    stop: &AtomicBool,
) -> Result<Taken> {
    let start_ns = monotonic_ns()?;
    let mut total = Taken::default();
    for n in 0.. {
        wait_until(start_ns + offer.due_ns(n))?;
        let tried = total.sent + total.refused;
        let left = match offer.length {
            Length::Packets(packets) => packets.saturating_sub(tried),
            Length::ForNs(ns) if monotonic_ns()? - start_ns >= ns => 0,
            Length::ForNs(_) => u64::MAX,
        };
        if left == 0 || stop.load(Ordering::Relaxed) || interrupt::requested() {
            break;
        }
        let burst = u64::from(offer.burst).min(left) as u32;
        let taken = sender.burst(tried, burst)?;
        total.sent += taken.sent;
        total.refused += taken.refused;
        sent.set(total.sent);
    }
    Ok(total)
}

fn wait_until(due_ns: u64) -> Result<()> {
    if due_ns > monotonic_ns()? + 2 * WAKE_EARLY_NS {
        sleep_until_ns(due_ns - WAKE_EARLY_NS)?;
    }
    spin_until_ns(due_ns)
}

/// Receives until `stop`; `received` follows the account.
///
/// # Errors
/// Those of [`Receive::take`].
pub fn receive(
    receiver: &mut dyn Receive,
    account: &mut Account,
    received: &Counter,
    stop: &AtomicBool,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        receiver.take(account)?;
        received.set(account.received);
    }
    Ok(())
}

/// Takes what still waits in the socket, after the sender has ended.
///
/// # Errors
/// Those of [`Receive::take`].
pub fn empty(receiver: &mut dyn Receive, account: &mut Account, received: &Counter) -> Result<()> {
    for _ in 0..TAKES_MAX {
        let before = account.received + account.foreign;
        receiver.take(account)?;
        if account.received + account.foreign == before {
            break;
        }
    }
    received.set(account.received);
    Ok(())
}
