# make demo   train, evaluate, sample and report on the 8x8 digits in a few minutes
# make test   lint, types and tests, as CI runs them
# make docs   the documentation site, in docs/_build/html
# make dist   wheel and sdist, each tried in a fresh environment
# make fuzz   a million damaged files against every reader
# make portable, make versions   the same tests on other processors, and with other versions
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: setup demo test check docs dist portable versions slow fuzz bench adapters clean
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

# Strict: a broken link or reference is an error, and so is anything loaded from a network.
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -j 2 -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/follow_links.py docs/_build/html
	@echo docs/_build/html/index.html

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

# One thread for each of two test processes: twice as fast as one process with two threads.
ONE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
TWO = OMP_NUM_THREADS=2 $(BIN)/python -m pytest -n 1
# The same processor as an older one. One without AVX2 would crash on being told to use it.
PLAIN = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
AVX2 = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
HAS_AVX2 = if grep -qw avx2 /proc/cpuinfo; then

test: check
	$(ONE) -m "not slow"
	$(PLAIN) $(ONE) -m "numerical and not once and not slow"
	$(HAS_AVX2) $(AVX2) $(TWO) -m "numerical and not once and not slow"; fi

# All of it as on three processors, and with two threads.
portable: check
	$(ONE) -m "not slow"
	$(PLAIN) $(ONE) -m "not slow"
	$(HAS_AVX2) $(AVX2) $(ONE) -m "not slow"; fi
	$(TWO) -m "not slow"

# Two scratch environments, with the newest and the oldest versions that pyproject.toml allows.
# torch is as in constraints.txt: any other is gigabytes.
TORCH = $(shell grep -i '^torch==' constraints.txt)
versions: setup
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && echo "$(TORCH)" > "$$scratch/newest.txt" \
	&& (cat tests/oldest.txt && echo "$(TORCH)") > "$$scratch/oldest.txt" \
	&& for age in newest oldest; do \
	  $(PYTHON) -m venv "$$scratch/$$age" \
	  && "$$scratch/$$age/bin/python" -m pip install -q --disable-pip-version-check \
	    -c "$$scratch/$$age.txt" -e ".[dev]" \
	  && "$$scratch/$$age/bin/python" -m pip list --disable-pip-version-check \
	  && OMP_NUM_THREADS=1 "$$scratch/$$age/bin/python" -m pytest -n 2 -m "not slow" || exit 1; \
	done

slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

# A million damaged files: 39 readers, half an hour of the processor. Slow readers have fewer cases.
# Failing files are kept in FUZZ_KEEP.
FUZZ_CASES ?= 29000
FUZZ_KEEP ?= /tmp
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzzing.py --cases $(FUZZ_CASES) --keep $(FUZZ_KEEP)

bench: setup
	$(BIN)/python benchmarks/networks.py --json docs/results/networks.json
	$(BIN)/python benchmarks/solvers.py --out docs/results
	$(BIN)/python benchmarks/variance.py --out docs/results
	$(BIN)/python benchmarks/memory.py

# Other libraries in an environment of their own: their code alone, so that none brings another
# torch, and beside it the little that they import.
ADAPTERS ?= .venv-adapters
adapters: $(ADAPTERS)/.ready
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -W ignore benchmarks/adapters.py

$(ADAPTERS)/.ready: constraints.txt
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	$(ADAPTERS)/bin/python -m pip install -q --disable-pip-version-check --no-deps \
	  diffusers==0.42.1 denoising-diffusion-pytorch==2.3.4 k-diffusion==0.1.1.post1 \
	  torchcfm==1.0.7 flow_matching==1.0.10 zuko==1.6.0 \
	  accelerate==1.15.0 ema-pytorch==0.8.3 torchsde==0.2.6 dctorch==0.1.2
	$(ADAPTERS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	  torchdiffeq "huggingface_hub<3" importlib_metadata regex requests einops scipy jsonmerge pot psutil \
	  pyyaml trampoline
	touch $@

# The release: both files are built from what git knows, installed outside of the tree, and used.
DIST_DEMO = idode demo --out demo --steps 20 --finetune-steps 4 --limit 4 --quiet
dist: setup
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && rm -rf dist \
	&& git archive --prefix=tree/ HEAD | tar -x -C "$$scratch" \
	&& $(PYTHON) -m venv "$$scratch/build" \
	&& "$$scratch/build/bin/python" -m pip install -q --disable-pip-version-check build \
	&& "$$scratch/build/bin/python" -m build -o dist "$$scratch/tree" \
	&& for file in "$$PWD"/dist/*; do \
	  rm -rf "$$scratch/fresh" && mkdir "$$scratch/fresh" && $(PYTHON) -m venv "$$scratch/fresh/venv" \
	  && "$$scratch/fresh/venv/bin/python" -m pip install -q --disable-pip-version-check \
	    -c constraints.txt "$$file" \
	  && (cd "$$scratch/fresh" && OMP_NUM_THREADS=1 venv/bin/$(DIST_DEMO)) || exit 1; \
	done

clean:
	rm -rf docs/_build docs/generated $(VENV) $(ADAPTERS) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
