#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# soak.sh [MINUTES]: connections for an hour, or so long, while policies are swapped and the agent is
# reloaded and restarted. Prints what grew; writes target/soak.jsonl and target/soak.svg. Root.
# Exits with 1 if something grew or a connection was missed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh
rust_use

minutes=${1:-60}
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --locked --release -p thalweg-cli -p thalweg-bench
status=0
"$target/release/thalweg-bench" --binary "$target/release/thalweg" \
	soak --minutes "$minutes" --out "$target/soak.jsonl" || status=$?
python_env_make
PYTHONPATH=python "$(python_env)/bin/python" -m thalweg.results.soak "$target/soak.jsonl" "$target/soak.svg"
exit "$status"
