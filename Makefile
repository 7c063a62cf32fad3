# SPDX-License-Identifier: MIT OR Apache-2.0

CARGO ?= cargo
CARGO_TARGET_DIR ?= $(CURDIR)/target
PREFIX ?= /usr/local
DESTDIR ?=
# Neither make nor libbpf's build, which the eBPF programs need, can have them in names.
ifneq ($(words $(CURDIR)|$(CARGO_TARGET_DIR)|$(PREFIX)|$(DESTDIR)),1)
$(error a blank is in the path of this directory, CARGO_TARGET_DIR, PREFIX or DESTDIR: take another)
endif
# Units name what is in it by its whole path.
override PREFIX := $(abspath $(PREFIX))
# Tests run in other directories.
override CARGO_TARGET_DIR := $(abspath $(CARGO_TARGET_DIR))
export CARGO_TARGET_DIR
# What is kept for the next build makes this one dearer by half.
export CARGO_INCREMENTAL ?= 0
unexport CARGO_BUILD_TARGET
ifeq ($(HOME),)
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif

OUT = $(CARGO_TARGET_DIR)/release
INIT = $(OUT)/reprieve-init
ARM_TARGET = aarch64-unknown-linux-gnu
MUSL_TARGET = x86_64-unknown-linux-musl
OTHER_TARGETS = x86_64-unknown-freebsd x86_64-apple-darwin aarch64-apple-darwin
# Where the C library registers no rseq, or the architecture has no sections.
PLAIN_TESTS = --lib --test basic --test first_use --test structures
# Emulation has no seccomp filters, no robust lists and no limits on address space, doubles no
# mapping, executes no program of its own kind, its own System V IPC is not the kernel's, and
# thousands of forks take it half an hour.
ARM_SKIPS = sandboxed no_proc_any_more_knows_the_living cannot_be_mapped wherever_a_chunk_is \
	a_working_directory_is_left the_first_call_detaches fork_without_handlers \
	in_another_pid_namespace_is_alive leave_no_memory_behind
ARM_IPC_TESTS = --lib --test sem --test msg --test shm --test random_kills --test hostile -- \
	$(addprefix --skip ,$(ARM_SKIPS))
# Not the jobs of a make beside.
ALONE = env -u MAKEFLAGS -u MFLAGS
LIBDIR = $(ALONE) rustc --print target-libdir --target
# That of Debian 13.
OLDEST_RUST = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
GUEST_TARGET = x86_64-unknown-linux-gnu
# Ends a test program that hangs; tests have no limits of their own. Seconds for each program.
TEST_LIMIT ?= 1800
LIMIT = timeout --foreground --verbose --signal=ABRT --kill-after=60 $(TEST_LIMIT)
# The lab's own limits suit a quick machine; in tests they are this many times as long.
TIMEOUT_FACTOR ?= 20
TEST_SETTINGS = REPRIEVE_TIMEOUT_FACTOR=$(TIMEOUT_FACTOR) CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='$(LIMIT)'
CARGO_TEST = $(TEST_SETTINGS) $(CARGO) test --locked $(TEST_FLAGS)
# Seconds of torture for each form of the runtime, and a seed (SECONDS:SEED) to repeat a run.
TORTURE ?= 10
TORTURE_VISITS ?= 10
# Seconds for each series of single-stepped tests.
SAMPLES ?= 2
C_FILES = $(shell find crates -name '*.c' -o -name '*.h')
# A new directory each time: the lab does not overwrite results.
DEMO_OUT := lab-results/demo-$(shell date +%Y%m%d-%H%M%S)

