#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Keep functions and files small.

A function has at most 70 lines, a file at most 700 (aim: 600). What is longer
has to stand in scripts/lint-size.txt, as `PATH LINES` or `PATH:FUNCTION LINES`,
and may only shrink: an entry that says more than is needed is a finding too.
"""

import ast
import re
import sys

import lint_common
from lint_common import Finding

FUNCTION_LINES = 70
FILE_LINES = 700
RATCHET = "scripts/lint-size.txt"
LANGUAGES = ("c", "rust", "python", "shell")


def c_functions(text):
    """Bodies open and close in the first column; the name stands before them."""
    lines = lint_common.blank_strings(lint_common.blank_comments(text)).split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start:
            first = start - 1
            while first > 1 and re.match(r"\s", lines[first - 1]):
                first -= 1
            name = re.search(r"(\w+)\s*\(", lines[first - 1])
            if name:
                yield name[1], first, number - first + 1
            start = None


def rust_functions(text):
    """rustfmt closes a body at the column of its `fn`."""
    lines = text.split("\n")
    head = re.compile(r'(\s*)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe|extern "C") )*fn (\w+)')
    for number, line in enumerate(lines, 1):
        match = head.match(line)
        if not match:
            continue
        for end in range(number, len(lines) + 1):
            text_of = lines[end - 1].rstrip()
            if text_of == match[1] + "}":
                yield match[2], number, end - number + 1
                break
            closes = text_of.endswith((";", "}")) and not text_of.endswith("{")
            if closes and (end == number or text_of.startswith(match[1] + ")")):
                break


def shell_functions(text):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        match = re.match(r"(?:function )?([\w-]+)\s*\(\)\s*[{(]\s*$", line)
        if not match:
            continue
        for end in range(number + 1, len(lines) + 1):
            if lines[end - 1] in ("}", ")"):
                yield match[1], number, end - number + 1
                break


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


FUNCTIONS = {"c": c_functions, "rust": rust_functions, "shell": shell_functions, "python": python_functions}


def read_ratchet(text):
    """The exceptions: name -> (lines allowed, line of the entry)."""
    entries = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split("#", 1)[0].split()
        if len(words) == 2 and words[1].isdigit() and words[0] not in entries:
            entries[words[0]] = (int(words[1]), number)
        elif words:
            raise SystemExit(f"{RATCHET}:{number}: an entry is `PATH LINES` or `PATH:FUNCTION LINES`, each once")
    return entries


def measure(path, language, text):
    """(name, line, length, limit) of the file and of each function in it."""
    yield path, 1, text.count("\n"), FILE_LINES
    for name, line, length in FUNCTIONS[language](text):
        yield f"{path}:{name}", line, length, FUNCTION_LINES


class Judge:
    """Compares sizes with the limits and remembers which exceptions were needed."""

    def __init__(self, ratchet):
        self.ratchet = ratchet
        self.needed = {}

    def check(self, path, language, text):
        for name, line, length, limit in measure(path, language, text):
            if length <= limit:
                continue
            what = "the file" if name == path else f"the function {name.rsplit(':', 1)[1]}"
            self.needed[name] = max(length, self.needed.get(name, 0))
            allowed = self.ratchet.get(name, (limit, 0))[0]
            if length > allowed:
                yield Finding(path, line, f"{what} has {length} lines; at most {allowed} are allowed")

    def loose(self):
        """Exceptions that could be smaller."""
        for name, (allowed, line) in self.ratchet.items():
            if self.needed.get(name, 0) < allowed:
                yield Finding(RATCHET, line, f"{name} has {self.needed.get(name, 'no more than the limit of')} lines now; lower or drop the entry")


def main():
    ratchet_file = lint_common.ROOT / RATCHET
    judge = Judge(read_ratchet(ratchet_file.read_text(encoding="utf-8")))
    failed = lint_common.run(__doc__.split("\n", maxsplit=1)[0], judge.check, LANGUAGES)
    if len(sys.argv) == 1:
        for finding in judge.loose():
            print(finding, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
