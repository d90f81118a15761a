// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Actions on pollers, attachments and the module. Traffic is never held for them, and nothing may be lost.

use std::thread::sleep;
use std::time::{Duration, Instant};

use kbp_core::backlog;
use kbp_core::client::ClientError;
use kbp_core::model::{Napi, PollerSpec, Schedule};
use kbp_core::module::{self, ModuleError};
use kbp_core::plan::{undo_everything, AttachRequest, DetachPlan, Session, Target};
use kbp_core::service::{Service, Share, CLASS};
use kbp_core::uapi::{Backlog, Freq, Mode, Owns, PollClass};
use kbp_core::{Class, Client};
use kbp_measure::rng::SplitMix64;
use kbp_measure::Result;

use super::{always, judge, nothing, one_of, refused, Action, Outcome, Worker, World};

/// How long a transition of the live patch may take. A debug kernel on a loaded machine needs a part of it.
pub const TRANSITION_LIMIT: Duration = Duration::from_secs(90);

pub const POLLER_ADD: Action = Action {
    name: "poller-add",
    about: "a poller with random scheduling, budget, watchdog, choice of what it owns, frequency, and limit of idle states",
    weight: 12,
    worker: Worker::Ours,
    can_run: always,
    act: poller_add,
    undo: undo_all,
};
pub const POLLER_DEL: Action = Action {
    name: "poller-del",
    about: "a poller is deleted with all that is attached to it",
    weight: 5,
    worker: Worker::Ours,
    can_run: always,
    act: poller_del,
    undo: undo_all,
};
pub const ATTACH: Action = Action {
    name: "attach",
    about: "a random queue of a card or veth, with its interrupt or without",
    weight: 14,
    worker: Worker::Ours,
    can_run: always,
    act: attach,
    undo: undo_all,
};
pub const DETACH: Action = Action {
    name: "detach",
    about: "one of the attached queues",
    weight: 8,
    worker: Worker::Ours,
    can_run: always,
    act: detach,
    undo: undo_all,
};
pub const MODE_FLIP: Action = Action {
    name: "mode-flip",
    about: "an attached queue goes through every mode, detached between two",
    weight: 6,
    worker: Worker::Ours,
    can_run: always,
    act: mode_flip,
    undo: undo_all,
};
pub const BACKLOG_ATTACH: Action = Action {
    name: "backlog-attach",
    about: "the backlog of a poller's CPU",
    weight: 8,
    worker: Worker::Ours,
    can_run: always,
    act: backlog_attach,
    undo: undo_all,
};
pub const BACKLOG_DETACH: Action = Action {
    name: "backlog-detach",
    about: "the backlog goes back to softirq, or is merely owned",
    weight: 5,
    worker: Worker::Ours,
    can_run: always,
    act: backlog_detach,
    undo: undo_all,
};
pub const BACKLOG_FLIP: Action = Action {
    name: "backlog-flip",
    about: "the backlog changes hands several times without a pause",
    weight: 5,
    worker: Worker::Ours,
    can_run: always,
    act: backlog_flip,
    undo: undo_all,
};
pub const MODULE_CYCLE: Action = Action {
    name: "module-cycle",
    about: "everything is undone, the module unloaded and loaded again",
    weight: 2,
    worker: Worker::Ours,
    can_run: always,
    act: module_cycle,
    undo: nothing,
};

/// A client, or the refusal that says why there is none.
macro_rules! client_or_refused {
    () => {
        match Client::connect() {
            Ok(client) => client,
            Err(ClientError::NotLoaded) => {
                return Ok(Outcome::Refused("the module is not loaded".into()))
            }
            Err(error) => return judge::<()>(Err(error.into())),
        }
    };
}

/// What a poller may be.
pub fn random_poller(world: &World, rng: &mut SplitMix64) -> PollerSpec {
    let mut spec = PollerSpec::new(one_of(rng, &world.cpus).copied().unwrap_or(0));
    let sometimes = |rng: &mut SplitMix64| rng.in_range(0, 2) > 0;
    if sometimes(rng) {
        spec.owns = one_of(rng, Owns::ALL).copied();
    }
    if sometimes(rng) {
        spec.schedule = Some(match rng.in_range(0, 1) {
            0 => Schedule::Other {
                nice: rng.in_range(0, 39) as i32 - 20,
            },
            _ => Schedule::Fifo {
                priority: rng.in_range(1, 60) as u32,
            },
        });
    }
    if sometimes(rng) {
        spec.budget = Some(rng.in_range(1, 64) as u32);
    }
    if sometimes(rng) {
        spec.watchdog_ms = Some(rng.in_range(2, 200) as u32);
    }
    if sometimes(rng) {
        spec.backlog = one_of(rng, Backlog::ALL).copied();
    }
    spec
}

