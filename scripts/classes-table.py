#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The results of the study of classes as the tables of its page: `classes-table.py docs/results/classes`.

First each measured figure beside what it was to reach, then every mechanism. Round trips are in microseconds;
percentiles are those of the rounds, the lowest and the highest; mean and SD are those of all round trips together.

Not here: measuring, and the sentences of the page.
"""

import pathlib
import sys

from study_rows import pooled, rows_of

KERNELS = ("6.1", "6.12", "7.3", "6.1-rt", "7.3-rt")
OURS = ("kbp-busy-rt", "kbp-sleep-rt", "kbp-adaptive-rt")
# By how many times softirq's longest round trip is to be as long as ours under the storm.
AGAINST_STOCK = {"6.1": 100, "6.12": 40, "7.3": 15}
AGAINST_RIVAL = 2.5


def chosen(rows, mode, load):
    """The rounds of a mechanism under a load."""
    return [row for row in rows if row["mode"] == mode and row["load"] == load]


def number(value):
    """With a space between thousands that does not break."""
    return f"{round(value):,}".replace(",", "\u00a0")


def spread(values):
    """`LOW to HIGH`, or one figure."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def us(rows, name):
    """A figure of each round, in microseconds."""
    return [row["rtt_ns"][name] / 1000 for row in rows]


def work(rows):
    """What the load had done: packets a second of the storm, Mbit/s of the streams; None where there is none."""
    done = [(row["load_done"]["counts"], row["load_done"]["span_ns"] / 1e9) for row in rows if "load_done" in row]
    values = []
    for counts, seconds in done:
        if "packets" in counts:
            values.append(counts["packets"] / seconds)
        elif "tcp_bytes" in counts:
            values.append((counts["tcp_bytes"] + counts.get("udp_bytes", 0)) * 8 / seconds / 1e6)
    return sum(values) / len(values) if values else None


def threads(rows):
    """CPU time of the mechanism's threads, per cent; None for a mechanism that has none."""
    busy_ns = sum(row["witness"].get("mode_threads_ns", 0) for row in rows)
    return round(100 * busy_ns / sum(row["span_ns"] for row in rows)) if busy_ns else None


def line(name, rows):
    """A mechanism's line of a table."""
    mean, deviation = pooled(rows)
    share, done = threads(rows), work(rows)
    cells = [name, spread(us(rows, "p50")), number(mean), number(deviation), spread(us(rows, "p99")),
             spread(us(rows, "p999")), number(max(us(rows, "max"))), "–" if share is None else f"{share} %",
             "–" if done is None else number(done)]
    return "| " + " | ".join(cells) + " |"


