# `make up` starts Fovea, `make test` proves it; both set up what they need first.
PYTHON ?= python3
VENV ?= .venv
# For a CPU-only torch on Linux: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup up test lint bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

up: $(INSTALLED)
	$(BIN)/fovea up

test: lint
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy services gateway tests benchmarks

bench: $(INSTALLED)
	for benchmark in batcher gateway embed index states conditions scenes search ingest bulk calibration generate predict_engines predict score negatives tuning; do $(BIN)/python -m benchmarks.$$benchmark || exit 1; done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