/// Sometimes its CPU's frequency follows it, or its idle states are limited, or both.
fn with_power(spec: PollerSpec, rng: &mut SplitMix64) -> PollerSpec {
    PollerSpec {
        freq: match rng.in_range(0, 2) {
            0 => None,
            _ => one_of(rng, Freq::ALL).copied(),
        },
        max_cstate_latency_us: match rng.in_range(0, 1) {
            0 => None,
            // The lab's deepest state takes 30.
            _ => Some(rng.in_range(0, 40) as u32),
        },
        ..spec
    }
}

fn poller_add(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let spec = with_power(random_poller(world, rng), rng);
    let mut client = client_or_refused!();
    judge(
        Session::open(&world.host, &mut client)
            .and_then(|mut session| {
                session
                    .plan_poller(&spec)
                    .and_then(|p| session.add_poller(&p))
            })
            .map(drop),
    )
}

fn poller_del(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    let mut client = client_or_refused!();
    judge(Session::open(&world.host, &mut client).and_then(|mut s| s.delete_poller(cpu)))
}

fn random_attach(world: &World, rng: &mut SplitMix64) -> Result<AttachRequest> {
    let mut names = world
        .host
        .interface_names()
        .map_err(kbp_core::Error::from)?;
    // The card and the veth with instances of its own are what can be attached everywhere; the others are refused, or
    // not, by what they are.
    for name in ["eth0", "tn0"] {
        names.extend(std::iter::repeat_n(name.to_owned(), 8));
    }
    let name = one_of(rng, &names).cloned().unwrap_or_default();
    Ok(AttachRequest {
        target: Target::Interface {
            name,
            queue: match rng.in_range(0, 1) {
                0 => None,
                _ => Some(rng.in_range(0, 3) as u32),
            },
        },
        queues: Vec::new(),
        cpus: vec![one_of(rng, &world.cpus).copied().unwrap_or(0)],
        service: random_service(rng),
        move_irq: rng.in_range(0, 2) > 0,
        set_xps: rng.in_range(0, 2) > 0,
    })
}

/// A mode with a class, and sometimes one of its limits.
fn random_service(rng: &mut SplitMix64) -> Service {
    let mode = one_of(rng, &Service::modes())
        .copied()
        .unwrap_or(Mode::Busy);
    let mut service = Service::from(mode);
    service.class = one_of(rng, PollClass::ALL).copied().unwrap_or(CLASS);
    match (mode, rng.in_range(0, 2)) {
        (Mode::Adaptive, 0) => {
            service.cpu_budget = Share::from_permille(rng.in_range(1, 1000) as u32)
        }
        (Mode::Adaptive, 1) => service.max_wake_latency_us = Some(rng.in_range(1, 500) as u32),
        _ => {}
    }
    service
}

fn attach(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let request = random_attach(world, rng)?;
    let mut client = client_or_refused!();
    judge(attach_with(world, &mut client, &request))
}

fn attach_with(
    world: &World,
    client: &mut Client,
    request: &AttachRequest,
) -> std::result::Result<(), kbp_core::Error> {
    let mut session = Session::open(&world.host, client)?;
    let plan = session.plan_attach(request)?;
    session.attach(&plan).map(drop)
}

/// One that is attached, or why there is none.
fn random_napi(
    client: &mut Client,
    rng: &mut SplitMix64,
) -> Result<std::result::Result<Napi, Outcome>> {
    let napis = match client.napis() {
        Ok(napis) => napis,
        Err(error) => return judge::<()>(Err(error.into())).map(Err),
    };
    let napi = one_of(rng, &napis).cloned();
    Ok(napi.ok_or_else(|| Outcome::Refused("nothing is attached".into())))
}

/// Detaches this instance and nothing else.
fn only(napi: Napi) -> DetachPlan {
    DetachPlan {
        napis: vec![napi],
        ..DetachPlan::default()
    }
}

