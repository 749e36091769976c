#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# demo.sh: links without loss and with 5 % and 10 % of silent loss, each congestion control on its
# own, then the published learner (classic) and Thalweg's. About five minutes after
# the build. Exits with 5 if Thalweg did not converge.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

if ((EUID != 0)); then
	echo 'error: the demo makes network namespaces and loads BPF programs: run it as root' >&2
	exit 1
fi
echo '== building'
cargo build --locked --release -p thalweg-cli
thalweg=target/release/thalweg

echo '== what this machine supports'
"$thalweg" doctor || true

report=lab-results/demo-$(date +%Y%m%d-%H%M%S)
echo "== the experiment; each connection is one second of iperf3 (report: $report)"
status=0
"$thalweg" lab run scenarios/demo/loss-0.toml scenarios/demo/loss-5.toml scenarios/demo/loss-10.toml \
	--mode baseline --mode fixed --mode classic --mode thalweg \
	--reference-every 4 --out "$report" || status=$?
# 5: it ran, and did not meet every expectation.
if ((status && status != 5)); then exit "$status"; fi

echo
echo "Reports to open in a browser:"
find "$PWD/$report" -name report.html | sort
if ((status)); then
	echo 'Thalweg did not converge everywhere: see the expectations above.' >&2
fi

echo
scripts/demo_verdict.py "$report"/loss-{0,5,10}/results.json
exit "$status"
