// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the netlink family: pollers, attached NAPI instances, their counters, events.
//!
//! How they become attributes and come back is here too, so that a field is written down once.
//! Sending and receiving is in [`crate::client`] and [`crate::netlink`].

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::attr::{Attr, Attrs, DecodeError};
use crate::service::{Service, Share};
use crate::uapi::{
    self, attr_napi, attr_poller, Backlog, Counter, Event, Freq, Mode, Owns, Policy, PollClass,
    State,
};
use crate::waits::Waits;

macro_rules! serialize_by_name {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    )*};
}
serialize_by_name!(Backlog, Event, Freq, Mode, Owns, Policy, PollClass, State);

/// How a poller thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum Schedule {
    /// `SCHED_OTHER`.
    Other {
        /// Nice value, -20 to 19.
        nice: i32,
    },
    /// `SCHED_FIFO`.
    Fifo {
        /// Priority, 1 to 98.
        priority: u32,
    },
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other { nice } => write!(f, "other, nice {nice}"),
            Self::Fifo { priority } => write!(f, "fifo {priority}"),
        }
    }
}

impl std::str::FromStr for Schedule {
    type Err = String;

    /// `f:PRIORITY` or `o:NICE`, as the real-time tools of the kernel write it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!("'{text}' is neither f:PRIORITY (FIFO, 1 to 98) nor o:NICE (other, -20 to 19)")
        };
        let (policy, number) = text.split_once(':').ok_or_else(wrong)?;
        let number: i32 = number.parse().map_err(|_| wrong())?;
        match (policy, number) {
            ("f", 1..=98) => Ok(Self::Fifo {
                priority: number as u32,
            }),
            ("o", -20..=19) => Ok(Self::Other { nice: number }),
            _ => Err(wrong()),
        }
    }
}

/// What a new poller is to be; what is `None` is left to the kernel module's default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PollerSpec {
    /// Its CPU.
    pub cpu: u32,
    /// Which NAPI instances it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owns: Option<Owns>,
    /// How its thread is scheduled.
    #[serde(flatten)]
    pub schedule: Option<Schedule>,
    /// Packets that one poll of a NAPI of class normal may take, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// Time without running after which it hands its work back, milliseconds, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog_ms: Option<u32>,
    /// Who is to serve the backlog of its CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<Backlog>,
    /// Whether the frequency of its CPU follows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freq: Option<Freq>,
    /// Whether that may be the frequency of other CPUs, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freq_shared: Option<bool>,
    /// Idle states whose exit takes longer, microseconds, 0 to 30000, are kept from its CPU while packets are expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cstate_latency_us: Option<u32>,
    /// How long the exit of that CPU's deepest idle state takes, microseconds; a plan fills it in.
    #[serde(skip)]
    pub deep_exit_us: Option<u32>,
}

impl std::fmt::Display for PollerSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the poller of CPU {}", self.cpu)?;
        let words = [
            self.owns.map(|owns| format!("owns {owns}")),
            self.schedule.map(|schedule| schedule.to_string()),
            self.budget.map(|budget| format!("budget {budget}")),
            self.watchdog_ms.map(|ms| format!("watchdog {ms} ms")),
            self.backlog.map(|backlog| format!("backlog {backlog}")),
            self.freq.map(|freq| format!("frequency {freq}")),
            self.max_cstate_latency_us
                .map(|us| format!("idle states up to {us} us while packets are expected")),
        ];
        words
            .into_iter()
            .flatten()
            .try_for_each(|word| write!(f, ", {word}"))
    }
}

impl PollerSpec {
    /// A poller of this CPU with every default.
    pub fn new(cpu: u32) -> Self {
        Self {
            cpu,
            owns: None,
            schedule: None,
            budget: None,
            watchdog_ms: None,
            backlog: None,
            freq: None,
            freq_shared: None,
            max_cstate_latency_us: None,
            deep_exit_us: None,
        }
    }

