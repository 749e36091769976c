#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# 1. Sources whose licence is not the repository's default say so on their
#    first line (scripts: on the second): BPF programs are GPL-2.0-only, since
#    the kernel demands it; headers that are shared with user space may be
#    taken under either licence.
# 2. Every dependency's licence is one that Thalweg can be shipped with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

shared='GPL-2.0-only OR Apache-2.0 OR MIT'
bad=0

# REUSE-IgnoreStart (the words below are no licence statement of this file)
# expect LICENCE FILE...: each file's first two lines name exactly LICENCE, or
# one of several separated by "|".
expect() {
	local licence=$1 file found
	shift
	for file in "$@"; do
		found=$(sed -n '1,2s/.*SPDX-License-Identifier: *//p' "$file" | sed 's: *\*/ *$::')
		if [[ -z $found || "|$licence|" != *"|$found|"* ]]; then
			echo "$file:1: SPDX-License-Identifier is '${found:-absent}', must be '$licence'" >&2
			bad=1
		fi
	done
}

# REUSE-IgnoreEnd

mapfile -t programs < <(find bpf -name '*.c' | sort)
mapfile -t headers < <(find bpf -name '*.h' | sort)
expect 'GPL-2.0-only' "${programs[@]}"
# User space compiles these two; the other headers may be for the kernel alone.
expect "$shared" bpf/include/thalweg_{abi,algo}.h
expect "GPL-2.0-only|$shared" "${headers[@]}"
expect 'Apache-2.0 OR MIT' Makefile .ci/run scripts/*.sh scripts/*.py
for licence in Apache-2.0 MIT GPL-2.0-only; do
	if [[ ! -s LICENSES/$licence.txt ]]; then
		echo "LICENSES/$licence.txt: missing" >&2
		bad=1
	fi
done

# Only what is built here: crates for other systems are never shipped, and
# asking about them would download them.
host=$(rustc -vV | sed -n 's/^host: //p')
python3 scripts/dependency_licences.py --self-test
cargo metadata --locked --format-version 1 --filter-platform "$host" |
	python3 scripts/dependency_licences.py || bad=1
exit "$bad"
