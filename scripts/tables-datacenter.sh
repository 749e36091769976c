#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# tables-datacenter.sh [ARGUMENT…]: the published tables of rate control in the
# packet simulator: docs/results-datacenter.md, with the models and trees of models/
# and what baselines learned (models/baselines) beside the published figures, and
# pictures. Goes on where it stopped, as long as simulator and models are the same.
# Arguments are those of python -m thalweg.evaluate, after the ones below: so
# "--seeds 5" judges all tables by five seeds, and "--duration 0.01" shows within
# two minutes that all works (name another page with --out then).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

scripts/python-native.sh
python_env_make
python=$(python_env)/bin/python
judged=()
for file in models/adpg-*.safetensors; do
	[[ -e $file ]] && judged+=(--model "$file")
done
for file in models/baselines/*.safetensors; do
	[[ -e $file ]] && judged+=(--trained "$file")
done
if ! ((${#judged[@]})); then
	echo 'error: no model in models/; make train writes them' >&2
	exit 1
fi
# One thread each: as many simulations at a time as there are processors.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Integers and targets differ by less between seeds than they are shown with.
exec env PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}" "$python" -m thalweg.evaluate all \
	"${judged[@]}" --seeds 3,int8=1,target=1 --traces --out docs/results-datacenter.md "$@"
