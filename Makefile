# Everything a user or developer types. The virtual environment is made on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
READY  := $(VENV)/.installed
WRITER := $(VENV)/.writer
# One more than there are cores: tests of federations mostly wait.
TESTERS ?= $(shell expr $$($(PYTHON) -c 'import os; print(os.cpu_count() or 1)') + 1)

.PHONY: demo test test-slow test-all fuzz audit lint types docs site release bench tools install clean

install: $(READY)

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Where torch for the CPU is, if pip's own index has it with gigabytes of CUDA: make demo TORCH_INDEX=... (docs/install.md).
TORCH_INDEX ?=

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedsoft needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV) (first time only, a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(PIP) -e .
	@touch $@

$(READY): $(CORE)
	@echo "Installing extras and tools into $(VENV) (first time only, a few minutes) ..."
	@$(PIP) -e '.[dev,flower,mlflow,onnx,ray,tensorboard]'
	@touch $@

demo: $(CORE)  ## FedSoft on the paper's synthetic 10:90 federation, and fedlevels beside it
	@$(BIN)/fedsoft run synthetic-10-90 --again
	@echo "The same federation by fedlevels (docs/prior.md), with no more gradients than FedSoft takes:"
	@$(BIN)/fedsoft compare synthetic-10-90 -a fedsoft,fedlevels --seeds 0 --budget work --brief

$(WRITER): $(READY)
	@echo "Installing what builds the site into $(VENV) (first time only, a minute) ..."
	@$(PIP) -e '.[docs]'
	@touch $@

PYTEST := $(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile --no-loadscope-reorder --durations 15
FAST   := (not slow and not engine) or smoke

test: $(READY)  ## the fast tests, and one of each kind that starts other processes: five minutes
	@$(PYTEST) -m "$(FAST)"

test-slow: $(READY)  ## all other tests
	@$(PYTEST) -m "not ($(FAST))"

test-all: test test-slow  ## everything

fuzz: $(READY)  ## bad input of every kind, other cases every time: make fuzz CASES=20000
	@FEDSOFT_FUZZ=$(or $(CASES),20000) $(BIN)/python -m pytest -q -n $(TESTERS) tests/fuzz

audit: $(READY)  ## known vulnerabilities of what is installed; says so where the database is out of reach
	@$(BIN)/python .ci/audit.py

tools:  ## Chromium for the tests of web pages and nginx for those of federations; they are skipped without them
	@command -v chromium >/dev/null && command -v nginx >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium nginx-light >/dev/null; } || \
	  echo "no chromium or no nginx here, and no right to install them: some tests are skipped"

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) $(WRITER)
	@$(BIN)/pyright

docs: $(READY)  ## the page of all algorithms, from their docstrings
	@$(BIN)/python -m fedsoft.reports.catalogue docs/algorithms.md

site: $(WRITER)  ## the documentation as web pages, every line of it executed: build/site/index.html
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m website

bench: $(READY) $(if $(PEERS),build/peers/fedjax)  ## the speed that is to be reached, written into docs/speed.md; make bench PEERS=1 also against fedjax
	@$(BIN)/python -m benchmarks $(BENCH)

build/peers/fedjax: $(READY)
	@echo "Installing fedjax into build/peers (first time only, a minute) ..."
	@mkdir -p build/peers
	@$(PIP) --target build/peers fedjax
	@touch $@

release: $(READY)  ## wheel and sdist, checked, and tried in an empty environment of every Python that is found
	@$(BIN)/python .ci/release.py $(RELEASE)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
