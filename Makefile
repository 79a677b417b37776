# `make demo` and `make test` install what they need into .venv first; both are quick when it is there.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test check fix bench

install: .venv/installed

.venv/installed: pyproject.toml
	@.ci/system-packages
	@begin=$$SECONDS; set -e; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V)" >&2; exit 3; }; \
	$(PYTHON) -m venv .venv; \
	$(BIN)/pip install --quiet --upgrade pip; \
	$(BIN)/pip install --quiet --editable '.[dev]'; \
	touch $@; \
	echo "Installed into .venv in $$((SECONDS - begin)) s"

demo: install
	$(BIN)/waltz demo run

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# -X dev: value classes are frozen, and Trio and asyncio complain about what they otherwise forgive.
test: install
	@.ci/system-packages tests
	@begin=$$SECONDS; set -e; \
	$(MAKE) --no-print-directory check; \
	$(BIN)/python -X dev -m pytest -q --durations=10; \
	echo "Tests took $$((SECONDS - begin)) s"

bench: install
	$(BIN)/python -m benchmarks.append $(if $(JSON),--json $(JSON))
