# Everything a contributor runs; `make help` lists it. Each target installs what it needs first.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# The oldest torch that is supported, which is also a CUDA 12 build: the suite runs the null GPU on it as well.
OLDEST := .venv-oldest
OLDEST_TORCH := torch==2.6.0

# A CPU build, where the null GPU cannot run and the trace engine answers.
CPU := .venv-cpu
CPU_TORCH := torch==2.13.0
CPU_TOOLS := hypothesis jsonschema mypy numpy psutil pytest pytest-timeout pytest-xdist pyyaml types-psutil types-PyYAML
# What runs torch itself or chooses by its build: the trace engine, `accumulate`, the target and the examples. Reading,
# searching, reporting and linting never import torch: `make test` has run that code on the same input.
CPU_TESTS := tests/api tests/cli/test_check.py tests/cli/test_gpus_fit.py tests/cli/test_trace_engine.py \
	tests/engines/test_choice.py tests/engines/trace tests/target tests/test_examples.py tests/trial/test_warm_start.py

# Processes that share the suite: one more than cores, since a test that starts processes waits for them now and then.
# What the suite measures, it measures side by side, so that sharing does not matter.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Each module is compiled when it is first imported: most of what is installed never is.
PIP := -m pip install --quiet --no-compile --disable-pip-version-check

# Without bytecode each of the hundreds of processes that import torch would compile it again.
unexport PYTHONDONTWRITEBYTECODE

# Commands that the documentation names run as a reader would run them, whatever the terminal of the moment is.
export TERM ?= dumb

.DEFAULT_GOAL := help

.PHONY: help
help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(INSTALLED) $(OLDEST)/.installed $(CPU)/.installed  ## Install all three environments; with --jobs at once

.PHONY: run
run: $(INSTALLED)  ## Probe the GPT-2 example on a card this machine does not need to have
	$(BIN)/oomdoctor probe gpt2 --target-batch 256 --gpu rtx-4090

.PHONY: test
test: $(INSTALLED) $(OLDEST)/.installed  ## Run the whole suite
	OOMDOCTOR_TEST_PYTHONS=$(CURDIR)/$(OLDEST)/bin/python $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=200 --durations-min=5

.PHONY: quick
quick: $(INSTALLED)  ## Run the tests that need neither the null GPU nor much time
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not null_gpu and not slow"

.PHONY: test-cpu
test-cpu: $(CPU)/.installed  ## Run what does not need CUDA on a CPU build of torch
	$(CPU)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not null_gpu" $(CPU_TESTS)

