# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Made-up results of the shape that `kbp compare` writes, for tests of the report. No figure here was measured."""

import math
import random

# Median in µs by load, and how long the tail is: made up.
MECHANISMS = {
    "softirq": {"idle": (46, 0.04), "hogs": (52, 0.2), "storm": (380, 1.5)},
    "threaded": {"idle": (55, 0.05), "hogs": (90, 0.9), "storm": (81, 0.12)},
    "threaded-fifo": {"idle": (54, 0.05), "hogs": (55, 0.06), "storm": (165, 0.3)},
    "busy-read": {"idle": (43, 0.05), "hogs": (47, 0.3), "storm": (340, 1.4)},
    "backlog-threads": {"idle": (57, 0.05), "hogs": (59, 0.2), "storm": (150, 0.4)},
    "kbp-busy": {"idle": (47, 0.05), "hogs": (48, 0.05), "storm": (70, 0.1)},
}
PATH_FACTORS = {"nic": 1.0, "veth": 0.4, "vxlan": 1.7, "container": 1.4}
SPAN_NS = 300_000_000


def cell_end(ns):
    """The upper end of the histogram cell of three digits that holds a time."""
    width = 10 ** max(0, math.floor(math.log10(max(ns, 1))) - 2)
    return ns // width * width + width - 1


def row(rng, path, load, mode, number, n=300, **more):
    """One row with a histogram, a timeline and everything that is optional."""
    median, spread = MECHANISMS[mode][load]
    scale = median * 1_000 * PATH_FACTORS[path]
    times = [round(scale * math.exp(abs(rng.gauss(0, spread)))) for _ in range(n)]
    ends = sorted(cell_end(ns) for ns in times)
    at = lambda share: ends[max(math.ceil(share * n), 1) - 1]
    kbp = mode.startswith("kbp-")
    return {
        "mode": mode, "load": load, "round": number, "tool": "kbp", "path": path, "traffic": "ping-pong",
        "size_bytes": 64, "n": n, "lost": 0, "late": 0, "dup": 0, "warmup_lost": 0, "skipped": 4, "span_ns": SPAN_NS,
        "rtt_ns": {"min": min(times), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999),
                   "max": ends[-1], "mean": sum(times) / n},
        "witness": {"net_rx_softirqs": 0 if kbp else 2 * n, "hard_irqs": 0 if kbp else 3 * n, "ksoftirqd_ns": 5_000_000,
                    "mode_threads_ns": SPAN_NS * 99 // 100 if kbp else 0},
        "poller": None,
        "histogram_ns": [[end, ends.count(end)] for end in sorted(set(ends))],
        "timeline_ns": [[i * SPAN_NS // n, ns] for i, ns in enumerate(times)],
        "cpu": {"cpus": {}, "poller_ns": 0, "ksoftirqd_ns": 5_000_000, "server_ns": 9_000_000, "client_ns": 8_000_000,
                "context_switches": 4 * n},
        "softirqs": {"NET_RX": {"2": 0 if kbp else 2 * n}, "TIMER": {"2": 75}},
        "interrupts": {"eth0-rx-0": {"2": 3 * n}} if not kbp else {},
        "drops": {"softnet": 2} if load == "storm" else {},
        "energy": {"joules": None, "source": "no energy counter on this machine"},
        **more,
    }


def counted(rng, path, mode):
    """Rows of traffic that is counted: an open loop, a throughput search, one direction."""
    frames = {"size_bytes": 512, "rate_bps": 80_000_000}
    account = {"sent": 300, "duplicated": 1, "reordered": 2, "send_late_ns_max": 12_000}
    yield row(rng, path, "idle", mode, 1, traffic="open-loop", open_loop=account, **frames)
    nothing = {"n": 0, "histogram_ns": [], "timeline_ns": [],
               "rtt_ns": {"min": 0, "p50": 0, "p90": 0, "p99": 0, "p999": 0, "max": 0, "mean": 0.0}}
    found = {"frames_per_s": 91_000.0 if mode == "kbp-busy" else 74_000.0, "bps": 372e6, "trial_ns": 1_000_000_000,
             "resolution_percent": 1.0, "trials": 9, "limited_by_tester": False}
    yield row(rng, path, "idle", mode, 1, traffic="rfc2544", throughput=found) | nothing
    rate = {"sent_per_s": 900_000.0, "received_per_s": 810_000.0, "burst": 32}
    yield row(rng, path, "idle", mode, 1, traffic="one-way", one_way=rate) | nothing | {"tool": "sendmmsg"}


def result(kernel, seed, paths=("nic",), loads=("idle", "storm"), mechanisms=tuple(MECHANISMS), rounds=2):
    """A whole result file."""
    rng = random.Random(seed)
    rows = [
        row(rng, path, load, mode, number)
        for path in paths for load in loads for number in range(1, rounds + 1) for mode in mechanisms
    ]
    for mode in ("softirq", "kbp-busy"):
        rows += counted(rng, paths[0], mode)
    rows[0]["note"] = "on the virtual clock this mechanism looks worse than it is; believe the real clock."
    skipped = {"path": paths[0], "load": "idle", "mode": "mainline-busy-poll", "why": f"{kernel} does not have it; 6.19 does"}
    return {
        "schema": "kbp.result/1", "clock": "virtual", "kernel": kernel, "qemu": "10.0.2",
        "cmdline": "console=ttyS0 quiet <a> & \"b\"", "date": "2026-01-02T03:04:05Z", "git": "0123abc",
        "machine": {"cpus": 4, "turns": {"turn_ns_max": 5_360, "gap_ns_max": 9_100, "back_ns_max": 0, "cpus": 4}},
        "rows": rows, "not_run": [skipped],
    }
