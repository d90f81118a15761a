# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The test runner: how it counts what tools print, and what it makes of lab tests."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main()