    /// The attributes of the request that creates it.
    pub fn to_attrs(&self) -> Vec<Attr> {
        let mut attrs = vec![Attr::u32(attr_poller::CPU, self.cpu)];
        attrs.extend(
            self.owns
                .map(|owns| Attr::u32(attr_poller::OWNS, owns.raw())),
        );
        match self.schedule {
            Some(Schedule::Other { nice }) => {
                attrs.push(Attr::u32(attr_poller::POLICY, Policy::Other.raw()));
                attrs.push(Attr::s32(attr_poller::NICE, nice));
            }
            Some(Schedule::Fifo { priority }) => {
                attrs.push(Attr::u32(attr_poller::POLICY, Policy::Fifo.raw()));
                attrs.push(Attr::u32(attr_poller::PRIORITY, priority));
            }
            None => {}
        }
        attrs.extend(
            self.budget
                .map(|budget| Attr::u32(attr_poller::BUDGET, budget)),
        );
        attrs.extend(
            self.watchdog_ms
                .map(|ms| Attr::u32(attr_poller::WATCHDOG_MS, ms)),
        );
        attrs.extend(
            self.backlog
                .map(|backlog| Attr::u32(attr_poller::BACKLOG_REQUESTED, backlog.raw())),
        );
        attrs.extend(
            self.freq
                .map(|freq| Attr::u32(attr_poller::FREQ_REQUESTED, freq.raw())),
        );
        attrs.extend(
            self.max_cstate_latency_us
                .map(|us| Attr::u32(attr_poller::MAX_CSTATE_LATENCY_US, us)),
        );
        attrs.extend(
            self.deep_exit_us
                .map(|us| Attr::u32(attr_poller::DEEP_EXIT_US, us)),
        );
        attrs
    }
}

/// A poller as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Poller {
    /// Its CPU.
    pub cpu: u32,
    /// Which NAPI instances it serves.
    pub owns: Owns,
    /// How its thread is scheduled.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Packets that one poll of a NAPI of class normal may take.
    pub budget: u32,
    /// Time without running after which it hands its work back, milliseconds.
    pub watchdog_ms: u32,
    /// What its thread does now.
    pub state: State,
    /// Thread id in the initial pid namespace.
    pub pid: u32,
    /// Number of NAPI instances attached to it.
    pub napis: u32,
    /// Who is to serve the backlog of its CPU.
    pub backlog_requested: Backlog,
    /// Who serves it now.
    pub backlog_active: Backlog,
    /// How long it takes to wake its thread, nanoseconds, nearly the longest of the last times; `None` before the first.
    pub wake_latency_ns: Option<u32>,
    /// Whether the frequency of its CPU is to follow it.
    pub freq_requested: Freq,
    /// Whether it does.
    pub freq_active: Freq,
    /// Idle states whose exit takes longer, microseconds, are to be kept from its CPU while packets are expected.
    pub max_cstate_latency_us: Option<u32>,
    /// Whether the kernel was told of that limit.
    pub cstates_limited: Option<bool>,
    /// How long NAPI instances of class rt waited from being scheduled to being polled.
    #[serde(skip)]
    pub rt_waits: Waits,
    /// The same of class normal.
    #[serde(skip)]
    pub normal_waits: Waits,
    /// How long its thread waited for others of its CPU that had bottom halves off; `None` where nobody waits for that.
    #[serde(skip)]
    pub bh_waits: Option<Waits>,
    /// Its counters.
    pub stats: Stats,
}

