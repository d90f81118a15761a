// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backlog of a CPU: attached once, detached once, and to whom it then goes.

mod common;

use common::{Family, Machine};
use kbp_core::backlog::{apply, plan_attach, plan_detach};
use kbp_core::client::Control;
use kbp_core::uapi::Backlog;
use kbp_core::{Class, Error};

#[test]
fn it_is_attached_once_and_goes_back_to_the_poller_that_owns_all() {
    let machine = Machine::new();
    let mut family = Family {
        pollers: vec![2],
        ..Family::default()
    };
    let plan = plan_attach(&machine.host, &mut family, 2).unwrap();
    assert_eq!((plan.from, plan.to), (Backlog::Owned, Backlog::Attached));
    assert_eq!(
        family.poller_get(2).unwrap().backlog_requested,
        Backlog::Owned,
        "a plan changes nothing"
    );
    let poller = apply(&mut family, &plan).unwrap();
    assert_eq!(poller.backlog_active, Backlog::Attached);

    let error = plan_attach(&machine.host, &mut family, 2).unwrap_err();
    assert!(matches!(error, Error::AlreadyAttached { .. }), "{error}");

    let plan = plan_detach(&mut family, 2).unwrap();
    assert_eq!(
        apply(&mut family, &plan).unwrap().backlog_requested,
        Backlog::Owned
    );
    let error = plan_detach(&mut family, 2).unwrap_err();
    assert!(matches!(error, Error::NotAttached { .. }), "{error}");
}

#[test]
fn it_needs_a_poller_on_a_cpu_that_is_there() {
    let machine = Machine::new();
    let mut family = Family::default();
    for cpu in [1, 99] {
        let error = plan_attach(&machine.host, &mut family, cpu).unwrap_err();
        assert_ne!(error.class(), Class::Failure, "{error}");
    }
    assert!(plan_detach(&mut family, 1).is_err());
}
