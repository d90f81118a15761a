# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the lint scripts share: the files to look at and the way to report."""

import argparse
from dataclasses import dataclass
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Finding:
    """One thing to change; prints as file:line: message."""

    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def repository_files(root=ROOT):
    """Every file that git tracks or would track, as paths from the root."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and (root / name).is_file())


def kind(path, first_line):
    """The language of a file: c, rust, python, shell, make or other."""
    name = pathlib.PurePath(path).name
    suffix = pathlib.PurePath(path).suffix
    known = {".c": "c", ".h": "c", ".rs": "rust", ".py": "python", ".sh": "shell", ".mk": "make"}
    if suffix in known:
        return known[suffix]
    if name in ("Makefile", "Kbuild"):
        return "make"
    if re.match(r"#!.*\b(ba|da)?sh\b", first_line):
        return "shell"
    if re.match(r"#!.*\bpython3?\b", first_line):
        return "python"
    return "other"


def blank_comments(text):
    """The text of a C file with its comments (not its strings) turned into blanks."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)

    def replace(match):
        found = match[0]
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found

    return pattern.sub(replace, text)


def blank_strings(text):
    """The text of a C file with the insides of its strings turned into blanks."""
    return re.sub(r'"((?:\\.|[^"\\\n])*)"', lambda match: '"' + " " * len(match[1]) + '"', text)


def run(description, check, wanted, arguments=None):
    """Run check(path, kind, text) over the files whose kind is wanted; 1 when something was found."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="*", help="default: all files of the repository")
    options = parser.parse_args(arguments)
    count = 0
    for path in options.files or repository_files():
        data = (ROOT / path).read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        language = kind(path, text.split("\n", 1)[0])
        if wanted is not None and language not in wanted:
            continue
        for finding in check(path, language, text):
            print(finding, file=sys.stderr)
            count += 1
    return 1 if count else 0
