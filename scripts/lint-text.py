#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Check what holds for every source file: licence line, no URLs, no paths of one machine."""

import re
import sys

import lint_common
from lint_common import Finding

LICENCES = (
    "Apache-2.0 OR MIT",
    "GPL-2.0-only",
    "((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause)",
)
SOURCES = ("c", "rust", "python", "shell", "make")
# Texts of others, files of other projects, a page that has one of those in it, a lock file that cargo writes, and
# licences in a form whose first line has to be an address.
FOREIGN = re.compile(
    r"LICENSES/|Cargo\.lock$|assets/uplot/|docs/results/(energy/|classes/|services/|containers/)?index\.html$|packaging/debian/copyright$"
)
# An address has a host with a dot. Names of XML vocabularies and the domains that
# are reserved for examples look like one, but nobody goes there.
URL = re.compile(
    r"\b(?:https?|ftp|git):/" r"/(?!www\.w3\.org/)(?![^\s/\"']*\.(?:example|invalid|test)\b)[\w-]+(?:\.[\w-]+)+"
)
# In the lab's guest the home of root is a fact; NAME in capitals stands for any name.
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:(?:work|home)/\w|root/[a-z.])")
LICENCE_LINES = 3


def licence(path, lines):
    for number, line in enumerate(lines[:LICENCE_LINES], 1):
        match = re.search(r"SPDX-License-Identifier: (.*?)(?: \*/| -->)?$", line)
        if match and match[1] in LICENCES:
            return
        if match:
            yield Finding(path, number, f"the licence '{match[1]}' is not one of ours: {'; '.join(LICENCES)}")
            return
    yield Finding(path, 1, f"no SPDX-License-Identifier in the first {LICENCE_LINES} lines")


def check(path, language, text):
    """All findings of one file."""
    if FOREIGN.search(path):
        return
    lines = text.split("\n")
    is_source = language in SOURCES
    if is_source and text:
        yield from licence(path, lines)
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield Finding(path, number, "a path of one machine")
        if URL.search(line) and not path.endswith(".md"):
            yield Finding(path, number, "a URL; sources name things, documents may point to them")
        if is_source and line != line.rstrip() and language != "c":
            yield Finding(path, number, "trailing blanks")


if __name__ == "__main__":
    sys.exit(lint_common.run(__doc__, check, None))
