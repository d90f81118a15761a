# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Who puts NAPI instances on the softirq's list: copies of ____napi_schedule() in an image, and who else raises NET_RX.

`____napi_schedule()` is inlined into its callers. A copy does three things that nothing else in the kernel does
together: it marks a threaded instance (NAPI_STATE_SCHED_THREADED, bit 9: `lock orb $0x2` on the second byte of its
state), wakes that thread (wake_up_process), and raises NET_RX for the others (one of the raise functions, with 3).

Whoever gives an instance to softirq has to raise NET_RX, through one of these functions, because the pending word is
theirs. So all functions that raise NET_RX have to be known, copies or not: a copy that lost its threaded half, or that
gcc did not inline, would be a new one among them.
"""

from dataclasses import dataclass, field
import re

from kernel_image import base_name

RAISERS = ("__raise_softirq_irqoff", "raise_softirq_irqoff", "raise_softirq")
WAKE = "wake_up_process"
NET_RX_SOFTIRQ = 3

MARKS_THREADED = re.compile(r"lock (?:orb? \$0x2|btsq? \$0x9),")
TARGET = re.compile(r"(?:call|j[a-z]+)q? (?:0x)?([0-9a-f]{8,})\b")
SETS_EDI = re.compile(r"(\w+) (?:\$(0x[0-9a-f]+),)?.*%(?:edi|rdi|di|dil)$")


@dataclass
class Scheduler:
    """A function that raises NET_RX, and what of ____napi_schedule() is in it."""

    name: str
    evidence: list = field(default_factory=list)
    marks_threaded: bool = False
    wakes: bool = False

    @property
    def is_copy(self):
        return self.marks_threaded and self.wakes


def target_of(text):
    """The address that a call or a jump goes to; None for all else."""
    match = TARGET.match(text)
    return int(match[1], 16) if match else None


def softirq_of(instructions, at):
    """The number that a raise function is called with: the last constant in %edi before it, None if it is no constant."""
    for _, text in reversed(instructions[:at]):
        match = SETS_EDI.match(text)
        if match and not text.startswith(("cmp", "test", "push")):
            return int(match[2], 16) if match[1].startswith("mov") and match[2] else None
    return None


def sets_net_rx(instructions):
    """Is 3 put into any register?"""
    return any(re.match(rf"movl? \$0x{NET_RX_SOFTIRQ:x},%(?:e\w\w|r\d+d)$", text) for _, text in instructions)


def look_at(instructions, raisers, wake):
    """(places that raise NET_RX, places that mark, places that wake) in a function; addresses are given as sets."""
    raises, marks, wakes = [], [], []
    for at, (address, text) in enumerate(instructions):
        target = target_of(text)
        if target in raisers:
            number = softirq_of(instructions, at)
            # A number that comes from elsewhere in the function is taken for NET_RX if that is one of those it sets.
            if number == NET_RX_SOFTIRQ or (number is None and sets_net_rx(instructions)):
                raises.append((address, text))
        elif target in wake:
            wakes.append((address, text))
        elif MARKS_THREADED.match(text):
            marks.append((address, text))
    return raises, marks, wakes


def named(symbols, text):
    """The instruction, with the name of the function that it goes to."""
    names = symbols.names_at(target_of(text) or 0)
    return f"{text.split()[0]} {names[0]}" if names else text


def find(image):
    """name -> Scheduler, for every function of the source that raises NET_RX in this image."""
    symbols = image.symbols
    raisers = {address for name in RAISERS for address in symbols.by_name.get(name, [])}
    wake = set(symbols.by_name.get(WAKE, []))
    if not raisers or not wake:
        raise ValueError(f"the kernel has no function {WAKE} or none of {', '.join(RAISERS)}: what is looked for changed")
    bases = set()
    for place in image.branches_to(raisers):
        extent = symbols.extent(place, image.section_of(place).end)
        if extent:
            bases.update(base_name(name) for name in symbols.names_at(extent[0]))
    found = {}
    for base in sorted(bases):
        scheduler = Scheduler(base)
        raises = []
        for start in symbols.pieces(base):
            section = image.section_of(start)
            if section is None:
                continue
            instructions = image.disassemble(*symbols.extent(start, section.end))
            here, marks, wakes = look_at(instructions, raisers, wake)
            raises += here
            scheduler.marks_threaded |= bool(marks)
            scheduler.wakes |= bool(wakes)
            scheduler.evidence += [(address, named(symbols, text)) for address, text in here + marks + wakes]
        if raises:
            found[base] = scheduler
    return found


def line_of(release):
    """`6.1`, or `6.1-rt`, of a release as uname says it."""
    match = re.match(r"(\d+\.\d+)\D", release + "-")
    if not match:
        raise ValueError(f"'{release}' is no release of a kernel")
    return match[1] + ("-rt" if "-rt-" in f"{release}-" else "")


def compare(found, known, line):
    """Sentences about what is in the image and not in the table for this line, and the other way round.

    `known` is lab/napi-copies.toml: {"copy": {name: entry}, "raises": {name: entry}}.
    """
    is_copy = {name: scheduler.is_copy for name, scheduler in found.items()}
    lines = {of for kind in known.values() for entry in kind.values() for of in entry["lines"]}
    if line not in lines:
        copies = ", ".join(sorted(name for name in found if is_copy[name]))
        others = ", ".join(sorted(name for name in found if not is_copy[name]))
        yield f"lab/napi-copies.toml knows nothing of the line {line}; it has the copies {copies}; NET_RX is also raised by {others}"
        return
    for kind, wanted in (("copy", True), ("raises", False)):
        what = "a copy of ____napi_schedule()" if wanted else "a function that raises NET_RX"
        expected = {name for name, entry in known.get(kind, {}).items() if line in entry["lines"]}
        here = {name for name in found if is_copy[name] == wanted}
        for name in sorted(here - expected):
            places = "; ".join(f"{address:x}: {text}" for address, text in found[name].evidence)
            yield f"{name} is {what} and not in the table for {line}: {places}"
        for name in sorted(expected - here):
            yield f"{name} is in the table for {line} as {what} and is none in the image"


def check_symbols(image, replaced, needed):
    """Sentences about functions that the module replaces or needs and can't."""
    by_name = image.symbols.by_name
    for name in [*replaced, *needed]:
        count = len(by_name.get(name, []))
        if count == 1:
            continue
        alike = sorted(other for other in by_name if base_name(other) == name and other != name)
        yield f"{name} is there {count} times, not once" + (f"; alike: {', '.join(alike)}" if alike else "")
    for name in replaced:
        addresses = by_name.get(name, [])
        if len(addresses) == 1 and not image.is_traceable(addresses[0]):
            yield f"{name} does not begin with a call of __fentry__, so it can't be replaced"
