# `make demo` and `make test` install what they need into .venv first; both are quick when it is there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test check fix bench

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: install
	$(BIN)/python -X dev -m pytest -q