def table(title, what, lines):
    """A table of mechanisms."""
    head = ["mechanism", "p50", "mean", "SD", "p99", "p99.9", "max", "threads", what]
    return [f"### {title}", "", "| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1), *lines, ""]


def clocks(*results):
    """What the time of some rows was, for a title."""
    found = sorted({row["clock"] for rows in results for row in rows})
    return f"{' and '.join(found)} clock"


def modes(rows, load):
    """The mechanisms that were measured under a load, in the order of measuring."""
    return list(dict.fromkeys(row["mode"] for row in rows if row["load"] == load))


def tables(folder, kernel):
    """All mechanisms of a kernel."""
    rows = rows_of(folder, kernel, "")
    out = []
    if rows:
        lines = [line(f"`{mode}`", chosen(rows, mode, "storm")) for mode in modes(rows, "storm")]
        lines += [line(f"{words}, `{mode}`", chosen(rows, mode, load)) for load, words in
                  (("idle", "no load"), ("hogs", "hogs alone")) for mode in modes(rows, load)
                  if mode in (*OURS, "softirq", "preempt-rt")]
        out += table(f"{kernel}, storm, {clocks(rows)}", "storm, packets/s", lines)
        lines = [line(f"`{mode}`", chosen(rows, mode, "stream")) for mode in modes(rows, "stream")]
        other = [row for row in rows_of(folder, kernel, "-dedicated") if row["clock"] == rows[0]["clock"]]
        lines += [line(f"streams on another CPU, `{mode}`", chosen(other, mode, "stream"))
                  for mode in modes(other, "stream")]
        out += table(f"{kernel}, stream, {clocks(rows, other)}", "streams, Mbit/s", lines)
    rows, other = (rows_of(folder, kernel, name) for name in ("-full", "-full-dedicated"))
    lines = [line(f"`{mode}`", chosen(rows, mode, "stream")) for mode in modes(rows, "stream")]
    lines += [line(f"on another CPU, `{mode}`", chosen(other, mode, "stream")) for mode in modes(other, "stream")]
    if lines:
        title = f"{kernel}, one TCP stream as fast as it gets, {clocks(rows, other)}"
        out += table(title, "stream, Mbit/s", lines)
    return out


def longest(rows):
    """The longest round trip of all rounds, in microseconds."""
    return max(us(rows, "max"))


def middle(rows):
    """p50 of the rounds' mean, in microseconds."""
    return sum(us(rows, "p50")) / len(rows)


def tail(rows):
    """p99.9 and the longest."""
    return f"{spread(us(rows, 'p999'))}; {number(longest(rows))}"


def fewer(mine, theirs):
    """p99 and SD against another mechanism, per cent."""
    p99 = sum(us(mine, "p99")) / len(mine) / (sum(us(theirs, "p99")) / len(theirs)) - 1
    deviation = pooled(mine)[1] / pooled(theirs)[1] - 1
    return f"p99 {100 * p99:+.0f} %, SD {100 * deviation:+.0f} %".replace("-", "−")


def goals(folder, kernel):
    """The lines that say what was to be reached, and what was."""
    rows = rows_of(folder, kernel, "")
    stock = "preempt-rt" if kernel.endswith("-rt") else "softirq"

    def add(words, figure):
        where = "" if {row["clock"] for row in theirs} == {"parallel"} else f" ({clocks(theirs)})"
        cells = [figure(mode) if mode in there else "–" for mode in OURS]
        out.append("| " + " | ".join([f"{kernel}{where}, {words}", *cells]) + " |")

    out = []
    for load in ("storm", "stream"):
        theirs = chosen(rows, stock, load)
        if not theirs:
            continue
        mine = {mode: chosen(rows, mode, load) for mode in OURS}
        there = [mode for mode in OURS if mine[mode]]
        if kernel in AGAINST_STOCK:
            add(f"{load}: p99.9 ≤ 120, max ≤ 170", lambda mode: tail(mine[mode]))
            add(f"{load}: p50 ≤ 1.1 × idle", lambda mode: f"{middle(mine[mode]) / middle(chosen(rows, mode, 'idle')):.2f}")
        else:
            add(f"{load}: against `preempt-rt` (paper: SD −76 %)", lambda mode: fewer(mine[mode], theirs))
        if load == "storm" and kernel in AGAINST_STOCK:
            rivals = [chosen(rows, mode, load) for mode in modes(rows, load) if not mode.startswith("kbp-")]
            add(f"storm: `softirq`'s max is at least {AGAINST_STOCK[kernel]} × as long",
                lambda mode: f"{longest(theirs) / longest(mine[mode]):.0f} ×")
            add(f"storm: the best rival's at least {AGAINST_RIVAL} ×",
                lambda mode: f"{min(map(longest, rivals)) / longest(mine[mode]):.1f} ×")
        least = "" if load == "storm" else " (≥ 0.95)"
        add(f"{load}: what it gets done, × `{stock}`'s{least}", lambda mode: f"{work(mine[mode]) / work(theirs):.2f}")
    rows = rows_of(folder, kernel, "-full")
    theirs = chosen(rows, stock, "stream")
    if theirs:
        mine = {mode: chosen(rows, mode, "stream") for mode in OURS}
        there = [mode for mode in OURS if mine[mode]]
        add(f"full speed: against `{stock}`", lambda mode: fewer(mine[mode], theirs))
        add("full speed: p99.9; max", lambda mode: tail(mine[mode]))
        add(f"full speed: what the stream delivers, × `{stock}`'s", lambda mode: f"{work(mine[mode]) / work(theirs):.2f}")
    return out


def main():
    """Prints the tables."""
    if len(sys.argv) != 2:
        sys.exit("usage: classes-table.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    print("\n".join(["| | " + " | ".join(f"`{mode}`" for mode in OURS) + " |", "|---|---|---|---|"]))
    for text in (line for kernel in KERNELS for line in goals(folder, kernel)):
        print(text)
    for kernel in KERNELS:
        print("\n".join(["", *tables(folder, kernel)]).rstrip())


if __name__ == "__main__":
    main()
