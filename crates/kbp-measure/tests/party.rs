// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The unmodified programs, for real, between two namespaces at a bridge. They have to be
//! installed: `make setup` does that.

mod bench;

use std::net::SocketAddr;

use bench::{Bench, RECEIVER_IP};
use kbp_measure::party::agree::{Agree, Bounds};
use kbp_measure::party::iperf3::{Iperf3, Traffic};
use kbp_measure::party::memcached::{LoadConfig, Memcached, Pace, Timed};
use kbp_measure::place::{run_at, Place};

fn at(netns: &str) -> Place {
    Place {
        netns: Some(netns.into()),
        ..Place::default()
    }
}

fn server(port: u16) -> SocketAddr {
    SocketAddr::new(RECEIVER_IP.parse().unwrap(), port)
}

#[test]
fn iperf3_moves_what_it_is_told() {
    let bench = Bench::new("iperf");
    let run = |traffic| {
        let iperf3 = Iperf3 {
            server: server(5201),
            server_place: at(bench.receiver()),
            client_place: at(bench.sender()),
            traffic,
            seconds: 1,
        };
        let report = iperf3.run().unwrap();
        let row = iperf3.row(&report);
        assert_eq!(row.bulk, Some(report.bulk));
        report
    };
    let tcp = run(Traffic::Tcp);
    assert!(tcp.bulk.received_bps > 0.0, "{tcp:?}");
    assert!(tcp.bulk.retransmits.is_some(), "{tcp:?}");
    let udp = run(Traffic::Udp {
        rate_bps: Some(5_120_000),
        payload_len: 64,
    });
    // 10,000 datagrams a second; the last ones may be cut off.
    assert!((9_500..=10_500).contains(&udp.packets), "{udp:?}");
    assert!(udp.lost <= udp.packets, "{udp:?}");
    assert!(
        udp.bulk.received_bps > 0.0 && udp.bulk.received_bps < 6e6,
        "{udp:?}"
    );
}

#[test]
fn memcached_answers_right_in_both_paces() {
    let bench = Bench::new("memc");
    let run = |load: LoadConfig| {
        let memcached = Memcached {
            server: server(11_211),
            server_place: at(bench.receiver()),
            client_place: at(bench.sender()),
            load,
        };
        let mut warm = false;
        let report = memcached.run(|| {
            warm = true;
            Ok(())
        });
        assert!(warm);
        report
    };
    let flood = Pace::Open {
        gap_ns_min: 1,
        gap_ns_max: 2,
    };
    let few = LoadConfig {
        keys: 50,
        ..LoadConfig::new(500_000_000, 3)
    };
    let closed = run(LoadConfig {
        pace: Pace::Closed,
        ..few.clone()
    })
    .unwrap();
    assert_eq!(closed.on_the_way_max, 1);
    let (gets, sets) = (closed.gets.count(), closed.sets.count());
    let share = gets as f64 / (gets + sets) as f64;
    assert!(gets > 500 && (0.85..0.95).contains(&share), "{gets} {sets}");
    // 200 µs apart on average.
    let open = run(LoadConfig {
        pace: Pace::Open {
            gap_ns_min: 100_000,
            gap_ns_max: 300_000,
        },
        ..few.clone()
    })
    .unwrap();
    let all = open.gets.count() + open.sets.count();
    // The seed alone decides how many there are.
    assert!((2_400..=2_600).contains(&all), "{all}");
    assert_eq!(Memcached::row(&open).n, open.gets.count());
    assert_eq!(
        (open.timed, closed.timed),
        (Timed::ByKernel, Timed::ByKernel)
    );
    assert_eq!(Memcached::row(&open).note, None);
    let error = run(LoadConfig { pace: flood, ..few })
        .unwrap_err()
        .to_string();
    assert!(error.contains("can't hold this rate"), "{error}");
}

#[test]
fn a_server_that_is_not_ours_is_not_taken_for_it() {
    let bench = Bench::new("busy");
    let there = at(bench.receiver());
    let listener = run_at(&there, || {
        Ok(std::net::TcpListener::bind(server(11_211)).unwrap())
    });
    let memcached = Memcached {
        server: server(11_211),
        server_place: there.clone(),
        client_place: at(bench.sender()),
        load: LoadConfig::new(1, 1),
    };
    let error = memcached.run(|| Ok(())).unwrap_err().to_string();
    assert!(error.contains("TCP port 11211 is in use"), "{error}");
    drop(listener);

    // An address that the namespace does not have: the server's own words are in the sentence.
    let elsewhere = Iperf3 {
        server: "10.66.0.77:5201".parse().unwrap(),
        server_place: there,
        client_place: at(bench.sender()),
        traffic: Traffic::Tcp,
        seconds: 1,
    };
    let error = elsewhere.run().unwrap_err().to_string();
    assert!(error.contains("assign requested address"), "{error}");
}

/// Whether the two agree on a busy test machine is not decided here; that both saw the path is.
#[test]
fn both_testers_are_run_in_turn() {
    let bench = Bench::new("agree");
    let agree = Agree {
        server: server(7_700),
        server_place: at(bench.receiver()),
        client_place: at(bench.sender()),
        payload_len: 64,
        rounds: 1,
        seconds: 1,
        seed: 1,
        bounds: Bounds {
            p50_percent: 1e6,
            p99_percent: 1e6,
        },
    };
    let agreement = agree.run(|_| {}).unwrap();
    let order: Vec<_> = agreement.rows.iter().map(|row| row.tool.as_str()).collect();
    assert_eq!(order, ["kbp", "sockperf"]);
    assert!(agreement
        .rows
        .iter()
        .all(|row| row.n > 100 && row.lost == 0));
    assert!(agreement.is_met(), "{agreement:?}");
    assert!(agreement.p50.ours_ns > 1_000 && agreement.p50.theirs_ns > 1_000);
}
