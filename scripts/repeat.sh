#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# repeat.sh [COUNT [MODULE...]]
#
# Runs the tests in virtual time COUNT times (20), all of them or those of the
# modules named, while loops keep all processors busy. Equal runs would be the
# same to the digit; the guest's environment differs from one to the next, and
# with it the order of events.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

count=${1:-20}
modules=("${@:2}")
if ! [[ $count =~ ^[1-9][0-9]*$ ]]; then
	echo "usage: $0 [COUNT [MODULE...]]" >&2
	exit 2
fi
# The commands too, which tests start.
cargo build --locked --quiet --workspace --all-targets
tests=(cargo test --locked --quiet --workspace --test control --test lab --test learning --)
mapfile -t names < <("${tests[@]}" --list | sed -nE 's/(::in_virtual_time): test$/\1/p' | sort --unique)
for module in "${modules[@]}"; do
	if [[ " ${names[*]%%::*} " != *" $module "* ]]; then
		echo "error: $module: expected a module with cases in virtual time: $(printf '%s\n' "${names[@]%%::*}" | sort --unique | paste --serial --delimiters=' ')" >&2
		exit 2
	fi
done
if ((EUID == 0)); then export THALWEG_REQUIRE_PRIVILEGED=1; fi

log=$(mktemp)
busy=()
# A Ctrl-C has ended them already.
trap 'kill "${busy[@]}" 2>/dev/null || true; rm -f "$log"' EXIT
for ((processor = $(nproc); processor > 0; processor--)); do
	while :; do :; done &
	busy+=($!)
done

status=0
for name in "${names[@]}"; do
	((${#modules[@]} == 0)) || [[ " ${modules[*]} " == *" ${name%%::*} "* ]] || continue
	passed=0
	for ((run = 1; run <= count; run++)); do
		THALWEG_TEST_GUEST_PAD=$(printf '%*s' $((37 * run)) '')
		export THALWEG_TEST_GUEST_PAD
		if "${tests[@]}" --exact "$name" --include-ignored --nocapture >"$log" 2>&1; then
			passed=$((passed + 1))
		else
			status=1
			printf '%s, run %d:\n' "$name" "$run"
			cat "$log"
		fi
	done
	printf '%s: %d of %d passed\n' "$name" "$passed" "$count"
done
exit "$status"
