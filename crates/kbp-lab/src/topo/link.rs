// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interfaces, addresses, neighbours, forwarding entries and routes, over rtnetlink.
//!
//! A socket works in the namespace in which it was opened, so [`Links`] keeps one for each namespace, and nothing is
//! ever made in one namespace to be moved to another (network cards excepted).
//!
//! Not here: what belongs to which topology ([`super::plan`]).

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::netlink::{attribute, number_at, Request, Rtnl};
use super::netns;

/// Make it, and fail when it exists.
const CREATE: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// The queueing discipline of a link that is not in use yet.
const QDISC_NONE: &[u8] = b"noop\0";
/// Attributes of a port of a bridge, and the state in which it forwards (linux/if_link.h, linux/if_bridge.h).
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_STATE: u16 = 1;
const BR_STATE_FORWARDING: u8 = 3;
/// Attributes of kinds of links (linux/if_link.h, linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
/// The families of requests, as rtnetlink's headers have them.
const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;
const BRIDGE: u8 = libc::AF_BRIDGE as u8;
/// Length of `struct ifinfomsg`, bytes.
const LINK_HEADER_LEN: usize = 16;

/// An interface: its name, in a network namespace (`None` is the caller's).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Place {
    pub netns: Option<String>,
    pub ifname: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.netns {
            Some(netns) => write!(f, "{} in {netns}", self.ifname),
            None => write!(f, "{}", self.ifname),
        }
    }
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.map(|byte| format!("{byte:02x}")).join(":");
        f.write_str(&text)
    }
}

/// An IPv4 address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Net {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A vxlan device: number of its network, both ends of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tunnel {
    pub id: u32,
    pub local: Ipv4Addr,
    pub remote: Ipv4Addr,
    pub port: u16,
}

/// What the kernel says about a link.
#[derive(Debug, Clone)]
pub(super) struct LinkState {
    pub index: u32,
    pub up: bool,
    /// Whether packets pass: it has a carrier, the kernel has taken note of that (it does so later: until then the queue
    /// drops everything), and the bridge that it is a port of forwards.
    pub ready: bool,
    pub loopback: bool,
    pub mac: Option<Mac>,
    pub has_master: bool,
}

impl LinkState {
    /// Reads `struct ifinfomsg` and the attributes behind it.
    fn parse(payload: &[u8]) -> LinkState {
        let flags = u32::from_ne_bytes(number_at(payload, 8));
        let has = |flag: libc::c_int| flags & flag as u32 != 0;
        let attributes = payload.get(LINK_HEADER_LEN..).unwrap_or_default();
        LinkState {
            index: u32::from_ne_bytes(number_at(payload, 4)),
            up: has(libc::IFF_UP),
            ready: has(libc::IFF_UP)
                && has(libc::IFF_LOWER_UP)
                && attribute(attributes, libc::IFLA_QDISC).is_some_and(|name| name != QDISC_NONE)
                && bridge_port_state(attributes).is_none_or(|state| state == BR_STATE_FORWARDING),
            loopback: has(libc::IFF_LOOPBACK),
            mac: attribute(attributes, libc::IFLA_ADDRESS)
                .and_then(|bytes| bytes.try_into().ok())
                .map(Mac),
            has_master: attribute(attributes, libc::IFLA_MASTER).is_some(),
        }
    }
}

/// What a bridge does with the port that has these attributes; `None` for what is no port.
fn bridge_port_state(attributes: &[u8]) -> Option<u8> {
    let info = attribute(attributes, libc::IFLA_LINKINFO)?;
    let port = attribute(&info, IFLA_INFO_SLAVE_DATA)?;
    attribute(&port, IFLA_BRPORT_STATE)?.first().copied()
}

/// Sockets to rtnetlink, one for each network namespace that was asked for.
#[derive(Default)]
pub(super) struct Links {
    sockets: HashMap<Option<String>, Rtnl>,
}

impl Links {
    fn socket(&mut self, netns: &Option<String>) -> Result<&mut Rtnl> {
        if !self.sockets.contains_key(netns) {
            let socket = netns::inside(netns.as_deref(), netns::Sys::AsIs, Rtnl::open)?;
            self.sockets.insert(netns.clone(), socket);
        }
        self.sockets.get_mut(netns).ok_or_else(|| Error::Malformed {
            what: "the table of sockets".into(),
            detail: "an entry that was just made is missing".into(),
        })
    }

    /// Closes the socket in a namespace, which would keep it alive.
    pub(super) fn forget(&mut self, netns: &str) {
        self.sockets.remove(&Some(netns.to_owned()));
    }

    fn request(&mut self, netns: &Option<String>, request: &Request, flags: u16) -> Result<()> {
        self.socket(netns)?.request(request, flags).map(drop)
    }

