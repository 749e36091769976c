#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# image.sh [NAME]: builds the image of packaging/Containerfile from the Debian
# package of target/packages. BASE names another image to build on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

builder=$(command -v podman || command -v buildah) || {
	echo 'error: neither podman nor buildah is installed' >&2
	exit 1
}
packages=(target/packages/thalweg_*.deb)
[[ -e ${packages[0]} ]] || {
	echo "error: no target/packages/thalweg_*.deb: run 'make packages' first" >&2
	exit 1
}
# The machine's network reaches its package sources.
"$builder" build --quiet --network host ${BASE:+--build-arg "BASE=$BASE"} \
	--file packaging/Containerfile --tag "${1:-localhost/thalweg}" target/packages
