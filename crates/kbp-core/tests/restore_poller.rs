// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A poller of a setup comes back with what this machine can do, and the rest is told.

mod common;

use std::time::Duration;

use common::restoring::{failures, family, machine, now, requested, restore_with};
use kbp_core::restore::Options;
use kbp_core::setup_read::parse;

#[test]
fn a_poller_comes_back_without_a_backlog_that_this_kernel_does_not_give() {
    let (machine, mut family) = (machine(), family());
    family.refuse_backlog = true;
    let text = "version = 1\n[[poller]]\ncpu = 2\nbacklog = 'attached'\n\
                [[attach]]\ndevice = 'eth1'\ncpus = '2'\n";
    for _ in 0..2 {
        let failed = failures(&now(&machine, &mut family, text));
        assert_eq!(failed.len(), 1, "{failed:#?}");
        assert!(failed[0].contains("can't leave its backlog to a poller"));
        assert_eq!((family.pollers.len(), family.napis.len()), (1, 4));
    }
}

#[test]
fn a_poller_comes_back_without_what_this_machine_has_not() {
    let (machine, mut family) = (machine(), family());
    let text = "version = 1\n[[poller]]\ncpu = 2\nfreq = 'auto'\nmax_cstate_latency_us = 20\n\
                [[attach]]\ndevice = 'eth1'\ncpus = '2'\n";
    let file = parse("kbp.toml", text).unwrap();
    // The second time they are there already, without.
    for wait in [Duration::from_millis(300), Duration::ZERO] {
        let options = Options {
            wait,
            ..Options::default()
        };
        let failed = failures(&restore_with(&machine, &mut family, &file, options));
        assert_eq!(failed.len(), 2, "{failed:#?}");
        assert!(failed[0].starts_with("2: the frequency of CPU 2: "));
        assert!(failed[1].starts_with("2: the idle states of CPU 2: "));
        assert_eq!((family.pollers.len(), family.napis.len()), (1, 4));
    }
}

#[test]
fn a_limit_of_idle_states_is_asked_for_with_their_exit_and_comes_back() {
    let (machine, mut family) = (machine(), family());
    machine.write(
        "sys/devices/system/cpu/cpu2/cpuidle/state1/latency",
        "200\n",
    );
    let text = "version = 1\n[[poller]]\ncpu = 2\nmax_cstate_latency_us = 20\n";
    assert_eq!(failures(&now(&machine, &mut family, text)), [""; 0]);
    assert_eq!(family.specs[&2].deep_exit_us, Some(200));
    let written = requested(&machine, &mut family).text("a test");
    assert!(
        written.contains("max_cstate_latency_us = 20\n"),
        "{written}"
    );
    assert_eq!(failures(&now(&machine, &mut family, &written)), [""; 0]);
    let other = text.replace("20", "30");
    let failed = failures(&now(&machine, &mut family, &other));
    assert!(
        failed[0].contains("max_cstate_latency_us 20, not 30"),
        "{failed:#?}"
    );
}