    /// A link's state.
    pub(super) fn get(&mut self, place: &Place) -> Result<LinkState> {
        let request = link(libc::RTM_GETLINK, 0, None).with_text(libc::IFLA_IFNAME, &place.ifname);
        let payloads = self.socket(&place.netns)?.request(&request, 0)?;
        let payload = payloads.first().ok_or_else(|| Error::Malformed {
            what: format!("the kernel's answer about {place}"),
            detail: "it is empty".into(),
        })?;
        Ok(LinkState::parse(payload))
    }

    fn index(&mut self, place: &Place) -> Result<u32> {
        Ok(self.get(place)?.index)
    }

    /// Makes a pair of virtual cards, each end where it belongs.
    pub(super) fn add_veth(&mut self, ends: [(&Place, Mac); 2], mtu: u32) -> Result<()> {
        let namespace = netns::open(ends[1].0.netns.as_deref())?;
        let [first, peer] =
            ends.map(|(place, mac)| new_link(place, mac).with_u32(libc::IFLA_MTU, mtu));
        let peer = peer.with_u32(libc::IFLA_NET_NS_FD, namespace.as_raw_fd() as u32);
        let data = nest().with_nested(VETH_INFO_PEER, peer);
        self.request(&ends[0].0.netns, &first.of_kind("veth", data), CREATE)
    }

    /// Makes a bridge without STP and without multicast snooping, so that it sends nothing of its own.
    pub(super) fn add_bridge(&mut self, place: &Place, mac: Mac) -> Result<()> {
        let data = nest()
            .with_u32(IFLA_BR_STP_STATE, 0)
            .with(IFLA_BR_MCAST_SNOOPING, &[0]);
        let request = new_link(place, mac).of_kind("bridge", data);
        self.request(&place.netns, &request, CREATE)
    }

    /// Makes the end of a tunnel that learns nothing.
    pub(super) fn add_vxlan(
        &mut self,
        place: &Place,
        mac: Mac,
        tunnel: Tunnel,
        mtu: u32,
    ) -> Result<()> {
        let data = nest()
            .with_u32(IFLA_VXLAN_ID, tunnel.id)
            .with(IFLA_VXLAN_LOCAL, &tunnel.local.octets())
            .with(IFLA_VXLAN_GROUP, &tunnel.remote.octets())
            .with(IFLA_VXLAN_PORT, &tunnel.port.to_be_bytes())
            .with(IFLA_VXLAN_LEARNING, &[0]);
        let request = new_link(place, mac)
            .with_u32(libc::IFLA_MTU, mtu)
            .of_kind("vxlan", data);
        self.request(&place.netns, &request, CREATE)
    }

    /// Changes a link: whether it is up, or what `change` adds.
    fn set(
        &mut self,
        place: &Place,
        up: Option<bool>,
        change: impl FnOnce(Request) -> Request,
    ) -> Result<()> {
        let index = self.index(place)?;
        let request = change(link(libc::RTM_SETLINK, index, up));
        self.request(&place.netns, &request, 0)
    }

    /// Makes a link a port of a bridge in the same namespace.
    pub(super) fn enslave(&mut self, port: &Place, bridge: &str) -> Result<()> {
        let bridge = Place {
            netns: port.netns.clone(),
            ifname: bridge.into(),
        };
        let master = self.index(&bridge)?;
        self.set(port, None, |set| set.with_u32(libc::IFLA_MASTER, master))
    }

    /// Sets a link up or down.
    pub(super) fn set_up(&mut self, place: &Place, up: bool) -> Result<()> {
        self.set(place, Some(up), |set| set)
    }

    /// Gives a link another name. It goes down for a moment: older kernels rename no link that is up.
    pub(super) fn rename(&mut self, place: &Place, ifname: &str) -> Result<()> {
        self.set_up(place, false)?;
        self.set(place, None, |set| set.with_text(libc::IFLA_IFNAME, ifname))?;
        let place = Place {
            netns: place.netns.clone(),
            ifname: ifname.into(),
        };
        self.set_up(&place, true)
    }

    /// Moves a link to another namespace: the named one, or the caller's.
    pub(super) fn move_to(&mut self, place: &Place, netns: Option<&str>) -> Result<()> {
        let namespace = netns::open(netns)?;
        let fd = namespace.as_raw_fd() as u32;
        self.set(place, None, |set| set.with_u32(libc::IFLA_NET_NS_FD, fd))
    }

    /// Deletes a link, and with it its peer.
    pub(super) fn delete(&mut self, place: &Place) -> Result<()> {
        let index = self.index(place)?;
        let request = link(libc::RTM_DELLINK, index, None);
        self.request(&place.netns, &request, 0)
    }

    /// Adds (or deletes) an address.
    pub(super) fn address(&mut self, place: &Place, net: Net, add: bool) -> Result<()> {
        let (kind, flags) = match add {
            true => (libc::RTM_NEWADDR, CREATE),
            false => (libc::RTM_DELADDR, 0),
        };
        // struct ifaddrmsg: family, prefix, flags, scope, index.
        let mut header = vec![INET, net.prefix, 0, libc::RT_SCOPE_UNIVERSE];
        header.extend(self.index(place)?.to_ne_bytes());
        let request = Request::new(kind, &header)
            .with(libc::IFA_LOCAL, &net.address.octets())
            .with(libc::IFA_ADDRESS, &net.address.octets());
        self.request(&place.netns, &request, flags)
    }

