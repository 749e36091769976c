#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# tables-datacenter.sh [ARGUMENT…]: the published tables of rate control in the
# packet simulator, with all models of models/, ours beside the published ones:
# docs/results-datacenter.md. Goes on where it stopped. Arguments are those of
# python -m thalweg.evaluate, after the ones below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

scripts/python-native.sh
python_env_make
python=$(python_env)/bin/python
models=()
for file in models/*.safetensors; do
	[[ -e $file ]] && models+=(--model "$file")
done
if ! ((${#models[@]})); then
	echo 'error: no model in models/; make train writes them' >&2
	exit 1
fi
exec env PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}" "$python" -m thalweg.evaluate all \
	"${models[@]}" --traces --out docs/results-datacenter.md "$@"
