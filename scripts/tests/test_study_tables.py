# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tables of studies: rounds together are what all of their round trips are, and a table says what is missing."""

import json
import pathlib
import random
import statistics
import tempfile
import unittest

import script

classes = script.load("classes-table")
services = script.load("services-table")
energy = script.load("energy-table")
import study_rows  # noqa: E402  found through script.py

SEED = 5


def row(mode, load, times_us, **more):
    """A row as results have it, of round trips that are given."""
    times_ns = sorted(round(1000 * time) for time in times_us)
    at = {name: times_ns[min(int(share * len(times_ns)), len(times_ns) - 1)]
          for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
    return {"mode": mode, "load": load, "traffic": "memcached", "n": len(times_ns), "span_ns": 10 ** 9,
            "witness": {"mode_threads_ns": 0}, "histogram_ns": [[time, 1] for time in times_ns],
            "rtt_ns": {**at, "max": times_ns[-1], "mean": statistics.fmean(times_ns), "sd": statistics.pstdev(times_ns)},
            "load_done": {"counts": {"packets": 100_000}, "span_ns": 10 ** 9}, **more}


class StudyTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, rows, clock="parallel"):
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(json.dumps({"clock": clock, "rows": rows}))

    def test_rounds_together_are_all_their_round_trips(self):
        dice = random.Random(SEED)
        times = [[dice.lognormvariate(4, 0.5) for _ in range(count)] for count in (700, 300, 50)]
        rows = [row("softirq", "idle", some) for some in times]
        everything = [round(1000 * time) / 1000 for some in times for time in some]
        mean, deviation = study_rows.pooled(rows)
        self.assertAlmostEqual(mean, statistics.fmean(everything), places=3)
        self.assertAlmostEqual(deviation, statistics.pstdev(everything), places=3)
        for share in (0.5, 0.99, 0.999, 1):
            least = study_rows.percentile(rows, share)
            self.assertGreaterEqual(sum(time <= least for time in everything), share * len(everything))
            self.assertLess(sum(time < least for time in everything), share * len(everything))

    def test_what_was_reached_and_what_is_missing(self):
        self.write("6.1.json", [
            row("softirq", "idle", [30] * 100), row("kbp-busy-rt", "idle", [30] * 100),
            row("softirq", "storm", [300] * 99 + [20_000]), row("kbp-busy-rt", "storm", [33] * 99 + [100]),
        ])
        lines = classes.goals(self.folder, "6.1")
        self.assertIn("| 6.1, storm: p99.9 ≤ 120, max ≤ 170 | 100; 100 | – | – |", lines)
        self.assertIn("| 6.1, storm: p50 ≤ 1.1 × idle | 1.10 | – | – |", lines)
        self.assertIn("| 6.1, storm: `softirq`'s max is at least 100 × as long | 200 × | – | – |", lines)
        self.assertEqual(classes.goals(self.folder, "7.3"), [])
        self.assertIn("### 6.1, storm, parallel clock", classes.tables(self.folder, "6.1"))

    def test_another_clock_is_said_and_not_compared_with(self):
        self.write("6.1-rt/result.json", [
            row("preempt-rt", "stream", [100] * 100), row("kbp-busy-rt", "stream", [50] * 100),
        ])
        self.write("6.1-rt/dedicated.json", [row("preempt-rt", "stream", [40] * 100)], clock="virtual")
        lines = services.service_tables(self.folder, "6.1-rt", "memcached", "services")
        self.assertIn("| p99, stream, against `preempt-rt` | −50 % | – | – |", lines)
        self.assertFalse(any("another CPU" in line for line in lines), lines)

    def test_what_a_mode_costs_is_a_second_of_all_its_rows(self):
        def paid(mode, times_us, polls, irqs, span_s, sent_late_us=0):
            sent = {"since_sent_ns_max": 1000 * (max(times_us) - sent_late_us)}
            return row(mode, "idle", times_us, size_bytes=64, rate_bps=1024e3, span_ns=span_s * 10 ** 9, poller={"empty_polls": polls},
                       open_loop=sent,
                       witness={"hard_irqs": irqs, "mode_threads_ns": span_s * 10 ** 9 // 2})

        self.write("6.1-bursts.json", [
            paid("kbp-busy", [30] * 100, 1000, 0, 1), paid("kbp-busy", [40] * 100, 9000, 0, 4),
            paid("kbp-sleep", [90] * 99 + [500], 10, 400, 2, sent_late_us=410), paid("kbp-sleep+freq", [90] * 99 + [180], 10, 400, 1),
            paid("kbp-adaptive", [44] * 100, 800, 10, 2),
        ])
        words = next(words for run, _, words in energy.TRAFFIC if run == "bursts") + " (2,000/s)"
        self.assertIn(f"| {words} | 1.10 | – | 0.20 | – | 0.025 | 2.00 | – |", energy.against(self.folder, "6.1"))
        self.assertEqual(energy.against(self.folder, "6.12"), [])
        shares = energy.of_all(self.folder, "6.1", ["kbp-adaptive"], lambda rows: f"{energy.cpu_share(rows):.0f}")
        self.assertIn(f"| {words} | 50 |", shares)

    def test_a_page_has_its_tables_anew(self):
        tables = {"6.1, one": ["| a |", "|---|", "| 2 |", ""], "7.3, one": ["| b |", ""]}
        page = "Words.\n\n<!-- table: 6.1, one -->\n| a |\n|---|\n| 1 |\n| 0 |\n\nMore.\n"
        new, left = energy.filled(page, tables)
        self.assertEqual(new, "Words.\n\n<!-- table: 6.1, one -->\n| a |\n|---|\n| 2 |\n\nMore.\n")
        self.assertEqual(list(left), ["7.3, one"])
        self.assertEqual(energy.filled(new, tables)[0], new)
        with self.assertRaises(KeyError):
            energy.filled("<!-- table: 6.12, one -->", tables)


if __name__ == "__main__":
    unittest.main()
