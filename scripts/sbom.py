#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes a package's software bill of materials, from that of cargo-cyclonedx.

    sbom.py BILL BINARY OUT

BILL has the crates; BINARY is linked statically. To them come the C libraries that are linked into BINARY, with their versions;
each must be found in it. Paths of the machine that built it are taken out. CycloneDX 1.5, JSON.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# Licences of what is linked in; those of elfutils' libraries, not of its programs.
LICENCES = {
    "libbpf": "LGPL-2.1-only OR BSD-2-Clause",
    "libelf": "GPL-2.0-or-later OR LGPL-3.0-or-later",
    "sqlite": "blessing",
    "zlib": "Zlib",
}


def crate(name: str) -> dict:
    """A crate of Cargo.lock, as cargo metadata has it."""
    asked = ["cargo", "metadata", "--locked", "--format-version", "1"]
    metadata = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    found = [package for package in metadata["packages"] if package["name"] == name]
    if len(found) != 1:
        sys.exit(f"error: {len(found)} crates {name} in Cargo.lock, expected one")
    return found[0]


def debian(package: str) -> str:
    """The installed version of a Debian package."""
    asked = ["dpkg-query", "--show", "--showformat", "${Version}", package]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout


def c_libraries(name: str) -> list[dict]:
    """What is linked statically into a command, each with a text that only it puts into a binary."""
    libbpf = crate("libbpf-sys")["version"].split("+v")[1]
    header = Path(crate("libsqlite3-sys")["manifest_path"]).parent / "sqlite3/sqlite3.h"
    sqlite, source = (
        re.search(rf'#define {key} +"([^"]+)"', header.read_text())[1]
        for key in ("SQLITE_VERSION", "SQLITE_SOURCE_ID")
    )
    libelf, zlib = debian("libelf-dev"), debian("zlib1g-dev")
    inflate = re.sub(r"^\d+:|[+.]dfsg.*|-[^-]*$", "", zlib)
    return [
        library("libbpf", libbpf, "BTF is required, but is missing", "github/libbpf/libbpf"),
        *([library("sqlite", sqlite, source, "generic/sqlite")] if name == "thalweg" else []),
        library("libelf", libelf, "invalid `Elf' handle", "deb/debian/libelf-dev"),
        library("zlib", zlib, f"inflate {inflate} Copyright", "deb/debian/zlib1g-dev"),
    ]


def library(name: str, version: str, sign: str, place: str) -> dict:
    """A component, and under `sign` a text by which it is found in a binary."""
    return {
        "type": "library",
        "name": name,
        "version": version,
        "licenses": [{"expression": LICENCES[name]}],
        "purl": f"pkg:{place}@{version.replace(':', '%3A').replace('+', '%2B')}",
        "sign": sign,
    }


def main() -> None:
    """Reads, adds, checks and writes."""
    given, binary, out = map(Path, sys.argv[1:])
    bill = json.loads(given.read_text())
    code = binary.read_bytes()
    main_component = bill["metadata"]["component"]
    # The command's crates are its parts, not products of their own.
    main_component.pop("components", None)
    main_component["name"] = binary.name
    linked = c_libraries(binary.name)
    for part in linked:
        if part.pop("sign").encode() not in code:
            sys.exit(f"error: {part['name']} {part['version']} is not in {binary}")
        part["bom-ref"] = part["purl"]
    programs = {"type": "library", "name": "thalweg-bpf", "version": main_component["version"]}
    programs |= {"licenses": [{"expression": "GPL-2.0-only"}], "bom-ref": "bpf"}
    linked.append(programs | {"description": "The programs that run in the kernel."})
    bill["components"] += linked
    for entry in bill["dependencies"]:
        if entry["ref"] == main_component["bom-ref"]:
            entry["dependsOn"] = entry.get("dependsOn", []) + [part["bom-ref"] for part in linked]
    bill["dependencies"] += [{"ref": part["bom-ref"]} for part in linked]
    text = json.dumps(bill, indent=1)
    # References to crates of the workspace have its place on the machine that built it.
    text = re.sub(r"path\+file://[^\"#]*/((?:crates|lab)/[^\"#]*#)", r"\1", text)
    text = re.sub(r"\?download_url=file://[^\"#]*", "", text)
    if str(Path.cwd()) in text:
        sys.exit("error: the bill of materials has a path of this machine")
    out.write_text(text + "\n")


if __name__ == "__main__":
    main()
