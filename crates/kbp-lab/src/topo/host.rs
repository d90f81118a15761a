// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a plan has to know of the machine: its network cards and their settings, where it is run from, what a container
//! can be made of. Reads only.
//!
//! Not here: whether a topology can be made ([`super::check`]).

use std::fs;
use std::path::{Path, PathBuf};

use crate::command;

use super::cni;
use super::error::{Error, Result};
use super::kind::Kind;
use super::link::{Links, Mac, Place};
use super::netns;
use super::step::Setting;
use super::Spec;

/// Folders of the root file system that a container sees, read-only. Those that are links are links there, too.
const SYSTEM_FOLDERS: [&str; 8] = [
    "bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr",
];

/// A network card.
#[derive(Debug, Clone)]
pub(super) struct NicFacts {
    pub mac: Mac,
    pub up: bool,
    /// Its settings for IPv4 and IPv6 that can be read.
    pub settings: Vec<Setting>,
}

/// What a container is made of.
#[derive(Debug, Clone)]
pub(super) struct ContainerFacts {
    pub runtime: PathBuf,
    /// Whether the root file system can be exchanged by pivot_root(2), which an initramfs can't.
    pub pivot: bool,
    /// This program.
    pub program: PathBuf,
    pub folders: Vec<String>,
    /// Name and target.
    pub links: Vec<(String, String)>,
}

/// What a plan has to know.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub nics: [NicFacts; 2],
    /// The caller's network namespace.
    pub home: String,
    /// Whether br_netfilter is in the kernel.
    pub bridge_netfilter: bool,
    pub container: ContainerFacts,
    /// Where CNI plug-ins are, or would be.
    pub cni: PathBuf,
}

/// Looks at the machine, as far as this kind of topology needs it.
pub(super) fn observe(spec: &Spec) -> Result<Facts> {
    let unused = || NicFacts {
        mac: Mac([0; 6]),
        up: false,
        settings: Vec::new(),
    };
    let nics = match spec.kind {
        Kind::Nic => [nic(&spec.nics[0])?, nic(&spec.nics[1])?],
        _ => [unused(), unused()],
    };
    Ok(Facts {
        nics,
        home: netns::own_identity()?,
        bridge_netfilter: bridge_netfilter_loaded(),
        container: container()?,
        cni: cni::folder().unwrap_or_else(|| "/usr/lib/cni".into()),
    })
}

/// Whether br_netfilter is loaded or built in.
pub(super) fn bridge_netfilter_loaded() -> bool {
    Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
}

/// The program that runs containers: crun, or runc where crun is not there or would refuse this machine.
///
/// # Errors
/// One sentence that says why there is none, and what to install.
pub(super) fn runtime() -> std::result::Result<PathBuf, String> {
    let mixed = cgroups_are_mixed();
    let crun = command::find("crun").filter(|_| !mixed);
    crun.or_else(|| command::find("runc"))
        .ok_or_else(|| match mixed {
            true => "runc is not installed, and crun does not take cgroups of both versions with controllers in both; \
                     apt install runc"
                .into(),
            false => "neither crun nor runc is installed; apt install crun".into(),
        })
}

/// Whether version 1 cgroups are used, and version 2 beside them with controllers of its own.
fn cgroups_are_mixed() -> bool {
    fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers")
        .is_ok_and(|controllers| !controllers.trim().is_empty())
}

fn nic(ifname: &str) -> Result<NicFacts> {
    let place = Place {
        netns: None,
        ifname: ifname.into(),
    };
    let link = Links::default()
        .get(&place)
        .map_err(|error| match error.is_gone() {
            true => Error::Argument(format!(
                "there is no network interface {ifname} here; name two with --nics A,B"
            )),
            false => error,
        })?;
    let mut settings = Vec::new();
    for family in ["ipv4", "ipv6"] {
        settings.extend(settings_of(family, ifname)?);
    }
    Ok(NicFacts {
        mac: link
            .mac
            .ok_or_else(|| Error::Argument(format!("{ifname} has no Ethernet address")))?,
        up: link.up,
        settings,
    })
}

/// The settings of an interface that can be read, by name. A kernel without IPv6 has none of that family.
fn settings_of(family: &str, ifname: &str) -> Result<Vec<Setting>> {
    let folder = format!("net/{family}/conf/{ifname}");
    let Ok(entries) = fs::read_dir(Path::new("/proc/sys").join(&folder)) else {
        return Ok(Vec::new());
    };
    let mut settings = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::sys(format!("read /proc/sys/{folder}")))?;
        let Ok(value) = fs::read_to_string(entry.path()) else {
            continue;
        };
        settings.push(Setting {
            path: format!("{folder}/{}", entry.file_name().to_string_lossy()),
            value: value.trim().to_owned(),
            optional: true,
            original: None,
        });
    }
    settings.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(settings)
}

fn container() -> Result<ContainerFacts> {
    let mut facts = ContainerFacts {
        runtime: runtime().unwrap_or_else(|_| "crun".into()),
        pivot: !root_is_initramfs()?,
        program: std::env::current_exe().map_err(Error::sys("find this program's file"))?,
        folders: Vec::new(),
        links: Vec::new(),
    };
    for name in SYSTEM_FOLDERS {
        let path = Path::new("/").join(name);
        if let Ok(target) = fs::read_link(&path) {
            let target = target.to_string_lossy().into_owned();
            facts.links.push((name.into(), target));
        } else if path.is_dir() {
            facts.folders.push(name.into());
        }
    }
    Ok(facts)
}

/// The root of an initramfs is the first mount of all and is called "rootfs" for good.
fn root_is_initramfs() -> Result<bool> {
    let path = "/proc/self/mounts";
    let text = fs::read_to_string(path).map_err(Error::sys(format!("read {path}")))?;
    let mut roots = text
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|words| words.get(1) == Some(&"/"));
    Ok(roots
        .next_back()
        .is_some_and(|words| words.get(2) == Some(&"rootfs")))
}
