// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading a file with a [`crate::setup`], which may have been written by hand: whatever is wrong with it is told with
//! its line. Whether the machine has what the file names is not asked here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::card::Card;
use crate::cpulist::{self, CPU_MAX};
use crate::cstates::MAX_CSTATE_LATENCY_US;
use crate::model::PollerSpec;
use crate::netdev::is_ifname;
use crate::service::{Service, CLASS, MAX_WAKE_LATENCY_US};
use crate::setup::{Attachment, SetupError, VERSION};
use crate::uapi::{Backlog, Freq, Mode, Owns, PollClass};

/// What `kbp attach` takes for the backlog of a CPU, which here is a key of its poller.
const BACKLOG: &str = "backlog";
/// Limits of the netlink family.
const BUDGET: std::ops::RangeInclusive<u32> = 1..=64;
const WATCHDOG_MS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Something of a file, with the line where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The line, from 1.
    pub line: usize,
    /// What stands there.
    pub it: T,
}

/// A setup as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupFile {
    /// The file, as a person calls it.
    pub name: String,
    /// The pollers.
    pub pollers: Vec<At<PollerSpec>>,
    /// What is attached to them.
    pub attachments: Vec<At<Attachment>>,
}

/// Of a file of another version nothing else is looked at.
#[derive(Deserialize)]
struct Head {
    version: Option<Spanned<toml::Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(rename = "version")]
    _version: u64,
    #[serde(default)]
    poller: Vec<Spanned<RawPoller>>,
    #[serde(default)]
    attach: Vec<Spanned<RawAttachment>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPoller {
    cpu: Spanned<u32>,
    owns: Option<Spanned<String>>,
    priority: Option<Spanned<String>>,
    budget: Option<Spanned<u32>>,
    watchdog_ms: Option<Spanned<u32>>,
    backlog: Option<Spanned<String>>,
    freq: Option<Spanned<String>>,
    freq_shared: Option<bool>,
    max_cstate_latency_us: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAttachment {
    netns: Option<Spanned<String>>,
    device: Spanned<String>,
    mac: Option<Spanned<String>>,
    bus: Option<Spanned<String>>,
    queues: Option<Spanned<String>>,
    cpus: Spanned<String>,
    mode: Option<Spanned<String>>,
    cpu_budget: Option<Spanned<String>>,
    max_wake_latency_us: Option<Spanned<u32>>,
    class: Option<Spanned<String>>,
    irq: Option<bool>,
    xps: Option<bool>,
}

/// Read a setup from a file.
pub fn read(path: &Path) -> Result<SetupFile, SetupError> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&path.display().to_string(), &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SetupError::Missing {
            path: path.to_owned(),
        }),
        Err(source) => Err(SetupError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

/// Read a setup from a text; `name` is how a person calls where it comes from.
pub fn parse(name: &str, text: &str) -> Result<SetupFile, SetupError> {
    let source = Source { name, text };
    source.check_version()?;
    let raw: RawFile = toml::from_str(text).map_err(|error| source.damaged(&error))?;
    let mut file = SetupFile {
        name: name.into(),
        pollers: Vec::new(),
        attachments: Vec::new(),
    };
    let mut cpus = BTreeMap::new();
    for raw in raw.poller {
        let at = source.line(&raw.get_ref().cpu.span());
        let poller = source.poller(raw.get_ref())?;
        if let Some(first) = cpus.insert(poller.cpu, at) {
            let words = format!(
                "the poller of CPU {} is there twice, first in line {first}; keep one",
                poller.cpu
            );
            return Err(source.wrong_in(at, words));
        }
        file.pollers.push(At {
            line: source.line(&raw.span()),
            it: poller,
        });
    }
    for raw in raw.attach {
        file.attachments.push(At {
            line: source.line(&raw.span()),
            it: source.attachment(raw.get_ref())?,
        });
    }
    source.check_overlaps(&file.attachments)?;
    Ok(file)
}

/// A text and how it is called.
struct Source<'s> {
    name: &'s str,
    text: &'s str,
}

