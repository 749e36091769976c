#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# tables-lab.sh: the pages of docs/measurements that the laboratory makes, a list
# of tables each. Goes on where it stopped; results are kept in lab-results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

python_env_make
export PYTHONPATH="python${PYTHONPATH:+:$PYTHONPATH}"

page() {
	"$(python_env)/bin/python" -m thalweg.results --tables "scenarios/$1.toml" --cache "lab-results/$2" \
		--out "docs/measurements/$3.md" --binary "${CARGO_TARGET_DIR:-target}/release/thalweg"
}

page published/tables published results
page published/tables-stack stack results-stack
page rate/tables rate results-rate
page published/tables-qemu qemu results-qemu
page rate/tables-qemu rate-qemu results-rate-qemu
