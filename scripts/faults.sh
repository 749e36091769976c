#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Every fault that the agent is put through, kind by kind, the slow tests included;
# then that no release has the points at which the tests end it. Needs root.
#
# faults.sh            all kinds
# faults.sh KIND ...   these, such as "kills"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

# Kinds, and their tests: modules of the command's, and of the fleet's.
declare -A command=(
	[kills]='faults:: faults_points:: faults_pins:: faults_slots:: policy_crash:: cc_faults:: upgrade::'
	[disks]='faults_store:: monitoring::a_full_disk'
	[files]='input_files:: inputs:: reload::a_configuration'
	[pins]='health:: faults_start:: detach::'
	[programs]='interference:: policy_beside:: sockops::'
	[clones]=''
	[floods]='fleet_kept::'
	[ports]='tcp::'
)
declare -A fleet=(
	[kills]='cluster::'
	[disks]='disk::'
	[clones]='clones::'
	[floods]='hostile:: written::'
)
kinds=(kills disks files pins programs clones floods ports)

if ((EUID != 0)); then
	echo 'error: the faults need root' >&2
	exit 1
fi
if (($#)); then
	for kind; do
		if [[ ! -v command[$kind] ]]; then
			echo "error: no kind $kind; there are ${kinds[*]}" >&2
			exit 2
		fi
	done
	kinds=("$@")
fi
export THALWEG_REQUIRE_PRIVILEGED=1

# put_through PACKAGE TEST FILTER...: runs the tests of filters that each find some.
put_through() {
	local package=$1 test=$2 filter
	shift 2
	for filter; do
		if ! cargo test --quiet --locked -p "$package" --test "$test" -- --list "$filter" | grep ': test$' >/dev/null; then
			echo "error: $package has no test $filter" >&2
			return 1
		fi
	done
	# Mutated files by the million are for `make test-all`.
	cargo test --locked -p "$package" --test "$test" -- --include-ignored \
		--skip a_million_inputs --skip ten_thousand_mutated "$@"
}

# Tests in virtual time boot it.
cargo build --quiet --locked -p thalweg-lab-cli
status=0
for kind in "${kinds[@]}"; do
	printf '\n== %s\n' "$kind"
	began=$SECONDS
	# shellcheck disable=SC2086 # filters are words
	[[ -z ${command[$kind]} ]] || put_through thalweg-cli cli ${command[$kind]} || status=1
	# shellcheck disable=SC2086
	[[ -z ${fleet[$kind]-} ]] || put_through thalweg-fleet fleet ${fleet[$kind]} || status=1
	echo "$kind: $((SECONDS - began)) s"
done

cargo build --locked --release -p thalweg-cli --bin thalweg
binary=${CARGO_TARGET_DIR:-target}/release/thalweg
if grep --quiet --binary-files=text -e FAILPOINTS -e 'start::link' "$binary"; then
	echo "error: $binary has points at which tests end it" >&2
	status=1
fi
exit "$status"
