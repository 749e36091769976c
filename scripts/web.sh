#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# web.sh DIR [SEEDS [NAME…]]: the scenarios scenarios/lab/web-NAME.toml in virtual time, with and
# without the agent, from each of the seeds 1 to SEEDS (default: 3). Reports lie in DIR/SEED/NAME.
# Prints the times of pages and objects of each, and of all seeds together. Exits with 1 if an
# expectation is missed.
# Needs target/release/thalweg, `thalweg-lab kernels add`, and nginx (scripts/setup.sh --test).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:?the directory of the reports}
seeds=${2-3}
shift $(($# < 2 ? $# : 2))
names=("$@")
if ((!${#names[@]})); then
	for file in scenarios/lab/web-*.toml; do
		name=${file##*/web-}
		names+=("${name%.toml}")
	done
fi
export PATH=$PATH:$PWD/target/nginx/usr/sbin
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD/scenarios/traces" "$work/traces"
status=0
for ((seed = 1; seed <= seeds; seed++)); do
	mkdir -p "$work/$seed" "$out/$seed"
	for name in "${names[@]}"; do
		# The seeds of all paths, sizes, moments and draws follow from that of [path].
		sed "s/^\[path\]$/[path]\nseed = $((seed * 1000))/" "scenarios/lab/web-$name.toml" >"$work/$seed/web-$name.toml"
		printf '\n== %s, seed %s\n' "$name" "$seed"
		target/release/thalweg-lab run "$work/$seed/web-$name.toml" --backend qemu \
			--mode baseline --mode thalweg --out "$out/$seed/$name" >"$work/log" || status=1
		sed -n '/times of pages/,/^$/p; /Expected outcome/,/^$/p' "$work/log"
	done
done
printf '\n== all seeds\n'
scripts/web_times.py "$out"
exit $status
