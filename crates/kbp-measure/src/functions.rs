// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often the kernel calls chosen functions: why one path takes longer than another.
//!
//! Every function gets a kprobe event of ours, whose hits the kernel counts by itself (`kprobe_profile`), so no buffer
//! can overflow. A count is for explaining: the probes cost time, so a counted run is in no result.
//! Not here: functions that a live patch replaces. A probe there would be ignored, and is refused.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use kbp_core::host::TRACEFS;
use serde::Serialize;

use crate::error::{Error, Result};

/// Group of our events; a name that nothing else has.
const GROUP: &str = "kbp_functions";

/// Functions on the way of a UDP packet that tell the paths of virtual networks apart: routing, netfilter, and one for
/// each traversal of a layer (paper 002, section 5).
pub const NETWORK: [&str; 16] = [
    "udp_sendmsg",
    "ip_output",
    "fib_table_lookup",
    "nf_hook_slow",
    "__dev_queue_xmit",
    "dev_hard_start_xmit",
    "process_backlog",
    "__netif_receive_skb_core",
    "br_handle_frame",
    "br_forward",
    "ip_rcv",
    "ip_forward",
    "nft_do_chain",
    "vxlan_xmit",
    "vxlan_rcv",
    "udp_queue_rcv_skb",
];

/// Calls of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// The function, as it was asked for.
    pub function: String,
    /// The kernel's symbol for it (compilers append `.constprop.0` and the like); `null` when this kernel has no
    /// function of that name that can be probed: it may be inlined, or its module is not loaded.
    pub symbol: Option<String>,
    /// Calls on all CPUs.
    pub calls: u64,
    /// Calls that the probe could not count, since it was busy; 0 in a good count.
    pub missed: u64,
}

/// Probes that count. Dropping it removes them.
#[derive(Debug)]
pub struct Counter {
    tracefs: PathBuf,
    functions: Vec<(String, Option<String>)>,
}

impl Counter {
    /// Puts a probe on each function; they count from now on.
    ///
    /// # Errors
    /// When tracefs is not mounted, another count is under way, or the kernel refuses a probe.
    pub fn start<S: AsRef<str>>(functions: &[S]) -> Result<Self> {
        let tracefs = PathBuf::from(TRACEFS);
        let list = tracefs.join("available_filter_functions");
        let available = fs::read_to_string(&list)
            .map_err(|e| Error::file("read (is tracefs mounted?)", &list, e))?;
        if tracefs.join("events").join(GROUP).exists() {
            return Err(Error::Invalid(format!(
                "kprobe events of the group {GROUP} exist: another count is under way, or one was killed; \
                 `echo 0 > {TRACEFS}/events/{GROUP}/enable; echo '-:{GROUP}/' >> {TRACEFS}/kprobe_events` removes them"
            )));
        }
        let resolve = |name: &S| (name.as_ref().to_owned(), symbol(&available, name.as_ref()));
        let counter = Self {
            tracefs,
            functions: functions.iter().map(resolve).collect(),
        };
        for (place, symbol) in counter.probes() {
            counter.command(&format!("p:{GROUP}/f{place} {symbol}"))?;
        }
        if counter.probes().next().is_some() {
            counter.enable("1")?;
        }
        Ok(counter)
    }

    /// What was counted until now, in the order in which it was asked for.
    ///
    /// # Errors
    /// When the kernel's account can't be read.
    pub fn read(&self) -> Result<Vec<Calls>> {
        let path = self.tracefs.join("kprobe_profile");
        let profile = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
        let functions = self.functions.iter().enumerate();
        functions
            .map(|(place, (function, symbol))| {
                let (calls, missed) = match symbol {
                    Some(_) => hits(&profile, &format!("f{place}")).ok_or_else(|| {
                        Error::Invalid(format!(
                            "{} does not show the probe of {function}",
                            path.display()
                        ))
                    })?,
                    None => (0, 0),
                };
                let (function, symbol) = (function.clone(), symbol.clone());
                Ok(Calls {
                    function,
                    symbol,
                    calls,
                    missed,
                })
            })
            .collect()
    }

    fn probes(&self) -> impl Iterator<Item = (usize, &String)> {
        let functions = self.functions.iter().enumerate();
        functions.filter_map(|(place, (_, symbol))| Some((place, symbol.as_ref()?)))
    }

    fn command(&self, words: &str) -> Result<()> {
        let path = self.tracefs.join("kprobe_events");
        append(&path, words)
            .map_err(|e| Error::sys(format!("write '{words}' to {}", path.display()), e))
    }

    fn enable(&self, value: &str) -> Result<()> {
        let path = self.tracefs.join("events").join(GROUP).join("enable");
        fs::write(&path, value).map_err(|e| Error::file("write", &path, e))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // What fails here leaves probes that count and do nothing else; the next `start` says how to remove them.
        let _ = self.enable("0");
        for (place, _) in self.probes() {
            let _ = self.command(&format!("-:{GROUP}/f{place}"));
        }
    }
}

fn append(path: &Path, words: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(words.as_bytes())
}

/// The symbol of a function in the kernel's list: the name itself, or with a suffix of the compiler's.
fn symbol(available: &str, name: &str) -> Option<String> {
    let symbols = available
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut suffixed = None;
    for symbol in symbols {
        match symbol.strip_prefix(name) {
            Some("") => return Some(symbol.into()),
            Some(suffix) if suffix.starts_with('.') && !suffix.starts_with(".cold") => {
                suffixed = Some(symbol.to_owned());
            }
            _ => {}
        }
    }
    suffixed
}

/// Hits and misses of an event in `kprobe_profile`.
fn hits(profile: &str, event: &str) -> Option<(u64, u64)> {
    profile.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == event).then_some(())?;
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVAILABLE: &str =
        "ip_rcv\nip_rcv_finish\n__netif_receive_skb_core.constprop.0\nbr_forward [bridge]\n\
                             ip_output.cold\n";

    #[test]
    fn a_symbol_is_the_name_or_the_name_with_a_suffix() {
        let found = |name| symbol(AVAILABLE, name);
        assert_eq!(found("ip_rcv").as_deref(), Some("ip_rcv"));
        assert_eq!(
            found("__netif_receive_skb_core").as_deref(),
            Some("__netif_receive_skb_core.constprop.0")
        );
        assert_eq!(found("br_forward").as_deref(), Some("br_forward"));
        assert_eq!(found("ip_output"), None, "a cold part is not the function");
        assert_eq!(found("ip"), None);
    }

    #[test]
    fn hits_are_those_of_the_event() {
        let profile = "  f1                          12               0\n  f10                          7               3\n";
        assert_eq!(hits(profile, "f1"), Some((12, 0)));
        assert_eq!(hits(profile, "f10"), Some((7, 3)));
        assert_eq!(hits(profile, "f2"), None);
    }
}
