# The one list of commands. `make help` prints it.

# KUBE=1.33 selects another pinned Kubernetes; NODE=real a node with a kubelet; NODES=2 how many.
KUBE ?=
NODE ?= fake
NODES ?=

target    := $(or $(CARGO_TARGET_DIR),target)
triple    := $(shell uname -m)-unknown-linux-gnu
localkube := $(target)/release/localkube
version   := $(if $(KUBE),KUBE=$(KUBE))
nodes     := --$(NODE)-nodes $(or $(NODES),$(if $(filter real,$(NODE)),1,3))

.DEFAULT_GOAL := help
xtask     := $(target)/release/xtask

.PHONY: help build programs players static packages kube up demo test lint generated unit e2e soak bench gen doctor

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: programs static kube ## Build everything: programs under target/release, Kubernetes into the cache

programs: compiler
	@cargo build --release --workspace --bins

# Only what the demo runs, with the same features as everything else, so that nothing is compiled twice.
players: compiler
	@[ -e $(localkube) ] || echo "The first start compiles the operator and Kubernetes: about five minutes on two cores; later starts take seconds."
	@cargo build --release --workspace --bin localkube --bin gameplane-operator --bin hook-server

# Images hold statically linked programs. The explicit target keeps build scripts and macros as they are.
static: compiler ## Build the statically linked programs that images hold
	@CARGO_PROFILE_RELEASE_LTO=false RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target $(triple) -p game-server -p pause -p operator

kube: programs ## Build the Kubernetes binaries into the cache (once, with progress)
	@$(version) $(localkube) build >/dev/null

up: programs $(if $(filter real,$(NODE)),static packages) ## Start a Kubernetes cluster until Ctrl-C (NODE=real: nodes with a kubelet, NODES=2: how many)
	@$(version) $(localkube) up $(nodes)

demo: players $(if $(REAL),static packages) ## Play a rollout with canary steps on a cluster of its own (ROLLING=1: a rolling update, REAL=1: on a node with a kubelet, PAUSE=60: seconds of the timed pause)
	@$(version) HOOK_SERVER=$(abspath $(target))/release/hook-server \
	  $(localkube) run $(if $(REAL),--real-nodes 1,--fake-nodes 3) --operator -- examples/tkex/demo$(if $(ROLLING),-rolling).sh

test: lint unit e2e ## Run every check and test, on a real Kubernetes (KUBE=1.33 for another version)

lint: compiler generated ## Check formatting and generated files, run the linters
	@cargo fmt --all --check
	@cargo clippy --release --workspace --all-targets -- --deny warnings

gen: programs ## Write chart/crds from the types and deploy/ from the chart
	@$(xtask) gen

# deploy/ needs helm, so that a test of a crate cannot look after it.
generated: programs
	@"$$($(xtask) helm)" lint --quiet --strict --kube-version 1.33 chart
	@fresh="$$(mktemp -d)" && trap 'rm -rf "$$fresh"' EXIT && $(xtask) gen --into "$$fresh" && \
	if ! diff -r chart/crds "$$fresh/chart/crds" >/dev/null || ! diff -r deploy "$$fresh/deploy" >/dev/null; then \
		echo "chart/crds or deploy/ is stale: run make gen"; exit 1; \
	fi

unit: compiler ## Run the tests that need no cluster
	@cargo test --release --workspace --exclude e2e

e2e: build packages ## Run the end-to-end tests (TEST=name for some)
	@$(version) cargo test --release --workspace --test e2e -- $(TEST)

soak: e2e ## The long tests: crashes after every Nth write (N from 1 to 20), silent nodes with the default --node-silence, 1,000 objects of a megabyte, 50,000 pods, ten times as many random worlds
	@PLANNER_CASES=200000 cargo test --release -p planner --test planner
	@SOAK=1 $(version) cargo test --release --workspace --test e2e -- crash
	@SOAK=1 $(version) cargo test --release --workspace --test e2e -- silence
	@SOAK=1 $(version) cargo test --release --workspace --test e2e -- strangers::a_thousand_large
	@SOAK=1 $(version) cargo test --release --workspace --test e2e -- many::each_pod

# The operator is the one that images have.
bench: programs static ## Measure against a plain client and peers on fake nodes (SAVE=1 writes docs/benchmarks.md)
	@cargo build --release -p bench
	@$(version) OPERATOR_PROGRAM=$(abspath $(target))/$(triple)/release/gameplane-operator $(target)/release/bench $(if $(SAVE),--save docs/benchmarks.md) $(BENCH)

doctor: programs ## Say what is missing on this machine
	@$(version) $(localkube) doctor

# What real nodes need from Debian: installed by root, printed for everybody else.
packages: programs
	@missing="$$($(localkube) doctor --missing-packages)"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then \
		echo "installing $$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
		echo "For real nodes run: sudo apt-get install --no-install-recommends $$missing"; \
	fi

.PHONY: compiler
compiler:
	@command -v cargo >/dev/null || { echo "Rust is missing: install it from https://rustup.rs"; exit 1; }
	@if ! command -v cc >/dev/null || ! [ -e "$$(cc -print-file-name=libc.a)" ]; then \
		if [ "$$(id -u)" = 0 ]; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null; \
		else \
			echo "A C compiler is missing. Run: sudo apt-get install --no-install-recommends gcc libc6-dev"; exit 1; \
		fi; \
	fi
