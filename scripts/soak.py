#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Soak: hours of traffic in the lab, in parts that are kept, and a report.

    scripts/soak.py run OUT --kbp target/release/kbp --hours 12 --kernels "6.1 6.12 7.3"
    scripts/soak.py report OUT -o docs/results/soak.md

A part is a machine of its own (lab/soak.sh), ten minutes unless told otherwise,
the kernels in turn. What a part came to stays in OUT/NNNN-KERNEL, so a soak that
was interrupted goes on with the next part when the same command is given again,
and only time in parts that ended counts. The soak ends at the first part that
failed; its folder has the logs, and the command goes on after it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

PART_NAME = "{:04d}-{}"
# What a machine may take beside its traffic, host seconds.
MARGIN_S = 900
VERDICTS = {0: "passed", 70: "machine lost", 71: "timed out", 72: "not set up"}
# Their parts say nothing of the module, and are made again.
NOT_RUN = ("not set up", "interrupted")


def read_part(folder):
    """A part's verdict with its turns, or None if it did not end."""
    verdict = folder / "verdict.json"
    if not verdict.exists():
        return None
    part = json.loads(verdict.read_text())
    turns = folder / "turns.jsonl"
    lines = turns.read_text().splitlines() if turns.exists() else []
    part["turns"] = [json.loads(line) for line in lines]
    left = folder / "part.json"
    note = folder / "note.txt"
    part["note"] = note.read_text().strip() if note.exists() else ""
    part["left"] = json.loads(left.read_text()) if left.exists() else None
    return part


def read_parts(out):
    """The parts that ended, in order."""
    parts = (read_part(folder) for folder in sorted(out.glob("[0-9]*-*")))
    return [part for part in parts if part]


def seconds_done(parts):
    return sum(part["seconds"] for part in parts if part["verdict"] == "passed")


def run_part(args, number, kernel):
    """Run a part; returns its verdict."""
    folder = args.out / PART_NAME.format(number, kernel)
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("turns.jsonl", "part.json", "verdict.json", "evidence.txt", "note.txt"):
        (folder / old).unlink(missing_ok=True)
    seconds = args.part_minutes * 60
    seed = args.seed + number
    command = [
        args.kbp, "lab", "run", "lab/soak.sh", "--kernel", kernel, "--clock", "real",
        "--cpus", "4", "--nics", "2", "--module", "kmod", "--file", f"{args.kbp}:/usr/bin/kbp",
        # What a busy host does to an idle CPU is for the part to say.
        "--append", "softlockup_panic=0",
        "--package", "util-linux", "--timeout", f"{2 * seconds + MARGIN_S}s", "--out", str(folder),
        "--", str(seconds), str(seed),
    ]
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    verdict = VERDICTS.get(code, "failed" if code > 0 else "interrupted")
    if verdict not in NOT_RUN:
        part = {"number": number, "kernel": kernel, "seconds": seconds, "seed": seed,
                "verdict": verdict, "revision": args.revision}
        whole = folder / "verdict.json.new"
        whole.write_text(json.dumps(part) + "\n")
        os.replace(whole, folder / "verdict.json")
    return verdict


def run(args):
    kernels = args.kernels.split()
    wanted_s = args.hours * 3600
    while True:
        parts = read_parts(args.out)
        done_s = seconds_done(parts)
        if done_s >= wanted_s:
            break
        number = max((part["number"] for part in parts), default=0) + 1
        kernel = kernels[(number - 1) % len(kernels)]
        print(f"soak: part {number} on {kernel}, {done_s / 3600:.1f} of {args.hours:g} hours done", flush=True)
        begin = time.monotonic()
        verdict = run_part(args, number, kernel)
        print(f"soak: part {number} on {kernel}: {verdict}, {time.monotonic() - begin:.0f} s", flush=True)
        if verdict != "passed":
            print(f"soak: see {args.out / PART_NAME.format(number, kernel)}; the same command goes on")
            return 1
    print(f"soak: {done_s / 3600:.1f} hours, {len(parts)} parts; `scripts/soak.py report` writes the page")
    return 0


