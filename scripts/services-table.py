#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The results of the study of services as the tables of its page: `services-table.py docs/results/services`.

For each service and kernel, percentiles, mean and SD of all rounds together, but for p99, whose lowest and highest
round is given, in microseconds; then p99 of all rounds against PREEMPT_RT only or the stock path, and against the
dedicated processor.

Not here: measuring, and the sentences of the page.
"""

import pathlib
import sys

from study_rows import percentile, pooled, rows_of

KERNELS = ("6.1-rt", "6.1")
SERVICES = {"memcached": "memcached, GETs", "sip": "SIP, forward delays"}
RUNS = {"services": ("", "dedicated"), "full": ("-full", "full-dedicated")}
OURS = ("kbp-busy-rt", "kbp-sleep-rt", "kbp-adaptive-rt")


def line(words, rows):
    """A mechanism under a load."""
    mean, deviation = pooled(rows)
    p99 = [row["rtt_ns"]["p99"] / 1000 for row in rows]
    longest = max(row["rtt_ns"]["max"] for row in rows) / 1000
    figures = [f"{sum(row['n'] for row in rows)}", f"{percentile(rows, 0.5):,.0f}", f"{min(p99):,.0f} to {max(p99):,.0f}",
               f"{percentile(rows, 0.999):,.0f}", f"{longest:,.0f}", f"{mean:,.0f}", f"{deviation:,.0f}"]
    return f"| {words} | " + " | ".join(figures) + " |"


def against(mine, theirs):
    """p99 of all rounds together against another's, per cent."""
    return f"{100 * (percentile(mine, 0.99) / percentile(theirs, 0.99) - 1):+.0f} %".replace("-", "−")


def service_tables(folder, kernel, service, run):
    """The lines of a service on a kernel, and the comparisons."""
    own, other = RUNS[run]
    rows = [row for row in rows_of(folder, kernel, own) if row["traffic"] == service]
    if not rows:
        return []
    beside = [row for row in rows_of(folder, kernel, f"-{other}") if row["traffic"] == service]
    beside = [row for row in beside if row["clock"] == rows[0]["clock"]]
    stock = rows[0]["mode"]
    out = [f"### {SERVICES[service]}, {kernel}, {run}, {rows[0]['clock']} clock", "",
           "| load, mechanism | n | p50 | p99 of the rounds | p99.9 | max | mean | SD |", "|---|" + "---:|" * 7]
    ratios = []
    for load in dict.fromkeys(row["load"] for row in rows):
        here = {mode: [row for row in rows if row["load"] == load and row["mode"] == mode]
                for mode in dict.fromkeys(row["mode"] for row in rows)}
        out += [line(f"{load} `{mode}`", found) for mode, found in here.items() if found]
        elsewhere = [row for row in beside if row["load"] == load]
        if elsewhere:
            out.append(line(f"{load} on another CPU", elsewhere))
        for words, theirs in ((f"`{stock}`", here[stock]), ("on another CPU", elsewhere)):
            if theirs and load != "idle":
                found = [against(here[mode], theirs) if here.get(mode) else "–" for mode in OURS]
                ratios.append(f"| p99, {load}, against {words} | " + " | ".join(found) + " |")
    head = ["", "| | " + " | ".join(f"`{mode}`" for mode in OURS) + " |", "|---|---:|---:|---:|"]
    return [*out, *head, *ratios, ""] if ratios else [*out, ""]


def main():
    """Prints the tables."""
    if len(sys.argv) != 2:
        sys.exit("usage: services-table.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    for run in RUNS:
        for service in SERVICES:
            for kernel in KERNELS:
                for text in service_tables(folder, kernel, service, run):
                    print(text)


if __name__ == "__main__":
    main()
