# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel's image as instructions: the ELF file inside a bzImage, its symbols, and functions as objdump prints them.

Debian's images have no symbols and its debug packages are a gigabyte; the symbols are those of /proc/kallsyms, taken in
a guest that runs the image. Not here: what is looked for (napi_copies.py).
"""

import bisect
from dataclasses import dataclass
import lzma
import re
import shutil
import struct
import subprocess
import zlib

SHF_EXECINSTR = 4
ENDBR64 = b"\xf3\x0f\x1e\xfa"
NOP5 = b"\x0f\x1f\x44\x00\x00"


class ImageError(Exception):
    """The image is not what this program can read; the text says what to do."""


def by_program(name, *arguments):
    """A decoder that is a program; Python itself has none for these."""

    def decode(data):
        if shutil.which(name) is None:
            raise ImageError(f"the image is compressed by {name}; install the package {name}")
        done = subprocess.run([name, "-dc", *arguments], input=data, capture_output=True, check=False)
        if done.returncode:
            raise ImageError(f"{name}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    return decode


DECODERS = {
    b"\xfd7zXZ\0": lambda data: lzma.LZMADecompressor().decompress(data),
    b"\x28\xb5\x2f\xfd": by_program("zstd", "--long=31"),
    b"\x02\x21\x4c\x18": by_program("lz4"),
    b"\x1f\x8b": lambda data: zlib.decompressobj(wbits=31).decompress(data),
}


def unpack(image):
    """The ELF file inside a bzImage (Documentation/arch/x86/boot.rst)."""
    if image[0x202:0x206] != b"HdrS":
        raise ImageError("no x86 boot image")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length]
    # The kernel's build puts the length of what was compressed behind it.
    data, size = payload[:-4], struct.unpack("<I", payload[-4:])[0]
    for magic, decode in DECODERS.items():
        if data.startswith(magic):
            elf = decode(data)
            break
    else:
        raise ImageError(f"compressed in a way that this program does not know ({data[:6].hex()})")
    if len(elf) != size or not elf.startswith(b"\x7fELF\x02\x01"):
        raise ImageError("what was unpacked is not the kernel that the image's header describes")
    return elf


@dataclass(frozen=True)
class Section:
    """A piece of the image that holds instructions."""

    address: int
    data: bytes

    @property
    def end(self):
        return self.address + len(self.data)


def code_sections(elf):
    """The sections with instructions, by their addresses."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = []
    for number in range(count):
        kind, flags, address, offset, length = struct.unpack_from("<IQQQQ", elf, table + number * size + 4)
        if kind == 1 and flags & SHF_EXECINSTR and length:
            sections.append(Section(address, elf[offset : offset + length]))
    if not sections:
        raise ImageError("no section with instructions")
    return sorted(sections, key=lambda section: section.address)


def base_name(symbol):
    """The function in the source that a symbol belongs to: gcc appends .cold, .part.0, .constprop.0, .isra.0."""
    return symbol.split(".", 1)[0]


class Symbols:
    """The symbols of /proc/kallsyms: lines `ADDRESS KIND NAME`, without those of modules."""

    def __init__(self, text):
        self.code = []
        self.by_name = {}
        self.by_base = {}
        for line in text.splitlines():
            words = line.split()
            if len(words) != 3:
                continue
            address, kind, name = int(words[0], 16), words[1], words[2]
            self.by_name.setdefault(name, []).append(address)
            if kind in "tTwW":
                self.code.append((address, name))
                self.by_base.setdefault(base_name(name), set()).add(address)
        if not any(address for address, _ in self.code):
            raise ImageError("the list of symbols has no addresses; it has to be read by root, with kptr_restrict 0")
        self.code.sort()
        self.starts = sorted({address for address, _ in self.code})

    def extent(self, address, end):
        """The function around an address, as (start, end); it ends where the next one starts, or its section."""
        at = bisect.bisect_right(self.starts, address)
        if not at:
            return None
        following = self.starts[at] if at < len(self.starts) else end
        return self.starts[at - 1], min(following, end)

    def names_at(self, address):
        """The names of the function that starts there."""
        at = bisect.bisect_left(self.code, (address, ""))
        names = []
        while at < len(self.code) and self.code[at][0] == address:
            names.append(self.code[at][1])
            at += 1
        return names

    def pieces(self, base):
        """The addresses of all pieces of a function of the source."""
        return sorted(self.by_base.get(base, ()))


# A call or a jump with a distance of four bytes: call, jmp, or a conditional jump.
BRANCH = re.compile(rb"[\xe8\xe9]|\x0f[\x80-\x8f]")


class Image:
    """An image with its symbols."""

    def __init__(self, elf, symbols, path):
        """`path` is a file with the ELF's contents, for objdump."""
        self.sections = code_sections(elf)
        self.symbols = symbols
        self.path = path
        start = symbols.by_name.get("_text", [0])
        if start != [self.sections[0].address]:
            raise ImageError(
                f"the symbols are not those of this image: _text is at {start[0]:x}, the image starts at "
                f"{self.sections[0].address:x}"
            )

    def section_of(self, address):
        for section in self.sections:
            if section.address <= address < section.end:
                return section
        return None

    def branches_to(self, targets):
        """Places of calls and jumps to one of the addresses.

        Each byte is tried as the beginning of an instruction, so none is missed; a place in the middle of another
        instruction would need four bytes that happen to be the right distance.
        """
        wanted = set(targets)
        places = []
        for section in self.sections:
            data, address = section.data, section.address
            for match in BRANCH.finditer(data):
                end = match.end() + 4
                distance = int.from_bytes(data[match.end() : end], "little", signed=True)
                if address + end + distance in wanted:
                    places.append(address + match.start())
        return places

    def disassemble(self, start, end):
        """[(address, instruction)] as objdump prints them."""
        command = ["objdump", "-d", "--no-show-raw-insn", f"--start-address={start:#x}", f"--stop-address={end:#x}"]
        done = subprocess.run([*command, str(self.path)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImageError(f"objdump: {done.stderr.strip()}")
        lines = re.findall(r"^\s*([0-9a-f]+):\t(.+)$", done.stdout, re.M)
        return [(int(address, 16), " ".join(text.split())) for address, text in lines]

    def is_traceable(self, address):
        """Does the function begin with the call that ftrace, and so livepatch, takes its place in?"""
        section = self.section_of(address)
        if section is None:
            return False
        at = address - section.address
        if section.data[at : at + 4] == ENDBR64:
            at += 4
        word = section.data[at : at + 5]
        target = section.address + at + 5 + int.from_bytes(word[1:], "little", signed=True)
        return word == NOP5 or (word[:1] == b"\xe8" and target in self.symbols.by_name.get("__fentry__", []))