def row_of(kernel, mode, turns):
    answered = sum(turn["answered"] for turn in turns)
    late = sum(turn.get("late", 0) for turn in turns)
    lost = sum(turn["lost"] for turn in turns)
    handbacks = sum(turn["handbacks"] for turn in turns)
    longest = max(turn["rtt_ns_max"] for turn in turns) / 1e6
    return f"| {kernel} | `{mode}` | {len(turns)} | {answered} | {late} | {lost} | {handbacks} | {longest:.1f} |"


def mode_rows(parts):
    cells = {}
    for part in parts:
        for turn in part["turns"]:
            hogs = ", hogs" if turn["hogs"] else ""
            cells.setdefault((part["kernel"], turn["mode"] + hogs), []).append(turn)
    return [row_of(kernel, mode, turns) for (kernel, mode), turns in sorted(cells.items())]


def memory_rows(parts):
    rows = []
    for kernel in sorted({part["kernel"] for part in parts}):
        left = [part["left"] for part in parts if part["kernel"] == kernel and part["left"]]
        if left:
            grown = [one["end_slab_kb"] - one["begin_slab_kb"] for one in left]
            percpu = [one["end_percpu_kb"] - one["begin_percpu_kb"] for one in left]
            rows.append(f"| {kernel} | {len(left)} | {min(grown)} to {max(grown)} | {min(percpu)} to {max(percpu)} |")
    return rows


def page(parts):
    """The report as Markdown."""
    bad = [part for part in parts if part["verdict"] != "passed"]
    revisions = ", ".join(sorted({part["revision"] for part in parts}))
    lines = [
        "# Soak", "",
        "What `make soak` did and found; what it does is in [lab/soak.sh](../../lab/soak.sh). Made by "
        "`scripts/soak.py report` from the result files, and from notes about parts that failed.", "",
        f"{len(parts)} machines, real clock, revision {revisions}: {len(parts) - len(bad)} passed, "
        f"{seconds_done(parts) / 60:.0f} minutes in all" + (f", **{len(bad)} did not**." if bad else ".")
        + " The table has the turns of all.", "",
        "A turn is 20 s of pings, one in 2.5 ms at most, after attaching; then the card is detached. *Longest*: the host "
        "takes virtual CPUs away as it likes, so it is no figure of a mode. *Handbacks*: how often the watchdog stepped in, "
        "for the same reason; *late*: came back after more than five seconds.", "",
        "| kernel | mode | turns | pings | late | lost | handbacks | longest, ms |", "|---|---|---:|---:|---:|---:|---:|---:|",
        *mode_rows(parts), "",
        "Memory of the kernel after a part less that before it, with the module unloaded, kB, over the parts:", "",
        "| kernel | parts | slab | per-CPU |", "|---|---:|---:|---:|", *memory_rows(parts), "",
    ]
    for part in bad:
        note = f" {part['note']}" if part["note"] else ""
        lines.append(f"* Part {part['number']} on {part['kernel']} (seed {part['seed']}): {part['verdict']}.{note}")
    return "\n".join(lines).rstrip() + "\n"


def report(args):
    parts = read_parts(args.out)
    if not parts:
        print(f"soak: no part in {args.out} has ended", file=sys.stderr)
        return 1
    args.page.write_text(page(parts))
    print(f"soak: {args.page}")
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run parts until HOURS are done; goes on where it was")
    runs.add_argument("out", type=pathlib.Path)
    runs.add_argument("--kbp", required=True, help="the program kbp")
    runs.add_argument("--hours", type=float, default=12)
    runs.add_argument("--kernels", default="6.1 6.12 7.3")
    runs.add_argument("--part-minutes", type=int, default=10)
    runs.add_argument("--seed", type=int, default=1)
    runs.add_argument("--revision", default="unknown", help="of what is run, for the report")
    reports = commands.add_parser("report", help="write the page")
    reports.add_argument("out", type=pathlib.Path)
    reports.add_argument("-o", "--page", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def main():
    args = parse(sys.argv[1:])
    return run(args) if args.command == "run" else report(args)


if __name__ == "__main__":
    sys.exit(main())
