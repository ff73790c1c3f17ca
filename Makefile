# make demo   train, evaluate, sample and report on the 8x8 digits in a few minutes
# make test   lint, types and tests, as CI runs them
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: setup demo test check slow bench clean
.DEFAULT_GOAL := setup

setup: $(READY)

# Constraints pin every package; torch==2.13.0 among them keeps gigabytes of CUDA away.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# Threads that wait by spinning for long starve each other where the cores are shared.
demo: setup
	GOMP_SPINCOUNT=20000 $(BIN)/idode demo --out demo --force

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread for each of two test processes: twice as fast as one process with two threads.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

bench: setup
	$(BIN)/python benchmarks/networks.py --json docs/results/networks.json
	$(BIN)/python benchmarks/solvers.py --out docs/results
	$(BIN)/python benchmarks/variance.py --out docs/results
	$(BIN)/python benchmarks/memory.py

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
