#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Run the test suites, a line per result, and end with `N passed, N failed, N skipped`.

    scripts/run-tests.py host                   unit tests: Rust, scripts, C
    scripts/run-tests.py lab [--kernel K]...    lab/tests/*.sh, each in a machine of its own
    scripts/run-tests.py kernels [--wide]       build, load, serve, unload on every kernel: a table
    scripts/run-tests.py packages               those that boot a whole Debian; after `make deb`
    scripts/run-tests.py host lab               the first two

A lab test says in its first lines which machine it wants and where it runs:

    # lab: --cpus 4 --nics 2 --clock virtual    arguments for `kbp lab run`; {image} is the kernel's boot image
    # kernels: all                              `make test-kernels` runs it on every kernel
    # kernels: 6.1 6.12                         or on these
    # kernels: wide                             or only with WIDE=1, on every kernel asked for
    # kernels: slow                             neither there nor in `make test`: only by its name, with --test
    # steps: load serve unload                  it prints `DONE: step` after each; columns of the table
    # beside: others                            on the real clock, and other machines may run meanwhile

A test whose `# lab:` line has `--root` boots a whole Debian from a disk, with the
kernels and files that this line names; only `packages` runs it.

It passes with exit code 0, fails with 1, and skips with 4 after it has printed
`SKIP: reason`. A skip is a failure unless the kernel's table in lab/kernels.toml
lists it: skip = { "name.sh" = "reason" }.
"""

import argparse
import concurrent.futures
from dataclasses import dataclass, field
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER_LINES = 15
TAIL_LINES = 25
EXIT_SKIP = 4
EXIT_LOST = 70
# Machines at once, if there are as many processors.
MACHINES_MAX = 4
# Of the output and the count.
report = threading.Lock()


@dataclass
class Tally:
    """How many tests had which end, and the names of those that failed or ran twice."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)
    repeated: list = field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.repeated += other.repeated

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


def kernel_tables():
    """The kernels of lab/kernels.toml, in its order."""
    with (ROOT / "lab/kernels.toml").open("rb") as file:
        return tomllib.load(file)["kernel"]


def listed_kernels():
    return list(kernel_tables())


def listed_skips():
    """(test, kernel) pairs that may skip."""
    return {(test, kernel) for kernel, table in kernel_tables().items() for test in table.get("skip", {})}


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


def is_emulators_fault(code, text):
    """Whether a machine was lost by a fault of QEMU itself: that says nothing of what is tested."""
    return code == EXIT_LOST and "; QEMU's own fault: " in text


def run_lab_test(script, kernel, out, tally):
    """Run one lab test, and once more where QEMU is to blame (crates/kbp-lab/src/emulator.rs says for what)."""
    code, text = run_lab_test_once(script, kernel, out)
    if not is_emulators_fault(code, text):
        return code, text
    lost = out.with_name(f"{out.name}-lost")
    shutil.rmtree(lost, ignore_errors=True)
    shutil.copytree(out, lost)
    with report:
        print(f"again {kernel} {script.name}: {text.splitlines()[-1].strip()}", flush=True)
        tally.add(Tally(repeated=[f"{kernel} {script.name}: see {os.path.relpath(lost / 'log', ROOT)}"]))
    return run_lab_test_once(script, kernel, out)


def run_lab_test_once(script, kernel, out):
    """Run one lab test; its output goes to out/log."""
    out.mkdir(parents=True, exist_ok=True)
    # What an earlier run left must not be taken for what this one found.
    (out / "machine.json").unlink(missing_ok=True)
    release = release_dir()
    relative = script.relative_to(ROOT)
    command = [str(release / "kbp"), "lab", "run", str(relative)]
    if not has_root(script):
        command += ["--kernel", kernel, "--module", "kmod"]
        for binary in ("kbp", "kbp-fuzz", "kbp-xdp"):
            command += ["--file", f"{release / binary}:/usr/bin/{binary}"]
    arguments = header(script, "lab")
    if "{image}" in arguments:
        arguments = arguments.replace("{image}", boot_image(kernel))
    command += [*shlex.split(arguments), "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode("utf-8", errors="replace")
    (out / "log").write_text(f"$ {shlex.join(command)}\n{text}", encoding="utf-8")
    return done.returncode, text


def boot_image(kernel):
    """The path of a kernel's boot image, which is fetched if need be; empty if there is none."""
    kbp = str(release_dir() / "kbp")
    subprocess.run([kbp, "lab", "fetch", kernel], cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    done = subprocess.run([kbp, "lab", "list", "--json"], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    listed = json.loads(done.stdout or b"[]")
    return next((shlex.quote(entry["image"]) for entry in listed if entry["id"] == kernel and entry["image"]), "")


def release_dir():
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


def has_root(script):
    """Whether a test boots a whole Debian from a disk."""
    return "--root" in shlex.split(header(script, "lab"))


def is_real(script):
    """Whether a test is for the real clock."""
    return re.search(r"--clock[ =]real\b", header(script, "lab")) is not None


def is_alone(script):
    """Whether what else the host does shows in a test: on the real clock it does, where the test asks for how long."""
    return is_real(script) and not header(script, "beside")


def lab_scripts(names, root=False):
    """The lab tests in the order of their numbers; of these names only, if there are any, else without the slow ones."""
    scripts = sorted((ROOT / "lab/tests").glob("*.sh"))
    wanted = (lambda script: script.name in names) if names else (lambda script: not is_slow(script))
    return [script for script in scripts if has_root(script) == root and wanted(script)]


def is_slow(script):
    """Whether it takes the host so long that it runs only when it is named."""
    return "slow" in header(script, "kernels").split()


@dataclass
class Result:
    """What one lab test came to on one kernel."""

    word: str
    text: str
    out: pathlib.Path


def tested(script, kernel, skips, tally):
    """Run one lab test, say how it ended, and count it."""
    out = ROOT / "out/tests" / kernel / script.stem
    start = time.monotonic()
    code, text = run_lab_test(script, kernel, out, tally)
    word, reason = judge(code, text, script.name, kernel, skips)
    missing = [step for step in header(script, "steps").split() if f"DONE: {step}" not in text.split("\n")]
    if word == "ok" and missing:
        word, reason = "FAIL", f"it passed and did not say that this is done: {', '.join(missing)}"
    note = f": {reason}" if reason else ""
    with report:
        print(f"{word:4} {kernel} {script.name} ({time.monotonic() - start:.0f} s){note}", flush=True)
        tally.add(Tally(word == "ok", word == "FAIL", word == "skip"))
        if word == "FAIL":
            tally.failures.append(f"{kernel} {script.name}: see {(out / 'log').relative_to(ROOT)}")
            print("\n".join("    " + line for line in text.splitlines()[-TAIL_LINES:]), flush=True)
    return Result(word, text, out)


def at_least_one(tally):
    """No test at all is not a success."""
    if not tally.passed:
        tally.add(Tally(failed=0 if tally.failed else 1, failures=["lab: no test has passed"]))
    return tally


def lab(kernels, names):
    """Every lab test on every kernel given: as many machines as processors, and then those that have to be alone."""
    skips = listed_skips()
    tally = Tally()
    scripts = lab_scripts(names)
    machines = min(MACHINES_MAX, len(os.sched_getaffinity(0)))
    for kernel in kernels:
        with concurrent.futures.ThreadPoolExecutor(machines) as pool:
            # The long ones first, so that no processor waits for one at the end.
            beside = sorted((script for script in scripts if not is_alone(script)), key=is_real)
            list(pool.map(lambda script: tested(script, kernel, skips, tally), beside))
        for script in filter(is_alone, scripts):
            tested(script, kernel, skips, tally)
    return at_least_one(tally)


def packages(names):
    """The tests that boot a whole Debian; they name their kernels themselves."""
    tally = Tally()
    for script in lab_scripts(names, root=True):
        tested(script, "debian", set(), tally)
    return at_least_one(tally)


def is_meant(script, kernel, wide):
    """Whether `make test-kernels` runs a test on a kernel."""
    words = header(script, "kernels").split()
    return "all" in words or kernel in words or (wide and "wide" in words)


def columns_of(script):
    """The columns of a test in the table: its steps, or its name."""
    return header(script, "steps").split() or [script.stem]


def cells_of(script, word, text):
    """What the table says in the columns of a test."""
    steps = header(script, "steps").split()
    if not steps or word == "skip":
        return dict.fromkeys(columns_of(script), word)
    lines = text.split("\n")
    done = [step for step in steps if f"DONE: {step}" in lines]
    cells = {step: "ok" if step in done else "-" for step in steps}
    if word == "FAIL":
        # The first that is not done; a test that failed behind its last step failed in that.
        cells[next((step for step in steps if step not in done), steps[-1])] = "FAIL"
    return cells


@dataclass
class Row:
    """A kernel in the table of all kernels."""

    kernel: str
    release: str = "?"
    package: str = "?"
    cells: dict = field(default_factory=dict)
    seconds: float = 0.0


def build(row, tally):
    """Fetch the kernel if need be and build the module for it; false when that fails."""
    command = [str(release_dir() / "kbp"), "lab", "build", "--kernel", row.kernel, "--module", "kmod"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    row.cells["build"] = "FAIL" if done.returncode else "ok"
    tally.add(Tally(not done.returncode, bool(done.returncode)))
    if done.returncode:
        text = done.stdout.decode("utf-8", errors="replace").strip()
        print("\n".join("    " + line for line in text.splitlines()[-TAIL_LINES:]), flush=True)
        tally.failures.append(f"{row.kernel} build: {text.splitlines()[-1] if text else 'without a word'}")
    print(f"{row.cells['build']:4} {row.kernel} build", flush=True)
    return not done.returncode


def booted(row, out, tally):
    """Take the release and the package from what the machine said; every test has to have run on the same."""
    path = out / "machine.json"
    if not path.is_file():
        return
    machine = json.loads(path.read_text(encoding="utf-8"))
    found = (machine["kernel"], machine["kernel_package"])
    if row.release not in ("?", found[0]):
        tally.add(Tally(failed=1, failures=[f"{row.kernel}: booted {row.release} and then {found[0]}"]))
    row.release, row.package = found


def one_kernel(kernel, scripts, skips, tally):
    """Build, and then the tests, for one row of the table."""
    row = Row(kernel)
    start = time.monotonic()
    if build(row, tally):
        for script in scripts:
            result = tested(script, kernel, skips, tally)
            row.cells.update(cells_of(script, result.word, result.text))
            booted(row, result.out, tally)
    row.seconds = time.monotonic() - start
    return row


def doubles(rows):
    """A sentence for each kernel that is another one of the table under a second name."""
    seen = {}
    for row in rows:
        if row.release in seen:
            yield f"{seen[row.release]} and {row.kernel} are both {row.release}: run `kbp lab fetch --refresh`"
        elif row.release != "?":
            seen[row.release] = row.kernel


def table(rows, scripts):
    """The rows as text, a column a step or test; `-` is what was not tried."""
    names = ["build", *(column for script in scripts for column in columns_of(script))]
    lines = [["kernel", "release", "package", *names, "s"]]
    for row in rows:
        cells = [row.cells.get(name, "-") for name in names]
        lines.append([row.kernel, row.release, row.package, *cells, f"{row.seconds:.0f}"])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def every_kernel(kernels, names, wide):
    """The tests that are meant for each kernel, and one table at the end."""
    skips = listed_skips()
    tally = Tally()
    scripts = [script for script in lab_scripts(names) if any(is_meant(script, kernel, wide) for kernel in kernels)]
    start = time.monotonic()
    rows = []
    for kernel in kernels:
        meant = [script for script in scripts if is_meant(script, kernel, wide)]
        rows.append(one_kernel(kernel, meant, skips, tally))
    print(f"\n{table(rows, scripts)}\n{len(rows)} kernels in {time.monotonic() - start:.0f} s")
    for sentence in doubles(rows):
        tally.add(Tally(failed=1, failures=[sentence]))
    return at_least_one(tally)


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+", choices=("host", "lab", "kernels", "packages"))
    parser.add_argument("--kernel", action="append", help="repeatable; default: 6.1, or all for `kernels`")
    parser.add_argument("--wide", action="store_true", help="`kernels`: the tests with `# kernels: wide`, too")
    parser.add_argument("--test", action="append", default=[], help="only this file of lab/tests; repeatable")
    options = parser.parse_args(arguments)
    tally = Tally()
    if "host" in options.suites:
        tally.add(host())
    if "lab" in options.suites:
        tally.add(lab(options.kernel or ["6.1"], options.test))
    if "kernels" in options.suites:
        tally.add(every_kernel(options.kernel or listed_kernels(), options.test, options.wide))
    if "packages" in options.suites:
        tally.add(packages(options.test))
    for repeated in tally.repeated:
        print(f"ran twice: {repeated}")
    for failure in tally.failures:
        print(f"failed: {failure}")
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
