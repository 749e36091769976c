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

# Kinds, and their tests: in each line the test binary, then modules or names.
declare -A tests=(
	[kills]='lifecycle faults:: faults_points:: faults_pins:: faults_slots:: upgrade::
		control policy_crash:: cc_faults::
		fleet cluster::'
	[disks]='lifecycle faults_store::
		api alerts::a_full_disk
		fleet disk::'
	[files]='lifecycle reload::a_configuration
		cli input_files:: inputs::'
	[pins]='lifecycle faults_start:: detach::
		api health::'
	[programs]='learning interference::
		control policy_beside:: sockops::'
	[clones]='fleet clones::'
	[floods]='fleet_agents fleet_kept::
		fleet hostile:: written::'
	[ports]='api tcp::'
)
kinds=(kills disks files pins programs clones floods ports)

if ((EUID != 0)); then
	echo 'error: the faults need root' >&2
	exit 1
fi
if (($#)); then
	for kind; do
		if [[ ! -v tests[$kind] ]]; then
			echo "error: no kind $kind; there are ${kinds[*]}" >&2
			exit 2
		fi
	done
	kinds=("$@")
fi
export THALWEG_REQUIRE_PRIVILEGED=1

# put_through TEST FILTER...: runs the tests of filters that each find some.
put_through() {
	local test=$1 filter
	shift
	for filter; do
		if ! cargo test --quiet --locked --workspace --test "$test" -- --list "$filter" | grep ': test$' >/dev/null; then
			echo "error: $test has no test $filter" >&2
			return 1
		fi
	done
	# Mutated files by the million are for `make test-all`.
	cargo test --locked --workspace --test "$test" -- --include-ignored \
		--skip a_million_inputs --skip ten_thousand_mutated "$@"
}

# With the points at which tests end the agent.
cargo build --quiet --locked --workspace --all-targets
status=0
for kind in "${kinds[@]}"; do
	printf '\n== %s\n' "$kind"
	began=$SECONDS
	while read -r -a words; do
		put_through "${words[@]}" </dev/null || status=1
	done <<<"${tests[$kind]}"
	echo "$kind: $((SECONDS - began)) s"
done

cargo build --locked --release -p thalweg-cli --bin thalweg
binary=${CARGO_TARGET_DIR:-target}/release/thalweg
if grep --quiet --binary-files=text -e FAILPOINTS -e 'start::link' "$binary"; then
	echo "error: $binary has points at which tests end it" >&2
	status=1
fi
exit "$status"
