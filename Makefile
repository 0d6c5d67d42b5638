# Everything runs in .venv, made on first use from hash-locked requirements.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check lint bench clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(READY): requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

demo: $(READY) ## Run supplier onboarding on an embedded Postgres and broker, through real kills
	$(BIN)/python -m examples.supplier_onboarding.demo

test: $(READY) ## Run all tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(READY) ## Format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint ## Everything that must hold before a commit, without the slow tests
	$(BIN)/python -m pytest -q tests/codec tests/domain tests/migrations

clean: ## Remove the virtual environment
	rm -rf $(VENV)
