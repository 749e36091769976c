#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Every fault that the agent is put through, the slow ones included; then that
# no release has the points at which the tests end it. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

if ((EUID != 0)); then
	echo 'error: the faults need root' >&2
	exit 1
fi
export THALWEG_REQUIRE_PRIVILEGED=1
cargo test --locked -p thalweg-cli --test cli -- --include-ignored --show-output \
	faults:: faults_start:: faults_slots:: faults_store:: faults_points:: faults_pins:: policy_crash:: upgrade::

cargo build --locked --release -p thalweg-cli --bin thalweg
binary=${CARGO_TARGET_DIR:-target}/release/thalweg
if grep --quiet --binary-files=text -e FAILPOINTS -e 'start::link' "$binary"; then
	echo "error: $binary has points at which tests end it" >&2
	exit 1
fi
