#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Tests of kmod/tools/klp-reloc on small objects, built here by gcc.

    KLP_RELOC=path/to/klp-reloc kmod/tests/klp_reloc_test.py

The tool under test should be built with ASan and UBSan (kmod/tests/Makefile
does). Results are read back with readelf, which shares no code with the tool.
"""

import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

SOURCE = """
void unexported_call(void);
void other_call(void);
extern int exported_value;
void (*pointer)(void) = unexported_call;
int text(void) { other_call(); unexported_call(); return exported_value; }
__attribute__((section(".init.text"))) int init(void) { unexported_call(); return 1; }
"""
LIVEPATCH = '__attribute__((section(".modinfo"), used)) static const char info[] = "license=GPL\\0livepatch=Y";'
LIST = "# comment\nvmlinux unexported_call\nother_call # why\n"
SEED = int(os.environ.get("KBP_SEED", "20071"))
TOOL = os.environ.get("KLP_RELOC", "")
SANITIZER_EXIT = 99
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": f"detect_leaks=0:exitcode={SANITIZER_EXIT}",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


class Case(unittest.TestCase):
    """A scratch folder with a list, a module and the tool."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.list = self.folder / "list.txt"
        self.list.write_text(LIST)
        self.module = self.folder / "module.ko"

    def compile(self, source=SOURCE + LIVEPATCH, *flags):
        path = self.folder / "module.c"
        path.write_text(source)
        command = ["gcc", "-c", "-O1", "-mcmodel=kernel", "-fno-pic", "-fno-pie", "-fcf-protection=none"]
        subprocess.run([*command, *flags, "-o", self.module, path], check=True)

    def run_tool(self, *flags, module=None):
        command = [TOOL, *flags, self.list, module or self.module]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertNotIn("runtime error", done.stderr)
        left = [path.name for path in self.folder.iterdir() if "klp-reloc." in path.name]
        self.assertEqual(left, [])
        return done

    def refuse(self, sentence, *flags):
        """The tool says the sentence and leaves the file alone."""
        before = self.module.read_bytes()
        done = self.run_tool(*flags)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(sentence, done.stderr)
        self.assertEqual(self.module.read_bytes(), before)


