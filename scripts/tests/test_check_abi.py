# SPDX-License-Identifier: Apache-2.0 OR MIT
"""check-abi: copies of ____napi_schedule() in a small kernel that is assembled here, packed as a boot image."""

import functools
import gzip
import lzma
import pathlib
import shutil
import struct
import subprocess
import tempfile
import tomllib
import unittest

import script

check_abi = script.load("check-abi")
import kernel_image  # noqa: E402  found through script.py
import napi_copies  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent / "napi_copies.S"
START = 0xFFFFFFFF81000000
KNOWN = {
    "copy": {
        "__napi_schedule": {"handled": "replaced", "lines": ["6.1", "6.1-rt"]},
        "rps_trigger_softirq": {"handled": "backlog", "lines": ["6.1"]},
        "kick_defer_list_purge": {"handled": "backlog", "lines": ["6.12"]},
    },
    "raises": {"trigger_rx_softirq": {"why": "to be freed", "lines": ["6.1"]}},
}


def boot_image(elf, compress, length=None):
    """A bzImage around an ELF file: the fields that a reader needs."""
    header = bytearray(1024)
    header[0x1F1] = 1
    header[0x202:0x206] = b"HdrS"
    payload = compress(elf) + struct.pack("<I", len(elf) if length is None else length)
    struct.pack_into("<II", header, 0x248, 16, len(payload))
    return bytes(header) + bytes(16) + payload + b"behind it"


class SmallKernel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def kernel(self, *variants):
        """(ELF, symbols as kallsyms prints them) of the small kernel."""
        path = self.folder / "vmlinux"
        defines = [word for name in variants for word in ("--defsym", f"{name}=1")]
        subprocess.run(["as", *defines, "-o", f"{path}.o", SOURCE], check=True)
        subprocess.run(["ld", f"-Ttext={START:#x}", "-e", str(START), "-o", path, f"{path}.o"], check=True)
        symbols = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
        subprocess.run(["objcopy", "--strip-all", path], check=True)
        return path.read_bytes(), symbols

    def image(self, *variants, more=""):
        elf, symbols = self.kernel(*variants)
        return kernel_image.Image(elf, kernel_image.Symbols(symbols + more), self.folder / "vmlinux")

    def findings(self, *variants, line="6.1"):
        return list(napi_copies.compare(napi_copies.find(self.image(*variants)), KNOWN, line))

    def test_copies_and_others_are_told_apart(self):
        found = napi_copies.find(self.image())
        kinds = {name: scheduler.is_copy for name, scheduler in found.items()}
        self.assertEqual(kinds, {"__napi_schedule": True, "rps_trigger_softirq": True, "trigger_rx_softirq": False})

    def test_the_kernel_of_the_table(self):
        self.assertEqual(self.findings(), [])

    def test_a_new_copy(self):
        (finding,) = self.findings("NEW")
        self.assertRegex(finding, "^new_path is a copy of ____napi_schedule.* not in the table for 6.1: ffffffff81.*call wake_up_process$")

    def test_a_copy_that_is_not_inlined(self):
        (finding,) = self.findings("NOT_INLINED")
        self.assertTrue(finding.startswith("____napi_schedule is a copy"), finding)

    def test_whoever_else_raises_it(self):
        (finding,) = self.findings("HALF")
        self.assertTrue(finding.startswith("half_a_copy is a function that raises NET_RX and not in"), finding)

    def test_a_copy_that_is_gone_or_no_more_one(self):
        self.assertEqual(
            self.findings(line="6.12"),
            [
                "__napi_schedule is a copy of ____napi_schedule() and not in the table for 6.12: "
                + self.evidence("__napi_schedule"),
                "rps_trigger_softirq is a copy of ____napi_schedule() and not in the table for 6.12: "
                + self.evidence("rps_trigger_softirq"),
                "kick_defer_list_purge is in the table for 6.12 as a copy of ____napi_schedule() and is none in the image",
                "trigger_rx_softirq is a function that raises NET_RX and not in the table for 6.12: "
                + self.evidence("trigger_rx_softirq"),
            ],
        )

    def evidence(self, name):
        found = napi_copies.find(self.image())[name].evidence
        return "; ".join(f"{address:x}: {text}" for address, text in found)

    def test_an_unknown_line(self):
        (finding,) = self.findings(line="7.4")
        self.assertIn("nothing of the line 7.4; it has the copies __napi_schedule, rps_trigger_softirq; NET_RX is", finding)

    def test_what_the_module_relies_on(self):
        def of(*variants, more=""):
            image = self.image(*variants, more=more)
            replaced = ["__napi_schedule", "rps_trigger_softirq", "napi_watchdog"]
            return list(napi_copies.check_symbols(image, replaced, ["raise_softirq_irqoff"]))

        self.assertEqual(of("ONCE") + of("ONCE", "ENDBR"), [])
        self.assertEqual(of(), ["napi_watchdog is there 0 times, not once"])
        self.assertEqual(of("RENAMED"), ["napi_watchdog is there 0 times, not once; alike: napi_watchdog.constprop.0"])
        self.assertEqual(
            of("UNTRACEABLE"), ["napi_watchdog does not begin with a call of __fentry__, so it can't be replaced"]
        )
        second = f"{START + 1:x} t raise_softirq_irqoff\n"
        self.assertEqual(of("ONCE", more=second), ["raise_softirq_irqoff is there 2 times, not once"])

    def test_symbols_of_another_boot(self):
        elf, symbols = self.kernel()
        moved = symbols.replace("ffffffff81", "ffffffff92")
        with self.assertRaisesRegex(kernel_image.ImageError, "not those of this image: _text is at ffffffff92000000"):
            kernel_image.Image(elf, kernel_image.Symbols(moved), "")
        hidden = "0000000000000000 T _text\n"
        with self.assertRaisesRegex(kernel_image.ImageError, "no addresses"):
            kernel_image.Symbols(hidden)

    @staticmethod
    def pipe(command, data):
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout

    def test_boot_images(self):
        elf, _ = self.kernel()
        ways = [lzma.compress, gzip.compress]
        for command in (["zstd", "-c"], ["lz4", "-lc"]):
            if shutil.which(command[0]):
                ways.append(functools.partial(self.pipe, command))
        for compress in ways:
            self.assertEqual(kernel_image.unpack(boot_image(elf, compress)), elf)
        with self.assertRaisesRegex(kernel_image.ImageError, "not the kernel that the image's header describes"):
            kernel_image.unpack(boot_image(elf, lzma.compress, len(elf) + 1))
        with self.assertRaisesRegex(kernel_image.ImageError, "does not know"):
            kernel_image.unpack(boot_image(elf, lambda data: b"LZ99" + data))
        with self.assertRaisesRegex(kernel_image.ImageError, "no x86 boot image"):
            kernel_image.unpack(bytes(4096))


