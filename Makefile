# The verbs of this project: the same for people, for CI and in CONTRIBUTING.
PYTHON ?= python3
# make setup TORCH=cpu installs the CPU build of torch. Otherwise it is the one of the package index, which on Linux
# brings several gigabytes of CUDA libraries.
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup resolve format lint types test test-extended test-slow test-all stress demo bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend cpu --constraint constraints.txt torch
else
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
endif
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $(STAMP)

resolve: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/python .ci/resolve.py $(BIN)/uv

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy --num-workers 2

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-extended: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'extended and not slow and not gpu'

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-all: test test-extended test-slow

stress: setup
	$(BIN)/python -m stress

demo: setup
	$(BIN)/beamtree demo

bench: setup
	$(BIN)/python benchmarks/speed/bench_synthetic.py
	$(BIN)/python benchmarks/speed/bench_evaluate.py
	$(BIN)/python benchmarks/speed/bench_prepare.py
	$(BIN)/python benchmarks/speed/bench_step.py
	$(BIN)/python benchmarks/speed/bench_search.py
	$(BIN)/python benchmarks/speed/bench_scale.py --to 20
	$(BIN)/python benchmarks/speed/bench_build.py
	$(BIN)/python benchmarks/speed/bench_load.py

docs: setup
	$(BIN)/mkdocs build --strict --quiet
	@echo 'open site/index.html'

clean:
	rm -rf $(VENV) site build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
