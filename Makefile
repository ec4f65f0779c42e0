# Everyday commands. Each sets up what it needs in .venv, from Python 3.10 or newer with venv, make and git.

PYTHON ?= python3
# For `dump` and `test`: make dump ARGS="-f json", make test ARGS="-k parse"
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help dump test long golden faults labs lab-cluster bench deb image lint types layers format setup clean

# Another pyproject.toml, interpreter or folder makes a new environment.
KEY := $(firstword $(shell { cat pyproject.toml; pwd; "$(PYTHON)" --version; } 2>&1 | cksum))
RUNTIME := .venv/runtime-$(KEY)
DEV := .venv/dev-$(KEY)
PIP := .venv/bin/python -m pip --disable-pip-version-check --quiet
PYTEST := .venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

dump: $(RUNTIME) ## show how this machine is wired
	@.venv/bin/topo-agent dump $(ARGS)

test: $(DEV) ## run the tests, all but the labs
	@$(PYTEST) --ignore tests/labs $(ARGS)

long: $(DEV) ## the random machines again, 20,000 of them, and 30,000 damaged files for each reader
	@TOPO_AGENT_LONG=1 $(PYTEST) tests/test_properties.py tests/test_fuzz.py tests/test_held.py $(ARGS)

golden: $(DEV) ## write the golden files of fixtures/ anew; git diff then shows what changed
	@$(PYTEST) --ignore tests/labs -m golden --update $(ARGS)

faults: $(DEV) ## put known faults into a copy of the program, one at a time: a test has to notice each
	@.venv/bin/python -m tests.faults $(ARGS)

LABS ?= tests/labs
labs: $(DEV) ## run the tests that need a kernel, a server or another program; LABS=… for some of them
	@.venv/bin/python -m pytest $(LABS) $(ARGS)

lab-cluster: $(DEV) ## a Kubernetes control plane on this machine to try things on, until Ctrl-C
	@.venv/bin/python -m tests.labs.controlplane

ifneq ($(wildcard tests/bench.py),)
bench: $(DEV)
	@.venv/bin/python -m tests.bench
	@.venv/bin/python -m tests.bench_daemon $(ARGS)
	@.venv/bin/python -m tests.bench_cluster
endif

deb: $(RUNTIME) ## the Debian package, for the system's own Python: dist/topo-agent_….deb
	@.venv/bin/python -m systemd.deb $(ARGS)

image: $(RUNTIME) ## the container image, an OCI archive: dist/topo-agent-….oci.tar; ARGS="--arch arm64" for another architecture
	@.venv/bin/python -m container.image $(ARGS)

lint: $(DEV) ## ruff, and vermin: runs on Python 3.10
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/vermin -t=3.10- --violations --no-tips agent

types: $(DEV) ## mypy
	@.venv/bin/python -m mypy --strict

layers: $(DEV) ## import-linter: who may import whom
	@.venv/bin/lint-imports --no-logo

format: $(DEV) ## let ruff mend what it can
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format

setup: $(DEV) ## only set up: the program and the development tools, in .venv

clean: ## remove everything that these commands made
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(RUNTIME): # what is printed goes to stderr: `make dump ARGS="-f json" >file` is JSON
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON): not found; topo-agent needs Python 3.10 or newer" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	 { echo "topo-agent needs Python 3.10 or newer, and $(PYTHON) is older; name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	 { echo "$(PYTHON) has no venv; Debian, Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "setting up .venv …" >&2
	@"$(PYTHON)" -m venv --clear .venv >&2
	@$(PIP) install -e . >&2
	@touch $@

$(DEV): $(RUNTIME)
	@echo "adding the development tools …" >&2
	@$(PIP) install -e '.[dev]' >&2
	@touch $@
