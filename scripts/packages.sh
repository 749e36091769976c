#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the Debian and the RPM packages of the binaries of profile `dist`, thalweg and
# thalweg-lab, and their software bills of materials (CycloneDX): target/packages.
# What goes in, and where, is in {crates,lab}/cli/Cargo.toml.
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
# Equal functions are folded where the linker can: lld, which Rust brings on x86-64 since 1.90.
folding='-C link-arg=-Wl,--icf=all' tried=$(mktemp -d)
# shellcheck disable=SC2086
if rustc $folding -o "$tried/tried" - <<<'fn main() {}' 2>/dev/null; then export RUSTFLAGS=$folding; fi
rm -r "$tried"
rm -rf target/package target/packages
mkdir -p target/packages
# It writes one beside each crate of the workspace.
bill=thalweg-bill.cdx
trap 'find crates lab benches tests -name "$bill.json" -delete' EXIT
host=$(rustc -vV | sed -n 's/^host: //p')

# CRATE FOLDER NAME: the package NAME, of the binary NAME.
build_package() {
	local crate=$1 folder=$2 name=$3 version
	local binary=target/dist/$name stage=target/package/$name
	mkdir -p "$stage"/{man,completions}
	cargo build --quiet --locked --profile dist -p "thalweg-$crate" --bin "$name" --features static
	strip -o "$stage/$name" "$binary"
	"$binary" manual "$stage/man"
	gzip -n9 "$stage"/man/*
	"$binary" completions bash >"$stage/completions/$name"
	"$binary" completions zsh >"$stage/completions/_$name"
	"$binary" completions fish >"$stage/completions/$name.fish"
	if [[ $name == thalweg ]]; then
		sed 's|^#:schema .*/|#:schema /usr/share/thalweg/schemas/|' packaging/thalweg.toml >"$stage/thalweg.toml"
	fi
	cargo cyclonedx --quiet --manifest-path "$folder/Cargo.toml" --features static --no-build-deps \
		--target "$host" --format json --spec-version 1.5 --override-filename "$bill"
	version=$("$binary" --version | cut -d' ' -f2)
	python3 scripts/sbom.py "$folder/$bill.json" "$stage/$name" "target/packages/${name}_$version.cdx.json"
	python3 scripts/notices.py "thalweg-$crate" "$stage/third-party-notices"
	gzip -n9 "$stage/third-party-notices"
	cargo deb --quiet --locked --no-build -p "thalweg-$crate" --output target/packages
	cargo generate-rpm --package "$folder" --output target/packages
}
build_package cli crates/cli thalweg
build_package lab-cli lab/cli thalweg-lab
# cargo-deb writes no sums of the files, by which `dpkg --verify` knows changed ones.
for deb in target/packages/*.deb; do
	rm -rf target/package/deb
	dpkg-deb --raw-extract "$deb" target/package/deb
	(cd target/package/deb && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	chmod 644 target/package/deb/DEBIAN/md5sums
	dpkg-deb --root-owner-group -Zxz --build target/package/deb "$deb" >/dev/null
done
(cd target/packages && sha256sum -- *.deb *.rpm *.json >SHA256SUMS)
ls -l target/packages
