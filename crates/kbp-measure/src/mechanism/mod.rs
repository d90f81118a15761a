// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mechanisms that are compared: set up, seen to be active, and undone.
//!
//! None of them is believed: before a row the threads, their scheduling and the active
//! mode are read back, and after it the counters have to have moved.
//! Not here: how a host is changed and put back; that is kbp-core.

use std::path::PathBuf;
use std::time::Duration;

use kbp_core::model::{NapiRef, PollerSpec, Schedule};
use kbp_core::module;
use kbp_core::plan::{AttachRequest, Session, Target};
use kbp_core::sched::{self, Scheduling};
use kbp_core::state::StateFile;
use kbp_core::threaded::{self, ThreadedRequest};
use kbp_core::uapi::{Mode as Served, Owns};
use kbp_core::{Client, CpuList, Host};

use crate::compare::rig::{Link, Rig};
use crate::error::{Error, Result};
use crate::result::Row;
use crate::witness::Watch;

/// How long a live-patch transition may take, either way.
const TRANSITION_LIMIT: Duration = Duration::from_secs(60);

/// A mechanism by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The stock path, without our module.
    Softirq,
    /// Mainline's threaded NAPI, threads as the kernel makes them.
    Threaded,
    /// The same with the threads bound to the poller's CPU and `SCHED_FIFO`.
    ThreadedFifo,
    /// Our poller, `SCHED_FIFO`, owning its CPU; both interfaces attached, mode busy.
    KbpBusy,
}

impl Mode {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softirq => "softirq",
            Self::Threaded => "threaded",
            Self::ThreadedFifo => "threaded-fifo",
            Self::KbpBusy => "kbp-busy",
        }
    }

    fn inactive(self, why: impl Into<String>) -> Error {
        Error::ModeNotActive {
            mode: self.name().into(),
            why: why.into(),
        }
    }
}

/// What a mode needs to be set up.
#[derive(Debug, Clone)]
pub struct ModeConfig {
    /// `SCHED_FIFO` priority of the poller and of `threaded-fifo`.
    pub fifo_priority: u8,
    /// File of our kernel module.
    pub module: PathBuf,
}

/// A mode that serves both interfaces. Undo it with [`Active::undo`].
#[derive(Debug)]
pub struct Active<'a> {
    mode: Mode,
    rig: &'a Rig,
    config: &'a ModeConfig,
    /// Threads that the mode brings.
    threads: Vec<u32>,
}