help:
	@echo 'make demo      set everything up, then show the problem and its cure in real VMs, in a few lines'
	@echo 'make bench     the runtime beside its peers, and its targets: tables'
	@echo 'make build     the reprieve command, its checks and the guests'"'"' init, in $(OUT)'
	@echo 'make test      format and lint checks, and all tests but the long ones; boots real guests'
	@echo 'make test-rcu  the tests of the runtime alone: optimized, and built broken on purpose (part of make test)'
	@echo 'make test-asan, make test-tsan  the C interface under AddressSanitizer or ThreadSanitizer (part of make test)'
	@echo 'make test-miri  plain sections, protection, callbacks and all structures in Miri (skipped without a nightly Rust that has it)'
	@echo 'make test-models  the loom models of the runtime and the locks (part of make test)'
	@echo 'make test-repeat  all tests of make test but the models and test-oldest, 25 times: idle, beside busy loops, on a third of the CPUs'
	@echo 'make test-arm  the runtime and System V IPC on aarch64, in emulation (part of make test; skipped without rustup'"'"'s target)'
	@echo 'make test-publish  that the runtime can be published (part of make test)'
	@echo 'make test-musl  the runtime with musl (part of make test; skipped without rustup'"'"'s target)'
	@echo 'make test-others that the runtime compiles for FreeBSD and macOS (part of make test; skipped without rustup'"'"'s targets)'
	@echo 'make test-oldest  that all compiles with Rust $(OLDEST_RUST), the oldest that it is for (part of make test; skipped without rustup'"'"'s toolchain)'
	@echo 'make test-slice  time-slice extensions and both modes of rseq, on a kernel built with them (part of make test-lab)'
	@echo 'make test-large  the runtime, the locks and System V IPC on 72 emulated CPUs (part of make test-lab)'
	@echo 'make test-programs  Debian'"'"'s PostgreSQL, Redis, Chromium and others with what Reprieve preloads: a line each (part of make test-lab)'
	@echo 'make test-lab  the long tests: all kernels with eight of the experiments in a lab host, and more'
	@echo 'make pictures  the picture in the README, from results/lab.md and a run of bench grace'
	@echo 'make lint      format and lint checks only'
	@echo 'make fmt       format the sources'
	@echo 'make setup     install the system packages that are missing (done by the targets above as well)'
	@echo 'make lib       the C library alone; needs Rust and a C compiler, nothing else'
	@echo 'make install-lib  the C library alone, to DESTDIR= PREFIX=, after make lib'
	@echo 'make install   to DESTDIR=$(DESTDIR) PREFIX=$(PREFIX), after make build'
	@echo 'make deb       a Debian package of it, in $(OUT)'
	@echo 'make uninstall what make install put there; end units first: systemctl disable --now reprieve-guard'
	@echo 'make clean     remove what was built; ~/.cache/reprieve has kernels and programs'

# Half the default dilation, for half the time.
demo: setup init
	$(CARGO) build --locked --release --bin reprieve
	$(OUT)/reprieve lab run lowweight --host nested --dilate 10 --policy eevdf,full --out $(DEMO_OUT)

# A busy machine shows in the spread.
BENCH_SECONDS = 480
bench: build
	$(OUT)/reprieve bench all --seconds $(BENCH_SECONDS)

pictures: setup-test build
	$(CARGO) build --locked --release -p reprieve-lab --example first_picture
	scripts/pictures $(OUT)

setup:
	@scripts/setup build

setup-test:
	@scripts/setup test

setup-lab:
	@scripts/setup lab

build: setup init
	$(CARGO) build --locked --release -p reprieve-cli -p reprieve-capi -p reprieve-ipc-preload -p reprieve-shim
	crates/hint/shim/link $(OUT)

lib:
	$(CARGO) build --locked --release -p reprieve-capi

# Static, because it is the first and often the only program in a guest. RUSTFLAGS would replace
# that.
init: setup
	env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
		$(CARGO) build --locked --profile guest -p reprieve-init --target $(GUEST_TARGET) \
		--config 'target.$(GUEST_TARGET).rustflags=["-C","target-feature=+crt-static"]'
	@mkdir -p $(OUT)
	@new=$(INIT).$$$$ && cp $(CARGO_TARGET_DIR)/$(GUEST_TARGET)/guest/reprieve-init $$new && mv $$new $(INIT)

# What newer versions of clippy find right: brackets around shifts, strings collected from others,
# the place of comments on safety, casts of types that differ between systems.
CLIPPY_ALLOWS = $(if $(findstring 0.1.8,$(shell $(CARGO) clippy --version)), \
	$(addprefix -A clippy::,precedence format_collect undocumented_unsafe_blocks unnecessary_cast))

lint: setup-test
	$(CARGO) fmt --all --check
	$(CARGO) run --locked --quiet -p reprieve-lint
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings $(CLIPPY_ALLOWS)
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
		$(CARGO) doc --locked --quiet --no-deps --workspace
	$(if $(C_FILES),clang-format --dry-run -Werror $(C_FILES))

