// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ping-pong over loopback: against its own server, and against one that loses,
//! delays and doubles replies on purpose. The account has to be exact.

use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use kbp_measure::place::Place;
use kbp_measure::rng::SplitMix64;
use kbp_measure::tester::pingpong::{run_client, ClientConfig, Counts, EchoServer, Ping, Stop};
use kbp_measure::Error;

const ANY_PORT: &str = "127.0.0.1:0";

fn quick(server: SocketAddr, seed: u64) -> ClientConfig {
    ClientConfig {
        period_ns: 200_000,
        timeout_ns: 250_000_000,
        ..ClientConfig::new(server, seed)
    }
}

#[test]
fn every_ping_comes_back_from_our_own_server() {
    let server = EchoServer::start(ANY_PORT.parse().unwrap(), Place::default()).unwrap();
    let config = ClientConfig {
        stop: Stop::Pings(500),
        // A machine that is busy with other things loses nothing by that.
        timeout_ns: 10_000_000_000,
        keep_series: true,
        payload_len: 1400,
        ..quick(server.addr(), 1)
    };
    let mut warm_calls = 0;
    let report = run_client(&config, || {
        warm_calls += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(warm_calls, 1);
    assert_eq!(
        report.warmup,
        Counts {
            sent: 20,
            answered: 20,
            ..Counts::default()
        }
    );
    assert_eq!(
        report.measured,
        Counts {
            sent: 500,
            answered: 500,
            ..Counts::default()
        }
    );
    let series = report.series_ns.unwrap();
    assert_eq!(series.len(), 500);
    assert_eq!(series.iter().max(), Some(&report.rtts.max_ns()));
    assert_eq!(
        series.iter().sum::<u64>() as f64 / 500.0,
        report.rtts.mean_ns()
    );

    // What is not a ping of ours is counted and not answered.
    UdpSocket::bind(ANY_PORT)
        .unwrap()
        .send_to(b"hello", server.addr())
        .unwrap();
    let echo = server.stop().unwrap();
    assert_eq!((echo.echoed, echo.foreign), (520, 1));
}

#[test]
fn a_run_by_time_ends_in_time_and_counts_its_slots() {
    let server = EchoServer::start(ANY_PORT.parse().unwrap(), Place::default()).unwrap();
    let span_ns = 200_000_000;
    let config = ClientConfig {
        stop: Stop::AfterNs(span_ns),
        spin: true,
        ..quick(server.addr(), 5)
    };
    let report = run_client(&config, || Ok(())).unwrap();
    let slots = report.measured.sent + report.skipped;
    // The slots fill the time that the run really took (0.2 ms each on average), whatever
    // else this machine was busy with.
    let filled_ns = slots * 200_000;
    let off_percent = filled_ns.abs_diff(report.span_ns) * 100 / report.span_ns;
    assert!(off_percent <= 10, "{slots} slots in {} ns", report.span_ns);
    assert!(report.span_ns > span_ns - 400_000, "{} ns", report.span_ns);
    server.stop().unwrap();
}

/// The fates that the bad server deals out.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Answer,
    Double,
    Lose,
    /// Answer after the next ping arrived, when the client has given up for sure.
    Delay,
    DelayAndDouble,
}

fn fates(seed: u64, pings: usize) -> Vec<Fate> {
    let mut rng = SplitMix64::new(seed);
    (0..pings)
        .map(|_| match rng.in_range(0, 99) {
            0..=3 => Fate::Lose,
            4..=6 => Fate::Delay,
            7..=8 => Fate::DelayAndDouble,
            9..=20 => Fate::Double,
            _ => Fate::Answer,
        })
        .collect()
}

/// Deals `fates[seq]` to each ping; ends after the last one.
fn bad_server(fates: Vec<Fate>) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind(ANY_PORT).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let addr = socket.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut held: Vec<Vec<u8>> = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            let payload = &buffer[..len];
            let seq = Ping::read(payload).unwrap().seq as usize;
            for late in held.drain(..) {
                socket.send_to(&late, from).unwrap();
            }
            match fates[seq] {
                Fate::Lose => {}
                Fate::Delay => held.push(payload.to_vec()),
                Fate::DelayAndDouble => held.extend([payload.to_vec(), payload.to_vec()]),
                Fate::Double => {
                    socket.send_to(payload, from).unwrap();
                    socket.send_to(payload, from).unwrap();
                }
                Fate::Answer => {
                    // Noise that is not of this run must not disturb the account.
                    let mut other = payload.to_vec();
                    Ping {
                        seed: u64::MAX,
                        seq: seq as u64,
                    }
                    .write(&mut other);
                    socket.send_to(&other, from).unwrap();
                    socket.send_to(payload, from).unwrap();
                }
            }
            if seq + 1 == fates.len() {
                return;
            }
        }
    });
    (addr, thread)
}

fn count(fates: &[Fate], wanted: &[Fate]) -> u64 {
    fates.iter().filter(|fate| wanted.contains(fate)).count() as u64
}

fn expected(fates: &[Fate]) -> Counts {
    Counts {
        sent: fates.len() as u64,
        answered: count(fates, &[Fate::Answer, Fate::Double]),
        lost: count(fates, &[Fate::Lose, Fate::Delay, Fate::DelayAndDouble]),
        late: count(fates, &[Fate::Delay, Fate::DelayAndDouble]),
        dup: count(fates, &[Fate::Double, Fate::DelayAndDouble]),
    }
}

#[test]
fn loss_delay_and_duplicates_are_counted_exactly() {
    let (seed, warmup_pings, pings) = (77, 20, 200);
    let mut fates = fates(seed, warmup_pings + pings);
    // Nothing follows the last ping, so that nothing of it is still on its way.
    *fates.last_mut().unwrap() = Fate::Answer;
    let (addr, server) = bad_server(fates.clone());
    let config = ClientConfig {
        stop: Stop::Pings(pings as u64),
        linger_ns: 100_000_000,
        ..quick(addr, seed)
    };
    let report = run_client(&config, || Ok(())).unwrap();
    server.join().unwrap();

    let (warmup, measured) = fates.split_at(warmup_pings);
    assert_eq!(report.warmup, expected(warmup), "warm-up, seed {seed}");
    assert_eq!(report.measured, expected(measured), "seed {seed}");
    assert!(
        report.measured.late > 0 && report.measured.dup > 0,
        "the seed deals every fate"
    );
    assert_eq!(report.rtts.count(), report.measured.answered);
    assert_eq!(report.foreign, count(&fates, &[Fate::Answer]));
}

#[test]
fn nobody_there_is_a_sentence() {
    let free = UdpSocket::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let error = run_client(&quick(free, 1), || Ok(())).unwrap_err();
    assert!(
        matches!(error, Error::NobodyListens { addr } if addr == free),
        "{error}"
    );
}

#[test]
fn nonsense_is_refused_before_anything_is_sent() {
    let addr = "127.0.0.1:9".parse().unwrap();
    let short = ClientConfig {
        payload_len: 23,
        ..quick(addr, 1)
    };
    let wild = ClientConfig {
        jitter_percent: 101,
        ..quick(addr, 1)
    };
    for config in [short, wild] {
        let error = run_client(&config, || Ok(())).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}
