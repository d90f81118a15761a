// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of the whole page. What it looks like in a browser: scripts/tests/test_report_page.py.

use super::run::merge;
use super::*;
use crate::check::check_demo;
use crate::result::tests::sample;
use crate::result::{
    Bulk, CpuTimes, CpuUse, Energy, EnergyEstimate, FrequencyUse, IdleUse, NotRun, OneWay,
    OpenLoop, ResultFile, Row, Throughput, NO_TRAFFIC,
};

/// A result with every optional field filled, and a row of every kind of traffic.
pub(crate) fn full() -> ResultFile {
    let mut file = sample();
    for row in &mut file.rows {
        costs(row);
    }
    let base = file.rows[3].clone();
    let of = |traffic: &str| Row {
        traffic: traffic.into(),
        rate_bps: Some(80_000_000),
        ..base.clone()
    };
    let open = OpenLoop {
        sent: 2_010,
        duplicated: 1,
        reordered: 2,
        send_late_ns_max: 9_000,
        since_sent_ns_max: Some(95_000),
    };
    file.rows.push(Row {
        open_loop: Some(open),
        ..of("open-loop")
    });
    file.rows.push(Row {
        open_loop: Some(open),
        arrivals: Some("onoff:1:9".into()),
        ..of("open-loop")
    });
    let bare = |traffic| Row {
        n: 0,
        histogram_ns: vec![],
        rtt_ns: Default::default(),
        ..of(traffic)
    };
    file.rows.push(Row {
        throughput: Some(throughput()),
        ..bare("rfc2544")
    });
    let one_way = OneWay {
        sent_per_s: 9e5,
        received_per_s: 8e5,
        burst: 32,
    };
    file.rows.push(Row {
        one_way: Some(one_way),
        tool: "sendmmsg".into(),
        ..bare("one-way")
    });
    let bulk = Bulk {
        sent_bps: 9.1e8,
        received_bps: 9.0e8,
        retransmits: Some(77),
        jitter_ns: Some(1_500),
    };
    file.rows.push(Row {
        bulk: Some(bulk),
        tool: "iperf3".into(),
        ..bare("tcp-stream")
    });
    file.rows.push(Row {
        rate_bps: None,
        ..bare(NO_TRAFFIC)
    });
    file.partial = true;
    file.not_run.push(not_run());
    file
}

fn throughput() -> Throughput {
    Throughput {
        frames_per_s: 91_000.0,
        bps: 61e6,
        trial_ns: 1_000_000_000,
        resolution_percent: 1.0,
        resolution_frames_per_s: None,
        trials: 9,
        limited_by_tester: true,
    }
}

fn not_run() -> NotRun {
    NotRun {
        path: "vxlan".into(),
        load: "idle".into(),
        mode: "threaded".into(),
        round: Some(1),
        why: "this <path> has no NAPI of its own".into(),
        failed: true,
    }
}

fn costs(row: &mut Row) {
    let cpus = [(
        2,
        CpuTimes {
            system_ns: 2_000_000_000,
            ..CpuTimes::default()
        },
    )];
    row.cpu = Some(CpuUse {
        cpus: cpus.into(),
        context_switches: 12_345,
        ..CpuUse::default()
    });
    row.softirqs = [("NET_RX".into(), [(2, 6_000)].into())].into();
    row.interrupts = [("eth0-rx-0".into(), [(2, 8_000)].into())].into();
    row.drops = [("socket".into(), 3)].into();
    let source = "no energy counter on this machine".into();
    row.energy = Some(Energy {
        joules: None,
        source,
        estimate: Some(EnergyEstimate {
            joules: 6.6,
            watts: 2.2,
            busy_cpus: 0.4,
            of_cpus: vec![2, 3],
            model: "EE-KBP".into(),
        }),
    });
    row.frequency = Some(FrequencyUse {
        changes: 77,
        mean_khz: Some(1_200_000.0),
    });
    let rests = IdleUse {
        entries: 9,
        time_ns: 1_000_000,
    };
    row.idle_states = [("C6".into(), rests)].into();
    row.witness.mode_threads_sleeps = Some(55);
    if let Some(poller) = &mut row.poller {
        poller.empty_polls = Some(9_000);
        poller.slowdowns = Some(38);
        poller.speedups = Some(39);
    }
    row.note = Some("believe the real clock".into());
    row.timeline_ns = (0..500).map(|i| [i * 6_000_000, 43_000 + i]).collect();
}

fn page_of(files: Vec<ResultFile>) -> String {
    let named = files.into_iter().enumerate();
    let runs = merge(
        named
            .map(|(i, file)| (format!("{i}.json").into(), file))
            .collect(),
    );
    page(&runs, &[])
}

