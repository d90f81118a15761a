# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of a study's results, as the scripts that make the tables of its page want them."""

import json


def rows_of(folder, kernel, own):
    """The rows of a machine's result, as it is published (MACHINE-NAME.json) or as the study leaves it
    (MACHINE/NAME.json); `own` is `-NAME` or nothing. None where there is no result."""
    path = folder / f"{kernel}{own}.json"
    if not path.is_file():
        path = folder / kernel / f"{own.lstrip('-') or 'result'}.json"
    if not path.is_file():
        return []
    result = json.loads(path.read_text())
    return [{**row, "clock": result["clock"]} for row in result["rows"]]


def pooled(rows):
    """Mean and SD of all rows together, in microseconds."""
    total = sum(row["n"] for row in rows)
    mean = sum(row["n"] * row["rtt_ns"]["mean"] for row in rows) / total
    square = sum(row["n"] * (row["rtt_ns"]["sd"] ** 2 + row["rtt_ns"]["mean"] ** 2) for row in rows) / total
    return mean / 1000, max(square - mean ** 2, 0) ** 0.5 / 1000


def percentile(rows, share):
    """That of all rows together, in microseconds, from their histograms."""
    cells = sorted(tuple(cell) for row in rows for cell in row["histogram_ns"])
    rank = share * sum(count for _, count in cells)
    for end_ns, count in cells:
        rank -= count
        if rank <= 0:
            return end_ns / 1000
    return cells[-1][0] / 1000
