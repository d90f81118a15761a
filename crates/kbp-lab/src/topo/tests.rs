// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topologies for real: made, used, removed, and nothing left; also after a crash between any two steps.
//!
//! Needs root, as everything here does: without it these tests fail and say so. Each works on names and, where it
//! touches interfaces that exist, in a namespace of its own, so they disturb neither each other nor the machine.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::link::{Links, Mac, Place};
use super::netns::{self, Sys};
use super::step::Step;
use super::*;

/// How long a packet on a path of this machine may take.
const REPLY_LIMIT: Duration = Duration::from_secs(2);
/// How long the kernel may take to clean up.
const GONE_LIMIT: Duration = Duration::from_secs(5);

fn spec(kind: Kind, test: &str) -> Spec {
    Spec {
        name: format!("{test}-{kind}-{}", std::process::id()),
        rules: 20,
        ..Spec::new(kind)
    }
}

/// Everything that a topology of this name could have left, by looking at the machine, not at what we remember.
fn leftovers(name: &str) -> Vec<String> {
    let named = |folder: &str, start: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path().display().to_string())
            .filter(|path| path.contains(start))
            .collect()
    };
    let mut found = named("/run/netns", &format!("kbp-{name}-"));
    found.extend(named("/run/kbp-topo", name));
    for version in ["", "/pids", "/systemd", "/unified"] {
        let folder = format!("/sys/fs/cgroup{version}");
        found.extend(named(&folder, &format!("kbp-{name}-")));
    }
    found.extend(named("/run/crun", &format!("kbp-{name}-")));
    found.extend(named("/run/runc", &format!("kbp-{name}-")));
    found
}

fn assert_nothing_left(name: &str) {
    assert_eq!(leftovers(name), [""; 0]);
}

/// A socket in the namespace of an end.
fn socket(end: &End, address: SocketAddr) -> UdpSocket {
    let bind = || UdpSocket::bind(address).map_err(Error::sys("bind a socket"));
    let socket = netns::inside(end.netns.as_deref(), Sys::AsIs, bind).unwrap();
    socket.set_read_timeout(Some(REPLY_LIMIT)).unwrap();
    socket
}

/// Sends a packet to the target, lets the server answer, and checks that the answer comes from the target.
fn ping_pong(topology: &Topology) {
    let server = socket(&topology.server, (topology.server.address, 7700).into());
    let client = socket(&topology.client, (topology.client.address, 0).into());
    client.connect((topology.target, 7700)).unwrap();
    for number in 0..3u8 {
        client.send(&[number; 1400]).unwrap();
        let mut buffer = [0; 2000];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(from.ip(), topology.client.address);
        server.send_to(&buffer[..length], from).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!((length, buffer[0]), (1400, number));
    }
}

/// Packets that an interface has received.
fn received(port: &Port) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_packets", port.ifname);
    let read = || std::fs::read_to_string(&path).map_err(Error::sys(format!("read {path}")));
    let text = netns::inside(port.netns.as_deref(), Sys::Mounted, read).unwrap();
    text.trim().parse().unwrap()
}

fn add_or_explain(spec: &Spec) -> Topology {
    add(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.name))
}

/// Makes a topology, uses it, and removes it.
fn live(spec: &Spec, more: impl FnOnce(&Topology)) {
    let topology = add_or_explain(spec);
    ping_pong(&topology);
    for port in &topology.ports {
        let count = received(port);
        assert!(count >= 3, "{port:?} received {count} packets");
    }
    assert!(list().unwrap().contains(&topology));
    let refused = add(spec).unwrap_err().to_string();
    assert!(refused.contains(&format!("kbp topo del {}", spec.name)));
    more(&topology);
    del(&spec.name).unwrap_or_else(|error| panic!("{}: {error}", spec.name));
    assert_nothing_left(&spec.name);
    assert!(matches!(del(&spec.name), Err(Error::Unknown { .. })));
}