impl Source<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(span.start);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong_in(&self, line: usize, what: impl Into<String>) -> SetupError {
        SetupError::Wrong {
            file: self.name.into(),
            line,
            what: what.into(),
        }
    }

    fn wrong<T>(&self, at: &Spanned<T>, what: impl Into<String>) -> SetupError {
        self.wrong_in(self.line(&at.span()), what)
    }

    /// What the TOML library says of a text, on one line.
    fn damaged(&self, error: &toml::de::Error) -> SetupError {
        let line = error.span().map_or(1, |span| self.line(&span));
        let words: Vec<&str> = error.message().lines().map(str::trim).collect();
        self.wrong_in(line, words.join("; "))
    }

    fn check_version(&self) -> Result<(), SetupError> {
        let head: Head = toml::from_str(self.text).map_err(|error| self.damaged(&error))?;
        let way_out = format!("this kbp reads version {VERSION}");
        let Some(version) = head.version else {
            let words =
                format!("the file does not say its version; {way_out}: put `version = {VERSION}` at its top");
            return Err(self.wrong_in(1, words));
        };
        match version.get_ref().as_integer() {
            Some(number) if number == VERSION as i64 => Ok(()),
            _ => {
                let words = format!(
                    "version {} is not known; {way_out}. Use the kbp that wrote the file, or write it anew with \
                     `kbp save`",
                    version.get_ref()
                );
                Err(self.wrong(&version, words))
            }
        }
    }

    fn number(
        &self,
        at: &Spanned<u32>,
        limits: std::ops::RangeInclusive<u32>,
        what: &str,
    ) -> Result<u32, SetupError> {
        let (number, first, last) = (*at.get_ref(), limits.start(), limits.end());
        match limits.contains(&number) {
            true => Ok(number),
            false => Err(self.wrong(at, format!("{what} {number} is not from {first} to {last}"))),
        }
    }

    fn name_of<T: Copy + std::fmt::Display>(
        &self,
        at: &Spanned<String>,
        what: &str,
        all: &[T],
    ) -> Result<T, SetupError> {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        let found = names.iter().position(|name| name == at.get_ref());
        found.map(|at| all[at]).ok_or_else(|| {
            let (text, names) = (at.get_ref(), names.join(", "));
            self.wrong(
                at,
                format!("{what} '{text}' is not known; it is one of: {names}"),
            )
        })
    }

    fn poller(&self, raw: &RawPoller) -> Result<PollerSpec, SetupError> {
        let number = |at: &Option<Spanned<u32>>, limits, what| match at {
            Some(at) => self.number(at, limits, what).map(Some),
            None => Ok(None),
        };
        let owns = raw.owns.as_ref();
        let owns = owns.map(|at| self.name_of(at, "owns", Owns::ALL));
        let backlog = raw.backlog.as_ref();
        let backlog = backlog.map(|at| self.name_of(at, "backlog", Backlog::ALL));
        let freq = raw.freq.as_ref();
        let freq = freq.map(|at| self.name_of(at, "freq", Freq::ALL));
        let schedule = raw.priority.as_ref().map(|at| {
            let read = at.get_ref().parse();
            read.map_err(|words: String| self.wrong(at, format!("priority {words}")))
        });
        Ok(PollerSpec {
            cpu: self.number(&raw.cpu, 0..=CPU_MAX, "CPU")?,
            owns: owns.transpose()?,
            schedule: schedule.transpose()?,
            budget: number(&raw.budget, BUDGET, "budget")?,
            watchdog_ms: number(&raw.watchdog_ms, WATCHDOG_MS, "watchdog_ms")?,
            backlog: backlog.transpose()?,
            freq: freq.transpose()?,
            freq_shared: raw.freq_shared,
            max_cstate_latency_us: number(
                &raw.max_cstate_latency_us,
                MAX_CSTATE_LATENCY_US,
                "max_cstate_latency_us",
            )?,
            deep_exit_us: None,
        })
    }

    fn attachment(&self, raw: &RawAttachment) -> Result<Attachment, SetupError> {
        let numbers = |at: &Spanned<String>, what: &str| {
            let read = cpulist::numbers(at.get_ref());
            read.map_err(|words| self.wrong(at, format!("{what}: {words}")))
        };
        let queues = match &raw.queues {
            Some(at) if at.get_ref() != "all" => numbers(at, "queues")?,
            _ => Vec::new(),
        };
        let device = self.device(&raw.device, raw.queues.is_some())?;
        Ok(Attachment {
            netns: self.netns(raw.netns.as_ref())?,
            device,
            card: self.card(raw)?,
            queues,
            cpus: numbers(&raw.cpus, "cpus")?,
            service: self.service(raw)?,
            irq: raw.irq.unwrap_or(true),
            xps: raw.xps.unwrap_or(true),
        })
    }

    /// How an attachment is to be served; without a mode or a class that is what `kbp attach` takes.
    fn service(&self, raw: &RawAttachment) -> Result<Option<Service>, SetupError> {
        let mode = raw.mode.as_ref();
        let mode = mode.map(|at| self.name_of(at, "mode", &Service::modes()));
        let mode = mode.transpose()?;
        let budget = raw.cpu_budget.as_ref().map(|at| {
            let read = at.get_ref().parse();
            read.map_err(|words: String| self.wrong(at, format!("cpu_budget: {words}")))
        });
        let latency = raw.max_wake_latency_us.as_ref();
        let latency = latency.map(|at| self.number(at, MAX_WAKE_LATENCY_US, "max_wake_latency_us"));
        let class = raw.class.as_ref();
        let class = class.map(|at| self.name_of(at, "class", PollClass::ALL));
        let class = class.transpose()?;
        let service = Service {
            class: class.unwrap_or(CLASS),
            cpu_budget: budget.transpose()?,
            max_wake_latency_us: latency.transpose()?,
            ..Service::from(mode.unwrap_or(Mode::Busy))
        };
        match service.refusal("cpu_budget", "max_wake_latency_us") {
            Some(words) => Err(self.wrong(&raw.device, words)),
            None => Ok((mode.is_some() || class.is_some()).then_some(service)),
        }
    }

    fn device(&self, at: &Spanned<String>, has_queues: bool) -> Result<String, SetupError> {
        let name = at.get_ref();
        if name == BACKLOG && !has_queues {
            let words = "the backlog of a CPU is a key of its poller: `backlog = \"attached\"` below [[poller]]";
            return Err(self.wrong(at, words));
        }
        match is_ifname(name) {
            true => Ok(name.clone()),
            false => Err(self.wrong(
                at,
                format!("'{name}' is not the name of an interface; queues have a key of their own"),
            )),
        }
    }

    fn netns(&self, at: Option<&Spanned<String>>) -> Result<Option<String>, SetupError> {
        let Some(at) = at else { return Ok(None) };
        let name = at.get_ref();
        match name.is_empty() || name.contains('/') || name == "." || name == ".." {
            true => Err(self.wrong(
                at,
                format!("'{name}' is not the name of a network namespace; `ip netns` lists them"),
            )),
            false => Ok(Some(name.clone())),
        }
    }

    fn card(&self, raw: &RawAttachment) -> Result<Card, SetupError> {
        let mac = raw.mac.as_ref().map(|at| match is_address(at.get_ref()) {
            true => Ok(at.get_ref().to_ascii_lowercase()),
            false => Err(self.wrong(
                at,
                format!(
                    "'{}' is not a hardware address like 52:54:00:12:34:56",
                    at.get_ref()
                ),
            )),
        });
        let bus = raw
            .bus
            .as_ref()
            .map(|at| match at.get_ref().split_once('/') {
                Some((bus, place)) if !bus.is_empty() && !place.is_empty() => {
                    Ok(at.get_ref().clone())
                }
                _ => Err(self.wrong(
                    at,
                    format!(
                        "'{}' is not a place on a bus like pci/0000:00:03.0",
                        at.get_ref()
                    ),
                )),
            });
        Ok(Card {
            mac: mac.transpose()?,
            bus: bus.transpose()?,
        })
    }

    /// A queue can be attached once.
    fn check_overlaps(&self, all: &[At<Attachment>]) -> Result<(), SetupError> {
        for (at, later) in all.iter().enumerate() {
            for earlier in &all[..at] {
                let (one, other) = (&earlier.it, &later.it);
                if (&one.netns, &one.device) != (&other.netns, &other.device) {
                    continue;
                }
                let queue = other.queues.iter().find(|queue| one.queues.contains(queue));
                let what = match queue {
                    Some(queue) => format!("queue {queue} of {}", other.label()),
                    None if one.queues.is_empty() || other.queues.is_empty() => {
                        format!("{} with all its queues", other.label())
                    }
                    None => continue,
                };
                let words = format!(
                    "{what} is there already, in line {}; keep one",
                    earlier.line
                );
                return Err(self.wrong_in(later.line, words));
            }
        }
        Ok(())
    }
}

/// Bytes in hexadecimal, six of them on Ethernet.
fn is_address(text: &str) -> bool {
    let is_byte = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split(':').count() > 1 && text.split(':').all(is_byte)
}