.PHONY: cov
cov: $(INSTALLED) $(OLDEST)/.installed  ## Run the suite and report coverage, child processes included
	OOMDOCTOR_TEST_PYTHONS=$(CURDIR)/$(OLDEST)/bin/python $(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

.PHONY: lint
lint: $(INSTALLED)  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: $(INSTALLED)  ## Put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: typecheck
typecheck: $(INSTALLED)  ## Check types
	$(BIN)/mypy

.PHONY: bench
bench: $(INSTALLED)  ## Measure what the documentation claims, and write it to tests/bench/results
	$(BIN)/python tests/bench/trials.py
	$(BIN)/python tests/bench/speed.py
	$(BIN)/python tests/bench/diagnose_speed.py
	$(BIN)/python tests/bench/diagnose_fuzz.py
	$(BIN)/python tests/bench/run_overhead.py
	$(BIN)/python tests/bench/lint_fuzz.py
	$(BIN)/python tests/bench/check_speed.py
	$(BIN)/python tests/bench/allocator_speed.py
	$(BIN)/python tests/bench/trace_speed.py
	$(BIN)/python tests/bench/frontier_speed.py
	$(BIN)/python tests/bench/verify_speed.py
	$(BIN)/python tests/bench/workspaces.py
	$(BIN)/python tests/bench/cudnn_speed.py
	$(BIN)/python tests/bench/hub.py
	$(BIN)/python tests/bench/sweep.py
	$(BIN)/python tests/bench/ranks.py

.PHONY: bench-lint
bench-lint: $(INSTALLED)  ## Measure lint on installed projects: make bench-lint PROJECTS="folder folder"
	$(BIN)/python tests/bench/lint_precision.py $(PROJECTS)
	$(BIN)/python tests/bench/lint_speed.py $(PROJECTS)

.PHONY: docs
docs: $(INSTALLED)  ## Build the documentation's site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: docs-outputs
docs-outputs: $(INSTALLED)  ## Run the commands that the documentation shows, and write their outputs into the pages
	$(BIN)/python docs/outputs.py
	$(BIN)/python docs/picture.py

.PHONY: accuracy
accuracy: $(INSTALLED)  ## Compare the engines over a zoo of models, and write it to tests/bench/results
	$(BIN)/python tests/bench/accuracy.py
	$(BIN)/python tests/bench/accuracy_page.py

.PHONY: fidelity
fidelity: $(INSTALLED)  ## Compare the null GPU with runs that others measured, and write it to tests/bench/results
	$(BIN)/python $(PIP) --no-deps --target build/fidelity 'transformers==4.51.3' 'huggingface_hub<1' 'tokenizers<0.22'
	PYTHONPATH=build/fidelity $(BIN)/python tests/bench/fidelity.py
	PYTHONPATH=build/fidelity $(BIN)/python tests/bench/fidelity_points.py
	$(BIN)/python tests/bench/fidelity_intervals.py

.PHONY: torchtitan
torchtitan: $(INSTALLED) $(OLDEST)/.installed  ## Compare ranks with what torchtitan published: make torchtitan CHECKOUT=folder (commit 9dec370)
	$(OLDEST)/bin/python $(PIP) --no-deps --target build/torchtitan 'torchao==0.7.0'
	PYTHONPATH=build/torchtitan $(OLDEST)/bin/python tests/bench/torchtitan_rows.py $(CHECKOUT)

.PHONY: nanogpt-records
nanogpt-records: $(INSTALLED)  ## Compare ranks with what modded-nanogpt's records needed: make nanogpt-records CHECKOUT=folder (commit f411b3d3)
	$(BIN)/python tests/bench/nanogpt_records.py $(CHECKOUT)

.PHONY: peers
peers: $(INSTALLED)  ## Compare oomdoctor with other tools that find a batch size, and write it to tests/bench/results
	$(BIN)/python $(PIP) --no-deps --target build/peers toma torch-max-mem batch-probe batch-finder
	PYTHONPATH=build/peers $(BIN)/python tests/bench/peers.py
	PYTHONPATH=build/peers $(BIN)/python tests/bench/peers.py --table

.PHONY: interrupts
interrupts: $(INSTALLED)  ## End probes of models, commands and ranks at random moments: nothing may stay
	OOMDOCTOR_TEST_MOMENTS=200 $(BIN)/pytest tests/cli/test_interrupts.py
	$(BIN)/python tests/bench/command_interrupts.py
	$(BIN)/python tests/bench/ranks_interrupts.py

.PHONY: gpu-check
gpu-check:  ## On a machine with a CUDA GPU: compare it with the null GPU, with the torch that is installed
	$(PYTHON) tests/bench/gpu_check.py

.PHONY: check
check: lint typecheck test test-cpu  ## All that must pass before a change lands

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --constraint constraints.txt --editable ".[dev]"
	touch $@

$(OLDEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -v -e '^torch==' -e '^triton==' -e '^nvidia-' -e '^cuda-' -e '^sympy==' -e '^setuptools==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python $(PIP) --constraint $(OLDEST)/constraints.txt $(OLDEST_TORCH) numpy --editable .
	touch $@

$(CPU)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CPU)
	grep -v -e '^torch==' -e '^triton==' -e '^nvidia-' -e '^cuda-' -e '^sympy==' -e '^setuptools==' constraints.txt > $(CPU)/constraints.txt
	$(CPU)/bin/python $(PIP) --constraint $(CPU)/constraints.txt $(CPU_TORCH) $(CPU_TOOLS) --editable .
	touch $@