test: lint test-run

# The tests alone, without the set-up and the checks of the sources: scripts/repeat-tests runs them
# again and again. Those of virtual machines wait much, so the rest runs beside them, and is printed
# when it is done. A test that a signal ends leaves its files: they go with the directories, the
# second of which is in memory. The tests are a process group of their own, in the background: a
# shell handles no signal while it waits for a command.
test-run: init setup-test
	@scratch='' TEST_SHM='' job='' && \
		end() { \
			trap '' HUP INT TERM; \
			[ -z "$$job" ] || { kill -- "-$$job" 2>/dev/null || kill "$$job" 2>/dev/null; wait "$$job"; }; \
			rm -rf "$$scratch" "$$TEST_SHM"; \
		} && \
		trap end EXIT && trap 'exit 129' HUP && trap 'exit 130' INT && trap 'exit 143' TERM && \
		scratch=$$(mktemp -d) && chmod 1777 "$$scratch" && export TMPDIR="$$scratch" && \
		if [ -d /dev/shm ]; then \
			TEST_SHM=$$(mktemp -d -p /dev/shm tests.XXXXXX) && chmod 1777 "$$TEST_SHM" && export TEST_SHM; \
		fi && \
		{ setsid $(MAKE) --no-print-directory -j2 PARALLEL=yes test-beside test-workspace </dev/null & \
			job=$$!; status=0; wait "$$job" || status=$$?; job=''; exit "$$status"; }

# Cargo would ask the make of this recipe for its jobs.
test-workspace:
	MAKEFLAGS= REPRIEVE_INIT=$(INIT) REPRIEVE_TORTURE=$(TORTURE_VISITS) $(TEST_SETTINGS) RUN='$(LIMIT)' \
		CARGO='$(CARGO)' TEST_FLAGS='$(TEST_FLAGS)' scripts/run-tests

# Models find the same each time: scripts/repeat-tests leaves them out.
BESIDE = test-oldest test-publish test-others test-rcu test-models test-arm test-musl
test-beside: LOG = $(CARGO_TARGET_DIR)/test-beside.log
test-beside:
	@$(MAKE) --no-print-directory -j2 -Otarget PARALLEL=yes CARGO='$(ALONE) $(CARGO)' \
		$(BESIDE) >$(LOG) 2>&1; \
		status=$$?; cat $(LOG); exit $$status

test-build:
	@$(MAKE) --no-print-directory test-run TEST_FLAGS=--no-run

# The runtime as users run it, then broken on purpose: the torture test must notice. Each
# configuration has a directory of its own, so that none rebuilds the other.
test-rcu: setup-test
	REPRIEVE_TORTURE=$(TORTURE) REPRIEVE_SAMPLES=$(SAMPLES) $(CARGO_TEST) --release -p reprieve
	$(CARGO_TEST) -p reprieve --features serde --test structures_model serde
	REPRIEVE_BARRIER=visit REPRIEVE_TORTURE=$(TORTURE_VISITS) \
		$(CARGO_TEST) --release --test torture -p reprieve
	RUSTFLAGS='--cfg reprieve_fault' CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/fault \
		$(CARGO_TEST) --release --test torture --test visit -p reprieve

# The protocols of the runtime and of the locks, whole and broken, in loom, which maps and unmaps
# stacks all the time: threads of one process would wait for each other.
test-models: setup-test
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom RUST_TEST_THREADS=1 \
		$(CARGO_TEST) --release --lib -p reprieve -p reprieve-hint

# The C interface: sanitizers are silent about right programs, and report mistakes.
test-asan test-tsan: setup-test
	$(CARGO_TEST) -p reprieve-capi --test c -- sanitizers::$(@:test-%=%)::

# Miri has no rseq, no membarrier and no inline assembly, hence no restartable sections: it
# interprets what runs on macOS.
test-miri:
	@if rustup run nightly cargo miri --version >/dev/null 2>&1; then \
		set -x; MIRIFLAGS='-Zmiri-isolation-error=hide -Zmiri-permissive-provenance' \
			CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/miri rustup run nightly cargo miri test \
			--locked --target aarch64-apple-darwin -p reprieve --test interpreted; \
	else \
		echo 'make test-miri: skipped: rustup toolchain install nightly -c miri -c rust-src' >&2; \
	fi

