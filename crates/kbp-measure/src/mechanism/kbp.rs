// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modes of our poller: one poller owns its CPU, `SCHED_FIFO`; the frequency of that CPU may follow it.
//!
//! Interfaces with NAPI instances are attached to it in the mode. The packets of the others go through a backlog:
//! they are steered to that of its CPU by RPS, and that is attached too.
//! Not here: the requests and their undo, kbp_core::plan; the module's coming and going, kbp_core::module.

use kbp_core::model::{NapiRef, Poller, PollerSpec, Schedule};
use kbp_core::plan::{AttachRequest, Session, Target};
use kbp_core::service::{Service, CLASS};
use kbp_core::uapi::{Backlog, Freq, Mode, Owns, PollClass};
use kbp_core::{backlog, check, governor, module, sched, Client, CpuList, Host};

use crate::compare::rig::Link;
use crate::error::Result;
use crate::mechanism::family::{Bench, Family, Moved, Site};
use crate::mechanism::{leftover, links, steer, sysctls, KeepModule};
use crate::result::Row;

/// A mode of the poller.
#[derive(Debug)]
pub(crate) struct Kbp {
    /// How attached instances are served.
    pub mode: Mode,
    /// How urgent they are to the poller; everything else of its CPU is of class normal.
    pub class: PollClass,
    /// Whether polls of class normal are small ([`MechanismConfig::rt_budget`](super::MechanismConfig::rt_budget)), or as
    /// the module takes them.
    pub small_polls: bool,
    /// Whether the frequency of its CPU follows it.
    pub freq: Freq,
}

fn connect() -> Result<Client> {
    Ok(Client::connect().map_err(kbp_core::Error::from)?)
}

fn is_loaded(host: &Host) -> Result<bool> {
    Ok(module::status(host).map_err(kbp_core::Error::from)?.loaded)
}

const FOREIGN: &str =
    "the kbp module is loaded already and may serve others; `kbp unload` removes it";

/// Loads the module for this run; one that this run has kept is there already.
fn load_module(bench: &Bench<'_>) -> Result<()> {
    let host = Host::system();
    let loaded = is_loaded(&host)?;
    if loaded && !leftover::module_is_ours()? {
        return Err(bench.inactive(FOREIGN));
    }
    if !loaded {
        leftover::own_module()?;
    }
    let file = bench.config.module.as_deref();
    module::load(&host, file, leftover::TRANSITION_LIMIT, &mut |_| {})
        .map_err(kbp_core::Error::from)?;
    Ok(())
}

fn whole(ifname: &str) -> Target {
    Target::Interface {
        name: ifname.into(),
        queue: None,
    }
}

/// The poller that others differ from: attached as `kbp attach` does it.
pub(super) const BUSY: Kbp = Kbp {
    mode: Mode::Busy,
    class: CLASS,
    small_polls: false,
    freq: Freq::Off,
};

fn attach(link: &Link, cpu: u32, service: Service) -> Result<()> {
    link.run(|ifname| {
        let (host, mut client) = (Host::system(), connect()?);
        let mut session = Session::open(&host, &mut client)?;
        let plan = session.plan_attach(&AttachRequest {
            target: whole(ifname),
            queues: Vec::new(),
            cpus: vec![cpu],
            service,
            move_irq: link.has_interrupts,
            // Mechanisms differ in who receives; the transmit queues stay as they are under all of them.
            set_xps: false,
        })?;
        session.attach(&plan)?;
        Ok(())
    })
}