fn detach(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let mut client = client_or_refused!();
    let napi = match random_napi(&mut client, rng)? {
        Ok(napi) => napi,
        Err(refusal) => return Ok(refusal),
    };
    judge(Session::open(&world.host, &mut client).and_then(|mut s| s.detach(&only(napi))))
}

fn mode_flip(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let mut client = client_or_refused!();
    let napi = match random_napi(&mut client, rng)? {
        Ok(napi) => napi,
        Err(refusal) => return Ok(refusal),
    };
    let (Some(name), queue) = (napi.ifname.clone(), napi.queue) else {
        return Ok(Outcome::Refused("its interface is not known here".into()));
    };
    for mode in Service::modes().into_iter().chain([napi.mode_requested]) {
        let request = AttachRequest {
            target: Target::Interface {
                name: name.clone(),
                queue,
            },
            queues: Vec::new(),
            cpus: vec![napi.cpu],
            service: mode.into(),
            move_irq: rng.in_range(0, 1) > 0,
            set_xps: rng.in_range(0, 1) > 0,
        };
        let flipped = Session::open(&world.host, &mut client)
            .and_then(|mut session| session.detach(&only(napi.clone())))
            .and_then(|_| attach_with(world, &mut client, &request));
        match judge(flipped)? {
            Outcome::Done => {}
            refusal => return Ok(refusal),
        }
    }
    Ok(Outcome::Done)
}

fn backlog_attach(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    let mut client = client_or_refused!();
    judge(
        backlog::plan_attach(&world.host, &mut client, cpu)
            .and_then(|plan| backlog::apply(&mut client, &plan)),
    )
}

fn backlog_detach(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    let mut client = client_or_refused!();
    judge(
        backlog::plan_detach(&mut client, cpu).and_then(|plan| backlog::apply(&mut client, &plan)),
    )
}

fn backlog_flip(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    let mut client = client_or_refused!();
    let mut last = Outcome::Refused("no flip".into());
    for _ in 0..rng.in_range(2, 12) {
        let to = one_of(rng, Backlog::ALL)
            .copied()
            .unwrap_or(Backlog::Softirq);
        last = judge(client.poller_set_backlog(cpu, to).map_err(Into::into))?;
    }
    Ok(last)
}

fn module_cycle(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    undo_all(world)?;
    unload(world)?;
    sleep(Duration::from_millis(rng.in_range(0, 300)));
    load(world)
}

/// Loads the module. Another live patch that stays on its way is a refusal.
pub fn load(world: &World) -> Result<Outcome> {
    let loaded = when_free(|| {
        let host = &world.host;
        module::load(host, Some(&world.module), TRANSITION_LIMIT, &mut |_| {}).map(drop)
    });
    match loaded {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.class() == Class::Conflict => Ok(refused(&error)),
        Err(error) => Err(kbp_core::Error::from(error).into()),
    }
}

/// Unloads the module if it is there.
pub fn unload(world: &World) -> Result<()> {
    let unloaded = when_free(|| {
        // The governor of a CPU that was offline comes back with it, and holds the module.
        let _ = undo_everything(&world.host);
        module::unload(&world.host, TRANSITION_LIMIT, &mut |_| {})
    });
    match unloaded {
        Ok(()) | Err(ModuleError::NotLoaded) => Ok(()),
        Err(error) => Err(kbp_core::Error::from(error).into()),
    }
}

/// The kernel allows one transition at a time, and the other live patch may be in its own.
fn when_free(
    mut work: impl FnMut() -> std::result::Result<(), ModuleError>,
) -> std::result::Result<(), ModuleError> {
    let since = Instant::now();
    loop {
        match work() {
            Err(error)
                if error.class() == Class::Conflict && since.elapsed() < TRANSITION_LIMIT =>
            {
                sleep(Duration::from_millis(50));
            }
            end => return end,
        }
    }
}

/// Deletes all pollers and puts all interrupts back. What can't be put back because its CPU is offline is tried again
/// when the phase ends, and the comparison of all settings has the last word.
pub fn undo_all(world: &World) -> Result<()> {
    match undo_everything(&world.host) {
        Ok(_) => Ok(()),
        Err(error) if error.class() == Class::TimedOut => Err(error.into()),
        Err(_) => undo_everything(&world.host).map(drop).or(Ok(())),
    }
}
