# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The test runner: how it counts what tools print, and what it makes of lab tests."""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
import time
import unittest
import unittest.mock

import script

run_tests = script.load("run-tests")


def count(counter, text):
    tally = run_tests.Tally()
    for line in text.split("\n"):
        counter(line, tally)
    return str(tally)


class Counting(unittest.TestCase):
    def test_cargo(self):
        text = (
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n"
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n"
            "error: test result unknown\n"
        )
        self.assertEqual(count(run_tests.count_cargo, text), "15 passed, 2 failed, 1 skipped")

    def test_unittest(self):
        text = "Ran 16 tests in 9.1s\n\nOK\nRan 5 tests in 1s\n\nFAILED (failures=1, errors=1, skipped=1)\n"
        self.assertEqual(count(run_tests.UnittestCounter(), text), "18 passed, 2 failed, 1 skipped")
        many_subtests = "Ran 2 tests in 1s\n\nFAILED (failures=40)\n"
        self.assertEqual(count(run_tests.UnittestCounter(), many_subtests), "0 passed, 2 failed, 0 skipped")

    def suite(self, program):
        with contextlib.redirect_stdout(io.StringIO()):
            return run_tests.run_suite("s", [sys.executable, "-c", program], run_tests.count_cargo)

    def test_a_suite_that_breaks_is_a_failure(self):
        line = "print('test result: ok. 2 passed; 0 failed; 0 ignored')"
        self.assertEqual(str(self.suite(line)), "2 passed, 0 failed, 0 skipped")
        self.assertEqual(str(self.suite(line + ";exit(101)")), "2 passed, 1 failed, 0 skipped")
        self.assertEqual(str(self.suite("pass")), "0 passed, 1 failed, 0 skipped")