fn detach(link: &Link) -> Result<()> {
    link.run(|ifname| {
        let (host, mut client) = (Host::system(), connect()?);
        let mut session = Session::open(&host, &mut client)?;
        match session.plan_detach(&whole(ifname)) {
            Ok(napis) => session.detach(&napis).map(drop)?,
            Err(kbp_core::Error::NotAttached { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })
}

/// Whether packets of the path go through a backlog.
fn needs_backlog(bench: &Bench<'_>) -> bool {
    bench.rig.links.iter().any(|link| !link.has_interrupts)
}

fn active_services(ifname: &str) -> Result<Vec<(Mode, PollClass)>> {
    let mut client = connect()?;
    let queues = Host::system().interface(ifname)?.rx_queues;
    let active = (0..queues).map(|queue| {
        let napi = NapiRef::Queue {
            ifname: ifname.into(),
            queue,
        };
        let napi = client.napi_get(&napi);
        napi.map(|napi| (napi.mode_active, napi.class))
    });
    Ok(active
        .collect::<std::result::Result<_, _>>()
        .map_err(kbp_core::Error::from)?)
}

/// Creates the poller as `kbp poller add` does: the governor that it replaces is remembered, and goes back with it.
fn add_poller(spec: &PollerSpec) -> Result<()> {
    let (host, mut client) = (Host::system(), connect()?);
    let mut session = Session::open(&host, &mut client)?;
    let plan = session.plan_poller(spec)?;
    session.add_poller(&plan)?;
    Ok(())
}

fn delete_poller(cpu: u32) -> Result<()> {
    let (host, mut client) = (Host::system(), connect()?);
    let pollers = client.pollers().map_err(kbp_core::Error::from)?;
    if pollers.iter().any(|poller| poller.cpu == cpu) {
        Session::open(&host, &mut client)?.delete_poller(cpu)?;
    }
    Ok(())
}

impl Kbp {
    fn service(&self) -> Service {
        Service {
            class: self.class,
            ..Service::from(self.mode)
        }
    }

    fn budget(&self, bench: &Bench<'_>) -> Option<u32> {
        self.small_polls.then_some(bench.config.rt_budget)
    }

    fn verify_poller(&self, bench: &Bench<'_>, poller: &Poller) -> Result<()> {
        if poller.owns != Owns::All {
            return Err(bench.inactive("the poller does not own all of its CPU"));
        }
        // The thread itself is not FIFO all the time while it is alone, so what it is right now proves nothing: the
        // module is asked, and the CPU is looked at.
        let cpus = sched::affinity(poller.pid).map_err(kbp_core::Error::from)?;
        let fifo = Schedule::Fifo {
            priority: u32::from(bench.config.fifo_priority),
        };
        if poller.schedule != fifo || cpus != CpuList::one(bench.cpu()) {
            return Err(bench.inactive(format!(
                "the poller runs as {:?} on CPU {cpus}",
                poller.schedule
            )));
        }
        if let Some(budget) = self.budget(bench).filter(|budget| *budget != poller.budget) {
            return Err(bench.inactive(format!(
                "the poller has a budget of {}, not of {budget}",
                poller.budget
            )));
        }
        self.verify_frequency(bench, poller)
    }

    /// The module ends it when the driver has refused a change, or when somebody has chosen another governor.
    fn verify_frequency(&self, bench: &Bench<'_>, poller: &Poller) -> Result<()> {
        if poller.freq_active == self.freq {
            return Ok(());
        }
        Err(bench.inactive(format!(
            "the frequency of CPU {} follows the poller as '{}', not as '{}'",
            poller.cpu, poller.freq_active, self.freq
        )))
    }

    fn verify_backlog(&self, bench: &Bench<'_>, poller: &Poller) -> Result<()> {
        if !needs_backlog(bench) || poller.backlog_active == Backlog::Attached {
            return Ok(());
        }
        Err(bench.inactive(format!(
            "the backlog of CPU {} is {}",
            poller.cpu, poller.backlog_active
        )))
    }

    fn verify_link(&self, bench: &Bench<'_>, link: &Link) -> Result<()> {
        let served = link.run(active_services)?;
        let wanted = (self.mode, self.class);
        if !served.is_empty() && served.iter().all(|found| *found == wanted) {
            return Ok(());
        }
        let words = |(mode, class): &(Mode, PollClass)| format!("{mode} in class {class}");
        let names: Vec<String> = served.iter().map(words).collect();
        Err(bench.inactive(format!(
            "{} is served as [{}]",
            link.ifname,
            names.join(", ")
        )))
    }
}

/// A backlog has no interrupt: what goes through one is polled all the time.
fn without_interrupts<'a>(site: &Site<'a>) -> Option<&'a str> {
    let link = site.links.iter().find(|link| !link.has_interrupts);
    link.map(|link| link.ifname.as_str())
}

impl Family for Kbp {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        match without_interrupts(site) {
            Some(ifname) if self.mode != Mode::Busy => {
                return Err(format!(
                    "{ifname} has no interrupt that could wake the poller: mode {} is for cards",
                    self.mode
                ))
            }
            _ => {}
        }
        let words = |error: kbp_core::Error| error.to_string();
        if self.freq != Freq::Off {
            governor::can_follow(site.host, site.cpu).map_err(words)?;
        }
        if is_loaded(site.host).map_err(|error| error.to_string())? {
            return match leftover::module_is_ours().map_err(|error| error.to_string())? {
                true => Ok(()),
                false => Err(FOREIGN.into()),
            };
        }
        let report = check::check(site.host, None).map_err(words)?;
        match report.possible {
            true => Ok(()),
            false => Err(report.reason()),
        }
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        load_module(bench)?;
        let cpu = bench.cpu();
        let priority = u32::from(bench.config.fifo_priority);
        let spec = PollerSpec {
            owns: Some(Owns::All),
            schedule: Some(Schedule::Fifo { priority }),
            budget: self.budget(bench),
            freq: Some(self.freq).filter(|freq| *freq != Freq::Off),
            ..PollerSpec::new(cpu)
        };
        add_poller(&spec)?;
        let mut client = connect()?;
        if needs_backlog(bench) {
            let plan = backlog::plan_attach(&Host::system(), &mut client, cpu)?;
            backlog::apply(&mut client, &plan)?;
        }
        for link in links::with_napi(&bench.rig.links)? {
            attach(link, cpu, self.service())?;
        }
        steer::to_poller(bench)?;
        let poller = client.poller_get(cpu).map_err(kbp_core::Error::from)?;
        Ok(vec![poller.pid])
    }

    fn verify(&self, bench: &Bench<'_>, _threads: &[u32]) -> Result<()> {
        let poller = connect()?.poller_get(bench.cpu());
        let poller = poller.map_err(kbp_core::Error::from)?;
        self.verify_poller(bench, &poller)?;
        self.verify_backlog(bench, &poller)?;
        for link in links::with_napi(&bench.rig.links)? {
            self.verify_link(bench, link)?;
        }
        steer::verify(bench)
    }

    fn verify_row(
        &self,
        bench: &Bench<'_>,
        row: &Row,
        _moved: &Moved,
    ) -> std::result::Result<(), String> {
        let received = bench.received_min(row);
        match row.poller {
            Some(poller) if poller.packets >= received => Ok(()),
            Some(poller) => Err(format!(
                "the poller reports {} packets, and at least {received} came",
                poller.packets
            )),
            None => Err("the poller's counters were not read".into()),
        }
    }

    fn undo(&self, bench: &Bench<'_>) -> Result<()> {
        let mut first_error = None;
        let mut keep = |result: Result<()>| {
            if let Err(error) = result {
                first_error.get_or_insert(error);
            }
        };
        keep(sysctls::restore_all(bench));
        if leftover::module_is_ours()? {
            if Client::is_available().map_err(kbp_core::Error::from)? {
                bench.rig.links.iter().for_each(|link| keep(detach(link)));
                keep(delete_poller(bench.cpu()));
            }
            if bench.config.keep_module == KeepModule::No {
                keep(leftover::release_module());
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}
