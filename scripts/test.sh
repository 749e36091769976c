#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# test.sh           the checks of lint.sh, then every test
# test.sh --slow    only the slow tests (marked #[ignore])
#
# Tests that need root are ignored without. As root, THALWEG_REQUIRE_PRIVILEGED=1
# is set: a test that would be skipped then fails, and so does this script if
# one was ignored for want of root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh
rust_use

case ${1-} in
'') slow=false ;;
--slow) slow=true ;;
*)
	echo "usage: $0 [--slow]" >&2
	exit 2
	;;
esac

if ((EUID == 0)); then
	export THALWEG_REQUIRE_PRIVILEGED=1
else
	echo 'note: not root, so tests that need root are ignored'
fi

# Clippy's compiler lints what it builds: one compilation instead of two.
if cargo clippy --version >/dev/null 2>&1; then
	RUSTC_WORKSPACE_WRAPPER=$(command -v clippy-driver)
	export RUSTC_WORKSPACE_WRAPPER
else
	echo 'left out: Rust lints (no clippy)'
fi

status=0
logs=$(mktemp --directory)
side=
trap '[[ -z $side ]] || kill -- "-$side" 2>/dev/null || true; rm -rf "$logs"' EXIT
# Tests that start the commands: they wait for each other's traffic more than for a processor.
traffic=(control learning lifecycle lab cli stack api fleet_agents)
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) > 4 ? $(nproc) : 4))}
export RUST_TEST_THREADS
# Background processes ignore SIGINT, and so would programs that the tests interrupt.
interruptible() { env --default-signal=INT "$@"; }
export -f interruptible

marker='not slow'
if $slow; then marker=slow; fi
# Skipped tests say so on standard error, and pass.
cargo_test() { # ARGUMENT...
	printf '\n== cargo test %s\n' "$*"
	interruptible cargo test --locked --workspace --no-fail-fast "$@" 2>&1
}
python_tests() {
	printf '\n== pytest -m "%s"\n' "$marker"
	# The slow ones compute for long: they get an optimised build of their own.
	local built=()
	$slow || built=("${CARGO_TARGET_DIR:-target}/debug/libthalweg_native.so")
	python_env_make && env --unset=RUSTC_WORKSPACE_WRAPPER scripts/python-native.sh "${built[@]}" &&
		interruptible "$(python_env)/bin/python" -m pytest --quiet -m "$marker"
}

if $slow; then
	cargo_test -- --ignored | tee "$logs/main" || status=1
	python_tests | tee "$logs/side" || status=1
else
	# Checks and the build's last crates leave processors idle.
	set -m
	scripts/lint.sh --built >"$logs/checks" 2>&1 &
	side=$!
	set +m
	# Python's module too, which is no test.
	cargo build --locked --workspace --all-targets 2>&1 | tee "$logs/warnings" || {
		wait "$side" || true
		side=
		cat "$logs/checks"
		exit 1
	}
	wait "$side" || status=1
	side=
	cat "$logs/checks"
	# Cargo repeats the warnings of what it need not build again.
	if grep '^warning: .* generated [0-9]* warning' "$logs/warnings" >&2; then
		echo 'error: Rust lints, see the warnings above' >&2
		status=1
	fi
	cargo_test --all-targets --no-run >"$logs/built" || {
		cat "$logs/built" >&2
		exit 1
	}
	mapfile -t others < <(sed -nE '/^ *Executable (benches\/|unittests )/d
		s/^ *Executable .*\/([^/]+)-[0-9a-f]+\)$/\1/p' "$logs/built" |
		grep --invert-match --line-regexp --fixed-strings "${traffic[@]/#/--regexp=}" | sort --unique)
	# All others compute while those that start the commands wait.
	set -m
	{
		failed=0
		cargo_test --lib --bins --examples "${others[@]/#/--test=}" || failed=1
		cargo_test --doc || failed=1
		python_tests || failed=1
		exit "$failed"
	} >"$logs/side" 2>&1 &
	side=$!
	set +m
	# Two at a time: while the last tests of one wait, the other goes on.
	export -f cargo_test
	export logs
	# shellcheck disable=SC2016 # that shell has them
	printf '%s\n' "${traffic[@]}" | RUST_TEST_THREADS=$(((RUST_TEST_THREADS + 1) / 2)) xargs --max-procs=2 --replace=TEST \
		bash -c 'cargo_test --test TEST >"$logs/main-TEST"; code=$?; flock "$logs" cat "$logs/main-TEST"; exit "$code"' || status=1
	cat "$logs"/main-* >"$logs/main"
	wait "$side" || status=1
	side=
	cat "$logs/side"
	# A file of tests that no pattern above has would not run.
	built=$(sed -n '/^ *Executable benches\//d; s/^ *Executable .*(\(.*\))$/\1/p' "$logs/built" | sort)
	ran=$(sed -n 's/^ *Running .*(\(.*\))$/\1/p' "$logs/"{main,side} | sort)
	if [[ $built != "$ran" ]]; then
		diff <(echo "$built") <(echo "$ran") >&2 || true
		echo 'error: these tests were built and did not run, or the reverse' >&2
		status=1
	fi
fi

if ((EUID == 0)) && grep --no-filename '\.\.\. ignored, needs root$' "$logs/"{main,side}; then
	echo 'error: these tests were built by another user: touch tests/privileged.rs' >&2
	status=1
fi
# Cargo sums up each test binary, pytest once at its end; this adds the sums.
if ((status)); then echo 'error: a check or a test failed, see above' >&2; fi
awk '
	/^test result: / { passed += $4; failed += $6; ignored += $8; next }
	/^skipped: / && !told[$2]++ { passed--; ignored++; next }
	/ in [0-9.]+s( \(.*\))?$/ {
		for (i = 2; i <= NF; i++) {
			if ($i ~ /^passed/) passed += $(i - 1)
			if ($i ~ /^(failed|errors?)/) failed += $(i - 1)
			if ($i ~ /^skipped/) ignored += $(i - 1)
		}
	}
	END { printf "\ntotal: %d passed, %d failed, %d skipped\n", passed, failed, ignored }
' "$logs/"{main,side}
exit "$status"
