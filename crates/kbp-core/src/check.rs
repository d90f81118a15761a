// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Can the module work on this kernel? Every condition with its answer and, if not, the reason.
//!
//! Nothing is changed and nothing is loaded here. The kernel checks again when the module is
//! loaded; this says before, and in words, what it would find.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::host::{Host, HostError};
use crate::livepatch::Livepatch;
use crate::modfile::{self, ModuleFile, NeededSymbol};
use crate::module::{self, NAME};
use crate::page_lists;
use crate::procfs::Symbol;

/// The functions that the module replaces, all in the kernel image. A module file that names its
/// own ones (`kbp_replaces` in its `.modinfo`) is believed instead.
pub const REPLACED_FUNCTIONS: &[&str] =
    &["__napi_schedule", "__napi_schedule_irqoff", "napi_watchdog"];

/// Where tracefs is mounted, newer place first.
const TRACEFS: &[&str] = &["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// Whether DAMON gathers statistics, with a thread of its own.
const DAMON_STAT: &str = "sys/module/damon_stat/parameters/enabled";

/// The answer to one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Pass,
    /// It could not be found out.
    Unknown,
    /// It does not hold: the module can't work.
    Fail,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What is asked.
    pub condition: String,
    /// The answer.
    pub verdict: Verdict,
    /// What was found, or why it is not so.
    pub detail: String,
}

/// All conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The running kernel.
    pub kernel: String,
    /// Whether no condition failed.
    pub possible: bool,
    /// The conditions in the order in which they matter.
    pub items: Vec<Item>,
    /// What else on this host makes packets late, a poller or none, with the way to end it. No condition.
    pub remarks: Vec<String>,
}

