// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams for real, over a veth pair between two namespaces that the test makes. Needs root.

use std::process::Command;
use std::time::Duration;

use super::*;
use crate::load::Running;

/// Two namespaces with a veth pair between them; gone when it is dropped.
struct Pair {
    names: [String; 2],
}

fn ip(words: &str) {
    let done = Command::new("ip")
        .args(words.split(' '))
        .output()
        .expect("iproute2 is installed");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.success(),
        "ip {words}: {said} (this test needs root)"
    );
}

impl Pair {
    /// `test` keeps tests that run at the same time apart.
    fn new(test: &str) -> Self {
        let names = ["a", "b"].map(|end| format!("kbp-{test}-{}-{end}", std::process::id()));
        let pair = Self { names };
        let [a, b] = &pair.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!(
            "-n {a} link add name ua type veth peer name ub netns {b}"
        ));
        for (ns, dev, addr) in [(a, "ua", "10.77.0.1"), (b, "ub", "10.77.0.2")] {
            ip(&format!("-n {ns} address add {addr}/24 dev {dev}"));
            ip(&format!("-n {ns} link set {dev} up"));
        }
        pair
    }

    fn config(&self) -> StreamConfig {
        let end = |netns: &str, ifname: &str, addr: &str| StreamEnd {
            ifname: ifname.into(),
            netns: Some(netns.into()),
            addr: addr.parse().unwrap(),
            cpu: 0,
        };
        let server = end(&self.names[0], "ua", "10.77.0.1");
        let tester = end(&self.names[1], "ub", "10.77.0.2");
        StreamConfig::new(server, tester, None)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn with(stream: StreamConfig) -> LoadConfig {
    let mut config = LoadConfig::against(0, "/nonexistent".as_ref(), 1);
    config.stream = Some(stream);
    config
}

#[test]
fn both_streams_arrive_at_no_more_than_their_rate() {
    let pair = Pair::new("rate");
    let mut config = pair.config();
    config.udp_bps = 40_000_000;
    config.tcp_bps = 80_000_000;
    let running = Running::start(Load::Stream, &with(config)).unwrap();
    let start = std::time::Instant::now();
    let before = running.progress().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let did = running.require_moved_since(&before).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    running.stop().unwrap();
    for (name, bps) in [("udp_bytes", 40e6), ("tcp_bytes", 80e6)] {
        let count = did.counts.iter().find(|count| count.name == name).unwrap();
        let found_bps = count.total as f64 * 8.0 / seconds;
        // What was on its way at the first reading counts too; a loaded machine may deliver late.
        assert!(
            (bps * 0.2..=bps * 1.2).contains(&found_bps),
            "{name}: {found_bps} bps of {bps}"
        );
    }
}

#[test]
fn what_would_not_be_a_stream_is_refused_and_a_missing_receiver_named() {
    let pair = Pair::new("refuse");
    let refusal = |change: fn(&mut StreamConfig)| {
        let mut config = pair.config();
        change(&mut config);
        Running::start(Load::Stream, &with(config))
            .unwrap_err()
            .to_string()
    };
    let one = refusal(|c| c.tester.netns = c.server.netns.clone());
    assert!(one.contains("one network namespace"), "{one}");
    let missing = refusal(|c| c.server.ifname = "nosuch0".into());
    assert!(missing.contains("nosuch0"), "{missing}");
    let none = refusal(|c| (c.udp_bps, c.tcp_bps) = (0, 0));
    assert!(none.contains("both rates are 0"), "{none}");
    let elsewhere = refusal(|c| c.server.addr = "10.77.0.9".parse().unwrap());
    assert!(elsewhere.contains("10.77.0.9:7800"), "{elsewhere}");
    let interrupts = refusal(|c| c.irq_cpu = Some(0));
    assert!(
        interrupts.contains("ua"),
        "veth has no interrupt to move: {interrupts}"
    );
}
