// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same message before and behind a proxy: what went to it and what came back, with the time in between, as the
//! hardware monitor of paper 003 (section 4.3) has it. Pure.
//!
//! Not here: where the times come from ([`super::capture`]).

use std::collections::hash_map::{Entry, HashMap};

use super::message::{Kind, Message};
use crate::tester::pingpong::RoundTrips;

/// Messages that are kept at most: a day of a thousand a second.
const MESSAGES_MAX: usize = 100_000_000;
/// A response with this status is the proxy's own (RFC 3261, section 16.2): it is not forwarded.
const TRYING: u16 = 100;

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the proxy.
    There,
    /// From the proxy.
    Back,
}

/// Messages and their times.
#[derive(Debug, Default)]
pub struct Pairing {
    /// When each went to the proxy, and whether it came back.
    seen: HashMap<Message, (u64, bool)>,
    account: Account,
}

/// What became of all messages.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// Forward delays: from a message on its way to the proxy to the same one on its way from it.
    pub delays: RoundTrips,
    /// Messages that the proxy did not pass on.
    pub lost: u64,
    /// Messages that came from the proxy again.
    pub dup: u64,
    /// Messages that went to the proxy again: whoever sent them had no answer in time.
    pub again: u64,
    /// Messages that the proxy made itself.
    pub own: u64,
    /// Datagrams of the proxy's port that are no SIP.
    pub foreign: u64,
}

impl Pairing {
    /// Enters a datagram that was seen at `at_ns`.
    ///
    /// # Errors
    /// A sentence, when the clock of the times went back.
    pub fn enter(&mut self, way: Way, at_ns: u64, datagram: &[u8]) -> Result<(), String> {
        let Ok(message) = Message::parse(datagram) else {
            self.account.foreign += 1;
            return Ok(());
        };
        let is_full = self.seen.len() >= MESSAGES_MAX;
        match (way, self.seen.entry(message)) {
            (Way::There, Entry::Vacant(_)) if is_full => {
                return Err(format!("more than {MESSAGES_MAX} messages in one run"));
            }
            (Way::There, Entry::Vacant(entry)) => drop(entry.insert((at_ns, false))),
            (Way::There, Entry::Occupied(_)) => self.account.again += 1,
            (Way::Back, Entry::Vacant(_)) => self.account.own += 1,
            (Way::Back, Entry::Occupied(mut entry)) => {
                let (went_ns, is_back) = entry.get_mut();
                if *is_back {
                    self.account.dup += 1;
                    return Ok(());
                }
                *is_back = true;
                let delay_ns = at_ns.checked_sub(*went_ns).ok_or(
                    "a message came before it went: the clock of the capture was set back; measure again",
                )?;
                self.account.delays.record(delay_ns);
            }
        }
        Ok(())
    }

    /// What became of them; what has not come back is lost.
    pub fn finish(mut self) -> Account {
        let awaited = |message: &Message| message.kind != Kind::Response(TRYING);
        let lost = self
            .seen
            .iter()
            .filter(|(message, (_, is_back))| !is_back && awaited(message));
        self.account.lost = lost.count() as u64;
        self.account
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    fn text(start: &str, call: u32, sequence: &str) -> Vec<u8> {
        format!("{start}\r\nCall-ID: {call}\r\nCSeq: {sequence}\r\n\r\n").into_bytes()
    }

    /// The messages of a call as paper 003 counts them: six are forwarded.
    fn call(number: u32) -> [Vec<u8>; 6] {
        [
            text("INVITE sip:a SIP/2.0", number, "1 INVITE"),
            text("SIP/2.0 180 Ringing", number, "1 INVITE"),
            text("SIP/2.0 200 OK", number, "1 INVITE"),
            text("ACK sip:a SIP/2.0", number, "1 ACK"),
            text("BYE sip:a SIP/2.0", number, "2 BYE"),
            text("SIP/2.0 200 OK", number, "2 BYE"),
        ]
    }

    #[test]
    fn a_call_is_six_delays_and_what_the_proxy_says_itself() {
        let mut pairing = Pairing::default();
        for (step, message) in call(1).iter().enumerate() {
            let at_ns = 1_000_000 * step as u64;
            pairing.enter(Way::There, at_ns, message).unwrap();
            pairing
                .enter(Way::Back, at_ns + 50_000 + step as u64, message)
                .unwrap();
        }
        let trying = text("SIP/2.0 100 trying", 1, "1 INVITE");
        pairing.enter(Way::Back, 10_000, &trying).unwrap();
        pairing.enter(Way::Back, 10_000, b"keep-alive").unwrap();
        let account = pairing.finish();
        assert_eq!(account.delays.count(), 6);
        assert_eq!(
            (account.delays.min_ns(), account.delays.max_ns()),
            (50_000, 50_005)
        );
        let counts = (account.lost, account.dup, account.again);
        assert_eq!((counts, account.own, account.foreign), ((0, 0, 0), 1, 1));
    }

    #[test]
    fn what_is_sent_again_counts_from_the_first_time() {
        let [invite, ringing, ..] = call(1);
        let mut pairing = Pairing::default();
        pairing.enter(Way::There, 0, &invite).unwrap();
        pairing.enter(Way::There, 500, &invite).unwrap();
        pairing.enter(Way::Back, 700, &invite).unwrap();
        pairing.enter(Way::Back, 900, &invite).unwrap();
        pairing.enter(Way::There, 1_000, &ringing).unwrap();
        let account = pairing.finish();
        assert_eq!((account.again, account.dup, account.lost), (1, 1, 1));
        assert_eq!(account.delays.max_ns(), 700);
    }

    #[test]
    fn a_clock_that_goes_back_ends_the_run() {
        let [invite, ..] = call(1);
        let mut pairing = Pairing::default();
        pairing.enter(Way::There, 700, &invite).unwrap();
        let error = pairing.enter(Way::Back, 600, &invite).unwrap_err();
        assert!(error.contains("set back"), "{error}");
    }

    /// Calls that overlap in random order, against a list that is searched from its beginning.
    #[test]
    fn calls_that_overlap_are_kept_apart() {
        for seed in 0..50 {
            let mut rng = SplitMix64::new(seed);
            let mut events = Vec::new();
            let mut want = RoundTrips::new();
            for number in 0..40 {
                let mut at_ns = rng.in_range(0, 1_000_000);
                for message in call(number) {
                    let delay_ns = rng.in_range(1, 300_000);
                    events.push((at_ns, Way::There, message.clone()));
                    if rng.in_range(0, 9) > 0 {
                        events.push((at_ns + delay_ns, Way::Back, message));
                        want.record(delay_ns);
                    }
                    at_ns += rng.in_range(0, 200_000);
                }
            }
            // A message goes before it comes; of others the order is that of the times.
            events.sort_by_key(|(at_ns, way, _)| (*at_ns, *way == Way::Back));
            let mut pairing = Pairing::default();
            for (at_ns, way, message) in &events {
                pairing.enter(*way, *at_ns, message).unwrap();
            }
            let account = pairing.finish();
            assert_eq!(account.delays.cells(), want.cells(), "seed {seed}");
            assert_eq!(account.lost, 40 * 6 - want.count(), "seed {seed}");
        }
    }
}