/// Everything of the page that is not uPlot's.
fn own(page: &str) -> String {
    assert!(page.contains(UPLOT_LICENCE) && page.contains(UPLOT));
    page.replace(UPLOT, "").replace(UPLOT_CSS, "")
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let page = own(&page_of(vec![full()]));
    for outside in [
        "http:", "https:", "src=", "url(", "@import", "<img", "<iframe",
    ] {
        assert!(!page.contains(outside), "{outside} would load something");
    }
    assert_eq!(
        page.matches("<link").count(),
        page.matches("href=\"data:,\"").count()
    );
    for tag in [
        "div", "section", "table", "details", "figure", "dl", "p", "ul", "script", "style",
    ] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(
            opened,
            page.matches(&format!("</{tag}>")).count(),
            "<{tag}>"
        );
    }
    assert!(
        page.contains("&lt;quoted&gt; &amp; more"),
        "the command line is escaped"
    );
    assert!(page.contains("this &lt;path&gt; has"), "so is a reason");
}

#[test]
fn every_figure_of_a_group_is_in_a_table() {
    let file = full();
    let page = page_of(vec![file.clone()]);
    for row in file
        .rows
        .iter()
        .filter(|row| row.mode != "softirq" && row.n > 0)
    {
        let p99 = text::micros(row.rtt_ns.p99 as f64);
        assert!(page.contains(&format!("<td>{p99}</td>")), "{}", row.name());
    }
    for words in [
        "sendmmsg",
        "<td>tcp-stream</td><td>kbp-busy</td><td>910 Mbit/s</td><td>900 Mbit/s</td><td>77</td>",
        "91\u{202f}000",
        "the tester: a lower bound",
        "no energy counter on this machine",
        "believe the real clock",
        "The run is not complete",
        "Open loop, 64 bytes, 80.0 Mbit/s",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn the_headline_says_who_is_ahead() {
    let page = page_of(vec![sample()]);
    for words in [
        // Storm: 200 µs against 210 µs is ahead. Idle: the rival's two rounds differ by half as much as 42 µs from 43 µs.
        "best of the other mechanisms on the same machine, KBP is ahead in one",
        "Largest gain over softirq: nic under storm, where the p99 of kbp-busy is",
        "Lost with KBP: 0 of 4\u{202f}000;",
        "took 97 % of one CPU",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let mut slow = sample();
    let rival = slow
        .rows
        .iter()
        .find(|row| row.mode == "softirq")
        .cloned()
        .unwrap();
    let ours = slow
        .rows
        .iter_mut()
        .find(|row| row.mode == "kbp-busy")
        .unwrap();
    let theirs = std::mem::replace(
        ours,
        Row {
            mode: "kbp-busy".into(),
            ..rival
        },
    );
    slow.rows
        .retain(|row| row.mode == "kbp-busy" || row.load == "storm");
    slow.rows.push(Row {
        mode: "softirq".into(),
        ..theirs
    });
    let page = page_of(vec![slow]);
    assert!(
        page.contains("A rival has the lower p99 here: nic, idle (kbp-busy takes 1.0"),
        "fair"
    );
}

#[test]
fn runs_are_shown_side_by_side() {
    let mut newer = sample();
    newer.kernel = "7.3.1".into();
    let page = page_of(vec![sample(), newer]);
    assert_eq!(
        page.matches("<div class=\"run\"").count(),
        2 * 2,
        "two loads, two runs"
    );
    assert!(page.contains("class=\"picker\" hidden"));
    assert!(page.contains("(path × load × machine)"));
    assert_eq!(
        page.matches("p99, µs</th><th scope=\"col\">6.1.0-55-amd64</th>")
            .count(),
        2
    );
}

#[test]
fn bars_are_shown_as_they_were_met() {
    let mut file = sample();
    let ours = file.rows.iter_mut().filter(|row| row.mode == "kbp-busy");
    ours.for_each(|row| row.lost = 1);
    let bars = vec![check_demo(&file, None)];
    let page = page(&merge(vec![("a".into(), file)]), &bars);
    assert_eq!(page.matches("<li class=\"fail\">").count(), 1);
    assert!(page.contains("<li class=\"pass\">"));
}

#[test]
fn a_result_without_rows_is_a_page_too() {
    let mut file = sample();
    file.rows.clear();
    file.config = None;
    assert!(page_of(vec![file]).ends_with("</html>\n"));
}

#[test]
fn names_of_foreign_rows_cannot_leave_their_place() {
    let evil = "</script><script>alert(1)</script>\"'&\u{2028}";
    let mut file = sample();
    for row in &mut file.rows {
        row.mode = evil.into();
        row.path = evil.into();
        row.load = evil.into();
    }
    let page = own(&page_of(vec![file]));
    assert_eq!(page.matches("<script").count(), 3, "data, uPlot, ours");
    assert!(!page.contains("alert(1)</script>"));
    let data = page
        .split("id=\"data\">")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let blocks: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        blocks[0]["lines"][0]["name"], evil,
        "and the data hold it unchanged"
    );
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let runs = merge(vec![("a".into(), sample())]);
    let path = dir.path().join("page.html");
    write(&runs, &[], &path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page(&runs, &[]));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "no part is left"
    );
    let refused = write(&runs, &[], Path::new("/dev/full")).unwrap_err();
    assert!(refused.to_string().contains("/dev/full"), "{refused}");
}
