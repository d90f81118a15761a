// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A path: a topology that is up, as the bench and the two ends of a row see it.
//!
//! The topology of a comparison has a name of its own, so that one left by a run that was killed is known and removed
//! by the next.
//!
//! Not here: making topologies (kbp-lab), and who serves the interfaces ([`crate::mechanism`]).

use std::net::SocketAddr;

use kbp_core::Host;
use kbp_lab::topo::{self, End, Kind, PortKind, Spec, Topology};

use super::rig::{Link, Rig};
use super::row::Ends;
use super::streams;
use super::tester_card::TesterCard;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::mechanism::{leftover, sockets_poll};
use crate::place::Place;
use crate::result::Cpus;
use crate::tester::backend::Reader;
use crate::turns;

/// Name of the topology of a comparison.
const NAME: &str = "compare";

/// What all paths of a run share.
#[derive(Debug, Clone)]
pub struct PathOptions {
    /// Network cards of the path `nic`: the server's, the tester's.
    pub nics: [String; 2],
    /// Size of the rule set of paths that have one.
    pub rules: u32,
    /// CPU to which interfaces without interrupts steer what they receive; `None` leaves them alone.
    pub rps_cpu: Option<u32>,
    /// Who runs on which CPU.
    pub cpus: Cpus,
    /// CPU that receives the replies to an open loop, and polls the tester's card where it has one to itself; `None`: the
    /// tester's.
    pub replies_cpu: Option<u32>,
    /// Port of the server.
    pub port: u16,
    /// `SCHED_FIFO` priority of client and server.
    pub app_priority: u8,
}

/// A path that is up. Take it down with [`Path::down`].
#[derive(Debug)]
pub struct Path {
    /// Its name: that of the topology's kind.
    pub name: String,
    /// Its interfaces, and their interrupts on the poller's CPU.
    pub rig: Rig,
    /// Its ends.
    pub ends: Ends,
}

/// Whether this machine can have that path.
///
/// # Errors
/// One sentence that says why not; also for a name that is none.
pub fn can_run(path: &str, options: &PathOptions) -> std::result::Result<(), String> {
    let spec = spec(path, options).map_err(|error| error.to_string())?;
    if spec.kind == Kind::Nic && options.replies_cpu.is_some() {
        sockets_poll(&Host::system()).map_err(|file| {
            format!(
                "--replies-cpu: there is no /{file}: the kernel has no busy polling of sockets (PREEMPT_RT has none), or \
                 this is not the first network namespace; leave it out"
            )
        })?;
    }
    topo::can_run_spec(&spec)
}

/// The names of all paths.
pub fn names() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.name()).collect()
}

/// Checks the name of a path.
///
/// # Errors
/// A sentence with the names that there are.
pub fn known(path: &str) -> Result<()> {
    kind(path).map(drop)
}

fn kind(path: &str) -> Result<Kind> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == path);
    found.ok_or_else(|| {
        let all = names().join(", ");
        Error::Invalid(format!("there is no path '{path}'; there are: {all}"))
    })
}

fn spec(path: &str, options: &PathOptions) -> Result<Spec> {
    Ok(Spec {
        name: NAME.into(),
        rules: options.rules,
        nics: options.nics.clone(),
        rps_cpu: options.rps_cpu,
        ..Spec::new(kind(path)?)
    })
}

/// Removes what a run that was killed has left.
///
/// # Errors
/// When it can't be removed.
pub fn remove_left() -> Result<()> {
    let left = topo::entries()?;
    for entry in left {
        let name = entry.topology.spec.name;
        if [NAME, streams::NAME].contains(&name.as_str()) {
            // The tester's card would take its deferral out of its namespace.
            leftover::restore_namespace(entry.topology.client.netns.as_deref())?;
            topo::del(&name)?;
        }
    }
    Ok(())
}

impl Path {
    /// Makes the topology and puts the interrupts of its interfaces on the poller's CPU.
    ///
    /// # Errors
    /// When either fails; nothing is left then.
    pub fn up(path: &str, options: &PathOptions) -> Result<Self> {
        let wanted = spec(path, options)?;
        let topology = turns::quickly(|| Ok(topo::add_unless(&wanted, &interrupt::requested)?))?;
        let (links, tester_card) = links(&topology, options.replies_cpu);
        let ends = ends(&topology, options, tester_card.is_some());
        match Rig::set_up(links, tester_card, options.cpus) {
            Ok(rig) => Ok(Self {
                name: path.into(),
                rig,
                ends,
            }),
            Err(error) => Err(match topo::del(NAME) {
                Ok(()) => error,
                Err(left) => Error::Invalid(format!("{error}; and then: {left}")),
            }),
        }
    }

    /// Puts the interrupts back and removes the topology.
    ///
    /// # Errors
    /// The first step that failed; the other is done.
    pub fn down(self) -> Result<()> {
        let taken_down = self.rig.take_down();
        let removed = topo::del(NAME).map_err(Error::from);
        taken_down.and(removed)
    }
}

