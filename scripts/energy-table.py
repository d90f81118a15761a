#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The results of the study of energy as the tables of its page: `energy-table.py docs/results/energy`.

Percentiles are those of all rows of a mechanism together. Round trips are in microseconds.

Not here: measuring, and the sentences of the page.
"""

import argparse
import pathlib
import re
import sys

from study_rows import percentile, rows_of

KERNELS = ("6.1", "6.12", "7.3")
MODES = ("softirq", "threaded-fifo", "mainline-busy-poll", "kbp-busy", "kbp-sleep", "kbp-sleep+freq", "kbp-sleep+freq-on",
         "kbp-adaptive", "kbp-adaptive+freq")
# Run of the study, bytes of a frame, words for it.
TRAFFIC = (
    ("paper-80m-64", 64, "80 Mbit/s, 64"),
    ("paper-80m", 512, "80 Mbit/s, 512"),
    ("paper-80m", 1518, "80 Mbit/s, 1518"),
    ("paper-1g-64", 64, "1 Gbit/s, 64"),
    ("paper-1g", 512, "1 Gbit/s, 512"),
    ("paper-1g", 1518, "1 Gbit/s, 1518"),
    ("paper-unscaled", 512, "512, as in the paper"),
    ("paper-unscaled", 1518, "1518, as in the paper"),
    ("periodic", 64, "periodic"),
    ("poisson-500", 64, "Poisson"),
    ("poisson-5000", 64, "Poisson"),
    ("poisson-50000", 64, "Poisson"),
    ("bursts", 64, "bursts, a fifth of the time"),
)


def cells(folder, kernel, run, size):
    """The rows of each mechanism in a traffic."""
    found = {}
    for row in rows_of(folder, kernel, f"-{run}"):
        if row["size_bytes"] == size:
            found.setdefault(row["mode"], []).append(row)
    return found


def named(words, rows):
    """A traffic with its rate."""
    row = next(iter(rows.values()))[0]
    return f"{words} ({row['rate_bps'] / 8 / row['size_bytes']:,.0f}/s)"


def p99(rows):
    """Of all rows together, in microseconds."""
    return percentile(rows, 0.99)


def longest(rows):
    """Of all rows, in microseconds."""
    return max(row["rtt_ns"]["max"] for row in rows) / 1000


def longest_since_sent(rows):
    """Of all rows, in microseconds: what the tester sent late is not the mechanism's."""
    return max(row["open_loop"]["since_sent_ns_max"] for row in rows) / 1000


def a_second(rows, figure):
    """A counter of the rows, a second of them."""
    return sum(figure(row) for row in rows) / (sum(row["span_ns"] for row in rows) / 1e9)


def empty_polls(rows):
    """The poller's, a second."""
    return a_second(rows, lambda row: row["poller"]["empty_polls"])


def interrupts(rows):
    """Of what the mechanism serves, a second."""
    return a_second(rows, lambda row: row["witness"]["hard_irqs"])


def cpu_share(rows):
    """CPU time of the mechanism's threads, per cent."""
    return 100 * a_second(rows, lambda row: row["witness"].get("mode_threads_ns", 0)) / 1e9


def watts(rows):
    """The estimate over rest; a dash where there is none."""
    estimates = [row["energy"]["estimate"] for row in rows if (row.get("energy") or {}).get("estimate")]
    return f"{sum(estimate['watts'] for estimate in estimates) / len(estimates):.1f}" if estimates else "–"


def ratio(figure, mine, theirs, form="{:.2f}"):
    """A figure of some rows over that of others; a dash where one of the two is missing."""
    if not mine or not theirs or not figure(theirs):
        return "–"
    return form.format(figure(mine) / figure(theirs))


def table(head, lines):
    """A table; none without lines."""
    if not lines:
        return []
    return ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1),
            *("| " + " | ".join(line) + " |" for line in lines), ""]


