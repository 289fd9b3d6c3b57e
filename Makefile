# What people type. Each target is one script or one command, so that it can be run alone too.
BUILD := build/release
PRESET ?= release

.DEFAULT_GOAL := help
.PHONY: help deps build demo demo-torch demo-negative test sim mutations fuzz soak bench check guards clean

help: ## Lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Installs the Debian packages that are missing, or prints the line that does
	@scripts/deps.sh

build: deps ## Builds the release preset: the program is build/release/src/tierkeep
	@cmake --preset release >/dev/null && cmake --build --preset release

demo: build ## A JAX training run loses a machine and goes on, bit for bit
	@scripts/demo.sh jax

demo-torch: build ## The same with PyTorch, where the data crosses between peers
	@scripts/demo.sh torch

demo-negative: build ## The demo with one restored bit flipped: succeeds if that is noticed
	@scripts/demo.sh negative

test: ## Everything that CI runs: build, checks, unit tests, a sanitizer, end-to-end tests
	@scripts/test.sh

sim: deps ## Runs RUNS schedules of simulated clusters (default 1000), from SEED on (default 1)
	@cmake --preset $(PRESET) >/dev/null && cmake --build --preset $(PRESET) --target tierkeep-sim
	@build/$(PRESET)/src/tierkeep-sim --runs $(or $(RUNS),1000) --seed $(or $(SEED),1)

mutations: build ## Takes the guards away one at a time: the simulator must notice each
	@cmake --build --preset release --target tierkeep-sim-mutable
	@scripts/check_mutations.py $(BUILD)/src/tierkeep $(BUILD)/src/tierkeep-sim-mutable
	@$(BUILD)/src/tierkeep-sim-mutable

fuzz: deps ## Fuzzes every decoder for MINUTES (default 10); stops at what breaks one
	@MINUTES=$(or $(MINUTES),10) scripts/fuzz.sh

soak: build ## A job on real agents, one fault after the other, for MINUTES (default 60); SEED repeats
	@python3 tests/soak/soak.py --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

bench: build ## Measures the speed aims against limits found in the same run
	@scripts/bench.sh

check: build ## Format, folder and size rules, clang-tidy on a part that changes daily
	@scripts/check_format.sh
	@scripts/check_folders.py
	@scripts/check_weaknesses.py
	@scripts/tidy.sh --sample 6

guards: build ## Takes ten guards out of a copy of the source, one by one: a test must notice each
	@scripts/guards.py --count 10

clean: ## Removes build/
	@rm -rf build
