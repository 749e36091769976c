#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Installs what Thalweg needs to be built, tested and shown, on Debian 12 and
# Ubuntu 24.04. Needs root only when something is missing, touches the network
# only then, and may be run any number of times.
#
# setup.sh            what building, `make demo` and every other call below need
# setup.sh --test     also what tests alone need: Python's packages, a browser, kernels, a Prometheus and others
# setup.sh --fleet    also nats-server, for `make fleet-demo`
# setup.sh --kernel   also user-mode Linux, QEMU, and what `thalweg-lab build-kernel` needs
# setup.sh --fuzz     also clang's libFuzzer and sanitizers, for `make fuzz`
# setup.sh --peers    also ns-3, which the benchmark of the simulator compares with
#
# There is deliberately no rust-toolchain.toml. rustup would obey it by
# fetching exactly the toolchain it names, even where the installed one is
# new enough, and a machine without a way out could not build at all.
# `rust-version` in Cargo.toml is the one place that says what is new enough.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/rust-env.sh
source scripts/rust-env.sh
# shellcheck source=scripts/python-env.sh
source scripts/python-env.sh

required=(
	# Build: BPF programs, generated types, the vendored libbpf and SQLite.
	clang llvm libelf-dev zlib1g-dev pkg-config gcc make libc6-dev
	# The laboratory.
	iperf3 iproute2 kmod
	# Downloads, and small scripts.
	python3 python3-venv git ca-certificates curl
)

# Tests alone. None of these starts a server when it is installed.
tests=(
	# Checks.
	clang-format
	# A disk that fails.
	e2fsprogs
	# Programs on a stack of their own.
	nftables openssh-client dropbear-bin rsync
	# Screens of `thalweg top`.
	tmux
	# The page in a browser; Ubuntu does not carry it.
	chromium-headless-shell
	# The unit: systemd-analyze.
	systemd
	# Shells whose completions are asked.
	fish
	zsh
	# Links of ordinary users to the machine's network.
	passt
	# Containers.
	runc busybox-static
)
# Servers of tests, one a line: the package and its program. Installed, they would start.
servers=(
	'nginx usr/sbin/nginx'
	'prometheus usr/bin/prometheus'
	'nats-server usr/sbin/nats-server'
)

# A processor made of software: stock kernels run on it in virtual time.
qemu=qemu-system-x86

# A Linux kernel that runs as a process. Ubuntu does not carry it.
user_mode_linux=user-mode-linux
# Its sources, in the one version that the laboratory knows how to change.
kernel_sources=linux-source-6.1
# Tools that building it needs beyond the above.
kernel_tools=(flex bison bc xz-utils tar)

# The network simulator ns-3, and a library that its pkg-config files name.
peers=(g++ libns3-dev libgsl-dev)

with=${1-}
case $with in
'' | --test | --fleet | --kernel | --fuzz | --peers) ;;
*)
	echo "usage: $0 [--test | --fleet | --kernel | --fuzz | --peers]" >&2
	exit 2
	;;
esac

note() { printf 'setup: %s\n' "$*"; }
fail() {
	printf 'setup: error: %s\n' "$@" >&2
	exit 1
}

# Prints those of the named packages that are not installed.
missing_of() {
	local installed package
	installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
	for package in "$@"; do
		grep --quiet --line-regexp --fixed-strings "installed $package" <<<"$installed" || echo "$package"
	done
}

# True if apt could install the package as far as its present lists tell.
apt_offers() {
	local candidate
	candidate=$(LC_ALL=C apt-cache policy "$1" | sed -n 's/^ *Candidate: //p')
	[[ -n $candidate && $candidate != '(none)' ]]
}

apt_updated=false
apt_update() {
	$apt_updated && return
	note 'apt-get update'
	apt-get -o DPkg::Lock::Timeout=300 -qq update
	apt_updated=true
}

# --no-remove: nothing that the machine's owner installed is pushed out.
apt_install() {
	note "apt-get install $*"
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq \
		install --yes --no-remove --no-install-recommends "$@" </dev/null
}

