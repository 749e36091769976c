#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# bench.sh [PART…]: measurements with their targets; all parts without arguments.
#   regret   exploration rules compared                      (under a minute)
#   fleet    what new agents gain by a fleet, with liars in it; what it costs an agent   (twenty minutes)
#   gain     false alarms in 1,000 weeks, coverage in 500 worlds   (two minutes; no root)
#   cost     kernel time, connection rate, agent's footprint  (four minutes)
#   instructions   what each costs in instructions of the processor   (two minutes; no root)
#   long     what looks at 100,000 open connections cost      (two minutes)
#   policy   kernel time, memory, time to apply of a policy   (a minute)
#   link     what an emulated link carries, delay error      (two minutes; no root)
#   model    time per decision of the learned controller      (a minute; no root)
#   cc       kernel time of congestion controls in BPF         (two minutes)
#   sim      packets per second of the simulator, and of ns-3   (five minutes; no root)
#   web      times of pages, three seeds                      (an hour and a half; no root)
#   lab      goodput against every fixed arm, 60 connections  (half an hour)
# Exits with 1 if a target is missed. Run it on an idle machine, as root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

parts=("$@")
((${#parts[@]})) || parts=(regret fleet gain cost instructions long policy link model cc sim web lab)
status=0
for part in "${parts[@]}"; do
	printf '\n== %s\n' "$part"
	case $part in
	regret)
		cargo bench --locked -p thalweg-learner --bench regret || status=1
		;;
	fleet)
		cargo bench --locked -p thalweg-learner --bench fleet || status=1
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench fleet || status=1
		;;
	gain)
		cargo test --locked --release -p thalweg-gain -- --ignored --nocapture || status=1
		;;
	cost)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		for what in kernel rate agent store; do
			target/release/thalweg-bench "$what" || status=1
		done
		;;
	instructions)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench instructions || status=1
		;;
	long)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench long || status=1
		;;
	policy)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench policy || status=1
		;;
	link)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench link || status=1
		;;
	web)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli
		scripts/web.sh target/web || status=1
		;;
	model)
		cargo build --locked --release -p thalweg-bench
		target/release/thalweg-bench model || status=1
		;;
	cc)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
		target/release/thalweg-bench cc || status=1
		;;
	sim)
		cargo bench --locked -p thalweg-sim --bench throughput || status=1
		cargo bench --locked -p thalweg-sim --bench ns3 || status=1
		;;
	lab)
		cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli
		target/release/thalweg-lab run scenarios/lab/loss-0.toml scenarios/lab/loss-5.toml \
			scenarios/lab/loss-10.toml scenarios/lab/loss-5-silent.toml \
			--mode baseline --mode fixed --mode classic --mode thalweg \
			--out "lab-results/bench-$(date +%Y%m%d-%H%M%S)" || status=1
		;;
	*)
		echo "error: no part $part (regret, fleet, gain, cost, instructions, long, policy, link, model, cc, sim, web, lab)" >&2
		exit 2
		;;
	esac
done
exit "$status"
