#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the wheel of the Python package: target/wheels. One serves every Python
# from 3.11 on. maturin reads which symbols of glibc it needs, and names the
# oldest glibc (manylinux) in its file name; that depends on this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use

version=1.16.0
tools=target/tools/maturin-$version
if [[ ! -x $tools/bin/maturin ]]; then
	python3 -m venv "$tools"
	"$tools/bin/pip" --disable-pip-version-check --quiet install "maturin==$version"
fi
rm -rf target/wheels
"$tools/bin/maturin" build --quiet --release --locked --strip --auditwheel check --out target/wheels
ls -l target/wheels
