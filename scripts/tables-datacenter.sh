#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# tables-datacenter.sh [ARGUMENT…]: the published tables of rate control in the
# packet simulator, ours beside them. Two pages and their pictures:
#   results-datacenter.md  models and trees of models/, HPCC, Swift, a rule by hand
#   results-baselines.md   what REINFORCE, PPO and Aurora learned
#                          (models/baselines), adpg-plus beside them: many to one,
#                          0.1 s and one seed each, for what loses packets has 64
#                          times as many to simulate, and they decide in Python
# DCQCN, which does so with thousands of flows, is left to "--cc dcqcn": a
# simulated second takes minutes then.
# They are written to docs/measurements, or to the directory TABLES_OUT. Goes on where it
# stopped, as long as simulator and models are the same. Arguments are added to
# those of python -m thalweg.evaluate below: "--duration 0.01" shows within
# minutes that all works.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

scripts/python-native.sh
python_env_make
python=$(python_env)/bin/python
out=${TABLES_OUT:-docs/measurements}
models=()
for file in models/adpg-*.safetensors; do
	[[ -e $file ]] && models+=(--model "$file")
done
trained=()
for file in models/baselines/*.safetensors; do
	[[ -e $file ]] && trained+=(--trained "$file")
done
if ! ((${#models[@]})); then
	echo 'error: no model in models/; make train writes them' >&2
	exit 1
fi
# One thread each: as many simulations at a time as there are processors.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}"

# Integers and targets differ by less between seeds than they are shown with.
"$python" -m thalweg.evaluate all "${models[@]}" \
	--cc hpcc --cc swift --cc proportional:initial_fraction=0.001 \
	--seeds 5,int8=1,target=1 --traces --out "$out/results-datacenter.md" "$@"
"$python" -m thalweg.evaluate many-to-one "${trained[@]}" \
	--model models/adpg-plus.safetensors --cc none \
	--seeds 1 --duration 0.1 --out "$out/results-baselines.md" "$@"