impl<'a> Active<'a> {
    /// Sets a mode up and reads back that it is active.
    ///
    /// # Errors
    /// When a step fails or something else than the mode is active; what was changed is
    /// undone then.
    pub fn set_up(mode: Mode, rig: &'a Rig, config: &'a ModeConfig) -> Result<Self> {
        let mut active = Self {
            mode,
            rig,
            config,
            threads: Vec::new(),
        };
        if let Err(error) = active.bring_up().and_then(|()| active.verify()) {
            return Err(match active.undo() {
                Ok(()) => error,
                Err(left) => Error::Invalid(format!("{error}; undoing it failed too: {left}")),
            });
        }
        Ok(active)
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What is to be read around a row of this mode.
    pub fn watch(&self) -> Watch {
        Watch {
            cpu: self.rig.cpus.poller,
            receive_irqs: self.rig.receive_irqs.clone(),
            mode_threads: self.threads.clone(),
            has_poller: self.mode == Mode::KbpBusy,
        }
    }

    fn bring_up(&mut self) -> Result<()> {
        match self.mode {
            Mode::Softirq => Ok(()),
            Mode::Threaded | Mode::ThreadedFifo => self.bring_up_threads(),
            Mode::KbpBusy => self.bring_up_poller(),
        }
    }

    fn bring_up_threads(&mut self) -> Result<()> {
        let pinned = self.mode == Mode::ThreadedFifo;
        let cpus = pinned.then(|| CpuList::one(self.rig.cpus.poller));
        let scheduling = pinned.then(|| self.fifo());
        for link in &self.rig.links {
            let threads = link.run(|ifname| {
                let host = Host::system();
                let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
                let request = ThreadedRequest {
                    ifname: ifname.into(),
                    cpus: cpus.clone(),
                    scheduling,
                };
                Ok(threaded::enable(&host, &mut file, &request)?.threads)
            })?;
            self.threads.extend(threads.iter().map(|task| task.tid));
        }
        Ok(())
    }

    fn bring_up_poller(&mut self) -> Result<()> {
        module::load(
            &Host::system(),
            Some(&self.config.module),
            TRANSITION_LIMIT,
            &mut |_| {},
        )
        .map_err(kbp_core::Error::from)?;
        let cpu = self.rig.cpus.poller;
        let priority = u32::from(self.config.fifo_priority);
        let spec = PollerSpec {
            owns: Some(Owns::All),
            schedule: Some(Schedule::Fifo { priority }),
            ..PollerSpec::new(cpu)
        };
        connect()?
            .poller_new(&spec)
            .map_err(kbp_core::Error::from)?;
        for link in &self.rig.links {
            link.run(|ifname| attach(ifname, cpu))?;
        }
        let poller = connect()?.poller_get(cpu).map_err(kbp_core::Error::from)?;
        self.threads = vec![poller.pid];
        Ok(())
    }

    fn fifo(&self) -> Scheduling {
        Scheduling::fifo(i32::from(self.config.fifo_priority))
    }

    /// Reads back what serves the interfaces.
    ///
    /// # Errors
    /// [`Error::ModeNotActive`] with what was seen instead.
    pub fn verify(&self) -> Result<()> {
        self.rig.verify()?;
        let wants_threads = matches!(self.mode, Mode::Threaded | Mode::ThreadedFifo);
        for link in &self.rig.links {
            let threaded = link.run(|ifname| Ok(Host::system().interface(ifname)?.threaded))?;
            if threaded.unwrap_or(false) != wants_threads {
                return Err(self
                    .mode
                    .inactive(format!("threaded NAPI of {} is {threaded:?}", link.ifname)));
            }
        }
        match self.mode {
            Mode::Softirq | Mode::Threaded => self.verify_no_poller(),
            Mode::ThreadedFifo => self.verify_no_poller().and_then(|()| self.verify_threads()),
            Mode::KbpBusy => self.verify_poller(),
        }
    }

    fn verify_no_poller(&self) -> Result<()> {
        match Client::is_available() {
            Ok(false) => Ok(()),
            Ok(true) => Err(self
                .mode
                .inactive("the kbp module is loaded; `kbp unload` removes it")),
            Err(error) => Err(kbp_core::Error::from(error).into()),
        }
    }

    /// A poller that has its CPU to itself leaves FIFO, or RT throttling would stop it.
    fn may_run_as(&self, scheduling: Scheduling) -> bool {
        scheduling == self.fifo()
            || (self.mode == Mode::KbpBusy && scheduling == Scheduling::other())
    }

    /// Every thread of the mode is bound to the poller's CPU and has the FIFO priority.
    fn verify_threads(&self) -> Result<()> {
        let cpu = self.rig.cpus.poller;
        for &tid in &self.threads {
            let scheduling = sched::scheduling(tid).map_err(kbp_core::Error::from)?;
            let cpus = sched::affinity(tid).map_err(kbp_core::Error::from)?;
            if !self.may_run_as(scheduling) || cpus != CpuList::one(cpu) {
                return Err(self
                    .mode
                    .inactive(format!("thread {tid} runs as {scheduling} on CPU {cpus}")));
            }
        }
        Ok(())
    }

    fn verify_poller(&self) -> Result<()> {
        let cpu = self.rig.cpus.poller;
        let poller = connect()?.poller_get(cpu).map_err(kbp_core::Error::from)?;
        if poller.owns != Owns::All {
            return Err(self.mode.inactive("the poller does not own all of its CPU"));
        }
        // The thread itself is FIFO only while others want its CPU, so what it is right
        // now proves nothing: the module is asked, and the CPU is looked at.
        let cpus = sched::affinity(poller.pid).map_err(kbp_core::Error::from)?;
        let fifo = Schedule::Fifo {
            priority: u32::from(self.config.fifo_priority),
        };
        if poller.schedule != fifo || cpus != CpuList::one(cpu) {
            return Err(self.mode.inactive(format!(
                "the poller runs as {:?} on CPU {cpus}",
                poller.schedule
            )));
        }
        for link in &self.rig.links {
            let served = link.run(active_modes)?;
            if served.is_empty() || served.iter().any(|mode| *mode != Served::Busy) {
                let names: Vec<String> = served.iter().map(ToString::to_string).collect();
                return Err(self.mode.inactive(format!(
                    "{} is served as [{}]",
                    link.ifname,
                    names.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Checks a finished row: the mechanism that was set up has to have done the work.
    ///
    /// # Errors
    /// [`Error::ModeNotActive`] with the counter that did not move.
    pub fn verify_row(&self, row: &Row) -> Result<()> {
        // Two interfaces: every round trip is received twice.
        let received = 2 * row.n;
        let why = match self.mode {
            Mode::Softirq if row.witness.net_rx_softirqs == 0 => "no NET_RX softirq ran",
            Mode::Threaded | Mode::ThreadedFifo if row.witness.mode_threads_ns == 0 => {
                "its threads used no CPU time"
            }
            Mode::KbpBusy if row.poller.is_none_or(|poller| poller.packets < received) => {
                "the poller reports fewer packets than came"
            }
            _ => return Ok(()),
        };
        Err(self.mode.inactive(format!("{why} in row {}", row.name())))
    }

    /// Undoes the mode; the stock path serves both interfaces afterwards.
    ///
    /// # Errors
    /// The first step that failed; the others are done.
    pub fn undo(&self) -> Result<()> {
        let mut first_error = None;
        let mut keep = |result: Result<()>| {
            if let Err(error) = result {
                first_error.get_or_insert(error);
            }
        };
        match self.mode {
            Mode::Softirq => {}
            Mode::Threaded | Mode::ThreadedFifo => {
                self.rig
                    .links
                    .iter()
                    .for_each(|link| keep(link.run(disable_threaded)));
            }
            Mode::KbpBusy => {
                self.rig.links.iter().for_each(|link| keep(detach(link)));
                keep(self.delete_poller());
                keep(unload());
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn delete_poller(&self) -> Result<()> {
        if !is_available()? {
            return Ok(());
        }
        let mut client = connect()?;
        let pollers = client.pollers().map_err(kbp_core::Error::from)?;
        if pollers
            .iter()
            .all(|poller| poller.cpu != self.rig.cpus.poller)
        {
            return Ok(());
        }
        let host = Host::system();
        Session::open(&host, &mut client)?.delete_poller(self.rig.cpus.poller)?;
        Ok(())
    }
}

fn connect() -> Result<Client> {
    Ok(Client::connect().map_err(kbp_core::Error::from)?)
}

fn is_available() -> Result<bool> {
    Ok(Client::is_available().map_err(kbp_core::Error::from)?)
}

fn unload() -> Result<()> {
    let host = Host::system();
    if module::status(&host).map_err(kbp_core::Error::from)?.loaded {
        module::unload(&host, TRANSITION_LIMIT, &mut |_| {}).map_err(kbp_core::Error::from)?;
    }
    Ok(())
}

fn disable_threaded(ifname: &str) -> Result<()> {
    let host = Host::system();
    let mut file = StateFile::open(&host).map_err(kbp_core::Error::from)?;
    Ok(threaded::disable(&host, &mut file, ifname)?)
}

fn attach(ifname: &str, cpu: u32) -> Result<()> {
    let host = Host::system();
    let mut client = connect()?;
    let mut session = Session::open(&host, &mut client)?;
    let target = Target::Interface {
        name: ifname.into(),
        queue: None,
    };
    let plan = session.plan_attach(&AttachRequest {
        target,
        cpu,
        mode: Served::Busy,
        move_irq: true,
    })?;
    session.attach(&plan)?;
    Ok(())
}

fn detach(link: &Link) -> Result<()> {
    if !is_available()? {
        return Ok(());
    }
    link.run(|ifname| {
        let host = Host::system();
        let mut client = connect()?;
        let mut session = Session::open(&host, &mut client)?;
        let target = Target::Interface {
            name: ifname.into(),
            queue: None,
        };
        match session.plan_detach(&target) {
            Ok(napis) => session.detach(&napis).map(drop)?,
            Err(kbp_core::Error::NotAttached { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })
}

fn active_modes(ifname: &str) -> Result<Vec<Served>> {
    let mut client = connect()?;
    let queues = Host::system().interface(ifname)?.rx_queues;
    let active = (0..queues).map(|queue| {
        let napi = NapiRef::Queue {
            ifname: ifname.into(),
            queue,
        };
        client.napi_get(&napi).map(|napi| napi.mode_active)
    });
    Ok(active
        .collect::<std::result::Result<_, _>>()
        .map_err(kbp_core::Error::from)?)
}
