# SPDX-License-Identifier: MIT OR Apache-2.0

CARGO ?= cargo
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
PREFIX ?= /usr/local
DESTDIR ?=

OUT = $(CARGO_TARGET_DIR)/release
INIT = $(OUT)/reprieve-init
ARM_TARGET = aarch64-unknown-linux-gnu
ARM_TESTS = --lib --test basic --test first_use --test structures
GUEST_TARGET = x86_64-unknown-linux-gnu
C_FILES = $(shell find crates -name '*.c' -o -name '*.h')
# A new directory each time: the lab does not overwrite results.
DEMO_OUT = lab-results/demo-$(shell date +%Y%m%d-%H%M%S)

help:
	@echo 'make demo      set everything up, then show the problem in real VMs: two tables and a report'
	@echo 'make bench     the runtime beside its peers, and its targets: tables, and a page with charts in bench-results/'
	@echo 'make build     the reprieve command and the guests'"'"' init, in $(OUT)'
	@echo 'make test      format and lint checks, and all tests but the long ones; boots real guests'
	@echo 'make test-rcu  the tests of the runtime alone: also its loom models, and builds broken on purpose'
	@echo 'make test-rcu-20  the same again and again: Rust, C and torture tests, 20 times with 20 seeds'
	@echo 'make test-arm  the runtime on aarch64, in emulation (part of make test; skipped without rustup'"'"'s target)'
	@echo 'make test-lab  the long tests: every kernel, every experiment, in a lab host'
	@echo 'make lint      format and lint checks only'
	@echo 'make fmt       format the sources'
	@echo 'make setup     install the system packages that are missing (done by the targets above as well)'
	@echo 'make lib       the C library alone; needs Rust and a C compiler, nothing else'
	@echo 'make install-lib  headers, libraries and pkg-config file to the same place, after make lib'
	@echo 'make install   to DESTDIR=$(DESTDIR) PREFIX=$(PREFIX), after make build'
	@echo 'make clean     remove what was built; `reprieve lab images clean` removes kernels and programs'

demo: build
	$(OUT)/reprieve bench grace --seconds 20 --rounds 1 --readers 1,16,64
	$(OUT)/reprieve lab run membench asym --out $(DEMO_OUT)

# A busy machine shows in the spread.
BENCH_SECONDS = 480
bench: build
	@mkdir -p bench-results
	$(OUT)/reprieve bench all --seconds $(BENCH_SECONDS) --html bench-results/all.html

setup:
	@scripts/setup build

setup-test:
	@scripts/setup test

build: setup init
	$(CARGO) build --locked --release -p reprieve-cli -p reprieve-capi

lib:
	$(CARGO) build --locked --release -p reprieve-capi

# Static, because it is the first and often the only program in a guest.
init: setup
	$(CARGO) build --locked --profile guest -p reprieve-init --target $(GUEST_TARGET) \
		--config 'target.$(GUEST_TARGET).rustflags=["-C","target-feature=+crt-static"]'
	@mkdir -p $(OUT)
	@cp $(CARGO_TARGET_DIR)/$(GUEST_TARGET)/guest/reprieve-init $(INIT).new && mv $(INIT).new $(INIT)

lint: setup-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(if $(C_FILES),clang-format --dry-run -Werror $(C_FILES))

test: lint init test-rcu test-arm
	REPRIEVE_INIT=$(INIT) $(CARGO) test --locked --workspace

# The runtime as users run it, then its models, then broken on purpose: the torture test must notice. Each configuration has a directory of
# its own, so that none rebuilds the other.
test-rcu: setup-test
	REPRIEVE_TORTURE=60 $(CARGO) test --locked --release -p reprieve
	REPRIEVE_BARRIER=visit REPRIEVE_TORTURE=20 $(CARGO) test --locked --release --test torture -p reprieve
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom \
		$(CARGO) test --locked --release --lib -p reprieve
	RUSTFLAGS='--cfg reprieve_fault' CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/fault \
		$(CARGO) test --locked --release --test torture --test visit -p reprieve

# In pieces, or one seed again: scripts/repeat-tests ROUNDS SECONDS FIRST_SEED.
test-rcu-20: setup-test
	scripts/repeat-tests 20 10

# The runtime on aarch64, in emulation: plain sections. Takes a standard library for it, which rustup has and Debian's rustc has not.
test-arm: setup-test
	@if [ -d "$$(rustc --print target-libdir --target $(ARM_TARGET))" ]; then \
		set -x; CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
		$(CARGO) test --locked --release --target $(ARM_TARGET) -p reprieve $(ARM_TESTS); \
	else \
		echo 'make test-arm: skipped, rustc has no standard library for it: rustup target add $(ARM_TARGET)' >&2; \
	fi

test-lab: setup-test init
	REPRIEVE_INIT=$(INIT) $(CARGO) test --locked --workspace -- --ignored

fmt: setup-test
	$(CARGO) fmt --all
	$(if $(C_FILES),clang-format -i $(C_FILES))

# No prerequisites: installing as root should not build as root.
install-lib:
	@test -f $(OUT)/libreprieve.a || { echo 'make lib (or make build) first' >&2; exit 1; }
	crates/rcu/scripts/install-c $(OUT) $(PREFIX) $(DESTDIR)

install:
	@test -x $(OUT)/reprieve && test -x $(INIT) || { echo 'make build first' >&2; exit 1; }
	install -D -m 755 $(OUT)/reprieve $(DESTDIR)$(PREFIX)/bin/reprieve
	install -D -m 755 $(INIT) $(DESTDIR)$(PREFIX)/lib/reprieve/reprieve-init
	crates/rcu/scripts/install-c $(OUT) $(PREFIX) $(DESTDIR)
	install -d $(DESTDIR)$(PREFIX)/share/doc/reprieve
	install -m 644 README.md LICENSE-MIT LICENSE-APACHE docs/*.md $(DESTDIR)$(PREFIX)/share/doc/reprieve
	install -D -m 644 packaging/grafana/reprieve-watch.json $(DESTDIR)$(PREFIX)/share/reprieve/grafana/reprieve-watch.json
	install -D -m 644 packaging/kubevirt/reprieve-watch.yaml $(DESTDIR)$(PREFIX)/share/reprieve/kubevirt/reprieve-watch.yaml
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's,@PREFIX@,$(PREFIX),' packaging/systemd/reprieve-watch.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/reprieve-watch.service
	chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/reprieve-watch.service

clean:
	$(CARGO) clean

# Set-up must not run twice at the same time, and cargo uses all CPUs by itself.
.NOTPARALLEL:

.PHONY: help demo bench setup setup-test build lib init lint test test-rcu test-rcu-20 test-arm test-lab fmt install install-lib clean
