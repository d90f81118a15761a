// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong in a file of `kbp restore` is told with its line.

use kbp_core::setup_read::parse;
use kbp_core::Class;

/// A text, the line of what is wrong with it, and words of what is told.
type Wrong = (&'static str, usize, &'static str);

const WRONG_FILES: &[Wrong] = &[
    ("", 1, "does not say its version"),
    (
        "# x\nversion = 2\nnew = 3",
        2,
        "version 2 is not known; this kbp reads version 1",
    ),
    ("version = 'x'", 1, "is not known"),
    ("version = 1\npollers = 3", 2, "unknown field `pollers`"),
    ("version = 1\n[[poller]\ncpu = 1", 2, "unclosed"),
    (
        "version = 1\n[[poller]]\nbudget = 3",
        2,
        "missing field `cpu`",
    ),
    (
        "version = 1\n[[poller]]\ncpu = 70000",
        3,
        "CPU 70000 is not from 0 to 65535",
    ),
];

/// The same after four lines with a poller of CPU 2.
const WRONG_POLLERS: &[Wrong] = &[
    (
        "cpus = '3'",
        5,
        "unknown field `cpus`, expected one of `cpu`",
    ),
    ("priority = 'f:99'", 5, "'f:99' is neither f:PRIORITY"),
    ("budget = 65", 5, "budget 65 is not from 1 to 64"),
    ("watchdog_ms = 0", 5, "watchdog_ms 0 is not from 1 to 10000"),
    (
        "owns = 'some'",
        5,
        "owns 'some' is not known; it is one of: all, attached",
    ),
    ("backlog = 3", 5, "invalid type"),
    (
        "[[poller]]\ncpu = 2",
        6,
        "the poller of CPU 2 is there twice, first in line 4",
    ),
    (
        "[[attach]]\ndevice = 'eth0:1'\ncpus = '2'",
        6,
        "queues have a key of their own",
    ),
    (
        "[[attach]]\ndevice = 'backlog'\ncpus = '2'",
        6,
        "`backlog = \"attached\"` below [[poller]]",
    ),
];

/// The same after three more lines, which attach eth0.
const WRONG_ATTACHMENTS: &[Wrong] = &[
    (
        "mode = 'sleepy'",
        8,
        "mode 'sleepy' is not known; it is one of: busy",
    ),
    ("mode = 'softirq'", 8, "is not known"),
    (
        "mode = 'adaptive'\ncpu_budget = '101'",
        9,
        "cpu_budget: '101' is not a percentage",
    ),
    (
        "mode = 'adaptive'\nmax_wake_latency_us = 0",
        9,
        "max_wake_latency_us 0 is not from 1 to 10000",
    ),
    (
        "mode = 'sleep'\ncpu_budget = '10'",
        6,
        "go with mode adaptive, not with sleep",
    ),
    (
        "mode = 'adaptive'\ncpu_budget = '10'\nmax_wake_latency_us = 9",
        6,
        "name one",
    ),
    ("queues = '3-1'", 8, "queues: '3-1' is not a list"),
    ("queues = '1,1'", 8, "1 is in '1,1' twice"),
    (
        "mac = '52:54'\nbus = 'x'",
        9,
        "'x' is not a place on a bus like",
    ),
    ("mac = 'x'", 8, "'x' is not a hardware address like"),
    (
        "netns = 'a/b'",
        8,
        "'a/b' is not the name of a network namespace",
    ),
    (
        "[[attach]]\ndevice = 'eth0'\nqueues = '1'\ncpus = '3'",
        8,
        "eth0 with all its queues is there already, in line 5",
    ),
];

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_line() {
    let poller = "version = 1\n\n[[poller]]\ncpu = 2\n";
    let attachment = format!("{poller}[[attach]]\ndevice = 'eth0'\ncpus = '2'\n");
    let tables = [
        ("", WRONG_FILES),
        (poller, WRONG_POLLERS),
        (&attachment, WRONG_ATTACHMENTS),
    ];
    for (head, wrong) in tables {
        for (text, line, words) in wrong {
            let text = format!("{head}{text}");
            let error = parse("kbp.toml", &text).unwrap_err();
            let told = error.to_string();
            let place = format!("kbp.toml:{line}: ");
            assert!(told.starts_with(&place), "{told}\nfor\n{text}");
            assert!(
                told.contains(words) && !told.contains('\n'),
                "{told}\nfor\n{text}"
            );
            assert_eq!(error.class(), Class::Usage);
        }
    }
    let error = kbp_core::setup_read::read("/nonexistent/kbp.toml".as_ref()).unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
}
