#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Look into kernel images for copies of ____napi_schedule(), and compare them with what the module handles.

    scripts/check-abi.py [--kernel K]...        default: all kernels of lab/kernels.toml

lab/napi-copies.toml says which functions hold a copy and what is done about each. A function that is not there, or one
that is there and not in the image, is a failure; so is a function that the module replaces or needs and that is not in
the kernel exactly once, or can't be traced. scripts/napi_copies.py says how a copy is recognised.

Images come from the lab's cache, their symbols from a guest that runs them; both are kept in out/abi.
"""

import argparse
from dataclasses import dataclass, field
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

from kernel_image import Image, ImageError, Symbols, unpack
import napi_copies

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / "lab/napi-copies.toml"
KINDS = {"copy": "holds a copy of ____napi_schedule()", "raises": "raises NET_RX without a copy"}


@dataclass
class Kernel:
    """One kernel and what was found in it."""

    name: str
    release: str = "?"
    found: dict = field(default_factory=dict)
    findings: list = field(default_factory=list)
    seconds: float = 0.0

    @property
    def line(self):
        return "?" if self.release == "?" else napi_copies.line_of(self.release)


def replaced_functions(source):
    """What the live patch replaces, from its table in kmod/kbp/klp.c."""
    return re.findall(r'\.old_name = "(\w+)"', source)


def needed_symbols(text):
    """What the module calls although it is not exported, from kmod/kbp/klp_symbols.txt."""
    lines = (line.split("#", 1)[0].split() for line in text.splitlines())
    return [words[1] for words in lines if len(words) == 2 and words[0] == "vmlinux"]


def disagreement(known, replaced):
    """Sentences about the table and klp.c saying different things."""
    said = {name for name, entry in known["copy"].items() if entry["handled"] == "replaced"}
    for name in sorted(said - set(replaced)):
        yield f"{name} is said to be replaced; kmod/kbp/klp.c does not replace it"
    for name in sorted(set(replaced) - said):
        yield f"kmod/kbp/klp.c replaces {name}, which lab/napi-copies.toml does not say"


def kbp(*arguments):
    """Run the program of this tree; its output, or ImageError with its last words."""
    program = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/kbp"
    done = subprocess.run(
        [str(program), "lab", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ImageError(f"kbp lab {arguments[0]}: {words[-1] if words else done.returncode}")
    return done.stdout


def is_of(machine, state):
    """Whether a guest's account is that of the kernel in the cache."""
    if not machine.is_file():
        return False
    said = json.loads(machine.read_text(encoding="utf-8"))
    return (said["kernel"], said["kernel_package"], said["verdict"]) == (state["abi"], state["version"], "pass")


def symbols_of(name, state, out):
    """The kernel's symbols, from a guest unless they are there from an earlier run."""
    path = out / "kallsyms"
    if not (path.is_file() and is_of(out / "machine.json", state)):
        machine = ("--cpus", "1", "--clock", "real", "--cold", "--append", "nokaslr")
        kbp("run", "lab/kallsyms.sh", "--kernel", name, *machine, "--out", str(out))
    return Symbols(path.read_text(encoding="utf-8"))


def open_image(kernel):
    """The kernel's image with its symbols, as (Image, the file that objdump reads)."""
    kbp("fetch", kernel.name)
    states = {state["id"]: state for state in json.loads(kbp("list", "--json"))}
    state = states[kernel.name]
    kernel.release = state["abi"]
    out = ROOT / "out/abi" / kernel.name
    out.mkdir(parents=True, exist_ok=True)
    symbols = symbols_of(kernel.name, state, out)
    elf = unpack(pathlib.Path(state["image"]).read_bytes())
    # Some 60 MB: objdump needs a file, nobody else does.
    file = tempfile.NamedTemporaryFile(dir=out, prefix="vmlinux-")
    file.write(elf)
    file.flush()
    return Image(elf, symbols, file.name), file


def look_into(kernel, known, replaced, needed):
    """Fill in what is in one kernel."""
    start = time.monotonic()
    try:
        image, file = open_image(kernel)
        with file:
            kernel.found = napi_copies.find(image)
        kernel.findings += napi_copies.compare(kernel.found, known, kernel.line)
        kernel.findings += napi_copies.check_symbols(image, replaced, needed)
    except (ImageError, ValueError) as error:
        kernel.findings.append(str(error))
    kernel.seconds = time.monotonic() - start


def cell(kernel, known, kind, name):
    """`x` and `-` are as the table has them."""
    here = name in kernel.found and kernel.found[name].is_copy == (kind == "copy")
    expected = kernel.line in known.get(kind, {}).get(name, {}).get("lines", ())
    if not kernel.found:
        return "?"
    if here == expected:
        return "x" if here else "-"
    return "NEW" if here else "GONE"


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def tables(kernels, known):
    """The kernels, and below them functions by kernels."""
    lines = [["", "kernel", "release", "line", "s", "findings"]]
    for number, kernel in enumerate(kernels, 1):
        count = str(len(kernel.findings) or "none")
        lines.append([str(number), kernel.name, kernel.release, kernel.line, f"{kernel.seconds:.1f}", count])
    text = aligned(lines)
    for kind, title in KINDS.items():
        is_copy = kind == "copy"
        found = {name for kernel in kernels for name, is_in in kernel.found.items() if is_in.is_copy == is_copy}
        entries = known.get(kind, {})
        lines = [[title, *(str(number) for number in range(1, len(kernels) + 1)), "what becomes of it"]]
        for name in [*entries, *sorted(found - set(entries))]:
            entry = entries.get(name, {})
            cells = [cell(kernel, known, kind, name) for kernel in kernels]
            lines.append([name, *cells, entry.get("handled") or entry.get("why") or "not known"])
        text += "\n\n" + aligned(lines)
    return text


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", help="repeatable")
    options = parser.parse_args(arguments)
    with (ROOT / "lab/kernels.toml").open("rb") as file:
        names = options.kernel or list(tomllib.load(file)["kernel"])
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    replaced = replaced_functions((ROOT / "kmod/kbp/klp.c").read_text(encoding="utf-8"))
    needed = needed_symbols((ROOT / "kmod/kbp/klp_symbols.txt").read_text(encoding="utf-8"))
    start = time.monotonic()
    kernels = [Kernel(name) for name in names]
    for kernel in kernels:
        look_into(kernel, known, replaced, needed)
        print(f"{'FAIL' if kernel.findings else 'ok':4} {kernel.name} {kernel.release} ({kernel.seconds:.1f} s)", flush=True)
    print(f"\n{tables(kernels, known)}\n")
    findings = [*disagreement(known, replaced)]
    findings += [f"{kernel.name}: {finding}" for kernel in kernels for finding in kernel.findings]
    for finding in findings:
        print(f"found: {finding}")
    print(f"{len(kernels)} kernels, {len(findings)} findings, {time.monotonic() - start:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
