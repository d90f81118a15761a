# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A soak goes on where it was, stops at a part that failed, and its report says both."""

import json
import os
import pathlib
import stat
import tempfile
import unittest

import script

soak = script.load("soak")

# A `kbp lab run` that leaves what a part leaves; fails for the kernel 6.12 while there is a file `broken`.
FAKE = """#!/bin/sh
while [ "$1" != --kernel ]; do shift; done
kernel=$2
while [ "$1" != --out ]; do shift; done
echo '{"mode":"busy","hogs":1,"seed":1,"answered":10,"late":1,"lost":0,"rtt_ns_max":4000000,"handbacks":0}' \\
    > "$2/turns.jsonl"
[ "$kernel" != 6.12 ] || [ ! -e "$(dirname "$0")/broken" ] || exit 70
echo '{"turns":1,"seconds":60,"begin_slab_kb":100,"begin_percpu_kb":7,"end_slab_kb":103,"end_percpu_kb":7}' > "$2/part.json"
"""


class Soak(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.kbp = self.folder / "kbp"
        self.kbp.write_text(FAKE)
        self.kbp.chmod(self.kbp.stat().st_mode | stat.S_IXUSR)
        self.out = self.folder / "out"

    def run_for(self, hours):
        args = soak.parse(["run", str(self.out), "--kbp", str(self.kbp), "--hours", str(hours),
                           "--kernels", "6.1 6.12", "--part-minutes", "1"])
        return soak.run(args)

    def test_goes_on_where_it_was(self):
        self.assertEqual(self.run_for(2 / 60), 0)
        self.assertEqual(self.run_for(2 / 60), 0)
        self.assertEqual(sorted(os.listdir(self.out)), ["0001-6.1", "0002-6.12"])
        self.assertEqual(self.run_for(3 / 60), 0)
        self.assertEqual(sorted(os.listdir(self.out)), ["0001-6.1", "0002-6.12", "0003-6.1"])

    def test_a_part_that_was_cut_short_is_made_again(self):
        self.assertEqual(self.run_for(1 / 60), 0)
        (self.out / "0001-6.1" / "verdict.json").unlink()
        self.assertEqual(self.run_for(1 / 60), 0)
        self.assertEqual(os.listdir(self.out), ["0001-6.1"])

    def test_a_failure_ends_it_and_is_reported(self):
        (self.folder / "broken").touch()
        self.assertEqual(self.run_for(2 / 60), 1)
        (self.folder / "broken").unlink()
        self.assertEqual(self.run_for(2 / 60), 0)
        page = soak.page(soak.read_parts(self.out))
        self.assertIn("**1 did not**", page)
        self.assertIn("* Part 2 on 6.12 (seed 3): machine lost.", page)
        self.assertIn("| 6.1 | `busy, hogs` | 2 | 20 | 2 | 0 | 0 | 4.0 |", page)
        self.assertIn("| 6.1 | 2 | 3 to 3 | 0 to 0 |", page)
        verdicts = [json.loads((folder / "verdict.json").read_text())["verdict"] for folder in sorted(self.out.iterdir())]
        self.assertEqual(verdicts, ["passed", "machine lost", "passed"])


if __name__ == "__main__":
    unittest.main()