class Rewrite(Case):
    """What a good module looks like afterwards."""

    def setUp(self):
        super().setUp()
        self.compile(SOURCE + LIVEPATCH, "-g")

    def sections(self):
        """name -> (number, type, size, flags, link, info, alignment)"""
        row = re.compile(r"\[ *(\d+)\] (\S+) +(\S+) +\S+ \S+ (\S+) \S+ +([A-Zao]*) +(\d+) +(\d+) +(\d+)")
        found = {}
        for number, name, kind, size, flags, link, info, align in row.findall(readelf("-S", self.module)):
            found[name] = (int(number), kind, int(size, 16), flags, int(link), int(info), int(align))
        return found

    def relocations(self):
        """section -> [(offset, type, symbol + addend)]"""
        found, current = {}, None
        for line in readelf("-r", self.module).splitlines():
            head = re.match(r"Relocation section '(\S+)'", line)
            entry = re.match(r"([0-9a-f]{16})  [0-9a-f]{16} (R_\S+) +[0-9a-f]{16} (.+)", line)
            if head:
                current = found.setdefault(head[1], [])
            elif entry:
                current.append(entry.groups())
        return found

    def test_moves_relocations_and_renames_symbols(self):
        before = self.relocations()
        self.assertEqual(self.run_tool().returncode, 0)
        after, sections = self.relocations(), self.sections()
        rename = {name: f".klp.sym.vmlinux.{name},0" for name in ("unexported_call", "other_call")}
        for target in (".text", ".init.text", ".data"):
            old = [(o, t, re.sub(r"^\w+", lambda m: rename.get(m[0], m[0]), s)) for o, t, s in before[".rela" + target]]
            moved, kept = after[".klp.rela.vmlinux." + target], after.get(".rela" + target, [])
            self.assertTrue(moved)
            self.assertEqual(sorted(moved + kept), sorted(old))
            self.assertTrue(all(".klp.sym." in entry[2] for entry in moved))
            self.assertFalse(any(".klp.sym." in entry[2] for entry in kept))
            number, kind, size, flags, link, info, align = sections[".klp.rela.vmlinux." + target]
            self.assertEqual((kind, flags, size, align), ("RELA", "AIo", 24 * len(moved), 8))
            self.assertEqual((link, info), (sections[".symtab"][0], sections[target][0]))
        symbols = readelf("-s", self.module)
        for name in rename.values():
            self.assertRegex(symbols, rf"NOTYPE +GLOBAL +DEFAULT +OS \[0xff20\] {re.escape(name)}\n")
        self.assertRegex(symbols, r"UND exported_value\n")

    def test_keeps_everything_else(self):
        def others():
            return {
                name: subprocess.run(["readelf", "-x", str(row[0]), self.module], capture_output=True).stdout
                for name, row in self.sections().items()
                if not re.match(r"\.klp|\.rela|\.symtab|\.strtab|\.shstrtab", name)
            }

        self.module.chmod(0o640)
        before, debug = others(), self.relocations()[".rela.debug_info"]
        self.run_tool()
        self.assertEqual(others(), before)
        self.assertEqual(len(self.relocations()[".rela.debug_info"]), len(debug))
        self.assertEqual(self.module.stat().st_mode & 0o777, 0o640)
        self.assertNotIn("Warning", readelf("-a", self.module))

    def test_second_run_changes_nothing(self):
        self.run_tool()
        once = self.module.read_bytes()
        done = self.run_tool()
        self.assertEqual((done.returncode, self.module.read_bytes()), (0, once))
        self.assertIn("nothing to do, it has its livepatch relocations already", done.stdout)

    def test_linker_accepts_the_result(self):
        """`ld -r` reads the object again: its tables are consistent."""
        self.run_tool()
        subprocess.run(["ld", "-r", "-o", self.folder / "again.o", self.module], check=True)

    def test_symvers(self):
        done = subprocess.run([TOOL, "--symvers", self.list], capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(done.stdout.splitlines()[1], "0x00000000\tother_call\tvmlinux\tEXPORT_SYMBOL_GPL\t")


class Refusal(Case):
    """What it doesn't understand stays as it is, and the reason is said."""

    def setUp(self):
        super().setUp()
        self.compile()

    def test_not_a_livepatch(self):
        self.compile(SOURCE)
        self.refuse("is no livepatch module")

    def test_module_without_such_symbols(self):
        self.compile("int f(void) { return 1; }" + LIVEPATCH)
        before = self.module.read_bytes()
        done = self.run_tool()
        self.assertEqual((done.returncode, done.stderr, self.module.read_bytes()), (0, "", before))
        self.assertIn("nothing to do, it refers to no symbol of the list", done.stdout)
        self.refuse("does not refer to unexported_call", "--strict")

    def test_list_grew_after_a_run(self):
        self.list.write_text("other_call\n")
        self.run_tool()
        self.list.write_text(LIST)
        self.refuse("but not for every symbol of the list")

    def test_unused_symbol(self):
        self.list.write_text(LIST + "never_called\n")
        self.refuse("does not refer to never_called", "--strict")
        done = self.run_tool()
        self.assertEqual(done.returncode, 0)
        self.assertIn("warning: ", done.stderr)

    def test_unknown_relocation_type(self):
        self.compile(SOURCE + LIVEPATCH + '\nasm(".text\\n.byte unexported_call\\n");')
        self.refuse("relocation type 14")

    def test_per_cpu_data(self):
        self.compile(SOURCE + LIVEPATCH + '\nasm(".section .data..percpu,\\"aw\\"\\n.quad unexported_call\\n");')
        self.refuse("per-CPU variable")

    def test_signed_module(self):
        with self.module.open("ab") as file:
            file.write(b"~Module signature appended~\n")
        self.refuse("signed already")

    def test_bad_lists(self):
        for text, sentence in (
            ("nf_conntrack nf_ct_get\n", ":1: only symbols of the object vmlinux"),
            ("a\nb\na\n", ":3: the symbol is listed twice"),
            ("vmlinux a b\n", ":1: there are more than two words"),
            ("a,1\n", ":1: this is not the name of a symbol"),
            ("x" * 600 + "\n", ":1: the line is too long"),
            ("y" * 200 + "\n", ":1: the name is too long"),
            ("".join(f"s{i}\n" for i in range(257)), ":257: the list is too long"),
        ):
            with self.subTest(sentence=sentence):
                self.list.write_text(text)
                self.refuse(sentence)

    def test_not_an_object(self):
        self.module.write_bytes(b"#!/bin/sh\n")
        self.refuse("no ELF file")
        self.module.write_bytes(pathlib.Path("/bin/sh").read_bytes())
        self.refuse("no relocatable x86-64 object")


class Malformed(Case):
    """Broken files end in a sentence; never in a crash or a changed file."""

    def setUp(self):
        super().setUp()
        self.compile()
        self.good = self.module.read_bytes()

    def attempt(self, data):
        self.module.write_bytes(data)
        done = self.run_tool()
        if done.returncode:
            self.assertEqual(self.module.read_bytes(), data)
            self.assertIn("klp-reloc: ", done.stderr)
        return done.returncode

    def test_truncated(self):
        """Section headers come last, so no shorter file is whole."""
        for length in range(0, len(self.good), 11):
            self.assertEqual(self.attempt(self.good[:length]), 1, f"{length} of {len(self.good)} bytes")

    def test_random_damage(self):
        """The headers and tables are damaged, where every index and size is."""
        generator = random.Random(SEED)
        headers = int.from_bytes(self.good[40:48], "little")
        places = list(range(64)) + list(range(headers, len(self.good)))
        refused = 0
        for attempt in range(250):
            data = bytearray(self.good)
            for _ in range(generator.randint(1, 4)):
                data[generator.choice(places)] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            try:
                refused += self.attempt(bytes(data))
            except AssertionError as error:
                raise AssertionError(f"KBP_SEED={SEED}, attempt {attempt}: {error}") from error
        self.assertGreater(refused, 60, f"KBP_SEED={SEED}")

    def test_bad_indices(self):
        """Each index field of each section header, out of range."""
        headers = int.from_bytes(self.good[40:48], "little")
        count = int.from_bytes(self.good[60:62], "little")
        for section in range(count):
            start = headers + 64 * section
            for offset, width in ((0, 4), (4, 4), (24, 8), (32, 8), (40, 4), (44, 4), (56, 8)):
                for value in (0, count, (1 << 8 * width) - 1, 1 << (8 * width - 1)):
                    data = bytearray(self.good)
                    data[start + offset : start + offset + width] = value.to_bytes(width, "little")
                    self.attempt(bytes(data))


if __name__ == "__main__":
    if not TOOL:
        raise SystemExit("KLP_RELOC is not set: run `make -C kmod/tests`")
    unittest.main()
