#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# tables.sh [PAGE…]: the generated pages of docs/measurements, all without
# arguments. Goes on where it stopped: runs of the laboratory are kept in
# lab-results, simulations in evaluation. A page that fails holds up no other; the
# last lines name it, and the exit status is 1. TABLES_OUT is another directory
# than docs/measurements.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

# Page, list, cache.
pages='
results                 published/tables             lab-results/published
results-stack           published/tables-stack       lab-results/stack
results-rate            rate/tables                  lab-results/rate
results-datacenter      published/tables-datacenter  evaluation
results-baselines       published/tables-baselines   evaluation
'
known=$(awk 'NF { print $1 }' <<<"$pages")
for page in "$@"; do
	if ! grep --quiet --line-regexp --fixed-strings -e "$page" <<<"$known"; then
		echo "error: $page: expected a page of ${known//$'\n'/ }" >&2
		exit 2
	fi
done

python_env_make
scripts/python-native.sh
export PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}"
# One thread each: as many simulations at a time as there are processors.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

failed=()
while read -r page list cache; do
	[[ -n $page ]] || continue
	(($# == 0)) || [[ " $* " == *" $page "* ]] || continue
	status=0
	"$(python_env)/bin/python" -m thalweg.results --tables "scenarios/$list.toml" --cache "$cache" \
		--out "${TABLES_OUT:-docs/measurements}/$page.md" \
		--binary "${CARGO_TARGET_DIR:-target}/release/thalweg-lab" </dev/null || status=$?
	# Interrupted: no further page.
	((status != 130)) || exit 130
	((status == 0)) || failed+=("$page")
done <<<"$pages"

for page in "${failed[@]}"; do echo "error: not made, or not whole: $page" >&2; done
((${#failed[@]} == 0))
