# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The entry points; the work is done by cargo and by scripts/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SHAREDIR ?= $(PREFIX)/share
MANDIR ?= $(SHAREDIR)/man
DOCDIR ?= $(SHAREDIR)/doc/thalweg
CARGO_TARGET_DIR ?= target
INSTALL ?= install
SECONDS_EACH ?= 60
COUNT ?= 20

completions := $(foreach name,thalweg thalweg-lab,bash-completion/completions/$(name) zsh/site-functions/_$(name) fish/vendor_completions.d/$(name).fish)
binary := $(CARGO_TARGET_DIR)/release/thalweg
laboratory := $(CARGO_TARGET_DIR)/release/thalweg-lab
mdbook := $(CARGO_TARGET_DIR)/mdbook/bin/mdbook
rust := source scripts/rust-env.sh; rust_use;

.PHONY: help setup build demo fleet-demo test test-all repeat faults fuzz kernels bench tables train docs packages wheel lint fmt clean install uninstall

help: ## List the targets
	@awk 'BEGIN { FS = ":[^#]*## " } /^[a-z-]+:[^#]*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile
	@echo "Variables of install and uninstall: DESTDIR, PREFIX ($(PREFIX)), BINDIR (PREFIX/bin), SHAREDIR (PREFIX/share), MANDIR (SHAREDIR/man), DOCDIR (SHAREDIR/doc/thalweg)"

setup: ## Install what building and testing need (root, Debian 12 or Ubuntu 24.04)
	@scripts/setup.sh --test

build: ## Build the release binaries, target/release/thalweg and thalweg-lab
	@$(rust) cargo build --locked --release -p thalweg-cli -p thalweg-lab-cli

demo: ## Set up, build and show Thalweg at work on this machine (root, some five minutes after the build)
	@scripts/setup.sh
	@$(rust) scripts/demo.sh

fleet-demo: ## Set up, build and show three agents tell a new one what they know (root, a minute and a half after the build)
	@scripts/setup.sh --fleet
	@scripts/fleet-demo.sh

test: ## Set up, then run every check and every test
	@scripts/setup.sh --test
	@scripts/test.sh

test-all: test ## The same, then the slow tests and the packages (builds two kernels once; more than an hour)
	@scripts/setup.sh --kernel
	@scripts/setup.sh --fuzz
	@scripts/test.sh --slow
	@$(MAKE) --no-print-directory test-packages

repeat: ## Repeat the tests in virtual time on a busy machine, no two runs alike (COUNT=20: hours)
	@scripts/setup.sh --test
	@scripts/repeat.sh $(COUNT)

faults: ## Put the agent through every kind of fault: kills, disks, files, pins, programs, clones, floods, ports (root, half an hour after the build)
	@scripts/setup.sh --test
	@scripts/faults.sh

fuzz: ## Fuzz the arithmetic that runs in the kernel, two minutes (SECONDS_EACH=60)
	@scripts/setup.sh --fuzz
	@scripts/fuzz.sh --seconds $(SECONDS_EACH)

kernels: ## Try everything on Debian's kernels, in QEMU, and on this one: docs/reference/kernels.md (three minutes after the build)
	@scripts/setup.sh --kernel
	@$(rust) cargo build --locked -p thalweg-cli -p thalweg-lab-cli -p thalweg-bench
	@for package in linux-image-cloud-amd64 linux-image-6.12-cloud-amd64; do \
		$(CARGO_TARGET_DIR)/debug/thalweg-lab kernels add $$package; \
	done
	@$(CARGO_TARGET_DIR)/debug/thalweg-bench --binary $(CARGO_TARGET_DIR)/debug/thalweg kernels --write

bench: ## Run the benchmarks
	@$(rust) scripts/bench.sh

tables: ## Repeat the published results: docs/measurements (root; five hours; goes on where it stopped)
	@scripts/setup.sh --kernel
	@$(MAKE) --no-print-directory build
	@$(laboratory) kernels add linux-image-6.12-cloud-amd64
	@scripts/tables.sh