/// What mechanisms are to serve, and the tester's card if it has somebody else.
fn links(topology: &Topology, replies_cpu: Option<u32>) -> (Vec<Link>, Option<TesterCard>) {
    let link = |port: &topo::Port| Link {
        ifname: port.ifname.clone(),
        netns: port.netns.clone(),
        has_interrupts: port.kind == PortKind::Nic,
    };
    let is_testers = |link: &Link| {
        let client = &topology.client;
        let is_alone = topology.server.netns != client.netns && client.netns.is_some();
        is_alone && link.has_interrupts && link.netns == client.netns
    };
    let mut links: Vec<Link> = topology.ports.iter().map(link).collect();
    let tester_card = replies_cpu.and_then(|cpu| {
        let index = links.iter().position(is_testers)?;
        let link = links.remove(index);
        Some(TesterCard { link, cpu })
    });
    (links, tester_card)
}

fn ends(topology: &Topology, options: &PathOptions, polls_card: bool) -> Ends {
    let place = |end: &End, cpu| Place {
        cpu: Some(cpu),
        fifo_priority: Some(options.app_priority),
        netns: end.netns.clone(),
    };
    let server = &topology.server;
    Ends {
        bind: SocketAddr::new(server.address, options.port),
        target: SocketAddr::new(topology.target, options.port),
        server_place: place(server, options.cpus.application),
        client_place: place(&topology.client, options.cpus.tester),
        replies: options.replies_cpu.map(|cpu| Reader {
            place: place(&topology.client, cpu),
            polls: polls_card,
        }),
        container: server.container.is_some().then(|| server.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, netns: Option<&str>, container: Option<&str>) -> End {
        End {
            netns: netns.map(String::from),
            ifname: "eth0".into(),
            address: address.parse().unwrap(),
            container: container.map(String::from),
        }
    }

    fn options() -> PathOptions {
        PathOptions {
            nics: ["eth0".into(), "eth1".into()],
            rules: 100,
            rps_cpu: Some(2),
            cpus: Cpus {
                housekeeping: 0,
                tester: 1,
                poller: 2,
                application: 3,
            },
            replies_cpu: Some(4),
            port: 7_700,
            app_priority: 40,
        }
    }

    /// Behind NAT the client asks another address than the server has.
    #[test]
    fn ends_are_where_the_topology_says() {
        let topology = Topology {
            spec: Spec::new(Kind::Container),
            client: end("10.0.0.1", Some("wire"), None),
            server: end("10.1.0.2", Some("app"), Some("box")),
            target: "10.0.0.2".parse().unwrap(),
            ports: vec![
                topo::Port {
                    netns: Some("app".into()),
                    ifname: "eth0".into(),
                    kind: PortKind::Veth,
                },
                topo::Port {
                    netns: None,
                    ifname: "eth1".into(),
                    kind: PortKind::Nic,
                },
            ],
        };
        let ends = ends(&topology, &options(), false);
        assert_eq!(ends.target, "10.0.0.2:7700".parse().unwrap());
        assert_eq!(ends.bind, "10.1.0.2:7700".parse().unwrap());
        assert_eq!(ends.container, Some(topology.server.clone()));
        assert_eq!(ends.client_place.netns.as_deref(), Some("wire"));
        let cpus = (ends.client_place.cpu, ends.server_place.cpu);
        assert_eq!(cpus, (Some(1), Some(3)));
        let receiver = ends.replies.unwrap();
        assert_eq!(
            (receiver.place.cpu, receiver.place.netns.as_deref()),
            (Some(4), Some("wire"))
        );
        // The only card is the server's, so that somebody has to serve it.
        let (served, card) = links(&topology, Some(4));
        let interrupts: Vec<bool> = served.iter().map(|l| l.has_interrupts).collect();
        assert_eq!((interrupts, card.is_none()), (vec![false, true], true));
    }

    /// A card that the tester has to itself is served by nobody but who receives its replies.
    #[test]
    fn the_testers_card_is_polled_by_who_receives() {
        let port = |netns: Option<&str>, ifname: &str| topo::Port {
            netns: netns.map(String::from),
            ifname: ifname.into(),
            kind: PortKind::Nic,
        };
        let topology = Topology {
            spec: Spec::new(Kind::Nic),
            client: end("10.0.0.1", Some("tester"), None),
            server: end("10.0.0.2", None, None),
            target: "10.0.0.2".parse().unwrap(),
            ports: vec![port(None, "eth0"), port(Some("tester"), "eth1")],
        };
        let names = |links: &[Link]| links.iter().map(|l| l.ifname.clone()).collect::<Vec<_>>();
        let (served, card) = links(&topology, Some(4));
        let card = card.unwrap();
        assert_eq!(names(&served), ["eth0"]);
        assert_eq!((card.link.ifname.as_str(), card.cpu), ("eth1", 4));
        let (served, card) = links(&topology, None);
        assert_eq!((names(&served).len(), card.is_none()), (2, true));
    }

    #[test]
    fn an_unknown_path_is_answered_with_those_that_there_are() {
        let error = known("wifi").unwrap_err().to_string();
        assert!(error.contains("bridge-netfilter"), "{error}");
        known("nic").unwrap();
    }
}
