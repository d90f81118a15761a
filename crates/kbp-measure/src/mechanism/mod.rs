// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mechanisms that are compared, as a list of data: each says whether it can run here and why
//! not, sets itself up, is seen to be active, and is undone.
//!
//! None of them is believed: before a row the threads, their scheduling and the active mode are read
//! back, and after it the counters have to have moved. `docs/reference/mechanisms.md` describes each.
//!
//! * [`active`]: one of them, set up; [`leftover`]: what a process that died has left.
//! * `stock`, `threaded`, `sysctls`, `backlog`, `mainline_busy_poll`, `rt`, `kbp`: a family each.
//! * `family`: what a family has to answer; `links`: what kind of receiving an interface has;
//!   `steer`: RPS; `common`: what has to be so under every mechanism.
//!
//! Not here: how a host is changed and put back; that is kbp-core.

pub mod active;
mod backlog;
mod common;
mod family;
mod kbp;
pub mod leftover;
mod links;
mod mainline_busy_poll;
mod rt;
mod steer;
mod stock;
mod sysctls;
mod threaded;

use std::path::PathBuf;

use kbp_core::napi_netlink::Threading;
use kbp_core::uapi::{Freq, Mode, PollClass};
use kbp_core::Host;
use serde::Serialize;

pub use active::Active;
pub use family::Site;
pub(crate) use sysctls::{defer, other_deferral, sockets_poll};

use crate::compare::rig::Rig;
use crate::error::{Error, Result};
use family::Family;

/// What a mechanism needs that can't be set up while a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "what", rename_all = "kebab-case")]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// This word on the kernel's command line.
    BootParameter(&'static str),
    /// A kernel with this.
    Kernel(&'static str),
}

impl std::fmt::Display for Needs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::BootParameter(word) => write!(f, "the boot parameter {word}"),
            Self::Kernel(what) => write!(f, "a kernel with {what}"),
        }
    }
}

/// What a mechanism changes; everything else has to be as on the stock path while it is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Who polls the NAPI instances.
    threading: Threading,
    /// Sockets poll by themselves.
    busy_sockets: bool,
    /// Interrupts are deferred.
    deferral: bool,
    /// Our kernel module serves.
    poller: bool,
}

impl Changes {
    const NONE: Self = Self {
        threading: Threading::Off,
        busy_sockets: false,
        deferral: false,
        poller: false,
    };
}

/// A mechanism: data, and the family that knows how it is set up.
#[derive(Debug)]
pub struct Mechanism {
    /// Its name in results and on the command line.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    /// What it needs that can't be set up here.
    pub needs: Needs,
    /// Which clock to believe, for those that a virtual clock shows worse than they are.
    pub clock_note: Option<&'static str>,
    changes: Changes,
    /// Whether setting it up changes the machine at all.
    changes_machine: bool,
    family: &'static dyn Family,
}