impl Poller {
    /// Read a poller from the attributes of a reply.
    pub fn from_attrs(attrs: &Attrs) -> Result<Self, DecodeError> {
        let schedule = match attrs.value(attr_poller::POLICY, Policy::from_raw)? {
            Policy::Other => Schedule::Other {
                nice: attrs.optional_s32(attr_poller::NICE)?.unwrap_or(0),
            },
            Policy::Fifo => Schedule::Fifo {
                priority: attrs.u32(attr_poller::PRIORITY)?,
            },
        };
        Ok(Self {
            cpu: attrs.u32(attr_poller::CPU)?,
            owns: attrs.value(attr_poller::OWNS, Owns::from_raw)?,
            schedule,
            budget: attrs.u32(attr_poller::BUDGET)?,
            watchdog_ms: attrs.u32(attr_poller::WATCHDOG_MS)?,
            state: attrs.value(attr_poller::STATE, State::from_raw)?,
            pid: attrs.u32(attr_poller::PID)?,
            napis: attrs.u32(attr_poller::NAPIS)?,
            backlog_requested: attrs.value(attr_poller::BACKLOG_REQUESTED, Backlog::from_raw)?,
            backlog_active: attrs.value(attr_poller::BACKLOG_ACTIVE, Backlog::from_raw)?,
            wake_latency_ns: attrs
                .optional_u32(attr_poller::WAKE_LATENCY_NS)?
                .filter(|ns| *ns > 0),
            freq_requested: attrs.value(attr_poller::FREQ_REQUESTED, Freq::from_raw)?,
            freq_active: attrs.value(attr_poller::FREQ_ACTIVE, Freq::from_raw)?,
            max_cstate_latency_us: attrs.optional_u32(attr_poller::MAX_CSTATE_LATENCY_US)?,
            cstates_limited: attrs
                .optional_u32(attr_poller::CSTATES_LIMITED)?
                .map(|is_limited| is_limited != 0),
            rt_waits: Waits::from_attrs(attrs, attr_poller::RT_WAITS)?.unwrap_or_default(),
            normal_waits: Waits::from_attrs(attrs, attr_poller::NORMAL_WAITS)?.unwrap_or_default(),
            bh_waits: Waits::from_attrs(attrs, attr_poller::BH_WAITS)?,
            stats: Stats::from_attrs(uapi::POLLER_COUNTERS, attrs.nested(attr_poller::STATS)?)?,
        })
    }
}

/// Names a NAPI instance to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NapiRef {
    /// By its id, which is unique on the machine.
    Id(u32),
    /// By interface and receive queue, in the caller's network namespace.
    Queue {
        /// The interface.
        ifname: String,
        /// The receive queue, from 0.
        queue: u32,
    },
}

impl NapiRef {
    /// The attributes that name it.
    pub fn to_attrs(&self) -> Vec<Attr> {
        match self {
            Self::Id(id) => vec![Attr::u32(attr_napi::NAPI_ID, *id)],
            Self::Queue { ifname, queue } => {
                vec![
                    Attr::string(attr_napi::IFNAME, ifname),
                    Attr::u32(attr_napi::QUEUE, *queue),
                ]
            }
        }
    }
}

impl std::fmt::Display for NapiRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "NAPI {id}"),
            Self::Queue { ifname, queue } => write!(f, "{ifname} queue {queue}"),
        }
    }
}

/// An attached NAPI instance as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Napi {
    /// Its id, unique on the machine.
    pub napi_id: u32,
    /// Number of its interface in that interface's network namespace.
    pub ifindex: Option<u32>,
    /// Name of its interface.
    pub ifname: Option<String>,
    /// Receive queue that it serves, where the kernel knows it.
    pub queue: Option<u32>,
    /// CPU of the poller that serves it.
    pub cpu: u32,
    /// How it was asked to be served.
    pub mode_requested: Mode,
    /// How it is served now.
    pub mode_active: Mode,
    /// How urgent it is to its poller.
    pub class: PollClass,
    /// Mode adaptive: the share of CPU time that was allowed for polls that find nothing.
    #[serde(rename = "cpu_budget_percent")]
    pub cpu_budget: Option<Share>,
    /// Mode adaptive: the longest wake-up that was allowed, microseconds.
    pub max_wake_latency_us: Option<u32>,
    /// Cookie of the network namespace of its interface.
    pub netns_cookie: Option<u64>,
    /// Its counters.
    pub stats: Stats,
}

impl Napi {
    /// Read an attached NAPI instance from the attributes of a reply.
    pub fn from_attrs(attrs: &Attrs) -> Result<Self, DecodeError> {
        let service = Service::from_attrs(attrs)?;
        Ok(Self {
            napi_id: attrs.u32(attr_napi::NAPI_ID)?,
            ifindex: attrs.optional_u32(attr_napi::IFINDEX)?,
            ifname: attrs.optional_string(attr_napi::IFNAME),
            queue: attrs.optional_u32(attr_napi::QUEUE)?,
            cpu: attrs.u32(attr_napi::CPU)?,
            mode_requested: service.mode,
            mode_active: attrs.value(attr_napi::MODE_ACTIVE, Mode::from_raw)?,
            class: service.class,
            cpu_budget: service.cpu_budget,
            max_wake_latency_us: service.max_wake_latency_us,
            netns_cookie: attrs.optional_u64(attr_napi::NETNS_COOKIE)?,
            stats: Stats::from_attrs(uapi::NAPI_COUNTERS, attrs.nested(attr_napi::STATS)?)?,
        })
    }

