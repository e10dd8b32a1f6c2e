# make demo       see it work: a handwritten digit, then VGG16 beside onnxruntime's scores
# make test       every test that this machine can run, with a few cases of each: some minutes
# make test-all   the same with all cases
# make help       the other targets
#
# The first call makes the environment .venv and installs into it. To use an environment of your own and install nothing,
# leave VENV empty:   make test VENV= PYTHON=python3

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
unexport PYTHONDONTWRITEBYTECODE # each command that a test starts would compile every module anew

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
SETUP := @$(PYTHON) tools/bootstrap.py --in-place
export PYTHONPATH := $(CURDIR):$(CURDIR)/serving:$(CURDIR)/lab$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
SETUP := @$(PYTHON) tools/bootstrap.py $(VENV)
endif

# Tests side by side, then those that nothing may run beside; of these there may be none (exit code 5).
define pytest
$(PY) -m pytest -n auto --dist worksteal $(1) $(PYTEST_ARGS)
$(PY) -m pytest -m alone $(1) $(PYTEST_ARGS) || [ $$? -eq 5 ]
endef

.PHONY: help install install-test cuda demo test test-others test-all test-gpu nightly sanitize conformance fuzz bench lint ptxas loc clean
.DEFAULT_GOAL := help

help:              ## this list
	@sed -n '/^[a-z-]*:.*## /{s/:.*## /              /;s/^\(.\{14\}\) */\1/;p;}' Makefile

install:           ## the environment, with PyCUDA if there is an NVIDIA driver
	$(SETUP)

install-test:      ## the same with everything that tests, lint, testbench and bench need
	$(SETUP) test

cuda: install      ## PyCUDA and cuda-bindings again, after a change of driver or toolkit
	$(PY) -m vgg16gpu.cuda_setup

demo: install      ## classify a real digit, then run VGG16 on ten pictures beside onnxruntime's scores
	@$(PY) testbench/demo.py

test: install-test ## every test, a few cases of each; those of the GPU are skipped where there is none
	$(call pytest,--cases representative)

test-others: install-test ## the cases that `make test` leaves out
	$(call pytest,--cases others)

test-all: install-test ## every case of every test
	$(call pytest,)

test-gpu: install-test ## every case of the tests of the GPU; without one they fail
	$(PY) -m pytest -n auto --dist worksteal -m gpu --require-gpu $(PYTEST_ARGS)
	$(PY) -m pytest -m "gpu and alone and not slow" --require-gpu $(PYTEST_ARGS)

nightly: test-all conformance fuzz ## every case, with sweeps and mutants; faults, ONNX's suite, hostile files and messages
	$(PY) -m tests.net.plans
	$(PY) -m tests.net.transcripts
	$(PY) -m tests.net.replant
	$(PY) -m tests.fuzz.http --messages 10000

sanitize: install-test ## the kernels under sanitizers: on the CPU, and on the GPU if there is one
	$(PY) -m vgg16gpu.devices.sanitize address -m "sanitize and not gpu" tests
	$(PY) -m vgg16gpu.devices.sanitize thread -m "sanitize and not gpu" tests
	$(PY) -m tests.sanitize.gpu

conformance: install-test ## the conformance suite of ONNX: a table op by op; writes conformance.json
	$(PY) -m tests.conformance.suite --output conformance.json

fuzz: install-test  ## 100,000 mutated models through the loader and the kernels, 20,000 inputs; writes fuzz*.json
	$(PY) -m tests.fuzz.models --cases 100000 --output fuzz.json
	$(PY) -m tests.fuzz.inputs --cases 20000 --output fuzz-inputs.json

bench: install-test ## measure this machine; writes bench.json
	$(PY) -m vgg16gpu bench --output bench.json

lint: install-test ## style, types, and which module may import which
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

ptxas: install     ## compile every kernel for every architecture; fail on spills and on what testbench/compiled.txt has otherwise
	$(PY) tools/ptxas.py

loc:               ## lines of code, by file
	@git ls-files '*.py' '*.cu' '*.cuh' '*.h' | xargs wc -l | sort -n

clean:             ## remove what builds and tools leave; keeps .venv and models
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
