// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other features of the kernel that want the NAPI instances of an interface as well, and what a person should know of
//! that: threaded NAPI, busy-polling sockets, interrupts put off.
//!
//! What becomes of them is decided in the kernel module (docs/decisions/012-companions.md); here it is said. Setting
//! them is not here; see [`crate::threaded`] and [`crate::busy_poll`].

use crate::error::Error;
use crate::host::Host;
use crate::model::Napi;
use crate::napi_netlink::{NapiInfo, Netdev, Threading};
use crate::netdev::Interface;
use crate::uapi::Mode;

/// Refuses an interface whose NAPI instances the user has given threads of their own.
pub(crate) fn check(interface: &Interface) -> Result<(), Error> {
    let name = &interface.name;
    match interface.threaded {
        Some(true) => Err(Error::Conflict(format!(
            "threaded NAPI is on for {name}, and one of both can poll it; turn it off first: \
             echo 0 > /sys/class/net/{name}/threaded"
        ))),
        _ => Ok(()),
    }
}

/// What a person should know before the NAPI instances of an interface are attached in this mode.
pub(crate) fn notes(host: &Host, interface: &Interface, mode: Mode) -> Vec<String> {
    let name = &interface.name;
    let is_on = |file: &str| {
        let value = host.read_optional(file).ok().flatten();
        value.is_some_and(|value| value.trim() != "0")
    };
    let mut notes = Vec::new();
    let timers = ["gro_flush_timeout", "napi_defer_hard_irqs"];
    if timers
        .iter()
        .any(|timer| is_on(&format!("sys/class/net/{name}/{timer}")))
    {
        let timers = format!("{name}: gro_flush_timeout and napi_defer_hard_irqs are kept");
        notes.push(match mode {
            Mode::Busy => format!("{timers} and have no effect while the poller polls"),
            _ => format!(
                "{timers}: while the poller sleeps they put interrupts off, and packets wait as long"
            ),
        });
    }
    if ["busy_read", "busy_poll"]
        .iter()
        .any(|sysctl| is_on(&format!("proc/sys/net/core/{sysctl}")))
    {
        let sockets = "sockets busy-poll here (net.core.busy_read, busy_poll)";
        notes.push(match mode {
            Mode::Busy => {
                format!("{sockets}: the poller has {name}, they wait for what it receives")
            }
            _ => format!("{sockets}: while the poller sleeps they take {name} and poll it"),
        });
    }
    notes
}

/// The attached instances that a thread of the user's serves instead of the poller, a sentence each. `own` is the cookie
/// of the caller's network namespace; into others it does not look.
pub fn taken(host: &Host, napis: &[Napi], own: u64) -> Vec<String> {
    let lost = |napi: &&Napi| {
        napi.mode_active == Mode::Softirq && napi.netns_cookie.is_none_or(|cookie| cookie == own)
    };
    let lost: Vec<&Napi> = napis.iter().filter(lost).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    // The list has to come out whether the kernel has an answer or not.
    let told = match host.is_system().then(Netdev::open) {
        Some(Ok(Some(mut family))) => family.napis().unwrap_or_default(),
        _ => Vec::new(),
    };
    let sentences = lost.iter().filter_map(|napi| sentence(host, napi, &told));
    sentences.collect()
}

fn sentence(host: &Host, napi: &Napi, told: &[NapiInfo]) -> Option<String> {
    let ifname = napi.ifname.as_deref()?;
    let info = told.iter().find(|info| info.id == napi.napi_id);
    let label = napi.label();
    if host.interface(ifname).ok()?.threaded == Some(true) {
        return Some(format!(
            "threaded NAPI was switched on for {ifname}, so a thread of the kernel serves {label} and not the poller; \
             the poller has it again after: echo 0 > /sys/class/net/{ifname}/threaded"
        ));
    }
    let threading = info.and_then(|info| info.threading)?;
    (threading != Threading::Off).then(|| {
        format!(
            "NAPI instance {} was set to {threading}, so a thread of the kernel serves {label} and not the poller, \
             until that is switched off (netdev netlink, napi-set)",
            napi.napi_id
        )
    })
}
