#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# fleet-demo.sh [--json]: a NATS server, three agents that measure a lossy network and tell each other of
# it, and a new one whose first connections already have the right congestion control. A minute and a
# half after the build. Root. Exits with 1 if the new agent did not begin with what the others know.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

if ((EUID != 0)); then
	echo 'error: the demo makes network namespaces and loads BPF programs: run it as root' >&2
	exit 1
fi
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --locked --release -p thalweg-cli -p thalweg-bench >&2
exec "$target/release/thalweg-bench" --binary "$target/release/thalweg" fleet-demo "$@"
