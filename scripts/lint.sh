#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# lint.sh           every check that runs no test
# lint.sh --built   all but Rust's lints, which test.sh has while it builds
#
# All of them run even if one fails; a check whose tool is absent is named as
# left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh
rust_use

failed=()
left_out=()

check() {
	local name=$1
	shift
	printf '\n== %s\n' "$name"
	"$@" || failed+=("$name")
}

if cargo fmt --version >/dev/null 2>&1; then
	check 'Rust format' cargo fmt --all -- --check
	# cargo does not see modules that a macro declares.
	check 'Rust format of features' rustfmt --edition 2024 --check crates/agent/src/features/*.rs
else
	left_out+=('Rust format (no rustfmt)')
fi

if [[ ${1-} == --built ]]; then
	:
elif cargo clippy --version >/dev/null 2>&1; then
	check 'Rust lints' cargo clippy --locked --workspace --all-targets -- -D warnings
else
	left_out+=('Rust lints (no clippy)')
fi

mapfile -t c_sources < <(find bpf -name '*.[ch]' | sort)
if ((${#c_sources[@]} == 0)); then
	left_out+=('C format (no files under bpf/)')
elif command -v clang-format >/dev/null; then
	check 'C format' clang-format --dry-run --Werror "${c_sources[@]}"
else
	left_out+=('C format (no clang-format)')
fi

if python_env_make; then
	python=$(python_env)/bin
	check 'Python format' "$python/ruff" format --quiet --check .
	check 'Python lints' "$python/ruff" check --quiet .
	check 'Python types' "$python/mypy" --no-error-summary
else
	failed+=('Python (no environment)')
fi

check 'licences' scripts/check-licences.sh

# Not installed by setup.sh: nobody but those who change a script needs it.
if command -v shellcheck >/dev/null; then
	check 'shell scripts' shellcheck --external-sources scripts/*.sh .ci/run
else
	left_out+=('shell scripts (no shellcheck)')
fi

echo
for name in "${left_out[@]}"; do echo "left out: $name"; done
if ((${#failed[@]})); then
	for name in "${failed[@]}"; do echo "check failed: $name" >&2; done
	exit 1
fi
echo 'all checks passed'