# bindgen loads libclang at run time. Debian's and Ubuntu's clang bring it
# along; this asks the machine rather than the packages' present dependencies.
has_libclang() {
	[[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
		compgen -G '/usr/lib/*-linux-gnu/libclang*.so*' >/dev/null
}

install_packages() {
	local missing
	if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
		fail 'this is neither Debian nor Ubuntu (no dpkg or apt).' \
			"Install the counterparts of: ${required[*]}; then use scripts/test.sh and scripts/demo.sh."
	fi
	mapfile -t missing < <(missing_of "${required[@]}")
	if ((${#missing[@]})); then
		((EUID == 0)) || fail 'not root, and these packages are missing:' "${missing[*]}"
		apt_update
		apt_install "${missing[@]}"
	fi
	if ! has_libclang; then
		((EUID == 0)) || fail 'not root, and this package is missing:' libclang-dev
		apt_update
		apt_install libclang-dev
	fi
}

# Installs a package that not every system has; false where it is not there.
install_if_offered() {
	[[ -n $(missing_of "$1") ]] || return 0
	((EUID == 0)) || return 1
	# A fresh image has no package lists at all; anywhere else the
	# present ones are good enough to tell that there is no such package.
	if ! apt_offers "$1" && ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
		apt_update
	fi
	apt_offers "$1" || return 1
	if ! $apt_updated; then apt_update; fi
	apt_install "$1"
}

install_user_mode_linux() {
	install_if_offered "$user_mode_linux" && return
	note "no $user_mode_linux here (Debian has it, Ubuntu does not):" \
		'the tests that run inside it are skipped, everything else works'
}

install_qemu() {
	install_if_offered "$qemu" && return
	note "no $qemu here: the tests that run a stock kernel are skipped"
}

install_tests() {
	local missing package offered=()
	mapfile -t missing < <(missing_of "${tests[@]}")
	if ((${#missing[@]})); then
		((EUID == 0)) || fail 'not root, and these packages are missing:' "${missing[*]}"
		apt_update
		for package in "${missing[@]}"; do
			if apt_offers "$package"; then
				offered+=("$package")
			else
				note "no $package here: its tests are skipped"
			fi
		done
		if ((${#offered[@]})); then apt_install "${offered[@]}"; fi
	fi
}

# Puts a server for a test in target/PACKAGE, where it does not start by itself.
unpack_server() {
	local package=$1 program=$2 place work
	place=${CARGO_TARGET_DIR:-target}/$package
	if command -v "${program##*/}" >/dev/null || [[ -x $place/$program ]]; then return; fi
	if ! apt_offers "$package" && ((EUID == 0)); then apt_update; fi
	note "unpacking $package in $place"
	work=$(mktemp -d)
	if (cd "$work" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$package" &&
		dpkg-deb -x "${package}"_*.deb unpacked); then
		mkdir -p "${place%/*}"
		# Another call may have been first.
		mv -T "$work/unpacked" "$place" 2>/dev/null || [[ -x $place/$program ]]
	else
		note "$package cannot be fetched: its test fails where tests must run"
	fi
	rm -rf "$work"
}

install_kernel_sources() {
	local missing
	if ! install_if_offered "$kernel_sources"; then
		note "no $kernel_sources here (Debian 12 has it): no kernel can be built," \
			'and the tests that need one are skipped'
		return
	fi
	mapfile -t missing < <(missing_of "${kernel_tools[@]}")
	if ((${#missing[@]})); then
		((EUID == 0)) || fail 'not root, and these packages are missing:' "${missing[*]}"
		apt_update
		apt_install "${missing[@]}"
	fi
}

# libFuzzer and the sanitizers of the clang that is there.
install_fuzzing() {
	local package
	package=libclang-rt-$(clang -dumpversion | cut --delimiter=. --fields=1)-dev
	install_if_offered "$package" || note "no $package here: the fuzzers cannot be built"
}

install_peers() {
	local package
	for package in "${peers[@]}"; do
		install_if_offered "$package" ||
			note "no $package here: the comparison with ns-3 is skipped"
	done
}

install_rust() {
	if ! rust_find; then
		local found
		found=$(rust_version || true)
		if ! command -v rustup >/dev/null; then
			if ((EUID == 0)); then
				apt_offers rustup || apt_update
				if apt_offers rustup; then apt_install rustup || true; fi
			fi
		fi
		command -v rustup >/dev/null ||
			fail "Rust $(rust_required) or newer is needed, found ${found:-none}, and rustup could not be installed from this system's packages." \
				'Install Rust as https://rustup.rs describes, then run this again.'
		note "rustup toolchain install stable (needed: $(rust_required) or newer, found: ${found:-none})"
		rustup toolchain install stable --profile minimal --component rustfmt --component clippy
		rust_find || fail "rustup's stable toolchain is still older than $(rust_required)"
	fi
}

# rustfmt and clippy are for the checks only; nothing is built with them.
install_rust_components() {
	local component missing=()
	cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
	cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
	for component in "${missing[@]}"; do
		if command -v rustup >/dev/null && rustup component add "$component"; then
			continue
		fi
		note "$component is not installed and rustup cannot add it: its check is left out"
	done
}

install_packages
environment=
trap '[[ -z $environment ]] || kill -- "-$environment" 2>/dev/null || true' EXIT
case $with in
--test)
	# What pip fetches and what apt fetches do not meet.
	set -m
	python_env_make &
	environment=$!
	set +m
	install_user_mode_linux
	install_qemu
	install_tests
	for server in "${servers[@]}"; do
		# shellcheck disable=SC2086 # two words
		unpack_server $server
	done
	;;
--fleet) unpack_server nats-server usr/sbin/nats-server ;;
--kernel)
	install_user_mode_linux
	install_qemu
	install_kernel_sources
	;;
--fuzz) install_fuzzing ;;
--peers) install_peers ;;
esac
install_rust
if [[ $with == --test ]]; then install_rust_components; fi
if [[ -n $environment ]]; then
	wait "$environment" || fail 'the Python environment cannot be made, see above; mend that and run this again'
fi
trap - EXIT
note "ready: $(rustc --version), clang $(clang -dumpversion)"
