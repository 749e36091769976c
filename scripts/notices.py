#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes the notices of everything that is linked into a package's binary.

    notices.py PACKAGE OUT

Each crate has its version, licence and authors, and the texts that its source brings; a text that many bring stands once. The C
libraries come from their crates, and from the copyright files of the Debian packages that they are linked from.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TEXT = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)
DEBIAN = {"libelf": "libelf-dev", "zlib": "zlib1g-dev"}
SQLITE = "SQLite is in the public domain (https://www.sqlite.org/copyright.html)."


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linked() -> list[dict]:
    """The crates of others in the binary, by name and version."""
    host = re.search(r"^host: (.+)$", said("rustc", "-vV"), re.MULTILINE)[1]
    tree = said(
        *("cargo", "tree", "--locked", "--package", sys.argv[1], "--features", "static"),
        *("--edges", "normal"),
        *("--target", host, "--prefix", "none", "--format", "{p}"),
    )
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    asked = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform"]
    metadata = json.loads(said(*asked, host))
    crates = [
        package
        for package in metadata["packages"]
        if package["source"] and (package["name"], "v" + package["version"]) in wanted
    ]
    return sorted(crates, key=lambda package: (package["name"], package["version"]))


def texts(folder: Path) -> list[str]:
    """The texts of licences and notices in a folder, and in those that are named after licences."""
    files = [path for path in sorted(folder.iterdir()) if TEXT.match(path.name)]
    files += [inner for path in files if path.is_dir() for inner in sorted(path.iterdir())]
    sound = [path for path in files if path.is_file() and path.stat().st_size < 100_000]
    return [path.read_text(errors="replace").strip() for path in sound]


def main() -> None:
    seen: dict[str, int] = {}
    lines = ["Notices of what is linked into the binary of Thalweg.", ""]

    def add(title: str, about: str, found: list[str]) -> None:
        numbers = [seen.setdefault(text, len(seen) + 1) for text in found]
        where = ", ".join(f"text {number}" for number in dict.fromkeys(numbers))
        lines.append(f"{title}: {about}" + (f" ({where})" if where else ""))

    crates = linked()
    if len(crates) < 50:
        sys.exit(f"error: only {len(crates)} crates are linked")
    for crate in crates:
        folder = Path(crate["manifest_path"]).parent
        authors = "; ".join(re.sub(r" *<[^>]*>", "", author) for author in crate["authors"])
        about = ", ".join(filter(None, [crate["license"] or "see its text", authors]))
        add(f"{crate['name']} {crate['version']}", about, texts(folder))
        if crate["name"] == "libbpf-sys":
            add("libbpf", "LGPL-2.1-only OR BSD-2-Clause", texts(folder / "libbpf"))
        if crate["name"] == "libsqlite3-sys":
            add("SQLite", SQLITE, [])
    for library, package in DEBIAN.items():
        file = Path(f"/usr/share/doc/{package}/copyright")
        add(library, f"from Debian's {package}", [file.read_text().strip()])
    for text, number in seen.items():
        lines += ["", f"---- text {number} ----", "", text]
    Path(sys.argv[2]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
