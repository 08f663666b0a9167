# `make up` starts Fovea, `make test` proves it; both set up what they need first.
PYTHON ?= python3
VENV ?= .venv
# For a CPU-only torch on Linux: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := $(VENV)/bin
# Of `make check`: embed, generate, predict, score, or a folder of tests; all where it is not given.
SERVICE ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
INSTALLED := $(VENV)/.installed

.PHONY: setup up check test lint bench docs docs-serve images clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing Fovea with its development tools into $(VENV); the first time this takes several minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

up: $(INSTALLED)
	$(BIN)/fovea up

# The fast tests; with SERVICE, of that service, of the core and of the layers.
check: lint
	$(BIN)/python -m pytest --quiet --numprocesses auto --maxprocesses 8 \
		$(if $(SERVICE),tests/test_architecture.py tests/test_prose.py tests/core tests/nn tests/$(SERVICE))

test: lint
	$(BIN)/python -m pytest -m "" --numprocesses auto --maxprocesses 8 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy services gateway tests benchmarks

bench: $(INSTALLED)
	for benchmark in batcher gateway embed index states conditions scenes search ingest bulk calibration generate predict_engines predict score negatives tuning bombs; do $(BIN)/python -m benchmarks.$$benchmark || exit 1; done

# The theme announces its successor at every build, which docs/decisions.md knows.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

docs-serve: $(INSTALLED)
	$(BIN)/mkdocs serve --strict

# The service's other target, cuda, is built as docker/service.Dockerfile says.
images:
	docker build -f docker/gateway.Dockerfile -t localhost/fovea-gateway:$(VERSION) .
	docker build -f docker/service.Dockerfile --target cpu -t localhost/fovea-service:$(VERSION) .

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache *.egg-info
