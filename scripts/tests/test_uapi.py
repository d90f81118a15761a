# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The generator of the netlink constants: a good spec, and sentences about bad ones."""

import contextlib
import io
import pathlib
import subprocess
import tempfile
import unittest

import script

uapi_gen = script.load("uapi-gen")
import uapi_spec  # noqa: E402  found through script.py

GOOD = """
name: toy
protocol: genetlink-legacy
version: 3
doc: A toy family.
definitions:
  - type: enum
    name: mode
    doc: A mode.
    entries: [{name: idle, doc: Nothing.}, {name: very-busy, doc: Much.}, {name: late, value: 7, doc: Late.}]
attribute-sets:
  - name: thing
    attributes:
      - {name: cpu, type: u32}
      - {name: mode, type: u32, enum: mode}
      - {name: stats, type: nest, nested-attributes: thing-stats}
  - name: thing-stats
    doc: Counters of a thing.
    attributes:
      - {name: pad, type: pad}
      - {name: busy-ns, type: u64, doc: "Time, nanoseconds."}
      - {name: polls, type: u64, doc: Calls.}
operations:
  enum-name: toy-cmd
  name-prefix: toy-cmd-
  list:
    - name: thing-get
      doc: One thing.
      attribute-set: thing
      flags: [admin-perm]
      do: {request: {attributes: [cpu]}, reply: {attributes: [cpu, mode]}}
    - {name: thing-ntf, notify: thing-get, mcgrp: state}
mcast-groups:
  list: [{name: state}]
"""

# (what to replace, by what, words of the complaint)
BAD = [
    ("enum: mode", "enum: mood", "refers to the enum 'mood', which is not defined"),
    ("nested-attributes: thing-stats", "nested-attributes: stats", "nests the attribute set 'stats'"),
    ("nested-attributes: thing-stats", "doc: x", "needs both, type nest and nested-attributes"),
    ("attribute-set: thing", "attribute-set: things", "refers to the attribute set 'things'"),
    ("[cpu, mode]", "[cpu, mood]", "lists the attribute 'mood'"),
    ("[cpu, mode]", "[cpu, cpu]", "lists the attribute 'cpu' twice"),
    ("notify: thing-get", "notify: thing-set", "notifies about the operation 'thing-set'"),
    ("mcgrp: state", "mcgrp: states", "goes to the multicast group 'states'"),
    ("admin-perm", "root-perm", "unknown flag 'root-perm'"),
    ("name: very-busy", "name: idle", "has the name 'idle' twice"),
    ("name: very-busy", "name: Very_Busy", "names are lower-case words"),
    ("value: 7", "value: 1", "has to be a number from 2"),
    ("{name: cpu, type: u32}", "{name: mode, type: u32}", "has the name 'mode' twice"),
    ("{name: cpu, type: u32}", "{name: cpu, type: u33}", "unknown type 'u33'"),
    ("{name: cpu, type: u32}", "{name: cpu, type: u32, enumm: mode}", "has the key 'enumm'"),
    ("type: u64", "type: u32", "is no u64"),
    ('doc: "Time, nanoseconds."', 'doc: ""', "has no doc"),
    ("name: thing-ntf", "name: thing-get", "has the name 'thing-get' twice"),
    ("version: 3", "version: 3\nversion: 4", "the key 'version' stands twice"),
    ("version: 3", "version: 0", "from 1 to 255"),
    ("genetlink-legacy", "netlink-raw", "only genetlink-legacy"),
    ("[{name: state}]", "[{name: a-very-long-group}]", "more than 15 characters"),
    ("enum-name: toy-cmd", "enum-name: cmd", "the enum-name 'toy-cmd'"),
    ("doc: A toy family.", "doc: '", "it is not YAML"),
]


class Spec(unittest.TestCase):
    def test_numbers(self):
        spec = uapi_spec.parse(GOOD)
        self.assertEqual([(e.name, e.value) for e in spec.enums[0].items], [("idle", 0), ("very-busy", 1), ("late", 7)])
        self.assertEqual([(a.name, a.value) for a in spec.sets[0].items], [("cpu", 1), ("mode", 2), ("stats", 3)])
        self.assertEqual([(o.name, o.value) for o in spec.operations], [("thing-get", 1), ("thing-ntf", 2)])

    def test_bad_specs(self):
        for old, new, words in BAD:
            with self.subTest(new=new):
                self.assertIn(old, GOOD)
                with self.assertRaises(uapi_spec.SpecError) as caught:
                    uapi_spec.parse(GOOD.replace(old, new, 1))
                self.assertIn(words, str(caught.exception))


class Generator(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        spec = self.root / uapi_gen.SPEC
        spec.parent.mkdir(parents=True)
        spec.write_text(GOOD)

    def run_generator(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = uapi_gen.main(["--root", str(self.root), *arguments])
        return code, errors.getvalue()

    def test_check_names_stale_files(self):
        code, errors = self.run_generator("--check")
        self.assertEqual((code, errors.count("stale")), (1, 3))
        self.assertEqual(self.run_generator(), (0, ""))
        self.assertEqual(self.run_generator("--check"), (0, ""))
        header = self.root / "kmod/uapi/kbp.h"
        header.write_text(header.read_text() + "\n")
        self.assertEqual(self.run_generator("--check"), (1, "kmod/uapi/kbp.h:1: stale; run scripts/uapi-gen.py\n"))

    def test_bad_spec(self):
        (self.root / uapi_gen.SPEC).write_text("[]")
        self.assertEqual(self.run_generator(), (2, f"{uapi_gen.SPEC}: the spec is not a mapping\n"))

    def test_header_compiles_to_the_numbers(self):
        self.run_generator()
        program = self.root / "t.c"
        program.write_text(
            '#include "kmod/uapi/kbp.h"\n'
            "#define X(field, SUFFIX) int field = TOY_A_THING_STATS_##SUFFIX;\n"
            "_Static_assert(TOY_MODE_VERY_BUSY == 1 && TOY_MODE_LATE == 7 && TOY_MODE_MAX == 7, \"\");\n"
            "_Static_assert(TOY_A_THING_CPU == 1 && TOY_A_THING_MAX == 3 && TOY_CMD_THING_NTF == 2, \"\");\n"
            "_Static_assert(sizeof(TOY_MCGRP_STATE) == 6 && TOY_FAMILY_VERSION == 3, \"\");\n"
            "int main(void) { TOY_THING_COUNTERS(X) return busy_ns + polls - 5; }\n"
        )
        subprocess.run(["gcc", "-Wall", "-Werror", "-o", self.root / "t", program], check=True)
        subprocess.run([self.root / "t"], check=True)

    def test_rust_is_formatted_and_documented(self):
        self.run_generator()
        path = self.root / "crates/kbp-core/src/uapi.rs"
        subprocess.run(["rustfmt", "--edition", "2021", "--check", path], check=True)
        command = ["rustc", "--edition", "2021", "--crate-type", "lib", "--emit", "metadata", "-D", "warnings"]
        subprocess.run([*command, "-D", "missing_docs", "--out-dir", self.root, path], check=True)


if __name__ == "__main__":
    unittest.main()
