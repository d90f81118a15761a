#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rows of lab/vm.sh as tables: `vm-table.py rows.jsonl`. Times in microseconds and rates in frames a
second, the lowest and the highest round.

Not here: measuring, and any judgement but the ratio that the rows themselves give.
"""

import json
import pathlib
import sys

PERCENTILES = ("p50", "p99", "p999", "max")


def span(values):
    """`LOW to HIGH`, or one figure."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def cells(rows):
    """The rows of each (payload, load, configuration), in the order in which they were measured."""
    found = {}
    for row in rows:
        found.setdefault((row["payload"], row["load"]), {}).setdefault(row["config"], []).append(row)
    return found


def us(rows, name):
    """A percentile of each row, rounded to microseconds; rows without an answer have none."""
    accounts = [row["account"] for row in rows if row["account"]]
    return [round(account["rtt_ns"][name] / 1000) for account in accounts if account["rtt_ns"].get(name) is not None]


def line(config, rows, stock):
    """One line of a table: a configuration under a load."""
    accounts = [row["account"] for row in rows if row["account"]]
    figures = [span(us(rows, name)) if us(rows, name) else "-" for name in PERCENTILES]
    mine, theirs = us(rows, "p99"), us(stock, "p99")
    ratio = f"{max(mine) / min(theirs):.3f}" if mine and theirs and rows is not stock else ""
    lost = sum(account["lost"] for account in accounts)
    trips = sum(account["n"] for account in accounts)
    softirqs = [f"{sum(row[key] for row in rows):,}" for key in ("net_rx_host", "net_rx_guest")]
    return "| " + " | ".join([f"`{config}`", *figures, ratio, f"{trips:,}", str(lost), *softirqs]) + " |"


def searches(rows):
    """The account of each search for a rate."""
    return [row["account"]["rows"][0] for row in rows if row["account"]]


def rates(rows):
    """What each search found, frames a second."""
    return [round(account["throughput"]["frames_per_s"]) for account in searches(rows)]


def is_bound(account):
    """Whether the tester, or the highest rate that was tried, and not the path ended a search."""
    return account["throughput"]["limited_by_tester"]


def rate_line(config, rows, stock):
    """One line of a table of rates; round trips are those at the rate that was found: queues may hide an overload."""
    found, mine, theirs = searches(rows), rates(rows), rates(stock)
    ratio = f"{min(mine) / max(theirs):.2f}" if mine and any(theirs) and rows is not stock else ""
    trips = [span([round(account["rtt_ns"][name] / 1000) for account in found]) for name in ("p50", "max")] if found else ["-", "-"]
    bounds = sum(is_bound(account) for account in found)
    cells_of = [f"`{config}`", span(mine) if mine else "-", ratio, *trips, f"{bounds} of {len(rows)}"]
    return "| " + " | ".join(cells_of) + " |"


def print_rates(configs):
    """The table of the highest rates without loss."""
    print("| poller in | frames a second | against `softirq` | p50 at it | longest at it | only a lower bound |")
    print("|---|---:|---:|---:|---:|---:|")
    for config, found in configs.items():
        print(rate_line(config, found, configs.get("softirq", [])))
    print()


def main(path):
    rows = [json.loads(text) for text in pathlib.Path(path).read_text().splitlines() if text]
    for (payload, load), configs in cells(rows).items():
        # 14 of Ethernet, 20 of IP, 8 of UDP and the 4 of the frame's sum.
        print(f"### {payload + 46} bytes, load `{load}`\n")
        if load == "throughput":
            print_rates(configs)
            continue
        print("| poller in | p50 | p99 | p99.9 | max | p99 against `softirq` | round trips | lost | NET_RX host | NET_RX guest |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
        for config, found in configs.items():
            print(line(config, found, configs.get("softirq", [])))
        print()


if __name__ == "__main__":
    main(sys.argv[1])