# Hours. One load, or fewer rounds: scripts/repeat-tests idle|busy|slow ROUNDS.
test-repeat: setup-test
	scripts/repeat-tests idle 10
	scripts/repeat-tests busy 10
	scripts/repeat-tests slow 5

# The runtime (plain sections) and System V IPC (no robust lists, no membarrier) on aarch64, in
# emulation. Takes a standard library for it, which rustup has and Debian's rustc has not.
# One thread: QEMU may hang in the child of a fork if other threads of the program were in QEMU's
# locks at that time.
test-arm: setup-test
	@if [ -d "$$($(LIBDIR) $(ARM_TARGET))" ]; then \
		export RUST_TEST_THREADS=1; \
		export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc; \
		export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='$(LIMIT) qemu-aarch64 -L /usr/aarch64-linux-gnu'; \
		set -ex; \
		$(CARGO) test --locked $(TEST_FLAGS) --release --target $(ARM_TARGET) -p reprieve $(PLAIN_TESTS); \
		$(CARGO) test --locked $(TEST_FLAGS) --release --target $(ARM_TARGET) -p reprieve-ipc $(ARM_IPC_TESTS); \
	else \
		echo 'make test-arm: skipped, rustc has no standard library for it: rustup target add $(ARM_TARGET)' >&2; \
	fi

# The runtime (plain sections) with musl, linked statically.
test-musl: setup-test
	@if [ -d "$$($(LIBDIR) $(MUSL_TARGET))" ]; then \
		export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUNNER='$(LIMIT)'; \
		set -x; \
		$(CARGO) test --locked $(TEST_FLAGS) --release --target $(MUSL_TARGET) -p reprieve $(PLAIN_TESTS); \
	else \
		echo 'make test-musl: skipped, rustc has no standard library for it: rustup target add $(MUSL_TARGET)' >&2; \
	fi

# The runtime (plain sections) on other systems. Nothing is linked, so there is nothing to run.
test-others: setup-test
	@for target in $(OTHER_TARGETS); do \
		if [ -d "$$($(LIBDIR) $$target)" ]; then \
			(set -x; $(CARGO) check --locked --target $$target -p reprieve) || exit 1; \
		else \
			echo "make test-others: skipped, rustc has no standard library for it: rustup target add $$target" >&2; \
		fi; \
	done

# New syntax compiles here whatever rust-version says. In a directory of its own, as above.
test-oldest:
	@if rustup run $(OLDEST_RUST) cargo --version >/dev/null 2>&1; then \
		set -x; CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/oldest \
			rustup run $(OLDEST_RUST) cargo check --locked --workspace --all-targets; \
	else \
		echo 'make test-oldest: skipped: rustup toolchain install $(OLDEST_RUST) -c rustfmt' >&2; \
	fi

# What a registry would get of the runtime builds by itself, without hints as well. Older cargos
# publish one package at a time, and that one's dependencies have to be there.
test-publish: setup-test
	$(CARGO) check --locked -p reprieve --no-default-features
	@if $(CARGO) publish --help | grep -q -e --workspace; then \
		set -x; $(CARGO) publish --locked --dry-run --allow-dirty -p reprieve-hint -p reprieve; \
	else \
		echo 'make test-publish: skipped, cargo publishes one package at a time' >&2; \
	fi

# Machines of many emulated CPUs take their time.
test-large test-lab: TEST_LIMIT = 7200

# test-slice builds a kernel from Debian's source once (minutes, 2 GB meanwhile); the lab's cache
# keeps it.
test-slice test-large: setup-lab init
	REPRIEVE_INIT=$(INIT) $(CARGO_TEST) -p reprieve-lab --test $(@:test-%=%) -- --ignored --nocapture