train: ## Train the shipped models anew: models/ (five minutes, two cores; goes on where it stopped)
	@scripts/train.sh

docs: ## Write the book of all pages to target/book (brings mdbook, minutes the first time)
	@$(rust) [[ -x $(mdbook) ]] || cargo install --locked --quiet mdbook --version 0.5.4 \
		--no-default-features --features search --root $(CARGO_TARGET_DIR)/mdbook
	@$(mdbook) build --dest-dir $(abspath $(CARGO_TARGET_DIR))/book

packages: ## Build the Debian and the RPM packages: target/packages (brings cargo-deb, minutes the first time)
	@scripts/setup.sh
	@scripts/packages.sh

wheel: ## Build the Python package for other machines: target/wheels (brings maturin)
	@scripts/setup.sh
	@scripts/wheel.sh

image: ## Build the container image of the Debian package: localhost/thalweg (podman or buildah; BASE=IMAGE)
	@scripts/image.sh

test-packages: packages ## Build the packages and try them: linters, systemd in QEMU, a container (root, twenty minutes)
	@packaging/test/run.sh

lint: ## Run the checks alone: format, lints, licences
	@scripts/lint.sh

fmt: ## Format the Rust and C sources
	@$(rust) cargo fmt --all
	@$(rust) rustfmt --edition 2024 crates/agent/src/features/*.rs
	@find bpf -name '*.[ch]' -exec clang-format -i {} +

clean: ## Remove what was built
	@$(rust) cargo clean

# Builds nothing, so that `sudo make install` leaves no root-owned files here.
# The sample goes beside the documentation: /etc/thalweg/thalweg.toml is the administrator's.
install: ## Install what `make build` made: binaries, manual pages, completions, schemas, sample configuration
	@for file in $(binary) $(laboratory); do \
		[[ -x $$file ]] || { echo "error: no $$file; run 'make build' first" >&2; exit 1; }; \
	done
	$(INSTALL) -d $(addprefix $(DESTDIR)$(SHAREDIR)/,$(sort $(dir $(completions))))
	@for file in $(binary) $(laboratory); do \
		name=$${file##*/}; set -x; \
		$(INSTALL) -D -m 0755 $$file $(DESTDIR)$(BINDIR)/$$name; \
		$$file manual $(DESTDIR)$(MANDIR)/man1; \
		$$file completions bash >$(DESTDIR)$(SHAREDIR)/bash-completion/completions/$$name; \
		$$file completions zsh >$(DESTDIR)$(SHAREDIR)/zsh/site-functions/_$$name; \
		$$file completions fish >$(DESTDIR)$(SHAREDIR)/fish/vendor_completions.d/$$name.fish; \
	done
	$(INSTALL) -d $(DESTDIR)$(DOCDIR) $(DESTDIR)$(SHAREDIR)/thalweg/schemas
	$(INSTALL) -m 0644 schemas/*.json $(DESTDIR)$(SHAREDIR)/thalweg/schemas
	sed 's|^#:schema .*/|#:schema $(SHAREDIR)/thalweg/schemas/|' packaging/thalweg.toml >$(DESTDIR)$(DOCDIR)/thalweg.toml

uninstall: ## Remove what `make install` installed
	rm -f $(DESTDIR)$(BINDIR)/thalweg{,-lab} $(DESTDIR)$(MANDIR)/man1/thalweg{,-*}.1 $(DESTDIR)$(DOCDIR)/thalweg.toml
	rm -f $(addprefix $(DESTDIR)$(SHAREDIR)/,$(completions))
	rm -f $(addprefix $(DESTDIR)$(SHAREDIR)/thalweg/,$(wildcard schemas/*.json))
	for directory in $(DESTDIR)$(SHAREDIR)/thalweg/schemas $(DESTDIR)$(SHAREDIR)/thalweg; do \
		[[ ! -d $$directory ]] || rmdir --ignore-fail-on-non-empty $$directory; \
	done
	[[ ! -d $(DESTDIR)$(DOCDIR) ]] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(DOCDIR)
