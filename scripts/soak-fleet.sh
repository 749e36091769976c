#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# soak-fleet.sh [KILLS [MINUTES]]: kills agents, servers of a cluster and links of a fleet, 1,000 times in
# half an hour, or so often. Writes target/soak-fleet.jsonl. Root. Exits with 1 if an agent lost what it
# knew by itself, or was back for ten seconds without the latest policy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

kills=${1:-1000}
minutes=${2:-30}
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --locked --release -p thalweg-cli -p thalweg-bench
exec "$target/release/thalweg-bench" --binary "$target/release/thalweg" \
	fleet-soak --kills "$kills" --minutes "$minutes" --out "$target/soak-fleet.jsonl"