# Programs as Debian packages them, with System V IPC and the locks preloaded: a line for each.
test-programs: LOG = $(CARGO_TARGET_DIR)/test-programs.log
test-programs: setup-lab
	@status=0; { \
		$(CARGO_TEST) -p reprieve-cli --test ipc -- --include-ignored --nocapture suites:: neighbours:: \
			postgresql stress_ng && \
		$(CARGO_TEST) -p reprieve-shim -- --include-ignored --nocapture; \
	} >$(LOG) 2>&1 || { status=$$?; cat $(LOG) >&2; }; \
	sed -n 's/^.*programs: //p' $(LOG); exit $$status

test-lab: setup-lab init
	REPRIEVE_INIT=$(INIT) $(CARGO_TEST) --workspace -- --ignored

fmt: setup-test
	$(CARGO) fmt --all
	$(if $(C_FILES),clang-format -i $(C_FILES))

# The dynamic linker looks for libraries in /usr/local by way of its cache only.
TELL_LINKER = [ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ! command -v ldconfig >/dev/null || ldconfig

# No prerequisites: installing as root should not build as root.
install-lib:
	@test -f $(OUT)/libreprieve.a || { echo 'make lib (or make build) first' >&2; exit 1; }
	crates/rcu/scripts/install-c $(OUT) $(PREFIX) $(DESTDIR)
	@$(TELL_LINKER)

install:
	@test -x $(OUT)/reprieve && test -x $(INIT) || { echo 'make build first' >&2; exit 1; }
	install -D -m 755 $(OUT)/reprieve $(DESTDIR)$(PREFIX)/bin/reprieve
	install -D -m 755 $(INIT) $(DESTDIR)$(PREFIX)/lib/reprieve/reprieve-init
	install -D -m 755 $(OUT)/libreprieve_ipc.so $(DESTDIR)$(PREFIX)/lib/libreprieve_ipc.so
	install -D -m 755 $(OUT)/libreprieve_locks.so $(DESTDIR)$(PREFIX)/lib/libreprieve_locks.so
	crates/rcu/scripts/install-c $(OUT) $(PREFIX) $(DESTDIR)
	scripts/install-docs $(DESTDIR)$(PREFIX)/share/doc/reprieve
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/reprieve/grafana packaging/grafana/*.json
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/reprieve/kubevirt packaging/kubevirt/*.yaml
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/reprieve/prometheus packaging/prometheus/*.yml
	$(OUT)/reprieve manual --out $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,lib/systemd/system share/bash-completion/completions \
		share/zsh/site-functions share/fish/vendor_completions.d)
	$(OUT)/reprieve completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/reprieve
	$(OUT)/reprieve completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_reprieve
	$(OUT)/reprieve completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/reprieve.fish
	for file in packaging/systemd/*.service; do \
		to=$(DESTDIR)$(PREFIX)/lib/systemd/system/$${file##*/} && \
		sed 's,@PREFIX@,$(PREFIX),' $$file >$$to && chmod 644 $$to || exit 1; \
	done
	@$(TELL_LINKER)

deb:
	scripts/deb $(OUT)

# What this version would install. Needs what was built.
uninstall:
	@stage=$$(mktemp -d) && trap 'rm -rf "$$stage"' EXIT && trap 'exit 129' HUP && \
		trap 'exit 130' INT && trap 'exit 143' TERM && \
		$(MAKE) --no-print-directory -s install DESTDIR="$$stage" PREFIX="$(PREFIX)" >/dev/null && \
		from='$(if $(DESTDIR),$(abspath $(DESTDIR)))' && cd "$$stage" && \
		find . -type f -o -type l | { while read -r file; do rm -f "$$from/$$file" || exit 1; done; } && \
		find . -depth -type d -path '*/reprieve*' | while read -r directory; do \
			rmdir "$$from/$$directory" 2>/dev/null || [ ! -d "$$from/$$directory" ] || \
				echo "left: $$from/$${directory#./}, which holds other files"; \
		done
	@$(TELL_LINKER)

clean:
	$(CARGO) clean

# Set-up must not run twice at the same time, and cargo uses all CPUs by itself.
ifneq ($(PARALLEL),yes)
.NOTPARALLEL:
endif

.PHONY: help demo bench pictures setup setup-test setup-lab build lib init lint test test-run test-workspace test-beside test-build test-rcu test-asan test-tsan test-miri test-models test-repeat test-arm test-musl test-others test-publish test-oldest test-slice test-large test-programs test-lab fmt install install-lib deb uninstall clean
