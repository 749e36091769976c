#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Fuzzes the arithmetic that runs in the kernel, compiled for this machine with
# clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#
# fuzz.sh                  each fuzzer of tests/fuzz for a minute
# fuzz.sh --seconds N      each for N seconds
# fuzz.sh --runs N         each for N inputs, the same ones every time
# … FILE.c …               these fuzzers instead
#
# They start from tests/fuzz/seeds.py. What one finds is in fuzz-findings/: the input,
# and the fuzzer that, called with it, repeats the fault.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=(-max_total_time=60)
case ${1-} in
--seconds | --runs)
	if [[ ! ${2-} =~ ^[1-9][0-9]*$ ]]; then
		echo "error: $1 needs a whole number above 0, found '${2-}'" >&2
		exit 2
	fi
	if [[ $1 == --runs ]]; then limit=("-runs=$2"); else limit=("-max_total_time=$2"); fi
	shift 2
	;;
-*)
	echo "usage: $0 [--seconds N | --runs N] [FILE.c ...]" >&2
	exit 2
	;;
esac
fuzzers=("$@")
if ((${#fuzzers[@]} == 0)); then fuzzers=(tests/fuzz/*.c); fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 tests/fuzz/seeds.py "$work/seeds"

status=0
for source in "${fuzzers[@]}"; do
	name=$(basename "$source" .c)
	if ! clang -g -O1 -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -Ibpf/include -Itests/fuzz \
		"$source" -lm -o "$work/$name-fuzzer"; then
		echo "error: cannot build $source; 'scripts/setup.sh --fuzz' installs libFuzzer" >&2
		exit 1
	fi
	mkdir -p "$work/corpus/$name" "$work/seeds/$name"
	# New inputs go to the first directory, which is not kept.
	if "$work/$name-fuzzer" "${limit[@]}" -seed=1 -max_len=16384 -timeout=10 \
		"-artifact_prefix=$work/$name-" "$work/corpus/$name" "$work/seeds/$name" \
		>"$work/log" 2>&1; then
		printf '%s: ' "$source"
		sed -n 's/^#\([0-9]*\)\tDONE *cov: \([0-9]*\) .*/\1 inputs, \2 places of the code reached, nothing found/p' "$work/log"
	else
		tail -n 60 "$work/log" >&2
		mkdir -p fuzz-findings
		mv "$work/$name"-* fuzz-findings/
		echo "error: $source found something; the fuzzer and its input are now fuzz-findings/$name-*" >&2
		status=1
	fi
done
exit "$status"
