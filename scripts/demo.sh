#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# demo.sh: a link with 5 % of silent loss: the default, the published learner (classic) and
# Thalweg's, five times, since single runs differ widely; the first time also each congestion
# control on its own, and a link without loss. Some five minutes after the build, which is not
# optimised: what is measured runs in the kernel. Says whether classic beats Thalweg by more than
# noise. Exits with 5 if Thalweg did not converge.
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
cargo build --locked -p thalweg-cli -p thalweg-lab-cli
thalweg=target/debug/thalweg laboratory=target/debug/thalweg-lab

echo '== what this machine supports'
"$thalweg" doctor || true

report=lab-results/demo-$(date +%Y%m%d-%H%M%S)
repetitions=5
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
status=0 results=()
# run OUT SCENARIO MODE…: one second of iperf3 a connection.
run() {
	local out=$1 scenario=$2 ended=0 modes=()
	shift 2
	for mode; do modes+=(--mode "$mode"); done
	"$laboratory" run "$scenario" "${modes[@]}" --connections 14 --reference-every 4 --out "$out" || ended=$?
	# 5: it ran, and did not meet every expectation.
	if ((ended && ended != 5)); then exit "$ended"; fi
	((ended == 0)) || status=$ended
}

echo "== a link without loss (report: $report/loss-0)"
run "$report/loss-0" scenarios/demo/loss-0.toml baseline classic thalweg
for ((number = 1; number <= repetitions; number++)); do
	echo "== 5 % of loss, run $number of $repetitions (report: $report/$number)"
	# Other packets are lost in each run.
	sed "s/^\[path\]/&\nseed = $number/" scenarios/demo/loss-5.toml >"$place/loss-5.toml"
	modes=(baseline classic thalweg)
	((number > 1)) || modes+=(fixed)
	run "$report/$number" "$place/loss-5.toml" "${modes[@]}"
	results+=("$report/$number/results.json")
done

echo
echo "Reports to open in a browser:"
find "$PWD/$report" -name report.html | sort
if ((status)); then
	echo 'Thalweg did not converge everywhere: see the expectations above.' >&2
fi

echo
scripts/demo_verdict.py "${results[@]}"
exit "$status"
