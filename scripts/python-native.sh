#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# python-native.sh [LIBRARY]
#
# Builds the compiled part of the Python package, lab/py, and puts it where
# Python finds it from a checkout: python/thalweg/_native.abi3.so. Quick when
# nothing is left to do. `pip install .` does the same for an installed package.
# With LIBRARY, builds nothing and takes that file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

built=${1-}
if [[ -z $built ]]; then
	# By the abi3 feature pyo3 needs no interpreter: one module serves every Python
	# from 3.11 on, whichever is first in PATH.
	cargo build --locked --release -p thalweg-py
	built=${CARGO_TARGET_DIR:-target}/release/libthalweg_native.so
fi
module=python/thalweg/_native.abi3.so
# A module that is in use may not be written over: it is replaced.
if ! cmp --silent "$built" "$module"; then
	draft=$(mktemp "$module.XXXXXX")
	trap 'rm -f "$draft"' EXIT
	cp "$built" "$draft"
	chmod 0755 "$draft"
	mv "$draft" "$module"
fi
