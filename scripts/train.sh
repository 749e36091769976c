#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# train.sh [NAME…]: trains the models that ship, adpg-strict adpg-loose adpg-plus
# adpg-plus-tree adpg-linux without arguments, and writes them to models/. A run
# that was interrupted goes on from its checkpoint in runs/; a finished one is not
# repeated. TRAIN_OUTPUT is another directory than models/, TRAIN_SEED another seed
# than 1, which becomes a part of the models' names.
#
# Baselines have other names: adpg-lstm, a model, and
# reinforce ppo-discrete ppo-gaussian aurora, whose checkpoints go to
# models/baselines, those of other seeds to models/baselines/seeds.
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
export PYTHONPATH=python

output=${TRAIN_OUTPUT:-models}
seed=${TRAIN_SEED:-1}
scenarios=scenarios/train/many-to-one
common=(
	--scenarios "$scenarios-2.toml,$scenarios-4.toml,$scenarios-8.toml"
	--copies 8 --seed "$seed"
)

# adpg NAME FLAG…: a model by ADPG.
adpg() {
	local name=$1
	shift
	((seed == 1)) || name+=-seed-$seed
	"$python" -m thalweg.train.adpg --output "runs/$name" "${common[@]}" \
		--updates 150 --offset 1.0 --evaluate-every 0 "$@"
	"$python" -m thalweg.train.export "runs/$name/checkpoint.safetensors" --name "$name" \
		--output "$output"
	"$python" -m thalweg.evaluate "$output/$name.safetensors"
}

# tree NAME OF: a model's answers as a decision tree.
tree() {
	"$python" -m thalweg.distil "$output/$2.safetensors" --out "$output/$1.safetensors"
	"$python" -m thalweg.evaluate "$output/$1.safetensors"
}

# baseline NAME ALGORITHM FLAG…: what it learned, as a checkpoint.
baseline() {
	local name=$1 algorithm=$2 folder=$output/baselines
	shift 2
	((seed == 1)) || { name+=-seed-$seed && folder+=/seeds; }
	"$python" -m "thalweg.train.$algorithm" --output "runs/$name" "${common[@]}" \
		--rollout 64 --updates 150 "$@"
	mkdir -p "$folder"
	cp "runs/$name/checkpoint.safetensors" "$folder/$name.safetensors"
}

error=(--offset 1.0 --target 0.033 --scale 30)
names=("$@")
((${#names[@]})) || names=(adpg-strict adpg-loose adpg-plus adpg-plus-tree adpg-linux)
for name in "${names[@]}"; do
	case $name in
	adpg-strict) adpg "$name" --target 0.02 --smoothness 0.3 ;;
	adpg-loose) adpg "$name" --target 0.06 --smoothness 0.3 ;;
	adpg-plus)
		# One decision seen, and answers for what comes next: docs/measurements/adpg.md, "A lucky seed?".
		adpg "$name" --target 0.033 --features 'error,error_change' --history 1 --gamma 0.9 \
			--smoothness 0.02
		;;
	adpg-plus-tree) tree "$name" adpg-plus ;;
	adpg-linux)
		# With Linux's TCP, on another network in each simulation; docs/measurements/adpg.md,
		# "Trained with Linux's TCP". The last of a flag counts.
		linux=scenarios/train/linux
		adpg "$name" --scenarios "$linux-2.toml,$linux-4.toml,$linux-16.toml" --vary --copies 4 \
			--rollout 100 --updates 150 --target 0.022 --features 'error,error_change' --history 1 \
			--gamma 0.97 --smoothness 0.2
		;;
	adpg-lstm) adpg "$name" --target 0.033 --network lstm --hidden 16 --smoothness 0.1 ;;
	# The target of adpg-plus. The error's scale is 1 / target and the future counts less than in
	# ADPG: with its own settings of both all three fall silent (docs/measurements/adpg.md, "What the baselines
	# learned").
	reinforce)
		baseline "$name" reinforce "${error[@]}" --learning-rate 1e-2 --gamma 0.5 \
			--entropy-weight 0 --updates 600
		;;
	ppo-discrete) baseline "$name" ppo "${error[@]}" --learning-rate 3e-3 --gamma 0.9 ;;
	ppo-gaussian)
		baseline "$name" ppo "${error[@]}" --learning-rate 3e-3 --gamma 0.9 \
			--actions gaussian --entropy-weight 0
		;;
	# As where it works alone on a link (python/tests/test_train_baselines.py), and quicker.
	aurora) baseline "$name" aurora --learning-rate 3e-3 --entropy-weight 0 ;;
	*)
		echo "error: $name: expected adpg-strict, adpg-loose, adpg-plus, adpg-plus-tree, adpg-linux," \
			"adpg-lstm, reinforce, ppo-discrete, ppo-gaussian or aurora" >&2
		exit 2
		;;
	esac
done
