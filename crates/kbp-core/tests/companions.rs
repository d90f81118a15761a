// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threaded NAPI, deferred interrupts and busy-polling sockets beside attached interfaces: refused, or said.

mod common;

use common::{request, Family, Machine};
use kbp_core::attr::Attrs;
use kbp_core::companions::taken;
use kbp_core::model::{Napi, PollerSpec, Stats};
use kbp_core::plan::Session;
use kbp_core::service::CLASS;
use kbp_core::uapi::{Mode, NAPI_COUNTERS};
use kbp_core::{Class, Error};

fn notes(machine: &Machine) -> Result<Vec<String>, Error> {
    let mut family = Family {
        pollers: vec![2],
        ..Family::default()
    };
    let mut session = Session::open(&machine.host, &mut family)?;
    Ok(session.plan_attach(&request("eth0", &[2]))?.notes)
}

#[test]
fn idle_states_that_a_limit_of_wake_ups_does_not_see_are_said() {
    let machine = Machine::new();
    machine.write(
        "sys/devices/system/cpu/cpu2/cpuidle/state1/latency",
        "200\n",
    );
    let notes = |limit_us, kept_us| {
        let mut family = Family {
            pollers: vec![2],
            ..Family::default()
        };
        if let Some(us) = kept_us {
            let spec = PollerSpec {
                max_cstate_latency_us: Some(us),
                ..PollerSpec::new(2)
            };
            family.specs.insert(2, spec);
        }
        let mut session = Session::open(&machine.host, &mut family).unwrap();
        let mut request = request("eth0", &[2]);
        request.service.mode = Mode::Adaptive;
        request.service.max_wake_latency_us = limit_us;
        session.plan_attach(&request).unwrap().notes
    };
    let said = notes(Some(50), None);
    assert!(
        said.len() == 1 && said[0].contains("--max-cstate-latency 50"),
        "{said:?}"
    );
    assert_eq!(notes(Some(50), Some(100)).len(), 1);
    for silent in [(None, None), (Some(200), None), (Some(50), Some(50))] {
        assert_eq!(notes(silent.0, silent.1), Vec::<String>::new());
    }
}

fn napi(mode_active: Mode, netns_cookie: u64) -> Napi {
    Napi {
        napi_id: 8193,
        ifindex: Some(2),
        ifname: Some("eth0".into()),
        queue: Some(0),
        cpu: 2,
        mode_requested: Mode::Busy,
        mode_active,
        class: CLASS,
        cpu_budget: None,
        max_wake_latency_us: None,
        netns_cookie: Some(netns_cookie),
        stats: Stats::from_attrs(NAPI_COUNTERS, Attrs::default()).unwrap(),
    }
}

#[test]
fn an_interface_with_threads_of_its_own_is_refused_before_anything_is_changed() {
    let machine = Machine::new();
    machine.write("sys/class/net/eth0/threaded", "1\n");
    let error = notes(&machine).unwrap_err();
    assert_eq!(error.class(), Class::Conflict);
    let text = error.to_string();
    assert!(
        text.contains("threaded NAPI is on for eth0") && text.contains("echo 0 >"),
        "{text}"
    );
}

#[test]
fn what_has_no_effect_while_a_poller_polls_is_said_before() {
    let machine = Machine::new();
    for (file, value) in [
        ("sys/class/net/eth0/gro_flush_timeout", "0\n"),
        ("sys/class/net/eth0/napi_defer_hard_irqs", "0\n"),
        ("proc/sys/net/core/busy_read", "0\n"),
        ("proc/sys/net/core/busy_poll", "0\n"),
    ] {
        machine.write(file, value);
    }
    assert_eq!(notes(&machine).unwrap(), Vec::<String>::new());
    machine.write("sys/class/net/eth0/napi_defer_hard_irqs", "2\n");
    let timers = notes(&machine).unwrap();
    assert!(
        timers.len() == 1 && timers[0].contains("napi_defer_hard_irqs"),
        "{timers:?}"
    );
    machine.write("proc/sys/net/core/busy_poll", "50\n");
    let both = notes(&machine).unwrap();
    assert!(
        both.len() == 2 && both[1].contains("sockets busy-poll here"),
        "{both:?}"
    );
}

#[test]
fn an_instance_that_a_thread_serves_is_named_and_no_other() {
    let machine = Machine::new();
    let (lost, kept, elsewhere) = (
        napi(Mode::Softirq, 1),
        napi(Mode::Busy, 1),
        napi(Mode::Softirq, 7),
    );
    let all = [lost, kept.clone(), elsewhere.clone()];
    // Its interface may be down: then nobody has taken it.
    assert!(taken(&machine.host, &all, 1).is_empty());
    machine.write("sys/class/net/eth0/threaded", "1\n");
    let said = taken(&machine.host, &all, 1);
    assert!(
        said.len() == 1 && said[0].contains("a thread of the kernel serves eth0 queue 0"),
        "{said:?}"
    );
    assert!(taken(&machine.host, &[kept, elsewhere], 1).is_empty());
}
