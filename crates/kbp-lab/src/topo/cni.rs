// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pod's network, made as a container runtime makes it: the plug-ins of `containernetworking-plugins` are run one after
//! the other, with a configuration on their standard input and `CNI_*` in their environment (Container Network Interface,
//! specification 0.4.0). `bridge` makes a bridge, a veth pair and, by `host-local`, the address; `portmap` forwards a port.
//!
//! Afterwards the host's end of the pair gets a name that is known beforehand, and the neighbours are told, as in all
//! topologies.
//!
//! Not here: the namespaces and containers around it ([`super::plan`]).

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::command;
use crate::error::tail;

use super::error::{Error, Result};
use super::helper::helper;
use super::link::{Links, Place};
use super::netns::{self, Sys};

const VERSION: &str = "0.4.0";
/// The plug-ins that are run, and the one that `bridge` runs.
const PLUGINS: [&str; 2] = ["bridge", "portmap"];
const ADDRESSES: &str = "host-local";
/// Where Debian has them, and where most others do.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// The only port that is forwarded, over UDP: the default one of the echo server.
pub(super) const PORT: u16 = 7_700;
/// The bridge that the plug-in makes.
pub(super) const BRIDGE: &str = "cni0";

/// A pod's network: what the plug-ins are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Network {
    /// Its name, and that of the pod.
    pub name: String,
    /// The namespace of the host, in which the plug-ins run.
    pub host: String,
    /// The pod's own namespace.
    pub netns: String,
    /// The pod's interface.
    pub ifname: String,
    /// What the host's end of it is called.
    pub host_ifname: String,
    pub gateway: Ipv4Addr,
    pub address: Ipv4Addr,
    /// Where the plug-ins are.
    pub folder: PathBuf,
    /// Where `host-local` keeps which addresses are in use.
    pub data: PathBuf,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} connect {} to {}, address {}",
            PLUGINS.join(" and "),
            self.folder.display(),
            self.netns,
            self.host,
            self.address
        )
    }
}

impl Network {
    fn configuration(&self, plugin: &str, previous: Option<&Value>) -> Value {
        let [a, b, c, _] = self.gateway.octets();
        let mut config = match plugin {
            "bridge" => json!({
                "bridge": BRIDGE,
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": ADDRESSES,
                    "dataDir": self.data,
                    "ranges": [[{
                        "subnet": format!("{a}.{b}.{c}.0/24"),
                        "gateway": self.gateway,
                        "rangeStart": self.address,
                        "rangeEnd": self.address,
                    }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }),
            _ => json!({
                "capabilities": { "portMappings": true },
                "runtimeConfig": { "portMappings": [
                    { "hostPort": PORT, "containerPort": PORT, "protocol": "udp" },
                ] },
            }),
        };
        config["cniVersion"] = VERSION.into();
        config["name"] = self.name.as_str().into();
        config["type"] = plugin.into();
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        config
    }

    /// Runs a plug-in in the host's namespace; what it answers is the next one's `prevResult`.
    fn run(&self, plugin: &str, command: &str, previous: Option<&Value>) -> Result<Value> {
        let config = self.configuration(plugin, previous).to_string();
        netns::inside(Some(&self.host), Sys::AsIs, || {
            self.run_here(plugin, command, &config)
        })
    }

    fn run_here(&self, plugin: &str, command: &str, config: &str) -> Result<Value> {
        let program = self.folder.join(plugin);
        let failed = |detail: String| Error::Program {
            program: format!("{} {command}", program.display()),
            detail,
        };
        let mut child = helper(&program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &self.name)
            .env("CNI_NETNS", self.netns_for(command))
            .env("CNI_IFNAME", &self.ifname)
            .env("CNI_PATH", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::sys(format!("run {}", program.display())))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it says why.
            let _ = stdin.write_all(config.as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(Error::sys(format!("run {}", program.display())))?;
        let said = String::from_utf8_lossy(&output.stdout);
        // An answer is JSON, an error too, with its words in "msg" and "details". DEL answers nothing.
        let answer: Value = serde_json::from_str(&said).unwrap_or(Value::Null);
        if output.status.success() {
            return Ok(answer);
        }
        let word = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let words = [word("msg"), word("details")].join(" ");
        match words.trim() {
            "" => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                Err(failed(format!("{} ({})", tail(&stderr, 3), output.status)))
            }
            words => Err(failed(words.into())),
        }
    }

    /// The pod's namespace, for a plug-in. For DEL nothing if there is none: the plug-ins take one that is not bound on
    /// its file, whoever was making it having been killed, for an error.
    fn netns_for(&self, command: &str) -> PathBuf {
        match command {
            "DEL" if netns::open(Some(&self.netns)).is_err() => PathBuf::new(),
            _ => netns::path(&self.netns),
        }
    }

    fn host_end(&self, ifname: &str) -> Place {
        Place {
            netns: Some(self.host.clone()),
            ifname: ifname.into(),
        }
    }

    fn pod_end(&self) -> Place {
        Place {
            netns: Some(self.netns.clone()),
            ifname: self.ifname.clone(),
        }
    }
}

/// Makes the network.
pub(super) fn add(network: &Network, links: &mut Links) -> Result<()> {
    let mut answers: Vec<Value> = Vec::new();
    for plugin in PLUGINS {
        answers.push(network.run(plugin, "ADD", answers.last())?);
    }
    let made = host_ifname(&answers[0]).ok_or_else(|| Error::Malformed {
        what: "the answer of the plug-in bridge".into(),
        detail: format!("it names no end of a pair at the host: {}", answers[0]),
    })?;
    links.rename(&network.host_end(&made), &network.host_ifname)?;
    let (pod, bridge) = (network.pod_end(), network.host_end(BRIDGE));
    let mac = |links: &mut Links, place: &Place| -> Result<_> {
        links.get(place)?.mac.ok_or_else(|| Error::Malformed {
            what: format!("the kernel's answer about {place}"),
            detail: "it has no Ethernet address".into(),
        })
    };
    let (pod_mac, bridge_mac) = (mac(links, &pod)?, mac(links, &bridge)?);
    links.neighbour(&pod, network.gateway, bridge_mac, true)?;
    links.neighbour(&bridge, network.address, pod_mac, true)?;
    links.bridge_entry(&network.host_end(&network.host_ifname), pod_mac)
}

/// The interface at the host that the plug-in made for the pod: the bridge and the pod's end are in the answer, too.
fn host_ifname(answer: &Value) -> Option<String> {
    let interfaces = answer["interfaces"].as_array()?;
    let is_it = |interface: &&Value| {
        let is_inside = interface["sandbox"]
            .as_str()
            .is_some_and(|path| !path.is_empty());
        !is_inside && interface["name"] != BRIDGE
    };
    let found = interfaces.iter().find(is_it)?;
    Some(found["name"].as_str()?.to_owned())
}

/// Takes it down, as far as it was made; doing it again is no error.
pub(super) fn del(network: &Network) -> Result<()> {
    let mut first_error = None;
    for plugin in PLUGINS.iter().rev() {
        if let Err(error) = network.run(plugin, "DEL", None) {
            first_error.get_or_insert(error);
        }
    }
    match fs::remove_dir_all(&network.data) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let path = network.data.display();
            return Err(Error::sys(format!("remove {path}"))(error));
        }
        _ => {}
    }
    first_error.map_or(Ok(()), Err)
}

