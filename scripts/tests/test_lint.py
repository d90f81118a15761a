# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lint scripts on small samples: what is good passes, what is bad is named with its line."""

import unittest

import script

lint_c = script.load("lint-c")
lint_size = script.load("lint-size")
lint_text = script.load("lint-text")

GOOD_C = """// SPDX-License-Identifier: GPL-2.0-only
/*
 * A file as it should be: since 6.12 comments may name versions.
 */
#include "kbp.h"

struct kbp_op {
\tint (*call)(int a);
};

/* A macro may hold a block. */
#define KBP_EACH(i) \\
\tfor ((i) = 0; (i) < 3; (i)++)

static int kbp_op_run(struct kbp_op *op, const char *text,
\t\t      int flag)
{
\tint i;

\tif (!op) {
\t\tpr_err("see // and BUG() in 6.1, which is only a string that is longer than a line of C may be otherwise\\n");
\t\tgoto err_free;
\t} else if (flag) {
\t\treturn 1;
\t}
\tfor (i = 0; i < 3; i++)
\t\top->call(sizeof(*op));
\tdo {
\t\ti--;
\t} while (i);
\treturn 0;

err_free:
\treturn -EINVAL;
}
"""

# (line to add to the body of a function, words of the finding)
BAD_C = [
    ("\tif(x)", "a blank is missing between"),
    ("        return 1;", "indent with tabs"),
    ("  return 1;", "indent with tabs"),
    (" \treturn 1;", "a blank before a tab"),
    ("\treturn 1; ", "trailing blanks"),
    ("\treturn 1; // why", "comments look like"),
    ("\tif (x){", "a blank is missing before '{'"),
    ("\t}else {", "a blank is missing after '}'"),
    ("\tif (x)\n\t{", "the brace of a statement"),
    ("\t}\n\telse", "'else' follows"),
    ("\tBUG();", "BUG kills"),
    ("\tBUG_ON(x);", "BUG kills"),
    ("\tWARN_ON(x);", "WARN_ON_ONCE"),
    ('\tprintk("x");', "use pr_err"),
    ("\tstrcpy(a, b);", "knows no bound"),
    ("\ta = sizeof (x);", "sizeof and typeof"),
    ("\tclass x;", "not C++"),
    ("\tx = a_function_with_a_name(argument_one, argument_two, argument_three, argument_four, argument_five);", "columns"),
    ("#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)", "kernel versions"),
    ("#include <linux/version.h>", "kernel versions"),
    ("\t;", "an empty statement"),
    ("\ta();\n\n\n\ta();", "two blank lines"),
]


class C(unittest.TestCase):
    def findings(self, text, path="kmod/kbp/sample.c"):
        return [str(finding) for finding in lint_c.check(path, "c", text)]

    def test_good(self):
        self.assertEqual(self.findings(GOOD_C), [])

    def test_bad_lines(self):
        for line, words in BAD_C:
            with self.subTest(line=line):
                head = "// SPDX-License-Identifier: GPL-2.0-only\nvoid f(void)\n{\n"
                found = self.findings(f"{head}{line}\n\treturn;\n}}\n")
                self.assertEqual(len(found), 1, found)
                self.assertRegex(found[0], rf"^kmod/kbp/sample\.c:[4-6]: .*{words}")

    def test_brace_of_a_function(self):
        found = self.findings("// SPDX-License-Identifier: GPL-2.0-only\nint f(void) {\n\treturn 1;\n}\n")
        self.assertEqual(found, ["kmod/kbp/sample.c:2: the brace of a function stands on a line of its own"])

    def test_versions_are_allowed_in_compat(self):
        text = "// SPDX-License-Identifier: GPL-2.0-only\n#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)\n#endif\n"
        self.assertEqual(self.findings(text, "kmod/compat/compat.c"), [])
        self.assertEqual(len(self.findings(text, "lab/modules/storm/storm.c")), 1)

    def test_missing_newline_at_the_end(self):
        self.assertIn("no newline", self.findings("// SPDX-License-Identifier: GPL-2.0-only\nint a;")[0])