    /// How it was asked to be served.
    pub fn service(&self) -> Service {
        Service {
            mode: self.mode_requested,
            class: self.class,
            cpu_budget: self.cpu_budget,
            max_wake_latency_us: self.max_wake_latency_us,
        }
    }

    /// How a person calls it: `eth0 queue 0`, or its id where the interface is not known.
    pub fn label(&self) -> String {
        match (&self.ifname, self.queue) {
            (Some(ifname), Some(queue)) => format!("{ifname} queue {queue}"),
            (Some(ifname), None) => format!("{ifname} NAPI {}", self.napi_id),
            _ => format!("NAPI {}", self.napi_id),
        }
    }

    /// The same with its class, of which it has one: `eth0 queue 0 (class rt)`.
    pub fn label_with_class(&self) -> String {
        format!("{} (class {})", self.label(), self.class)
    }
}

/// The counters of one object, in the order of their table in [`crate::uapi`].
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    table: &'static [Counter],
    values: Vec<Option<u64>>,
}

impl Stats {
    /// Read counters from their nested attributes; one that the module does not send is unknown.
    pub fn from_attrs(table: &'static [Counter], attrs: Attrs) -> Result<Self, DecodeError> {
        let values = table
            .iter()
            .map(|c| attrs.optional_u64(c.attr))
            .collect::<Result<_, _>>()?;
        Ok(Self { table, values })
    }

    /// The value of a counter by its name with underscores (`busy_ns`); `None` for an unknown one.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(counter, _)| counter.name == name)?.1
    }

    /// Every counter of the table with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Counter, Option<u64>)> + '_ {
        self.table.iter().zip(self.values.iter().copied())
    }

    /// What was counted since an earlier reading of the same object. A counter that went back
    /// belongs to a new object, and all of it is new.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |(name, now): (&Counter, Option<u64>)| {
            let before = earlier.get(name.name).unwrap_or(0);
            now.map(|now| now.checked_sub(before).unwrap_or(now))
        };
        Self {
            table: self.table,
            values: self.iter().map(|(c, v)| difference((c, v))).collect(),
        }
    }
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.values.len()))?;
        for (counter, value) in self.iter() {
            map.serialize_entry(counter.name, &value)?;
        }
        map.end()
    }
}

/// Something that changed, as the multicast group reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "object", rename_all = "snake_case")]
pub enum Notification {
    /// A poller was created, removed, handed back or resumed.
    Poller {
        /// Why this was sent.
        event: Event,
        /// CPU of the poller.
        cpu: u32,
        /// What its thread does, where the notification says it.
        state: Option<State>,
    },
    /// A NAPI instance was attached, detached or lost.
    Napi {
        /// Why this was sent.
        event: Event,
        /// Its id.
        napi_id: u32,
        /// Name of its interface.
        ifname: Option<String>,
        /// Its receive queue.
        queue: Option<u32>,
        /// CPU of its poller.
        cpu: Option<u32>,
        /// How it is served now.
        mode_active: Option<Mode>,
    },
}

impl Notification {
    /// Read a notification; `None` for a command that this version does not know.
    pub fn from_attrs(command: u8, attrs: &Attrs) -> Result<Option<Self>, DecodeError> {
        match command {
            uapi::cmd::POLLER_NTF => Ok(Some(Self::Poller {
                event: attrs.value(attr_poller::EVENT, Event::from_raw)?,
                cpu: attrs.u32(attr_poller::CPU)?,
                state: attrs
                    .optional_u32(attr_poller::STATE)?
                    .and_then(State::from_raw),
            })),
            uapi::cmd::NAPI_NTF => Ok(Some(Self::Napi {
                event: attrs.value(attr_napi::EVENT, Event::from_raw)?,
                napi_id: attrs.u32(attr_napi::NAPI_ID)?,
                ifname: attrs.optional_string(attr_napi::IFNAME),
                queue: attrs.optional_u32(attr_napi::QUEUE)?,
                cpu: attrs.optional_u32(attr_napi::CPU)?,
                mode_active: attrs
                    .optional_u32(attr_napi::MODE_ACTIVE)?
                    .and_then(Mode::from_raw),
            })),
            _ => Ok(None),
        }
    }
}
