#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Run the test suites, a line per result, and end with `N passed, N failed, N skipped`.

    scripts/run-tests.py host                   unit tests: Rust, scripts, C
    scripts/run-tests.py lab [--kernel K]...    lab/tests/*.sh, each in a machine of its own
    scripts/run-tests.py host lab               both

A lab test says in its first lines which machine it wants and where it runs:

    # lab: --cpus 4 --nics 2 --clock virtual    arguments for `kbp lab run`
    # kernels: all                              also run by `make test-kernels`

It passes with exit code 0, fails with 1, and skips with 4 after it has printed
`SKIP: reason`. A skip is a failure unless the kernel's table in lab/kernels.toml
lists it: skip = { "name.sh" = "reason" }.
"""

import argparse
from dataclasses import dataclass, field
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER_LINES = 15
TAIL_LINES = 25
EXIT_SKIP = 4


@dataclass
class Tally:
    """How many tests had which end, and the names of those that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_cargo(line, tally):
    match = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line)
    if match:
        tally.add(Tally(int(match[1]), int(match[2]), int(match[3])))


class UnittestCounter:
    """`Ran 16 tests in 1 s`, later `OK (skipped=1)` or `FAILED (failures=1, errors=2)`."""

    def __init__(self):
        self.ran = 0

    def __call__(self, line, tally):
        ran = re.match(r"Ran (\d+) tests? in", line)
        if ran:
            self.ran = int(ran[1])
        if not re.match(r"(OK|FAILED)( \(.*\))?\Z", line):
            return
        ends = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", line)}
        # A test with failing subtests is one line of `Ran` and many of `failures`.
        failed = min(ends.get("failures", 0) + ends.get("errors", 0), self.ran)
        skipped = ends.get("skipped", 0)
        tally.add(Tally(max(self.ran - failed - skipped, 0), failed, skipped))
        self.ran = 0


def run_suite(name, command, count):
    """Run a command, show what it prints, and count the results in it."""
    print(f"== {name}: {shlex.join(command)}", flush=True)
    tally = Tally()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            count(line.rstrip("\n"), tally)
    if process.returncode and not tally.failed:
        print(f"{name}: ended with code {process.returncode} before or after its tests", flush=True)
        tally.failed += 1
    if not tally.passed and not tally.failed:
        print(f"{name}: no test has run", flush=True)
        tally.failed += 1
    if tally.failed:
        tally.failures.append(f"{name}: {tally.failed} failed")
    print(f"== {name}: {tally}", flush=True)
    return tally


def host():
    """The tests that need no machine of their own."""
    tally = Tally()
    tally.add(run_suite("rust", ["cargo", "test", "--release", "--workspace", "--no-fail-fast"], count_cargo))
    scripts = ["/usr/bin/python3", "-B", "-m", "unittest", "discover", "-s", "scripts/tests"]
    tally.add(run_suite("scripts", scripts, UnittestCounter()))
    unittests = UnittestCounter()

    def count_c(line, counts):
        """A C test is one program and ends with `NAME: ok`; klp-reloc's is a Python unittest."""
        unittests(line, counts)
        if re.match(r"\w+: ok\Z", line):
            counts.passed += 1

    tally.add(run_suite("c", ["make", "--no-print-directory", "-C", "kmod/tests"], count_c))
    return tally


def header(script, key):
    """The value of a `# key: value` line at the top of a lab test, or an empty text."""
    with script.open(encoding="utf-8") as file:
        for _, line in zip(range(HEADER_LINES), file):
            if line.startswith(f"# {key}:"):
                return line.split(":", 1)[1].strip()
    return ""


def listed_skips():
    """(test, kernel) pairs that may skip."""
    path = ROOT / "lab/kernels.toml"
    if not path.is_file():
        return set()
    with path.open("rb") as file:
        kernels = tomllib.load(file).get("kernel", {})
    return {(test, kernel) for kernel, table in kernels.items() for test in table.get("skip", {})}


def judge(code, text, name, kernel, skips):
    """(passed, failed, skipped) word and reason of one lab test."""
    if code == 0:
        return "ok", ""
    if code != EXIT_SKIP:
        return "FAIL", f"exit code {code}"
    reasons = re.findall(r"^SKIP: (.+)$", text, re.M)
    reason = reasons[-1] if reasons else "without a reason"
    if reasons and (name, kernel) in skips:
        return "skip", reason
    return "FAIL", f"skipped, which lab/kernels.toml does not list: {reason}"


def run_lab_test(release, script, kernel, out):
    """Run one lab test; its output goes to out/log."""
    out.mkdir(parents=True, exist_ok=True)
    relative = script.relative_to(ROOT)
    command = [str(release / "kbp"), "lab", "run", str(relative), "--kernel", kernel, "--module", "kmod"]
    for binary in ("kbp", "kbp-fuzz"):
        command += ["--file", f"{release / binary}:/usr/bin/{binary}"]
    command += [*shlex.split(header(script, "lab")), "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode("utf-8", errors="replace")
    (out / "log").write_text(f"$ {shlex.join(command)}\n{text}", encoding="utf-8")
    return done.returncode, text


def lab(kernels, only_common, names):
    """Every lab test on every kernel, one machine after the other."""
    release = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
    skips = listed_skips()
    tally = Tally()
    scripts = [script for script in sorted((ROOT / "lab/tests").glob("*.sh")) if not names or script.name in names]
    if only_common:
        scripts = [script for script in scripts if header(script, "kernels") == "all"]
    for kernel in kernels:
        for script in scripts:
            out = ROOT / "out/tests" / kernel / script.stem
            start = time.monotonic()
            code, text = run_lab_test(release, script, kernel, out)
            word, reason = judge(code, text, script.name, kernel, skips)
            seconds = time.monotonic() - start
            note = f": {reason}" if reason else ""
            print(f"{word:4} {kernel} {script.name} ({seconds:.0f} s){note}", flush=True)
            tally.add(Tally(word == "ok", word == "FAIL", word == "skip"))
            if word == "FAIL":
                tally.failures.append(f"{kernel} {script.name}: see {(out / 'log').relative_to(ROOT)}")
                print("\n".join("    " + line for line in text.splitlines()[-TAIL_LINES:]), flush=True)
    if not tally.passed:
        tally.add(Tally(failed=0 if tally.failed else 1, failures=["lab: no test has passed"]))
    return tally


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+", choices=("host", "lab"))
    parser.add_argument("--kernel", action="append", help="repeatable; default 6.1")
    parser.add_argument("--common", action="store_true", help="only the lab tests with `# kernels: all`")
    parser.add_argument("--test", action="append", default=[], help="only this file of lab/tests; repeatable")
    options = parser.parse_args(arguments)
    tally = Tally()
    if "host" in options.suites:
        tally.add(host())
    if "lab" in options.suites:
        tally.add(lab(options.kernel or ["6.1"], options.common, options.test))
    for failure in tally.failures:
        print(f"failed: {failure}")
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
