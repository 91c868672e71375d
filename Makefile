.DEFAULT_GOAL := help
.PHONY: help need demo test lint bench bench-short bench-micro services services-down

# Where rustup puts cargo; a shell opened before may not know it.
export PATH := $(PATH):$(HOME)/.cargo/bin

test_flags := --locked --features failpoints
rust := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' Makefile

demo: need ## run the demo against private services
	cargo build --locked --bins --examples
	scripts/services run -- $${CARGO_TARGET_DIR:-target}/debug/examples/demo

# Built before the services are started, so that an error in the code shows soon. The tests of faults
# run twice: in batches, and with each call's statement its own.
test: need ## run all tests against private services
	@if cargo nextest --version >/dev/null 2>&1; then run="nextest run"; else run=test; fi; set -ex; \
	cargo $$run --no-run $(test_flags); \
	cargo test --doc $(test_flags); \
	scripts/services run -- sh -exc "cargo $$run $(test_flags); \
	  TEST_BATCH_MAX=1 cargo $$run $(test_flags) --test crash"

lint: need ## check format, code, docs and scripts; warnings are errors
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo clippy --all-targets $(test_flags) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked --document-private-items
	@if command -v shellcheck >/dev/null; then set -x; shellcheck scripts/services .ci/run; fi

bench: need ## measure the speed against private services; the table is bench.md beside the build
	cargo build --release --locked --bins
	scripts/services run -- $${CARGO_TARGET_DIR:-target}/release/callonce bench --runs 5 \
	  --table $${CARGO_TARGET_DIR:-target}/bench.md

bench-short: need ## the same in short; fails where batches are not 3 times as fast as single calls
	cargo build --release --locked --bins
	scripts/services run -- $${CARGO_TARGET_DIR:-target}/release/callonce bench --short \
	  --at-least-per-call 3

bench-micro: need ## time one message's steps: key, decoding, schema, reply, event stream
	cargo bench --locked --bench micro

services: ## keep private services running
	@scripts/services up

services-down: ## stop and remove them
	@scripts/services down

need:
	@missing=; \
	command -v $${CC:-cc} >/dev/null || \
	  missing="a C compiler (Debian: apt-get install gcc libc6-dev, macOS: xcode-select --install)"; \
	version=$$(cargo --version 2>/dev/null | cut -d ' ' -f 2); \
	[ "$$(printf '%s\n' $(rust) "$$version" | sort -V | head -n 1)" = $(rust) ] || \
	  missing="$${missing:+$$missing and }Rust $(rust) or newer (https://rustup.rs)"; \
	[ -z "$$missing" ] || { echo "callonce needs $$missing." >&2; exit 1; }