class Lab(unittest.TestCase):
    SKIPS = {("a.sh", "6.1")}

    def test_exit_codes(self):
        for code, text, word in (
            (0, "", "ok"),
            (1, "", "FAIL"),
            (70, "", "FAIL"),
            (4, "x\nSKIP: no tracer\n", "skip"),
            (4, "", "FAIL"),
        ):
            self.assertEqual(run_tests.judge(code, text, "a.sh", "6.1", self.SKIPS)[0], word)

    def test_only_a_fault_of_the_emulator_is_repeated(self):
        source = (run_tests.ROOT / "crates/kbp-lab/src/emulator.rs").read_text()
        words = re.search(r'OWN_FAULT: &str = "(.+)";', source)[1]
        fault = f"lab: the machine was lost: Kernel panic - not syncing: a; {words}an assertion (boot 1 s)"
        panic = "lab: the machine was lost, which is no result: it ended without a result"
        quiet = contextlib.redirect_stdout(io.StringIO())
        for code, text, runs in ((70, fault, 2), (70, panic, 1), (1, fault, 1), (0, "", 1)):
            once, tally = unittest.mock.Mock(return_value=(code, text)), run_tests.Tally()
            with tempfile.TemporaryDirectory() as folder, quiet:
                out = pathlib.Path(folder) / "a"
                out.mkdir()
                (out / "log").write_text(text)
                with unittest.mock.patch.object(run_tests, "run_lab_test_once", once):
                    self.assertEqual(run_tests.run_lab_test(pathlib.Path("a.sh"), "6.1", out, tally), (code, text))
                self.assertEqual((pathlib.Path(folder) / "a-lost/log").exists(), runs == 2, text)
            self.assertEqual((once.call_count, len(tally.repeated)), (runs, runs - 1), text)

    def test_a_skip_has_to_be_listed(self):
        word, reason = run_tests.judge(4, "SKIP: no tracer", "b.sh", "6.1", self.SKIPS)
        self.assertEqual((word, reason), ("FAIL", "skipped, which lab/kernels.toml does not list: no tracer"))

    def test_header(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.sh"
            path.write_text("#!/bin/sh\n# lab: --cpus 4 --nics 2\n# kernels: all\n" + "true\n" * 20 + "# late: x\n")
            self.assertEqual(run_tests.header(path, "lab"), "--cpus 4 --nics 2")
            self.assertEqual(run_tests.header(path, "kernels"), "all")
            self.assertEqual(run_tests.header(path, "late"), "")

    def test_machines_beside_each_other_and_those_alone(self):
        """Every test runs once, none beside one that has to be alone, and each is counted."""
        running, alone, done = set(), [], []

        def run(script, kernel, out, _tally):
            running.add(script)
            time.sleep(0.02)
            if run_tests.is_alone(script):
                alone.append(running == {script})
            running.discard(script)
            done.append((script.name, kernel))
            return (1 if script.name.startswith("41") else 0), "".join(
                f"DONE: {step}\n" for step in run_tests.header(script, "steps").split()
            )

        with (
            unittest.mock.patch.object(run_tests, "run_lab_test", run),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            tally = run_tests.lab(["6.1", "7.3"], [])
        names = [script.name for script in run_tests.lab_scripts([])]
        self.assertEqual(sorted(done), sorted((name, kernel) for name in names for kernel in ("6.1", "7.3")))
        self.assertTrue(alone and all(alone))
        self.assertEqual((tally.passed, tally.failed), (2 * len(names) - 2, 2))
        self.assertEqual(printed.getvalue().count("ok   "), tally.passed)


class Kernels(unittest.TestCase):
    """The table of all kernels."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def lab_test(self, name="70-serve.sh", kernels="all", steps="load serve unload"):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n# kernels: {kernels}\n" + (f"# steps: {steps}\n" if steps else ""))
        return path

    def test_where_a_test_runs(self):
        for words, kernel, wide, meant in (
            ("all", "6.1-rt", False, True),
            ("6.1 6.12", "6.12", False, True),
            ("6.1 6.12", "6.1-rt", True, False),
            ("wide", "6.1", False, False),
            ("wide", "6.1", True, True),
            ("", "6.1", True, False),
        ):
            self.assertEqual(run_tests.is_meant(self.lab_test(kernels=words), kernel, wide), meant, (words, kernel))

    def test_headers_of_the_tree_name_kernels_that_there_are(self):
        known = {"all", "wide", *run_tests.listed_kernels()}
        serve = 0
        for path in run_tests.lab_scripts([]):
            self.assertLessEqual(set(run_tests.header(path, "kernels").split()), known, path)
            serve += run_tests.columns_of(path) == ["load", "serve", "unload"]
        self.assertEqual(serve, 1)

    def test_a_test_that_boots_a_disk_is_no_ordinary_one(self):
        disks = run_tests.lab_scripts([], root=True)
        self.assertIn("80-dkms.sh", [path.name for path in disks])
        self.assertFalse(set(disks) & set(run_tests.lab_scripts([])))

    def test_a_slow_test_runs_when_it_is_named(self):
        self.assertNotIn("57-nested.sh", [path.name for path in run_tests.lab_scripts([])])
        self.assertEqual(["57-nested.sh"], [path.name for path in run_tests.lab_scripts(["57-nested.sh"])])
        self.assertFalse(run_tests.is_meant(self.lab_test(kernels="slow"), "6.1", True))

    def test_cells(self):
        path = self.lab_test()
        text = "DONE: load\nFAIL: no packets\n"
        self.assertEqual(run_tests.cells_of(path, "FAIL", text), {"load": "ok", "serve": "FAIL", "unload": "-"})
        text = "DONE: load\nDONE: serve\nDONE: unload\n"
        self.assertEqual(run_tests.cells_of(path, "ok", text), dict.fromkeys(("load", "serve", "unload"), "ok"))
        self.assertEqual(run_tests.cells_of(path, "FAIL", text), {"load": "ok", "serve": "ok", "unload": "FAIL"})
        self.assertEqual(run_tests.cells_of(path, "FAIL", "DONE: loads\n")["load"], "FAIL")
        self.assertEqual(run_tests.cells_of(path, "skip", ""), dict.fromkeys(("load", "serve", "unload"), "skip"))
        path = self.lab_test("27-backlog.sh", steps="")
        self.assertEqual(run_tests.cells_of(path, "FAIL", text), {"27-backlog": "FAIL"})

    def test_table(self):
        rows = [
            run_tests.Row("6.1", "6.1.0-56-amd64", "6.1.192-2", {"build": "ok", "27-backlog": "skip"}, 61.4),
            run_tests.Row("7.3", cells={"build": "FAIL"}),
        ]
        scripts = [self.lab_test("27-backlog.sh", steps=""), self.lab_test()]
        self.assertEqual(
            run_tests.table(rows, scripts).split("\n"),
            [
                "kernel  release         package    build  27-backlog  load  serve  unload  s",
                "6.1     6.1.0-56-amd64  6.1.192-2  ok     skip        -     -      -       61",
                "7.3     ?               ?          FAIL   -           -     -      -       0",
            ],
        )

    def run_all(self, outcomes):
        """Go through kernels with outcomes instead of machines: kernel -> (release, exit code, output)."""
        path = self.lab_test()

        def build(row, tally):
            row.cells["build"] = "ok"
            tally.add(run_tests.Tally(passed=1))
            return True

        def run(_script, kernel, out, _tally):
            release, code, text = outcomes[kernel]
            out.mkdir(parents=True)
            (out / "machine.json").write_text(f'{{"kernel": "{release}", "kernel_package": "1"}}')
            return code, text

        changes = {"build": build, "run_lab_test": run, "ROOT": self.folder, "lab_scripts": lambda _names: [path]}
        skips = run_tests.listed_skips()
        with unittest.mock.patch.multiple(run_tests, listed_skips=lambda: skips, **changes):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                return run_tests.every_kernel(list(outcomes), [], False), printed.getvalue()

    def test_all_kernels(self):
        done = "DONE: load\nDONE: serve\nDONE: unload\n"
        tally, printed = self.run_all({"a": ("1-amd64", 0, done), "b": ("2-amd64", 1, "DONE: load\nFAIL: x\n")})
        self.assertEqual(str(tally), "3 passed, 1 failed, 0 skipped")
        self.assertRegex(printed, r"(?m)^b +2-amd64 +1 +ok +ok +FAIL +- +\d+$")
        self.assertIn("2 kernels in", printed)

    def test_a_test_that_passes_without_its_steps_fails(self):
        tally, _ = self.run_all({"a": ("1-amd64", 0, "DONE: load\nPASS\n")})
        self.assertEqual(str(tally), "1 passed, 1 failed, 0 skipped")

    def test_one_kernel_under_two_names_is_a_failure(self):
        done = "DONE: load\nDONE: serve\nDONE: unload\n"
        tally, _ = self.run_all({"a": ("1-amd64", 0, done), "b": ("1-amd64", 0, done)})
        self.assertEqual(tally.failures, ["a and b are both 1-amd64: run `kbp lab fetch --refresh`"])


if __name__ == "__main__":
    unittest.main()