    /// Whether a link has an IP address that it would not get again by itself (all but link-local ones).
    pub(super) fn has_address(&mut self, place: &Place) -> Result<bool> {
        let index = self.index(place)?;
        let request = Request::new(libc::RTM_GETADDR, &[0; 8]);
        let payloads = self.socket(&place.netns)?.request(&request, NLM_F_DUMP)?;
        Ok(payloads.iter().any(|payload| {
            let [family, _, _, scope] = number_at(payload, 0);
            let its_own = u32::from_ne_bytes(number_at(payload, 4)) == index;
            its_own && !(family == INET6 && scope == libc::RT_SCOPE_LINK)
        }))
    }

    /// Adds (or deletes) a permanent neighbour, so that nobody ever asks for its address.
    pub(super) fn neighbour(
        &mut self,
        place: &Place,
        address: Ipv4Addr,
        mac: Mac,
        add: bool,
    ) -> Result<()> {
        let (kind, flags) = match add {
            true => (libc::RTM_NEWNEIGH, CREATE),
            false => (libc::RTM_DELNEIGH, 0),
        };
        let request = neighbour(kind, INET, self.index(place)?, libc::NUD_PERMANENT, 0)
            .with(libc::NDA_DST, &address.octets())
            .with(libc::NDA_LLADDR, &mac.0);
        self.request(&place.netns, &request, flags)
    }

    /// Tells a bridge that an address is behind one of its ports.
    pub(super) fn bridge_entry(&mut self, port: &Place, mac: Mac) -> Result<()> {
        let index = self.index(port)?;
        let kind = libc::RTM_NEWNEIGH;
        let request = neighbour(kind, BRIDGE, index, libc::NUD_NOARP, libc::NTF_MASTER)
            .with(libc::NDA_LLADDR, &mac.0);
        self.request(&port.netns, &request, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Tells the end of a tunnel that an address is behind a remote end.
    pub(super) fn tunnel_entry(&mut self, place: &Place, mac: Mac, remote: Ipv4Addr) -> Result<()> {
        let index = self.index(place)?;
        let kind = libc::RTM_NEWNEIGH;
        let request = neighbour(kind, BRIDGE, index, libc::NUD_PERMANENT, libc::NTF_SELF)
            .with(libc::NDA_LLADDR, &mac.0)
            .with(libc::NDA_DST, &remote.octets());
        self.request(&place.netns, &request, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a default route.
    pub(super) fn default_route(&mut self, netns: &str, gateway: Ipv4Addr) -> Result<()> {
        // struct rtmsg: family, both prefixes, TOS, table, protocol, scope, type, flags.
        let header = [
            INET,
            0,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_STATIC,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        let request =
            Request::new(libc::RTM_NEWROUTE, &header).with(libc::RTA_GATEWAY, &gateway.octets());
        self.request(&Some(netns.into()), &request, CREATE)
    }
}

/// A request about a link: `struct ifinfomsg` with its index (0: named by an attribute) and whether it is to be up.
fn link(kind: u16, index: u32, up: Option<bool>) -> Request {
    let flag = |set: bool| if set { libc::IFF_UP as u32 } else { 0 };
    // Family, padding, type of hardware.
    let mut header = vec![0; 4];
    header.extend(index.to_ne_bytes());
    header.extend(flag(up == Some(true)).to_ne_bytes());
    header.extend(flag(up.is_some()).to_ne_bytes());
    Request::new(kind, &header)
}

fn new_link(place: &Place, mac: Mac) -> Request {
    link(libc::RTM_NEWLINK, 0, None)
        .with_text(libc::IFLA_IFNAME, &place.ifname)
        .with(libc::IFLA_ADDRESS, &mac.0)
}

/// The start of a nest of attributes.
fn nest() -> Request {
    Request::new(0, &[])
}

impl Request {
    /// Says what kind of link it is, with the attributes of that kind.
    fn of_kind(self, kind: &str, data: Request) -> Request {
        let info = nest()
            .with_text(libc::IFLA_INFO_KIND, kind)
            .with_nested(libc::IFLA_INFO_DATA, data);
        self.with_nested(libc::IFLA_LINKINFO, info)
    }
}

/// A request about a neighbour or a forwarding entry: `struct ndmsg`.
fn neighbour(kind: u16, family: u8, index: u32, state: u16, flags: u8) -> Request {
    let mut header = vec![family, 0, 0, 0];
    header.extend(index.to_ne_bytes());
    header.extend(state.to_ne_bytes());
    header.extend([flags, 0]);
    Request::new(kind, &header)
}
