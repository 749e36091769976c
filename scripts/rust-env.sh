# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Finds a Rust that is new enough for the workspace. To be sourced from the
# repository's root; defines functions and runs nothing.

# The oldest Rust the workspace accepts, as Cargo.toml states it.
rust_required() {
	sed -n '/^rust-version *=/{s/^[^"]*"\([0-9.]*\)".*/\1/p;q}' Cargo.toml
}

# The version of the rustc that would run now, or nothing.
rust_version() {
	rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p'
}

rust_is_enough() {
	local have
	command -v cargo >/dev/null || return 1
	have=$(rust_version) || return 1
	[[ -n $have ]] && printf '%s\n' "$(rust_required)" "$have" | sort --version-sort --check=quiet
}

# Sets PATH, and RUSTUP_TOOLCHAIN where the default toolchain is too old, so
# that `cargo` is one that is new enough. Fails when the machine has none.
# Never downloads: rustup is asked only for toolchains that it lists.
rust_find() {
	rust_is_enough && return
	local cargo_bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
	if [[ -d $cargo_bin ]]; then
		export PATH=$cargo_bin:$PATH
		rust_is_enough && return
	fi
	if command -v rustup >/dev/null && rustup toolchain list 2>/dev/null | grep '^stable' >/dev/null; then
		export RUSTUP_TOOLCHAIN=stable
		rust_is_enough && return
	fi
	return 1
}

# For scripts that need Rust and leave its installation to setup.sh.
rust_use() {
	rust_find && return
	echo "error: no Rust $(rust_required) or newer on this machine; run 'make setup'" >&2
	return 1
}
