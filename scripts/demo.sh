#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# demo.sh: links without loss and with 5 % and 10 % of silent loss: the default, the published learner
# (classic) and Thalweg's, five times, since single runs differ widely; the first time each
# congestion control on its own as well. About a quarter of an hour after the build. Says
# whether classic beats Thalweg by more than noise. Exits with 5 if Thalweg did not converge.
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
cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli
thalweg=target/release/thalweg laboratory=target/release/thalweg-lab

echo '== what this machine supports'
"$thalweg" doctor || true

report=lab-results/demo-$(date +%Y%m%d-%H%M%S)
repetitions=5
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
status=0 results=()
for ((run = 1; run <= repetitions; run++)); do
	echo "== run $run of $repetitions; each connection is one second of iperf3 (report: $report/$run)"
	# Other packets are lost in each run.
	for name in loss-0 loss-5 loss-10; do
		sed "s/^\[path\]/&\nseed = $run/" "scenarios/demo/$name.toml" >"$place/$name.toml"
		results+=("$report/$run/$name/results.json")
	done
	modes=(--mode baseline --mode classic --mode thalweg)
	((run > 1)) || modes+=(--mode fixed)
	ended=0
	"$laboratory" run "$place"/loss-{0,5,10}.toml "${modes[@]}" \
		--reference-every 4 --out "$report/$run" || ended=$?
	# 5: it ran, and did not meet every expectation.
	if ((ended && ended != 5)); then exit "$ended"; fi
	((ended == 0)) || status=$ended
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