def against(folder, kernel):
    """Mode adaptive beside mode busy, mode sleep, and itself with frequency control."""
    lines = []
    for run, size, words in TRAFFIC:
        rows = cells(folder, kernel, run, size)
        if not rows:
            continue
        busy, sleep, own, freq = (rows.get(mode) for mode in ("kbp-busy", "kbp-sleep", "kbp-adaptive", "kbp-adaptive+freq"))
        lines.append([named(words, rows), ratio(p99, own, busy), ratio(p99, freq, busy), ratio(empty_polls, own, busy),
                      ratio(empty_polls, freq, busy), ratio(interrupts, own, sleep, "{:.3f}"),
                      ratio(longest_since_sent, rows.get("kbp-sleep+freq"), sleep),
                      ratio(longest_since_sent, freq, own)])
    return table(["traffic", "p99", "p99, `+freq`", "empty polls", "`+freq`", "interrupts, of `kbp-sleep`'s",
                  "longest with `+freq`: sleep", "adaptive"], lines)


def of_all(folder, kernel, modes, figure):
    """A figure of each mechanism in each traffic."""
    lines = []
    for run, size, words in TRAFFIC:
        rows = cells(folder, kernel, run, size)
        if rows:
            lines.append([named(words, rows), *(figure(rows[mode]) if mode in rows else "–" for mode in modes)])
    return table(["traffic", *(f"`{mode}`" for mode in modes)], lines)


def idle(folder, kernel):
    """A machine without traffic."""
    rows = cells(folder, kernel, "no-traffic", 0)
    lines = [[f"`{mode}`", f"{cpu_share(rows[mode]):.1f}", f"{interrupts(rows[mode]):.1f}",
              f"{empty_polls(rows[mode]):,.0f}" if rows[mode][0]["poller"] else "–", watts(rows[mode])]
             for mode in MODES if mode in rows]
    return table(["mechanism", "CPU of its threads, %", "interrupts/s", "empty polls/s", "estimated W above rest"], lines)


def both(rows):
    """p99 and the longest."""
    return f"{p99(rows):,.0f} / {longest(rows):,.0f}"


def parts(folder):
    """All tables by their titles."""
    pollers = [mode for mode in MODES if mode.startswith("kbp-")]
    of_kernel = {
        "mode adaptive against the others": lambda kernel: against(folder, kernel),
        "round trips, p99 / longest, µs": lambda kernel: of_all(folder, kernel, MODES, both),
        "interrupts a second": lambda kernel: of_all(folder, kernel, MODES, lambda rows: f"{interrupts(rows):,.0f}"),
        "CPU time of the poller, %": lambda kernel: of_all(folder, kernel, pollers, lambda rows: f"{cpu_share(rows):.0f}"),
        "estimated power above rest, W": lambda kernel: of_all(folder, kernel, MODES, watts),
        "no traffic": lambda kernel: idle(folder, kernel),
    }
    tables = {f"{kernel}, {title}": part(kernel) for title, part in of_kernel.items() for kernel in KERNELS}
    return {title: lines for title, lines in tables.items() if lines}


def filled(page, tables):
    """A page with each table that it names, `<!-- table: TITLE -->`, as it is now; and what it does not name."""
    tables = dict(tables)
    lines = []
    is_old = False
    for line in page.split("\n"):
        is_old = is_old and line.startswith("|")
        if is_old:
            continue
        lines.append(line)
        named_here = re.fullmatch(r"<!-- table: (.+) -->", line)
        if named_here:
            lines += tables.pop(named_here[1])[:-1]
            is_old = True
    return "\n".join(lines), tables


def main():
    """Prints the tables, or puts them into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="results of the study")
    parser.add_argument("--fill", type=pathlib.Path, metavar="PAGE", help="put them where PAGE has `<!-- table: TITLE -->`")
    args = parser.parse_args()
    tables = parts(args.folder)
    if not args.fill:
        for title, lines in tables.items():
            print("\n".join([f"### {title}", "", *lines]))
        return
    try:
        page, left = filled(args.fill.read_text(), tables)
    except KeyError as title:
        sys.exit(f"{args.fill}: no table {title} in {args.folder}; without --fill they are printed")
    args.fill.write_text(page)
    for title in left:
        print(f"not in {args.fill}: {title}")


if __name__ == "__main__":
    main()
