# `make demo` shows what phiseg does, `make test` checks it, `make bench` measures it, `make faults` breaks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2
SOURCES := pyproject.toml constraints.txt
COMPUTING := $(addprefix tests/,benchmarks comparison compute contracts data/test_augment.py data/test_loader.py evaluation experiment golden \
	inference metrics models plotting training viewer)

# Pins what pip installs, and what it builds phiseg with: the first name is for pip before 25.3, the second from then on.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.PHONY: demo test test-slow test-cpus coverage lint docs bench faults clean

demo: $(VENV)/.installed
	$(BIN)/phiseg demo --out runs/demo

test: lint $(VENV)/.installed-monailabel
	$(PYTEST)

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow

# The tests that compute, or those of TESTS="tests/metrics ...", with several instruction sets and numbers of threads: one
# line for each combination, and below it the tests that failed.
test-cpus: $(VENV)/.installed-dev
	@status=0; \
	for cpu in "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41" "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2" ""; do \
		for threads in 1 4; do \
			output=$$(env $$cpu OMP_NUM_THREADS=$$threads OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 -q $(or $(TESTS),$(COMPUTING)) 2>&1) \
				|| status=1; \
			echo "$${cpu:-all instructions of this CPU} OMP_NUM_THREADS=$$threads: $$(echo "$$output" | tail -n 1)"; \
			echo "$$output" | grep -E "^(FAILED|ERROR)" || true; \
		done; \
	done; \
	exit $$status

# All tests but the fault campaign's, whose forks hang when they are traced, or those of TESTS="tests/metrics ...", with the
# lines and branches that they reach; CONTRIBUTING.md lists what they cannot reach.
coverage: $(VENV)/.installed-dev
	$(PYTEST) -m "slow or not slow" --cov --cov-report=term --cov-report=html --ignore=tests/faults $(TESTS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(BENCHMARKS)

# Kills, full disks, damaged files and more, for about 25 minutes; writes docs/reliability.md.
faults: $(VENV)/.installed-dev
	$(BIN)/python -m faults

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	@echo "open site/index.html, or with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "phiseg needs Python 3.11 or newer; set one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	@echo "installing phiseg and its pinned dependencies into $(VENV) (a few minutes, once)"
	$(PIP) install -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python $(SOURCES)
	@echo "installing phiseg and its development tools into $(VENV) (a few minutes, once)"
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

# The client of MONAI Label for the tests, in a folder of its own: its pins conflict with ours. Without it they are skipped.
$(VENV)/.installed-monailabel: tests/label_server/requirements.txt $(VENV)/.installed-dev
	@if $(PIP) install --no-deps --ignore-installed --prefix $(VENV)/monailabel -r $<; then touch $@; \
		else echo "the client of MONAI Label could not be installed: its tests will be skipped"; fi

$(VENV)/.installed-docs: $(VENV)/bin/python $(SOURCES)
	@echo "installing phiseg and what builds its documentation into $(VENV) (once)"
	$(PIP) install -e '.[docs]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage* htmlcov
