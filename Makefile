# Everything runs from a fresh clone: the first target that needs .venv makes it.

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
STAGE := $(PYTHON) .ci/stage.py
PYTEST := $(VENV_PYTHON) -m pytest -q
# Processes for pytest, for example JOBS=2; empty means one for each core.
JOBS ?=
XDIST := $(if $(JOBS),-n $(JOBS),)
SRC ?=
NEWEST := jax distrax dm-haiku rlax optax numpy safetensors hypothesis pytest rich pooch

PAGE := reports/out/index.html
PAGE_INPUTS = requirements.lock pyproject.toml $(wildcard .venv/lib/python*/site-packages/disco_rl-*.dist-info/RECORD) \
  $(shell find fixtures parity port reference reports \( -name out -o -name __pycache__ -o -name screenshot.png \) -prune -o -type f -print 2>/dev/null)

# Threads that spin while they wait keep others from working: see port/fast/omp.py.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help bootstrap browser test lint report original newest clean

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14
	@echo "PYTHON=python3.12 chooses the interpreter, JOBS=2 runs pytest in two processes (JOBS=0: in one)."

bootstrap: ## .venv with the locked environment and this project in it
	@$(PYTHON) .ci/bootstrap.py

lint: bootstrap ## ruff and mypy
	@$(STAGE) "ruff check" -- $(VENV_PYTHON) -m ruff check --quiet .
	@$(STAGE) "ruff format" -- $(VENV_PYTHON) -m ruff format --quiet --diff .
	@$(STAGE) "mypy" -- $(VENV_PYTHON) -m mypy

test: lint ## lint, then the tests of the machinery, then parity with the original
	@$(STAGE) --stream "pytest tests/" -- $(PYTEST) $(XDIST) tests/
	@$(STAGE) --stream "pytest parity/" -- $(PYTEST) $(XDIST) parity/

report: bootstrap ## the page reports/out/index.html
	@if $(MAKE) --no-print-directory --question $(PAGE); \
	then echo "$(PAGE) is up to date"; \
	else $(MAKE) --no-print-directory $(PAGE); fi

$(PAGE): $(PAGE_INPUTS)
	@$(STAGE) --stream "report" -- $(VENV_PYTHON) -m reports || { touch -c -t 197001020000 $@; exit 1; } # made again next time

original: bootstrap ## DeepMind's disco_rl into .venv; SRC=PATH takes it from a checkout
	@$(STAGE) --stream "original" -- $(VENV_PYTHON) -m reference.install $(if $(SRC),--src "$(SRC)")

browser: bootstrap ## Chromium by apt-get, where there is none: the tests of the page open it there
	@$(STAGE) --stream "browser" -- $(VENV_PYTHON) -m reports.browser

newest: ## the stand-in on the newest JAX stack, on which the original does not run; in .venv-newest
	@$(PYTHON) -m venv .venv-newest
	@$(STAGE) "newest JAX" -- .venv-newest/bin/pip install --upgrade $(NEWEST)
	@$(STAGE) --stream "stand-in" -- .venv-newest/bin/python -m parity check --impl standin

clean: ## remove .venv, caches and what the reports wrote
	@rm -rf .venv .venv-newest .mypy_cache .pytest_cache .ruff_cache .hypothesis reports/out build *.egg-info
	@find fixtures parity port reference reports tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
