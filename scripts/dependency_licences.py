#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks the licences of every crate in `cargo metadata`'s JSON, read from standard input.

A dependency passes if its SPDX expression can be satisfied with the licences in ALLOWED alone.
A workspace member passes if it states the workspace's own expression. `--self-test` checks the
evaluator against the examples in this file and reads nothing. Exit status 1: something failed.
"""

import doctest
import json
import re
import sys

# Permissive licences whose only duty is to keep notices, so that they can be part of a binary
# under Apache-2.0 OR MIT. An exception is allowed only together with its licence.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}

# The licence that the workspace's own crates must state.
OWN = "Apache-2.0 OR MIT"

TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z0-9.+:-]+)")


def tokens_of(expression):
    """Splits an SPDX expression; `/`, which old crates use, reads as OR.

    >>> tokens_of("MIT/Apache-2.0")
    ['MIT', 'OR', 'Apache-2.0']
    """
    text = expression.replace("/", " OR ").strip()
    tokens, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unexpected {text[position]!r}")
        tokens.append(match.group(1))
        position = match.end()
    return tokens


def is_allowed(expression, allowed=frozenset(ALLOWED)):
    """Says whether the expression can be satisfied with allowed licences alone.

    In SPDX, WITH binds tightest, then AND, then OR.

    >>> is_allowed("MIT"), is_allowed("GPL-3.0-only")
    (True, False)
    >>> is_allowed("LGPL-2.1-only OR BSD-2-Clause"), is_allowed("LGPL-2.1-only AND BSD-2-Clause")
    (True, False)
    >>> is_allowed("MIT OR Apache-2.0 AND GPL-2.0-only")
    True
    >>> is_allowed("(MIT OR Apache-2.0) AND GPL-2.0-only")
    False
    >>> is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0")
    True
    >>> is_allowed("Apache-2.0 WITH LLVM-exception")
    True
    >>> is_allowed("MIT WITH LLVM-exception"), is_allowed("GPL-2.0-only WITH Linux-syscall-note")
    (False, False)
    >>> is_allowed("MIT/Apache-2.0")
    True
    >>> for wrong in ("", "MIT OR", "(MIT", "MIT Apache-2.0", "MIT WITH", "MIT, ISC"):
    ...     try:
    ...         is_allowed(wrong)
    ...     except ValueError:
    ...         print("refused")
    refused
    refused
    refused
    refused
    refused
    refused
    """
    tokens = tokens_of(expression)

    def peek():
        return tokens[0] if tokens else None

    def licence_id():
        token = peek()
        if token is None or token in {"(", ")", "AND", "OR", "WITH"}:
            raise ValueError(f"a licence is expected, not {token or 'the end'}")
        return tokens.pop(0)

    def primary():
        if peek() == "(":
            tokens.pop(0)
            value = either()
            if peek() != ")":
                raise ValueError("a closing parenthesis is missing")
            tokens.pop(0)
            return value
        name = licence_id()
        if peek() == "WITH":
            tokens.pop(0)
            name = f"{name} WITH {licence_id()}"
        return name in allowed

    def both():
        value = primary()
        while peek() == "AND":
            tokens.pop(0)
            # Parse first: `and` would leave the rest unread.
            value = primary() and value
        return value

    def either():
        value = both()
        while peek() == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    value = either()
    if tokens:
        raise ValueError(f"unexpected {tokens[0]!r}")
    return value


def fault_of(package, is_member):
    """Returns what is wrong with a package's licence, or None.

    >>> fault_of({"license": "MIT"}, False)
    >>> fault_of({"license": "GPL-3.0-only"}, False)
    'GPL-3.0-only is not on the allow-list'
    >>> fault_of({"license": None}, False)
    'states no licence'
    >>> fault_of({"license": "MIT"}, True)
    "is a workspace member and must state 'Apache-2.0 OR MIT'"
    """
    licence = package["license"]
    if is_member:
        return None if licence == OWN else f"is a workspace member and must state {OWN!r}"
    if not licence:
        return "states no licence"
    try:
        return None if is_allowed(licence) else f"{licence} is not on the allow-list"
    except ValueError as error:
        return f"has a licence that cannot be read, {licence!r}: {error}"


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if doctest.testmod().failed else 0
    if sys.argv[1:] or sys.stdin.isatty():
        print(f"usage: cargo metadata --format-version 1 | {sys.argv[0]}", file=sys.stderr)
        return 2
    text = sys.stdin.read()
    if not text:
        print("dependency_licences: cargo metadata said nothing", file=sys.stderr)
        return 1
    metadata = json.loads(text)
    members = set(metadata["workspace_members"])
    faults = 0
    for package in metadata["packages"]:
        fault = fault_of(package, package["id"] in members)
        if fault:
            faults += 1
            print(f"{package['name']} {package['version']}: {fault}", file=sys.stderr)
    print(f"licences: {len(metadata['packages'])} crates, {faults} with a fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
