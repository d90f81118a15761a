# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The page of `kbp report` in a real browser: it is drawn, legends work, it fits a phone, it loads nothing."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import browser
import report_sample

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "out" / "report-page"
PHONE, DESK = (360, 740), (1280, 900)

# How many points of a chart have exactly the colour of a mechanism's lines.
COUNT_POINTS = """
((id, kind, line) => {
  const canvas = document.querySelector(`#${id} .chart[data-kind="${kind}"] canvas`);
  const key = document.querySelector(`#${id} .key[data-line="${line}"]`);
  const hex = getComputedStyle(key).getPropertyValue("--line").trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 250 && wanted.every((value, at) => Math.abs(data[i + at] - value) <= 2)) count++;
  }
  return count;
})"""
# uPlot draws in a microtask, the browser lays out before the next frame.
SETTLE = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def build_kbp():
    """The path of `kbp`, built if need be."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "kbp"], cwd=ROOT, check=True)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "kbp"


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kbp = build_kbp()
        cls.scratch = tempfile.TemporaryDirectory(prefix="kbp-report-")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.one = cls.make_page("one", report_sample.result("6.1.0-1-amd64", 1))
        paths, loads = ("nic", "veth", "vxlan", "container"), ("idle", "hogs", "storm")
        kernels = ("6.1.0-1-amd64", "6.12.5-amd64", "7.3.1-amd64")
        results = [report_sample.result(kernel, seed, paths, loads) for seed, kernel in enumerate(kernels)]
        cls.many = cls.make_page("many", *results)

    @classmethod
    def make_page(cls, name, *results):
        scratch = pathlib.Path(cls.scratch.name)
        files = []
        for number, result in enumerate(results):
            files.append(scratch / f"{name}-{number}.json")
            files[-1].write_text(json.dumps(result), encoding="utf-8")
        page = scratch / f"{name}.html"
        subprocess.run([cls.kbp, "report", *files, "-o", page], check=True, capture_output=True)
        return page

    def open(self, page, size, scheme="light"):
        self.browser.open(page, *size, scheme)
        self.browser.run("kbpReport.buildAll()")
        self.browser.run(SETTLE)

    def points(self, block, kind, line):
        return self.browser.run(f"{COUNT_POINTS}({block!r}, {kind!r}, {line})")

    def shown(self, block):
        return {chart["kind"]: chart["lines"] for chart in self.browser.run(f"kbpReport.charts({block!r})")}

    def test_both_widths_and_both_schemes(self):
        for page, name in ((self.one, "one"), (self.many, "many")):
            for size in (PHONE, DESK):
                for scheme in ("light", "dark"):
                    with self.subTest(page=name, width=size[0], scheme=scheme):
                        self.open(page, size, scheme)
                        self.assertEqual(self.browser.complaints(), [])
                        self.assertEqual(self.browser.requests(), [page.resolve().as_uri()], "nothing leaves the file")
                        wide = self.browser.run("document.documentElement.scrollWidth")
                        self.assertLessEqual(wide, size[0], "the page does not scroll sideways")
                        for kind in ("cdf", "tail", "time"):
                            self.assertGreater(self.points("b0", kind, 0), 30, f"{kind} shows softirq")
                        self.browser.picture(PICTURES / f"{name}-{size[0]}-{scheme}.png")

    def test_a_legend_switches_its_lines_off_and_on(self):
        self.open(self.one, DESK)
        kinds = {"cdf", "tail", "time"}
        before = {(kind, line): self.points("b0", kind, line) for kind in kinds for line in (0, 5)}
        self.assertEqual(self.shown("b0").keys(), kinds)
        self.browser.run("document.querySelector('#b0 .key[data-line=\"0\"]').click()")
        self.browser.run(SETTLE)
        for kind in kinds:
            self.assertEqual([line["shown"] for line in self.shown("b0")[kind]], [False] + [True] * 5)
            self.assertEqual(self.points("b0", kind, 0), 0, f"{kind}: softirq is gone")
            self.assertGreater(self.points("b0", kind, 5), 30, f"{kind}: kbp-busy is still there")
        self.assertTrue(self.browser.run("document.querySelector('#b0 .box[data-line=\"0\"]').hidden"))
        self.assertTrue(all(self.shown("b1")["cdf"][0]["shown"] for _ in [0]), "other blocks stay as they are")
        self.browser.picture(PICTURES / "one-softirq-off.png")
        self.browser.run("document.querySelector('#b0 .key[data-line=\"0\"]').focus()")
        self.browser.press("Enter", "Enter")
        self.browser.run(SETTLE)
        after = {(kind, line): self.points("b0", kind, line) for kind in kinds for line in (0, 5)}
        self.assertEqual(after, before, "the Enter key brings it back")
        self.assertEqual(self.browser.complaints(), [])

    def test_lines_show_the_figures_of_the_tables(self):
        self.open(self.one, DESK)
        data = json.loads(self.browser.run("document.getElementById('data').textContent"))
        row_of = {row["mode"]: [] for row in report_sample.result("6.1.0-1-amd64", 1)["rows"]}
        for row in report_sample.result("6.1.0-1-amd64", 1)["rows"]:
            if row["load"] == "storm":
                row_of[row["mode"]].append(row)
        storm = next(block for block in data if block["id"] == "b1")
        for line in storm["lines"]:
            times = sorted(end for row in row_of[line["name"]] for end, count in row["histogram_ns"] for _ in range(count))
            self.assertEqual(line["n"], len(times))
            for share in (0.5, 0.9, 0.99):
                wanted = times[-(-len(times) * int(share * 100) // 100) - 1]
                shown = next(x for x, count in zip(line["x"], line["c"]) if count >= share * line["n"])
                self.assertEqual(shown, wanted, f"{line['name']}, {share}")
        longest = max(row["rtt_ns"]["max"] for rows in row_of.values() for row in rows)
        worst = self.browser.run("kbpReport.worst('b1')")
        self.assertEqual(len(worst), 10)
        self.assertEqual(worst, sorted(worst, key=lambda mark: -mark[1]))
        self.assertAlmostEqual(worst[0][1], longest, delta=longest * 0.01)

    def test_a_run_is_picked(self):
        self.open(self.many, PHONE)
        count = "[...document.querySelectorAll('.run')].filter((run) => !run.hidden).length"
        self.assertEqual(self.browser.run(count), 12, "one kernel of three: four paths, three loads")
        self.browser.run("document.querySelector('.picker input[value=\"2\"]').click()")
        self.assertEqual(self.browser.run("[...document.querySelectorAll('.run:not([hidden])')].every((run) => run.dataset.run === '2')"), True)
        self.browser.run("document.querySelector('.picker input[value=\"all\"]').click()")
        self.assertEqual(self.browser.run(count), 36)

    def test_tables_do_not_need_scripts(self):
        self.browser.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            self.browser.open(self.one, *DESK)
            self.assertTrue(self.is_visible("noscript .note"), "it says that the charts need JavaScript")
            self.assertTrue(self.is_visible("#b0 table"))
            self.assertTrue(self.is_visible("#b0 .box svg"))
            self.assertFalse(self.is_visible("#b0 .chart"))
            self.browser.picture(PICTURES / "one-no-script.png")
        finally:
            self.browser.call("Emulation.setScriptExecutionDisabled", value=False)

    def is_visible(self, selector):
        root = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        node = self.browser.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.assertTrue(node, f"{selector} is in the page")
        try:
            return self.browser.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 0
        except RuntimeError:
            return False


if __name__ == "__main__":
    unittest.main()
