#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the Debian and the RPM package of a binary of profile `dist`, and their software
# bill of materials (CycloneDX): target/packages.
# What goes in, and where, is in crates/cli/Cargo.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
rust_use
# Paths of the packages' contents are relative to the default place.
unset CARGO_TARGET_DIR

tools=target/tools
# cargo install does nothing where this version is there already.
cargo install --quiet --locked --root "$tools" cargo-deb@3.8.0 cargo-generate-rpm@0.21.1 cargo-cyclonedx@0.5.9
PATH=$PWD/$tools/bin:$PATH

# Where the C compiler finds libelf.a and libz.a.
LIBBPF_SYS_LIBRARY_PATH=$(dirname "$(gcc -print-file-name=libelf.a)"):$(dirname "$(gcc -print-file-name=libz.a)")
export LIBBPF_SYS_LIBRARY_PATH
cargo build --quiet --locked --profile dist -p thalweg-cli --bin thalweg --features static
thalweg=target/dist/thalweg
stage=target/package
rm -rf "$stage" target/packages
mkdir -p "$stage"/{man,completions} target/packages
strip -o "$stage/thalweg" "$thalweg"
"$thalweg" manual "$stage/man"
gzip -n9 "$stage"/man/*
"$thalweg" completions bash >"$stage/completions/thalweg"
"$thalweg" completions zsh >"$stage/completions/_thalweg"
"$thalweg" completions fish >"$stage/completions/thalweg.fish"
sed 's|^#:schema .*/|#:schema /usr/share/thalweg/schemas/|' packaging/thalweg.toml >"$stage/thalweg.toml"

# It writes one beside each crate of the workspace.
bill=thalweg-bill.cdx
trap 'find crates benches tests -name "$bill.json" -delete' EXIT
cargo cyclonedx --quiet --manifest-path crates/cli/Cargo.toml --features static --no-build-deps \
	--target "$(rustc -vV | sed -n 's/^host: //p')" --format json --spec-version 1.5 --override-filename "$bill"
version=$("$thalweg" --version | cut -d' ' -f2)
python3 scripts/sbom.py "crates/cli/$bill.json" "$stage/thalweg" "target/packages/thalweg_$version.cdx.json"

python3 scripts/notices.py "$stage/third-party-notices"
gzip -n9 "$stage/third-party-notices"

cargo deb --quiet --locked --no-build -p thalweg-cli --output target/packages
cargo generate-rpm --package crates/cli --output target/packages
# cargo-deb writes no sums of the files, by which `dpkg --verify` knows changed ones.
for deb in target/packages/*.deb; do
	rm -rf "$stage/deb"
	dpkg-deb --raw-extract "$deb" "$stage/deb"
	(cd "$stage/deb" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	chmod 644 "$stage/deb/DEBIAN/md5sums"
	dpkg-deb --root-owner-group -Zxz --build "$stage/deb" "$deb" >/dev/null
done
(cd target/packages && sha256sum -- *.deb *.rpm *.json >SHA256SUMS)
ls -l target/packages
