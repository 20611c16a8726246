# Two commands: `make demo` shows what phiseg does, `make test` checks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint clean

demo: $(VENV)/.installed
	$(BIN)/phiseg demo --out runs/demo

test: lint
	$(BIN)/pytest

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "phiseg needs Python 3.11 or newer; set one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	@echo "installing phiseg and its pinned dependencies into $(VENV) (a few minutes, once)"
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python $(SOURCES)
	@echo "installing phiseg and its development tools into $(VENV) (a few minutes, once)"
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