class Instructions(unittest.TestCase):
    def test_number_of_the_softirq(self):
        def of(*lines):
            return napi_copies.softirq_of(list(enumerate(lines)), len(lines))

        self.assertEqual(of("mov $0x3,%edi", "cmp $0x1,%edi", "mov %rax,0x8(%rdi)"), 3)
        self.assertEqual(of("mov $0x3,%edi", "mov $0x2,%edi"), 2)
        self.assertIsNone(of("mov $0x3,%edi", "mov %ebp,%edi"))
        self.assertIsNone(of("add $0x3,%edi"))
        self.assertIsNone(of("nop"))

    def test_targets(self):
        for text in ("call 0xffffffff81000010", "jmp ffffffff81000010 <_text+0x10>", "callq ffffffff81000010", "jne 0xffffffff81000010"):
            self.assertEqual(napi_copies.target_of(text), START + 0x10, text)
        for text in ("call *%rax", "mov 0xffffffff81000010,%eax", "jmp *0x10(%rdi)"):
            self.assertIsNone(napi_copies.target_of(text), text)

    def test_lines(self):
        for release, line in (
            ("6.1.0-56-amd64", "6.1"),
            ("6.1.0-56-cloud-amd64", "6.1"),
            ("6.1.0-56-rt-amd64", "6.1-rt"),
            ("6.12.117+deb12-rt-amd64", "6.12-rt"),
            ("7.3.4+deb13-amd64", "7.3"),
        ):
            self.assertEqual(napi_copies.line_of(release), line)


class Tree(unittest.TestCase):
    """The files of this tree that check-abi reads."""

    def setUp(self):
        self.known = tomllib.loads(check_abi.KNOWN.read_text(encoding="utf-8"))
        self.replaced = check_abi.replaced_functions((check_abi.ROOT / "kmod/kbp/klp.c").read_text(encoding="utf-8"))

    def test_the_table_agrees_with_the_live_patch(self):
        self.assertGreater(len(self.replaced), 0)
        self.assertEqual(list(check_abi.disagreement(self.known, self.replaced)), [])
        self.assertEqual(len(list(check_abi.disagreement(self.known, self.replaced[1:] + ["more"]))), 2)

    def test_the_table_is_of_the_labs_kernels(self):
        kernels = tomllib.loads((check_abi.ROOT / "lab/kernels.toml").read_text(encoding="utf-8"))["kernel"]
        names = set(kernels)
        for kind in check_abi.KINDS:
            for function, entry in self.known[kind].items():
                self.assertLessEqual(set(entry["lines"]), names, function)
                self.assertIn("handled" if kind == "copy" else "why", entry, function)

    def test_needed_symbols(self):
        text = (check_abi.ROOT / "kmod/kbp/klp_symbols.txt").read_text(encoding="utf-8")
        self.assertIn("raise_softirq_irqoff", check_abi.needed_symbols(text))
        self.assertEqual(check_abi.needed_symbols("# x y\nvmlinux a\nmod b # c\n"), ["a"])


class Printed(unittest.TestCase):
    def test_tables(self):
        def kernel(name, release, found):
            schedulers = {
                function: napi_copies.Scheduler(function, marks_threaded=is_copy, wakes=is_copy)
                for function, is_copy in found.items()
            }
            return check_abi.Kernel(name, release, schedulers, [], 1.0)

        found = {"__napi_schedule": True, "rps_trigger_softirq": True, "trigger_rx_softirq": False}
        good = kernel("6.1", "6.1.0-56-amd64", found)
        bad = kernel("6.1-rt", "6.1.0-56-rt-amd64", {"new_path": True})
        text = check_abi.tables([good, bad, check_abi.Kernel("7.3")], KNOWN)
        self.assertRegex(text, r"(?m)^2 +6\.1-rt +6\.1\.0-56-rt-amd64 +6\.1-rt +1\.0 +none$")
        self.assertRegex(text, r"(?m)^__napi_schedule +x +GONE +\? +replaced$")
        self.assertRegex(text, r"(?m)^rps_trigger_softirq +x +- +\? +backlog$")
        self.assertRegex(text, r"(?m)^new_path +- +NEW +\? +not known$")
        self.assertRegex(text, r"(?m)^trigger_rx_softirq +x +- +\? +to be freed$")


if __name__ == "__main__":
    unittest.main()