class Text(unittest.TestCase):
    # Put together here, so that this file itself passes.
    ADDRESS = "https:" + "//example.org/x"
    HOME = "/" + "home/someone/x"

    def findings(self, text, path="scripts/sample.sh", language="shell"):
        return [str(finding) for finding in lint_text.check(path, language, text)]

    def test_licence(self):
        self.assertEqual(self.findings("#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0 OR MIT\n"), [])
        self.assertIn(":1: no SPDX", self.findings("#!/bin/sh\n")[0])
        self.assertIn(":1: the licence 'WTFPL'", self.findings("# SPDX-License-Identifier: WTFPL\n")[0])
        self.assertEqual(self.findings("/* SPDX-License-Identifier: GPL-2.0-only */\n", "a.h", "c"), [])
        self.assertEqual(self.findings("words\n", "notes.md", "other"), [])

    def test_urls_and_paths(self):
        head = "# SPDX-License-Identifier: Apache-2.0 OR MIT\n"
        self.assertIn(":2: a URL", self.findings(f"{head}see {self.ADDRESS}\n")[0])
        self.assertIn(":2: a path of one machine", self.findings(f"{head}cd {self.HOME}\n")[0])
        self.assertIn(":1: a path of one machine", self.findings(f"cd {self.HOME}\n", "a.md", "other")[0])
        self.assertEqual(self.findings(f"see {self.ADDRESS}\n", "a.md", "other"), [])
        for harmless in ("http:/" "/m/debian", "http:/" "/mirror.invalid/debian", "http:/" "/www.w3.org/2000/svg"):
            self.assertEqual(self.findings(f"{head}x={harmless}\n"), [])
        self.assertEqual(self.findings(f'{head}x="$TOP{self.HOME}" y=out{self.HOME}\n'), [])


class Size(unittest.TestCase):
    def functions(self, language, text):
        return list(lint_size.FUNCTIONS[language](text))

    def test_c(self):
        text = 'struct a {\n\tint b;\n};\n\nstatic int f(int a,\n\t     int b)\n{\n\treturn "}"[0];\n}\n'
        self.assertEqual(self.functions("c", text), [("f", 5, 5)])

    def test_rust(self):
        text = (
            "trait T {\n    fn declared(\n        a: u8,\n    ) -> u8;\n    fn given(&self) {\n        x();\n    }\n}\n"
            "fn short() {}\npub(crate) const unsafe fn long(\n    a: u8,\n) -> u8 {\n    if a { 1 }\n    2\n}\n"
        )
        self.assertEqual(self.functions("rust", text), [("given", 5, 3), ("long", 10, 6)])

    def test_shell_and_python(self):
        self.assertEqual(self.functions("shell", "f() {\n\ttrue\n}\n"), [("f", 1, 3)])
        self.assertEqual(self.functions("python", "def f():\n    a = 1\n\n    return a\n"), [("f", 1, 4)])

    def test_limits_and_ratchet(self):
        text = "f() {\n" + "\ttrue\n" * 80 + "}\n"
        judge = lint_size.Judge({})
        self.assertEqual(
            [str(finding) for finding in judge.check("a.sh", "shell", text)],
            ["a.sh:1: the function f has 82 lines; at most 70 are allowed"],
        )
        exact = lint_size.Judge(lint_size.read_ratchet("# why\na.sh:f 82\n"))
        self.assertEqual(list(exact.check("a.sh", "shell", text)) + list(exact.loose()), [])
        loose = lint_size.Judge(lint_size.read_ratchet("a.sh:f 90\n"))
        self.assertEqual(list(loose.check("a.sh", "shell", text)), [])
        self.assertIn("82 lines now", str(list(loose.loose())[0]))
        self.assertIn("700", str(list(lint_size.Judge({}).check("a.sh", "shell", "true\n" * 701))[0]))

    def test_malformed_ratchet(self):
        for text in ("a.sh\n", "a.sh x\n", "a.sh 800\na.sh 900\n"):
            with self.assertRaises(SystemExit):
                lint_size.read_ratchet(text)


if __name__ == "__main__":
    unittest.main()
