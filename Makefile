# make train   set up if need be, then train the quickstart recipe end to end
# make test    set up if need be, then run all tests     (make test ARGS="-m 'not slow' tests/policies")
# make check   set up if need be, then lint, formatting, types and import contracts
# make setup   make .venv (with .venv/bin/greenroom) and the sandbox's image   (EXTRA=cpu or EXTRA=gpu to choose)
# make lock    resolve the dependencies of pyproject.toml anew into requirements/*.txt
# make clean   remove what set-up and the tools made; runs/ stays

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

RECIPE ?= recipes/quickstart.toml
ARGS ?=
export EXTRA FORCE
# What set-up did not compile ahead is compiled once, not in each of a run's processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup train test check format lock clean

help:
	@sed -n 's/^# //p' Makefile

setup:
	@scripts/setup.sh

train: setup
	@.venv/bin/greenroom train $(RECIPE) $(ARGS)

test: setup
	@.venv/bin/python -m pytest -ra --durations=10 $(ARGS)

check: setup
	@echo "== ruff check" && .venv/bin/ruff check .
	@echo "== ruff format" && .venv/bin/ruff format --check .
	@echo "== import contracts" && .venv/bin/lint-imports
	@echo "== pyright" && .venv/bin/pyright

format: setup
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

lock:
	@scripts/lock.sh

clean:
	rm -rf .venv .sandbox .setup .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find actors policies env orchestration tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} +