impl PartialEq for Mechanism {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Mechanism {}

/// Said of a spinner without PAUSE.
const NO_PAUSE: &str =
    "It spins without PAUSE, so on a virtual clock that counts instructions it takes its share of the clock \
     from everybody and looks worse than it is: believe the real clock.";

/// A mechanism that needs nothing and changes nothing; the others say how they differ.
const PLAIN: Mechanism = Mechanism {
    name: "softirq",
    about: "the stock path: NET_RX softirqs and ksoftirqd",
    needs: Needs::Nothing,
    clock_note: None,
    changes: Changes::NONE,
    changes_machine: false,
    family: &stock::Stock,
};

/// Our poller, as `kbp attach` makes it; its other mechanisms say how they differ.
const POLLER: Mechanism = Mechanism {
    name: "kbp-busy",
    about: "our poller owns its CPU, SCHED_FIFO; NAPI instances attached, mode busy",
    changes: Changes {
        poller: true,
        ..Changes::NONE
    },
    changes_machine: true,
    family: &kbp::BUSY,
    ..PLAIN
};

/// Every mechanism, the stock path first.
pub static MECHANISMS: &[Mechanism] = &[
    PLAIN,
    Mechanism {
        name: "threaded",
        about: "mainline's threaded NAPI, threads as the kernel makes them",
        changes: Changes {
            threading: Threading::Thread,
            ..Changes::NONE
        },
        changes_machine: true,
        family: &threaded::Threaded { fifo: false },
        ..PLAIN
    },
    Mechanism {
        name: "threaded-fifo",
        about: "threaded NAPI with the threads bound to the poller's CPU, SCHED_FIFO",
        changes: Changes {
            threading: Threading::Thread,
            ..Changes::NONE
        },
        changes_machine: true,
        family: &threaded::Threaded { fifo: true },
        ..PLAIN
    },
    Mechanism {
        name: "mainline-busy-poll",
        about: "mainline's threaded busy-poll, threads bound to the poller's CPU, SCHED_OTHER",
        needs: Needs::Kernel("threaded NAPI busy-poll"),
        clock_note: Some(NO_PAUSE),
        changes: Changes {
            threading: Threading::BusyPoll,
            ..Changes::NONE
        },
        changes_machine: true,
        family: &mainline_busy_poll::MainlineBusyPoll,
    },
    Mechanism {
        name: "busy-read",
        about:
            "sockets poll their NAPI instance from recv and poll (net.core.busy_read, busy_poll)",
        changes: Changes {
            busy_sockets: true,
            ..Changes::NONE
        },
        changes_machine: true,
        family: &sysctls::BusyRead,
        ..PLAIN
    },
    Mechanism {
        name: "defer-irqs",
        about:
            "softirq with interrupts deferred to a timer (napi_defer_hard_irqs, gro_flush_timeout)",
        changes: Changes {
            deferral: true,
            ..Changes::NONE
        },
        changes_machine: true,
        family: &sysctls::DeferIrqs,
        ..PLAIN
    },
    Mechanism {
        name: "backlog-threads",
        about: "mainline's backlog threads with SCHED_FIFO, for paths without interrupts",
        needs: Needs::BootParameter(backlog::BOOT_PARAMETER),
        changes_machine: true,
        family: &backlog::BacklogThreads,
        ..PLAIN
    },
    Mechanism {
        name: "preempt-rt",
        about: "the stock path of a PREEMPT_RT kernel: interrupts and softirqs are threads",
        needs: Needs::Kernel("PREEMPT_RT"),
        family: &rt::PreemptRt,
        ..PLAIN
    },
    POLLER,
    Mechanism {
        name: "kbp-sleep",
        about: "our poller as with kbp-busy, mode sleep: interrupts wake it, and it polls until nothing is left",
        family: &kbp::Kbp {
            mode: Mode::Sleep,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-sleep+freq",
        about: "kbp-sleep, and the CPU's frequency is low in sleeps that are long enough (frequency auto)",
        family: &kbp::Kbp {
            mode: Mode::Sleep,
            freq: Freq::Auto,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-sleep+freq-on",
        about: "kbp-sleep, and the CPU's frequency is low in each sleep, as in the EE-KBP paper (frequency on)",
        family: &kbp::Kbp {
            mode: Mode::Sleep,
            freq: Freq::On,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-adaptive",
        about: "our poller as with kbp-busy, mode adaptive: it polls while packets are likely, and sleeps otherwise",
        family: &kbp::Kbp {
            mode: Mode::Adaptive,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-adaptive+freq",
        about: "kbp-adaptive, and the CPU's frequency is low in sleeps that are long enough (frequency auto)",
        family: &kbp::Kbp {
            mode: Mode::Adaptive,
            freq: Freq::Auto,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-busy-rt",
        about: "kbp-busy with the shortest waits: everything else of the CPU, of class normal, in small polls (--rt-budget)",
        family: &kbp::Kbp {
            small_polls: true,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-sleep-rt",
        about: "kbp-sleep with the shortest waits: everything else of the CPU, of class normal, in small polls (--rt-budget)",
        family: &kbp::Kbp {
            mode: Mode::Sleep,
            small_polls: true,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-adaptive-rt",
        about:
            "kbp-adaptive with the shortest waits: everything else of the CPU, of class normal, in small polls (--rt-budget)",
        family: &kbp::Kbp {
            mode: Mode::Adaptive,
            small_polls: true,
            ..kbp::BUSY
        },
        ..POLLER
    },
    Mechanism {
        name: "kbp-busy-normal",
        about: "kbp-busy with one poll list: what is attached is of class normal, like everything else of the CPU",
        family: &kbp::Kbp {
            class: PollClass::Normal,
            ..kbp::BUSY
        },
        ..POLLER
    },
];

/// What becomes of our kernel module after a row. Loading and unloading it takes seconds: every task has to be
/// seen outside of the functions that it replaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepModule {
    /// It is unloaded when its mechanism is undone.
    #[default]
    No,
    /// It stays loaded until the next mechanism that is not ours is set up.
    WhileOurs,
    /// It stays loaded, without a poller, under every mechanism that follows. The stock path is then the module's
    /// copy of it, which a result has to say.
    Always,
}

/// Packets of a poll of class normal in the modes `kbp-*-rt`, where nothing else is said.
pub const RT_BUDGET: u32 = 2;

/// What mechanisms need to be set up.
#[derive(Debug, Clone)]
pub struct MechanismConfig {
    /// `SCHED_FIFO` priority of the poller, and of the threads of `threaded-fifo` and `backlog-threads`, which on
    /// PREEMPT_RT have 49 at most.
    pub fifo_priority: u8,
    /// Packets of a poll of class normal in the modes `kbp-*-rt`, whose real-time devices wait for such a poll.
    pub rt_budget: u32,
    /// File of our kernel module; `None` takes the one that is installed for this kernel.
    pub module: Option<PathBuf>,
    /// What becomes of it.
    pub keep_module: KeepModule,
    /// How long a socket polls in one call, microseconds (`busy-read`).
    pub busy_read_us: u32,
    /// How many times in a row the timer may find nothing before the interrupt is armed again (`defer-irqs`).
    pub defer_hard_irqs: u32,
    /// Period of that timer, nanoseconds (`defer-irqs`).
    pub gro_flush_timeout_ns: u64,
}

impl Default for MechanismConfig {
    /// Sockets poll for as long as the kernel's documentation suggests (50 µs, admin-guide/sysctl/net). The timer
    /// looks every 20 µs and gives up after 2 ms, so a ping-pong of a millisecond is served without interrupts.
    fn default() -> Self {
        Self {
            fifo_priority: 50,
            rt_budget: RT_BUDGET,
            module: None,
            keep_module: KeepModule::No,
            busy_read_us: 50,
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: 20_000,
        }
    }
}

/// The mechanism of this name.
///
/// # Errors
/// When there is none; the sentence lists those that there are.
pub fn find(name: &str) -> Result<&'static Mechanism> {
    let found = MECHANISMS.iter().find(|mechanism| mechanism.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = MECHANISMS.iter().map(|m| m.name).collect();
        Error::Invalid(format!(
            "there is no mechanism '{name}'; there are {}",
            names.join(", ")
        ))
    })
}

impl Mechanism {
    /// Whether it can serve the interfaces of this bench on this machine.
    ///
    /// # Errors
    /// The reason why not, with the way out where there is one.
    pub fn can_run(&self, rig: &Rig) -> std::result::Result<(), String> {
        self.can_run_at(&Site {
            host: &Host::system(),
            links: &rig.links,
            cpu: rig.cpus.poller,
        })
    }

    /// The same for a machine and interfaces that need not be a bench yet. Without interfaces only the machine is
    /// asked.
    ///
    /// # Errors
    /// The reason why not.
    pub fn can_run_at(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        self.family.can_run(site)
    }
}

#[cfg(test)]
mod tests;
