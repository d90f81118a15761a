#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Check C files for the kernel's style, as far as lines tell it.

The rules are those of the kernel's coding style that a regular expression can
judge without being wrong; the compiler (W=1), sparse and a reader do the rest.
"""

import re
import sys

import lint_common
from lint_common import Finding

COLUMNS = 100
CONTROL = r"(?:if|for|while|switch|do|else)"

# (pattern, message), on code with comments and the insides of strings blanked.
CODE_RULES = [
    (r"\b(?:if|for|while|switch)\(", "a blank is missing between the keyword and '('"),
    (r"\b(?:sizeof|typeof) \(", "sizeof and typeof take no blank before '('"),
    (r"\)\{|\belse\{|\bdo\{", "a blank is missing before '{'"),
    (r"\}(?:else|while)\b", "a blank is missing after '}'"),
    (r"\bBUG(?:_ON)?\(", "BUG kills the machine; use WARN_ON_ONCE and a safe way out"),
    (r"\bWARN(?:_ON)?\(", "this can flood the log; use WARN_ON_ONCE or WARN_ONCE"),
    (r"\bprintk\(", "use pr_err, pr_warn, pr_info or pr_debug"),
    (r"\b(?:strcpy|strcat|strncpy|sprintf|vsprintf|gets)\(", "this function knows no bound; use strscpy or snprintf"),
    (r"^typedef (?:struct|union|enum)\b", "no typedef for a struct, union or enum"),
    (r"\b(?:nullptr|class|template|namespace|constexpr)\b(?!\s*[=;,).\]>-])", "this is C, not C++"),
    (r"\)\s*;;|^\s*;\s*$", "an empty statement"),
    (r"\bLINUX_VERSION_CODE\b|\bKERNEL_VERSION\s*\(", "kernel versions are named in kmod/compat/ only"),
    (r"(?<![\w.])[2-9]\.\d{1,2}(?:\.\d+)?(?![\w.])", "kernel versions are named in kmod/compat/ only"),
    (r"#\s*include\s*<linux/version\.h>", "kernel versions are named in kmod/compat/ only"),
]
CODE_RULES = [(re.compile(pattern), message) for pattern, message in CODE_RULES]
VERSION_MESSAGE = "kernel versions are named in kmod/compat/ only"


def width(line):
    """Columns of a line; long strings stay whole, so that they can be searched for."""
    return len(lint_common.blank_strings(line).expandtabs(8).rstrip())


def too_wide(line):
    if width(line) <= COLUMNS:
        return False
    without = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
    return without == line or len(without.expandtabs(8)) > COLUMNS


def layout(path, lines):
    """Findings about blanks, tabs and columns."""
    for number, line in enumerate(lines, 1):
        indent = re.match(r"[ \t]*", line)[0]
        if line != line.rstrip():
            yield Finding(path, number, "trailing blanks")
        if " \t" in indent:
            yield Finding(path, number, "a blank before a tab")
        elif "        " in indent:
            yield Finding(path, number, "indent with tabs")
        elif re.match(r" +(?!\*)\S", line) and not re.match(r" +[A-Za-z_]\w*:", line):
            yield Finding(path, number, "indent with tabs")
        if too_wide(line):
            yield Finding(path, number, f"more than {COLUMNS} columns")
        if not line and number > 1 and not lines[number - 2] and number < len(lines):
            yield Finding(path, number, "two blank lines in a row")


def comments(path, text, lines):
    """No // but in the SPDX line."""
    blanked = lint_common.blank_strings(re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S))
    for number, line in enumerate(blanked.split("\n"), 1):
        if "//" in line and not (number == 1 and "SPDX-License-Identifier" in lines[0]):
            yield Finding(path, number, "comments look like /* this */")


def braces(path, code):
    """Where the braces of statements and functions stand."""
    for number, line in enumerate(code, 1):
        before = code[number - 2] if number > 1 else ""
        if re.match(r"\t+\{\s*$", line) and re.match(rf"\t+(?:\}} )?{CONTROL}\b.*[^;{{,]$", before.rstrip()):
            yield Finding(path, number, "the brace of a statement stands at the end of its line")
        if re.match(r"\t+else\b", line) and re.match(r"\t+\}\s*$", before):
            yield Finding(path, number, "'else' follows its brace on the same line")
        if re.match(r"(?!struct|union|enum|extern|typedef|static const struct|#)\w[^=#]*\)\s*\{\s*$", line):
            yield Finding(path, number, "the brace of a function stands on a line of its own")


def check(path, _language, text):
    """All findings of one file."""
    lines = text.split("\n")
    if lines[-1]:
        yield Finding(path, len(lines), "no newline at the end of the file")
    yield from layout(path, lines)
    yield from comments(path, text, lines)
    code = lint_common.blank_strings(lint_common.blank_comments(text)).split("\n")
    yield from braces(path, code)
    for number, line in enumerate(code, 1):
        for pattern, message in CODE_RULES:
            if message == VERSION_MESSAGE and path.startswith("kmod/compat/"):
                continue
            if pattern.search(line):
                yield Finding(path, number, message)


if __name__ == "__main__":
    sys.exit(lint_common.run(__doc__.split("\n", maxsplit=1)[0], check, ("c",)))
