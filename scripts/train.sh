#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# train.sh [MODEL…]: trains the models that ship, adpg-strict adpg-loose adpg-plus
# without arguments, and writes them to models/. A run that was interrupted goes on
# from its checkpoint in runs/; a finished one is not repeated. TRAIN_OUTPUT is
# another directory than models/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

python=${PYTHON:-}
if [[ -z $python ]]; then
	python_env_make
	python=$(python_env)/bin/python
fi
scripts/python-native.sh
# One thread: the sums are added in the same order everywhere.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
export PYTHONPATH=python

scenarios=scenarios/train/many-to-one
common=(
	--scenarios "$scenarios-2.toml,$scenarios-4.toml,$scenarios-8.toml"
	--copies 8 --updates 150 --seed 1 --offset 1.0 --evaluate-every 0
)
models=("$@")
((${#models[@]})) || models=(adpg-strict adpg-loose adpg-plus)
for model in "${models[@]}"; do
	case $model in
	adpg-strict) own=(--target 0.02 --smoothness 0.3) ;;
	adpg-loose) own=(--target 0.06 --smoothness 0.3) ;;
	adpg-plus) own=(--target 0.033 --features 'action,error,error_change' --smoothness 0.05) ;;
	*)
		echo "error: $model: expected adpg-strict, adpg-loose or adpg-plus" >&2
		exit 2
		;;
	esac
	"$python" -m thalweg.train.adpg --output "runs/$model" "${common[@]}" "${own[@]}"
	"$python" -m thalweg.train.export "runs/$model/checkpoint.safetensors" --name "$model" \
		--output "${TRAIN_OUTPUT:-models}"
done