#[test]
fn packets_go_there_and_back_over_every_receiving_interface() {
    for kind in [Kind::Lo, Kind::Veth, Kind::Bridge, Kind::Vxlan] {
        live(&spec(kind, "path"), |_| {});
    }
}

/// Packets that rules have counted in a namespace.
fn counted(netns: &str) -> u64 {
    let show = || {
        let program = rules::nft().unwrap_or_else(|| "nft".into());
        let output = Command::new(program).args(["list", "ruleset"]).output();
        output.map_err(Error::sys("run nft; apt install nftables"))
    };
    let output = netns::inside(Some(netns), Sys::AsIs, show).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let counters = text.split("counter packets ").skip(1);
    counters
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn packets_pass_the_rules_in_both_directions() {
    for kind in [Kind::BridgeNetfilter, Kind::RoutedNat] {
        let spec = spec(kind, "rules");
        let host = format!("kbp-{}-host", spec.name);
        live(&spec, |topology| {
            assert_ne!(topology.target, topology.server.address);
            assert_eq!(counted(&host), 6, "{kind}");
        });
    }
}

#[test]
fn the_servers_end_is_a_container() {
    live(&spec(Kind::Container, "box"), |topology| {
        let mut command = command_in_container(&topology.server).unwrap().unwrap();
        let script =
            "test -x /opt/kbp && ! touch /usr/kbp-was-here 2>/dev/null && cat /proc/net/fib_trie";
        let output = command.args(["sh", "-c", script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert!(
            text.contains(&topology.server.address.to_string()),
            "{text}"
        );
    });
}

#[test]
fn virtual_interfaces_steer_their_packets() {
    let spec = Spec {
        rps_cpu: Some(0),
        ..spec(Kind::Vxlan, "steer")
    };
    live(&spec, |topology| {
        for port in &topology.ports {
            let path = format!("/sys/class/net/{}/queues/rx-0/rps_cpus", port.ifname);
            let read = || std::fs::read_to_string(&path).map_err(Error::sys("read rps_cpus"));
            let mask = netns::inside(port.netns.as_deref(), Sys::Mounted, read).unwrap();
            assert_eq!(mask.trim().trim_start_matches(['0', ',']), "1", "{port:?}");
        }
    });
}

/// Makes a namespace with two "cards" on a wire and runs `work` in it.
fn with_cards(test: &str, work: impl FnOnce(Spec) + Send) {
    let result = netns::inside_new(|| {
        let place = |ifname: &str| Place {
            netns: None,
            ifname: ifname.into(),
        };
        let (a, b) = (place("card0"), place("card1"));
        let macs = [Mac([2, 0, 0, 0, 9, 1]), Mac([2, 0, 0, 0, 9, 2])];
        Links::default().add_veth([(&a, macs[0]), (&b, macs[1])], 1500)?;
        work(Spec {
            nics: ["card0".into(), "card1".into()],
            ..spec(Kind::Nic, test)
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("these tests need root: {error}"));
}

/// What the calling thread's namespace is like, as far as a topology could change it.
fn fingerprint() -> String {
    let mut text = String::new();
    for ifname in ["card0", "card1"] {
        let place = Place {
            netns: None,
            ifname: ifname.into(),
        };
        let mut links = Links::default();
        let state = links.get(&place).unwrap();
        let address = links.has_address(&place).unwrap();
        text += &format!("{ifname} {:?} up {} {address}\n", state.mac, state.up);
        for family in ["ipv4", "ipv6"] {
            let folder = format!("/proc/sys/net/{family}/conf/{ifname}");
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut values: Vec<String> = entries
                .filter_map(|entry| {
                    let value = std::fs::read_to_string(entry.path()).ok()?;
                    Some(format!("{} {value}", entry.path().display()))
                })
                .collect();
            values.sort();
            text += &values.concat();
        }
    }
    text + &std::fs::read_to_string("/proc/thread-self/net/arp").unwrap()
}

#[test]
fn network_cards_come_back_as_they_were() {
    with_cards("back", |spec| {
        let place = |ifname: &str| Place {
            netns: None,
            ifname: ifname.into(),
        };
        let setting = "/proc/sys/net/ipv4/conf/card1/rp_filter";
        std::fs::write(setting, "2").unwrap();
        Links::default().set_up(&place("card1"), true).unwrap();
        let before = fingerprint();
        let topology = add_or_explain(&spec);
        let card0 = place("card0");
        assert!(Links::default().has_address(&card0).unwrap());
        assert!(Links::default().get(&place("card1")).is_err());
        ping_pong(&topology);
        del(&spec.name).unwrap();
        assert_eq!(fingerprint(), before);
        assert_nothing_left(&spec.name);

        add_or_explain(&spec);
        let second = Spec {
            name: format!("{}-2", spec.name),
            nics: ["other0".into(), "other1".into()],
            ..spec.clone()
        };
        let places = second.nics.each_ref().map(|nic| place(nic));
        let macs = [Mac([2, 0, 0, 0, 9, 3]), Mac([2, 0, 0, 0, 9, 4])];
        let ends = [(&places[0], macs[0]), (&places[1], macs[1])];
        Links::default().add_veth(ends, 1500).unwrap();
        let sentence = add(&second).unwrap_err().to_string();
        assert!(sentence.contains("is in the way"), "{sentence}");
        let turned = Spec {
            nics: ["other1".into(), "other0".into()],
            ..second
        };
        ping_pong(&add_or_explain(&turned));
        del(&turned.name).unwrap();
        let elsewhere = netns::inside_new(|| Ok(del(&spec.name))).unwrap();
        let sentence = elsewhere.unwrap_err().to_string();
        assert!(sentence.contains("in which it was made"), "{sentence}");
        del(&spec.name).unwrap();
        assert_eq!(fingerprint(), before);
    });
}

#[test]
fn a_card_in_use_is_not_taken() {
    with_cards("used", |spec| {
        let place = Place {
            netns: None,
            ifname: "card1".into(),
        };
        let net = link::Net {
            address: "192.0.2.1".parse().unwrap(),
            prefix: 24,
        };
        Links::default().address(&place, net, true).unwrap();
        let sentence = add(&spec).unwrap_err().to_string();
        assert!(sentence.contains("card1 has an IP address"), "{sentence}");
        assert_nothing_left(&spec.name);
    });
}

/// Remembers a plan and does its first `count` steps: what a crash leaves.
fn crash_after(count: usize, spec: &Spec) -> step::Plan {
    let _lock = state::lock(&spec.name, &|| false).unwrap();
    let plan = plan::plan(spec, &host::observe(spec).unwrap());
    state::State::begun(&plan).unwrap().write().unwrap();
    let mut links = Links::default();
    for step in &plan.steps[..count] {
        apply::apply(step, &mut links, &|| false).unwrap_or_else(|error| panic!("{step}: {error}"));
    }
    plan
}

fn crash_everywhere(spec: &Spec, interesting: impl Fn(&Step) -> bool, check: impl Fn()) {
    let steps = plan::plan(spec, &host::observe(spec).unwrap()).steps;
    for count in (0..=steps.len()).filter(|at| steps.get(*at).is_none_or(&interesting)) {
        crash_after(count, spec);
        let entries = entries().unwrap();
        let entry = entries
            .iter()
            .find(|entry| entry.topology.spec.name == spec.name);
        assert!(!entry.unwrap().complete);
        del(&spec.name).unwrap_or_else(|error| panic!("after {count} steps: {error}"));
        assert_nothing_left(&spec.name);
        check();
    }
}

#[test]
fn a_crash_between_any_two_steps_leaves_nothing_behind() {
    crash_everywhere(&spec(Kind::Veth, "crash"), |_| true, || {});
    with_cards("crash", |spec| {
        let before = fingerprint();
        crash_everywhere(&spec, |_| true, || assert_eq!(fingerprint(), before));
    });
    // Only where the kind of thing that is made changes: the others were tried above.
    let made = |step: &Step| {
        matches!(
            step,
            Step::Vxlan { .. } | Step::Rules { .. } | Step::Bundle { .. } | Step::Container { .. }
        )
    };
    crash_everywhere(&spec(Kind::Vxlan, "crash"), made, || {});
    crash_everywhere(&spec(Kind::Container, "crash"), made, || {});
    crash_everywhere(&spec(Kind::BridgeNetfilter, "crash"), made, || {});
}

#[test]
fn a_crash_in_the_middle_of_making_a_namespace_leaves_nothing_behind() {
    let spec = spec(Kind::Veth, "half");
    crash_after(2, &spec);
    let name = format!("kbp-{}-server", spec.name);
    std::fs::write(netns::path(&name), "").unwrap();
    del(&spec.name).unwrap();
    assert_nothing_left(&spec.name);
}

#[test]
fn an_interrupt_at_any_step_leaves_nothing_behind() {
    let spec = spec(Kind::Veth, "stop");
    let mut stops = 0;
    loop {
        let asked = std::cell::Cell::new(0);
        let interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() > stops
        };
        match add_unless(&spec, &interrupted) {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, Error::Interrupted { .. }), "{error}"),
        }
        assert_nothing_left(&spec.name);
        stops += 3;
    }
    assert!(stops > 10);
    del(&spec.name).unwrap();
}

#[test]
fn a_step_that_fails_takes_back_the_others_and_says_why() {
    let spec = spec(Kind::Veth, "fail");
    let facts = host::observe(&spec).unwrap();
    let mut plan = plan::plan(&spec, &facts);
    let missing = Place {
        netns: Some(format!("kbp-{}-server", spec.name)),
        ifname: "nosuch0".into(),
    };
    plan.steps.push(Step::Up {
        place: missing,
        was_up: false,
    });
    let error = apply::add(&plan, &|| false).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot set nosuch0 in kbp-fail-veth-"),
        "{error}"
    );
    assert!(error.contains("No such device"), "{error}");
    assert_nothing_left(&spec.name);
}

#[test]
fn without_privilege_a_sentence_says_so() {
    let spec = spec(Kind::Lo, "plain");
    let refused = std::thread::spawn(move || {
        // SAFETY: the bare system call changes the credentials of this thread only, which ends with the closure.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0, "these tests need root");
        add(&spec).unwrap_err()
    });
    let refused = refused.join().unwrap();
    assert!(matches!(refused, Error::NoPrivilege { .. }), "{refused}");
    assert!(refused.to_string().contains("run it as root"));
}

#[test]
fn every_kind_explains_its_steps_without_doing_them() {
    for kind in Kind::ALL {
        let spec = match kind {
            Kind::Nic => continue,
            _ => spec(kind, "dry"),
        };
        let steps = steps(&spec).unwrap();
        assert!(steps.len() >= 2, "{kind}: {steps:?}");
        assert_nothing_left(&spec.name);
        let plan = plan::plan(&spec, &host::observe(&spec).unwrap());
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<step::Plan>(&text).unwrap(), plan);
    }
    let bad = Spec {
        rules: RULES_MAX + 1,
        ..spec(Kind::Bridge, "dry")
    };
    assert!(steps(&bad).is_err());
}

/// A namespace's last reference goes with a delay; links in it must not outlive the topology even if a process stays.
#[test]
fn links_go_at_once_even_if_a_socket_keeps_a_namespace() {
    let spec = spec(Kind::Veth, "kept");
    let topology = add_or_explain(&spec);
    let keep = netns::open(topology.server.netns.as_deref()).unwrap();
    del(&spec.name).unwrap();
    let begin = Instant::now();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&keep));
    assert!(Path::new(&path).exists());
    let links = std::thread::spawn(move || {
        nix::sched::setns(&keep, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
    });
    let links = links.join().unwrap();
    assert!(!links.contains("eth0"), "{links}");
    assert!(begin.elapsed() < GONE_LIMIT);
}