/// Where the plug-ins are: the first folder that has all of them.
pub(super) fn folder() -> Option<PathBuf> {
    let has = |folder: &&&str| {
        let mut names = PLUGINS.iter().chain([&ADDRESSES]);
        names.all(|name| Path::new(folder).join(name).is_file())
    };
    FOLDERS.iter().find(has).map(PathBuf::from)
}

/// Whether this machine has what the plug-ins need.
///
/// # Errors
/// One sentence that says what to install.
pub(super) fn can_run() -> std::result::Result<(), String> {
    if folder().is_none() {
        return Err(format!(
            "there are no CNI plug-ins ({}, {ADDRESSES}) in {}; apt install containernetworking-plugins",
            PLUGINS.join(", "),
            FOLDERS.join(" or ")
        ));
    }
    match command::find("iptables") {
        Some(_) => Ok(()),
        None => Err(
            "the CNI plug-ins call iptables, which is not installed; apt install iptables".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network {
            name: "kbp-pod".into(),
            host: "kbp-pod-host".into(),
            netns: "kbp-pod-app".into(),
            ifname: "eth0".into(),
            host_ifname: "app".into(),
            gateway: Ipv4Addr::new(10, 91, 251, 1),
            address: Ipv4Addr::new(10, 91, 251, 2),
            folder: FOLDERS[0].into(),
            data: "/run/kbp-topo/pod.cni".into(),
        }
    }

    #[test]
    fn each_plug_in_is_told_what_the_one_before_made() {
        let bridge = network().configuration("bridge", None);
        assert_eq!(bridge["type"], "bridge");
        let range = &bridge["ipam"]["ranges"][0][0];
        assert_eq!(
            (&range["subnet"], &range["rangeStart"]),
            (&json!("10.91.251.0/24"), &json!("10.91.251.2"))
        );
        assert!(bridge.get("prevResult").is_none());
        let made = json!({ "ips": [] });
        let portmap = network().configuration("portmap", Some(&made));
        assert_eq!(portmap["prevResult"], made);
        assert_eq!(
            portmap["runtimeConfig"]["portMappings"][0]["hostPort"],
            7_700
        );
        assert_eq!(portmap["cniVersion"], "0.4.0");
    }

    #[test]
    fn the_hosts_end_is_neither_the_bridge_nor_inside() {
        let answer = json!({ "interfaces": [
            { "name": "cni0" },
            { "name": "veth1c9e", "mac": "02:00:00:00:00:01" },
            { "name": "eth0", "sandbox": "/run/netns/kbp-pod-app" },
        ] });
        assert_eq!(host_ifname(&answer).as_deref(), Some("veth1c9e"));
        assert_eq!(
            host_ifname(&json!({ "interfaces": [{ "name": "cni0" }] })),
            None
        );
        assert_eq!(host_ifname(&Value::Null), None);
    }
}
