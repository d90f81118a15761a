// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every technique over a real veth pair and bridge: at a low rate nothing is lost and the
//! account is exact; as fast as it goes, no more comes than was sent.

mod bench;

use bench::{Bench, RECEIVER_IP};
use kbp_measure::place::Place;
use kbp_measure::tester::sockets::ends::{Length, Offer};
use kbp_measure::tester::sockets::{run, Report, Run, Technique, TECHNIQUES};

fn plan(bench: &Bench, technique: &'static Technique, offer: Offer) -> Run {
    let place = |netns: &str| Place {
        netns: Some(netns.into()),
        ..Place::default()
    };
    Run {
        technique,
        send_place: place(bench.sender()),
        receive_place: place(bench.receiver()),
        send_dev: "eth0".into(),
        receive_dev: "eth0".into(),
        addr: format!("{RECEIVER_IP}:7000").parse().unwrap(),
        frame_len: 64,
        offer,
        slice_ns: 20_000_000,
    }
}

fn run_one(bench: &Bench, technique: &'static Technique, offer: Offer, frame_len: usize) -> Report {
    let plan = Run {
        frame_len,
        ..plan(bench, technique, offer)
    };
    run(&plan).unwrap_or_else(|error| panic!("{technique:?}: {error}"))
}

#[test]
fn a_thousand_packets_at_a_low_rate_all_come() {
    let bench = Bench::new("low");
    for (technique, frame_len) in TECHNIQUES.iter().zip([64, 1514, 64, 1514, 1514, 64, 1514]) {
        let offer = Offer {
            burst: 8,
            per_s: Some(10_000.0),
            length: Length::Packets(1_003),
        };
        let report = run_one(&bench, technique, offer, frame_len);
        let account = report.account;
        assert_eq!(report.taken.sent, 1_003, "{technique:?}: {report:?}");
        assert_eq!(account.received, 1_003, "{technique:?}: {report:?}");
        assert_eq!(
            (account.foreign, account.seq_end, report.dropped_at_socket),
            (0, 1_003, 0),
            "{technique:?}: {report:?}"
        );
    }
}

#[test]
fn at_full_speed_the_counts_agree() {
    let bench = Bench::new("full");
    for technique in &TECHNIQUES {
        let offer = Offer {
            burst: 64,
            per_s: None,
            length: Length::ForNs(200_000_000),
        };
        let report = run_one(&bench, technique, offer, 64);
        let (sent, received) = (report.taken.sent, report.account.received);
        assert!(received <= sent, "{technique:?}: {report:?}");
        // Far below what any machine can do, and far above nothing.
        assert!(received > 2_000, "{technique:?}: {report:?}");
        assert!(report.account.seq_end <= sent + report.taken.refused);
        assert!(
            report.rates.received_per_s > 0.0,
            "{technique:?}: {report:?}"
        );
        eprintln!("{technique:?}: {report:?}");
    }
}

#[test]
fn what_cannot_be_is_a_sentence() {
    let bench = Bench::new("bad");
    let offer = Offer {
        burst: 8,
        per_s: None,
        length: Length::Packets(10),
    };
    let refusal = |plan: Run| run(&plan).unwrap_err().to_string();
    let technique = |name| Technique::named(name).unwrap();

    let no_dev = Run {
        receive_dev: "eth7".into(),
        ..plan(&bench, technique("xdp-native"), offer)
    };
    let error = refusal(no_dev);
    assert!(error.contains("eth7"), "{error}");

    // The loopback interface has no XDP of its own.
    let no_hook = Run {
        receive_dev: "lo".into(),
        ..plan(&bench, technique("xdp-native"), offer)
    };
    let error = refusal(no_hook);
    assert!(error.contains("use xdp-generic"), "{error}");

    let in_use = plan(&bench, technique("udp"), offer);
    let taken = kbp_measure::place::run_at(&in_use.receive_place, || {
        Ok(std::net::UdpSocket::bind(in_use.addr).unwrap())
    });
    let error = refusal(in_use);
    assert!(
        error.contains("port 7000") && error.contains("in use"),
        "{error}"
    );
    drop(taken);

    let impossible = Offer {
        per_s: Some(1e9),
        length: Length::ForNs(60_000_000),
        ..offer
    };
    let report = run_one(&bench, technique("udp"), impossible, 64);
    assert!(!report.held, "a rate that nobody can hold: {report:?}");
    assert!(Technique::named("carrier-pigeon").is_err());
}