impl Report {
    /// The details of the conditions that failed, as one sentence.
    pub fn reason(&self) -> String {
        let failed = self
            .items
            .iter()
            .filter(|item| item.verdict == Verdict::Fail);
        failed
            .map(|item| item.detail.as_str())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn item(condition: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Item {
    Item {
        condition: condition.into(),
        verdict,
        detail: detail.into(),
    }
}

fn judge(
    condition: impl Into<String>,
    holds: bool,
    good: impl Into<String>,
    bad: impl Into<String>,
) -> Item {
    let (verdict, detail) = if holds {
        (Verdict::Pass, good.into())
    } else {
        (Verdict::Fail, bad.into())
    };
    Item {
        condition: condition.into(),
        verdict,
        detail,
    }
}

/// Ask every condition; with a module file also those that depend on the file.
pub fn check(host: &Host, module: Option<&Path>) -> Result<Report, Error> {
    let file = module.map(modfile::read).transpose()?;
    let kernel = host.kernel_release()?;
    let mut items = vec![livepatch_item(host), command_line_item(host)?];
    items.extend(file.as_ref().map(|file| release_item(file, &kernel)));
    items.extend(module_loading_items(host, file.as_ref()));
    let replaced = replaced_functions(file.as_ref());
    let needed: &[NeededSymbol] = file
        .as_ref()
        .map(|file| file.needs.as_slice())
        .unwrap_or_default();
    items.extend(symbol_items(host, &replaced, needed)?);
    items.extend(trace_items(host, &replaced)?);
    items.extend(conflict_items(&host.livepatches()?, &replaced));
    let possible = items.iter().all(|item| item.verdict != Verdict::Fail);
    Ok(Report {
        kernel,
        possible,
        items,
        remarks: [damon_remark(host), page_lists_remark(host)]
            .into_iter()
            .flatten()
            .collect(),
    })
}

/// The statistics of DAMON, which Debian's newest kernels gather from the start. Only root may read whether they are on.
fn damon_remark(host: &Host) -> Option<String> {
    let enabled = host.read_trimmed(DAMON_STAT).ok()?;
    (enabled == "Y").then(|| format!(
        "damon_stat is on: its thread, kdamond, takes some CPU for a millisecond or more at a time, from the programs that \
         packets are for as well; to end it: echo N > /{DAMON_STAT}, or damon_stat.enabled=N on the kernel command line"
    ))
}

fn page_lists_remark(host: &Host) -> Option<String> {
    page_lists::pages_at_once(host)
        .ok()
        .flatten()
        .map(page_lists::remark)
}

fn replaced_functions(file: Option<&ModuleFile>) -> Vec<String> {
    match file {
        Some(file) if !file.replaces.is_empty() => file.replaces.clone(),
        _ => REPLACED_FUNCTIONS
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    }
}

fn livepatch_item(host: &Host) -> Item {
    judge(
        "live patching",
        host.has_livepatch(),
        "the kernel has it",
        "the kernel was built without live patching (CONFIG_LIVEPATCH)",
    )
}

fn command_line_item(host: &Host) -> Result<Item, HostError> {
    Ok(judge(
        "kernel command line",
        !module::is_switched_off(host)?,
        "does not switch kbp off",
        "kbp.enable=0 on the kernel command line keeps kbp out",
    ))
}

fn release_item(file: &ModuleFile, kernel: &str) -> Item {
    let condition = "module built for this kernel";
    match &file.release {
        Some(release) => judge(
            condition,
            release == kernel,
            release,
            format!("it was built for {release}, but {kernel} runs"),
        ),
        None => item(
            condition,
            Verdict::Fail,
            "the file does not say which kernel it was built for",
        ),
    }
}

fn module_loading_items(host: &Host, file: Option<&ModuleFile>) -> Vec<Item> {
    let disabled = host
        .sysctl("kernel/modules_disabled")
        .is_ok_and(|value| value == "1");
    let mut items = vec![judge(
        "loading of modules",
        !disabled,
        "allowed",
        "switched off until the next boot (kernel.modules_disabled = 1)",
    )];
    let lockdown = host
        .read_trimmed("sys/kernel/security/lockdown")
        .unwrap_or_default();
    let locked = !lockdown.is_empty() && !lockdown.contains("[none]");
    let enforced = host
        .read_trimmed("sys/module/module/parameters/sig_enforce")
        .is_ok_and(|value| value == "Y");
    let condition = "module signature";
    items.push(match (locked || enforced, file.map(|file| file.signed)) {
        (false, _) => item(condition, Verdict::Pass, "not required"),
        (true, Some(false)) => item(
            condition,
            Verdict::Fail,
            "the kernel requires one and the module has none",
        ),
        (true, Some(true)) => item(
            condition,
            Verdict::Unknown,
            "required; whether the kernel trusts the key shows at load",
        ),
        (true, None) => item(
            condition,
            Verdict::Unknown,
            "required; name the module file with --module to check it",
        ),
    });
    items
}

fn symbol_items(
    host: &Host,
    replaced: &[String],
    needed: &[NeededSymbol],
) -> Result<Vec<Item>, Error> {
    let needed = needed.iter().filter(|symbol| symbol.object == "vmlinux");
    let needed: Vec<&NeededSymbol> = needed.collect();
    let names: Vec<&str> = replaced
        .iter()
        .map(String::as_str)
        .chain(needed.iter().map(|symbol| symbol.name.as_str()))
        .collect();
    let (symbols, similar) = (host.symbols(&names)?, similar_symbols(host, &names)?);
    let mut items: Vec<Item> = replaced
        .iter()
        .map(|name| symbol_item("replaced function", name, 0, &symbols, &similar))
        .collect();
    items.extend(needed.iter().map(|symbol| {
        symbol_item(
            "needed symbol",
            &symbol.name,
            symbol.position as usize,
            &symbols,
            &similar,
        )
    }));
    Ok(items)
}

/// Names that a compiler made from one of ours (`name.constprop.0`), by our name.
fn similar_symbols(host: &Host, names: &[&str]) -> Result<HashMap<String, String>, HostError> {
    host.lookup_lines(
        "proc/kallsyms",
        |line, found: &mut HashMap<String, String>| {
            let symbol = line.split_whitespace().nth(2).unwrap_or_default();
            if let Some((stem, _)) = symbol.split_once('.') {
                if names.contains(&stem) {
                    found.insert(stem.to_owned(), symbol.to_owned());
                }
            }
        },
    )
}

fn symbol_item(
    what: &str,
    name: &str,
    position: usize,
    symbols: &HashMap<String, Vec<Symbol>>,
    similar: &HashMap<String, String>,
) -> Item {
    let all = symbols.get(name).map(Vec::as_slice).unwrap_or_default();
    let count = all.iter().filter(|symbol| symbol.module.is_none()).count();
    let condition = format!("{what} {name}");
    match (count, position) {
        (0, _) => match similar.get(name) {
            Some(other) => item(
                condition,
                Verdict::Fail,
                format!("the compiler made {other} of {name}, which has other arguments"),
            ),
            None => item(
                condition,
                Verdict::Fail,
                format!("{name} is not in this kernel"),
            ),
        },
        (1, 0) => item(condition, Verdict::Pass, "found, unique"),
        (count, 0) => item(
            condition,
            Verdict::Fail,
            format!("{name} is there {count} times; which one is meant is not known"),
        ),
        (count, position) => judge(
            condition,
            position <= count,
            format!("found, {position} of {count}"),
            format!("{name} is there {count} times, but number {position} is needed"),
        ),
    }
}

fn trace_items(host: &Host, replaced: &[String]) -> Result<Vec<Item>, Error> {
    let condition = |name: &str| format!("replaced function {name} is traceable");
    let file = TRACEFS
        .iter()
        .map(|base| format!("{base}/available_filter_functions"))
        .find(|file| host.exists(file));
    let unknown = |why: &str| {
        replaced
            .iter()
            .map(|name| item(condition(name), Verdict::Unknown, why))
            .collect()
    };
    let Some(file) = file else {
        return Ok(unknown("tracefs is not mounted or may not be read: mount -t tracefs tracefs /sys/kernel/tracing"));
    };
    let traceable: Vec<String> = match host.lookup_lines(&file, |line, found: &mut Vec<String>| {
        // A function of a module has "[module]" behind its name.
        if replaced.iter().any(|name| name == line) {
            found.push(line.to_owned());
        }
    }) {
        Ok(found) => found,
        Err(error) => return Ok(unknown(&error.to_string())),
    };
    let judged = replaced.iter().map(|name| {
        let bad = format!(
            "{name} can't be traced by ftrace (notrace or inlined), so it can't be replaced"
        );
        judge(
            condition(name),
            traceable.contains(name),
            "ftrace can hook it",
            bad,
        )
    });
    Ok(judged.collect())
}

fn conflict_items(livepatches: &[Livepatch], replaced: &[String]) -> Vec<Item> {
    let others = livepatches
        .iter()
        .filter(|livepatch| livepatch.name != NAME);
    let mut conflicts = Vec::new();
    for livepatch in others {
        let prefix = |name: &String| format!("vmlinux/{name},");
        let both = replaced.iter().filter(|name| {
            livepatch
                .functions
                .iter()
                .any(|f| f.starts_with(&prefix(name)))
        });
        conflicts.extend(both.map(|name| format!("{} replaces {name} too", livepatch.name)));
        if livepatch.transition {
            conflicts.push(format!("{} is in transition", livepatch.name));
        }
    }
    vec![judge(
        "no other live patch in the way",
        conflicts.is_empty(),
        "none",
        conflicts.join(", "),
    )]
}
