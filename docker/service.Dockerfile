# One image for the four services: the command says which. Targets `cpu` and `cuda`, and `all-in-one`, which is `cpu` with
# the gateway in front. With other extras the first two are images for jobs.
#   docker build -f docker/service.Dockerfile --target cpu -t localhost/fovea-service:0.1.0 .
#   docker build -f docker/service.Dockerfile --target cuda -t localhost/fovea-service:0.1.0-cuda .
#   docker build -f docker/service.Dockerfile --target all-in-one -t fovea .
#   docker build -f docker/service.Dockerfile --target cpu --build-arg EXTRAS=evaluate -t localhost/fovea-jobs:0.1.0 .
ARG PYTHON_IMAGE=docker.io/library/python:3.11.15-slim-bookworm
ARG EXTRAS=gateway,predict,generate,cluster,score,telemetry

FROM ${PYTHON_IMAGE} AS builder
# Everything that pip installs, what builds a wheel included, is of the version that the constraints name.
ENV PIP_CONSTRAINT=/build/constraints.txt \
    PIP_BUILD_CONSTRAINT=/build/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY constraints.txt pyproject.toml ./
# The environment holds no pip of its own, and a package without code brings the dependencies without the code.
RUN python -m venv --without-pip /opt/fovea && touch README.md


# What all services need; it changes with the lock alone. Of torch goes what others are compiled and tested with.
# (`-x`: a file that only newer Pythons read.)
FROM builder AS cpu-dependencies
ARG EXTRAS
# On Linux PyPI's torch is the CUDA build, so torch comes from here alone: from a mirror, or from PyPI if this is empty.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3013
RUN if [ -n "$TORCH_INDEX" ]; then pip --python /opt/fovea/bin/python install --only-binary=:all: --no-deps \
        --index-url "$TORCH_INDEX" torch torchvision; fi \
    && pip --python /opt/fovea/bin/python install --only-binary=:all: ".[$EXTRAS]" \
    && pip --python /opt/fovea/bin/python uninstall --yes fovea-serving \
    && rm -rf /opt/fovea/lib/python3.*/site-packages/torch/include /opt/fovea/lib/python3.*/site-packages/torch/test \
    && find /opt/fovea/lib/python3.*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
    && /opt/fovea/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x py312_ /opt/fovea/lib


# Fovea itself with its starters, laid out as it will lie beside the dependencies.
FROM builder AS code
COPY README.md LICENSE ./
COPY gateway gateway
COPY services services
RUN pip --python /opt/fovea/bin/python install --no-deps --root /code . \
    && python -m compileall -q --invalidation-mode unchecked-hash /code/opt/fovea/lib


FROM ${PYTHON_IMAGE} AS runtime
# WordNet makes the better hard negatives. Nothing is installed any more after this, so the installer goes; and the
# standard library is compiled, since nobody may write to it later.
RUN apt-get update \
    && apt-get install -y --no-install-recommends wordnet-base=1:3.0-* wordnet-sense-index=1:3.0-* \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && pip uninstall --yes --root-user-action=ignore pip setuptools wheel \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x 'lib2to3|site-packages' /usr/local/lib/python3.11 \
    && groupadd --gid 10001 fovea \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install -d -o 10001 -g 10001 /var/cache/fovea /var/lib/fovea \
        /var/lib/fovea/store /var/lib/fovea/collections /var/lib/fovea/runs /models
COPY docker/probe.py /opt/fovea/probe.py
# The root file system may be read-only. What is written goes to these folders, or to /tmp.
ENV PATH=/opt/fovea/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    FOVEA_HOST=0.0.0.0 \
    FOVEA_STORE_URL=file:///var/lib/fovea/store \
    FOVEA_CHECKPOINT_CACHE_DIR=/var/cache/fovea \
    FOVEA_EMBED_COLLECTIONS_DIR=/var/lib/fovea/collections
WORKDIR /var/lib/fovea/runs
USER 10001:10001
EXPOSE 8101 8102 8103 8104
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["python", "/opt/fovea/probe.py"]
ENTRYPOINT ["fovea"]
CMD ["--help"]
LABEL org.opencontainers.image.title="Fovea service" \
      org.opencontainers.image.licenses="MIT"


FROM runtime AS cpu
COPY --from=cpu-dependencies /opt/fovea /opt/fovea
COPY --from=code /code /


FROM cpu AS all-in-one
# Only the gateway can be reached from outside.
ENV FOVEA_HOST=127.0.0.1 \
    FOVEA_GATEWAY_HOST=0.0.0.0
VOLUME ["/var/lib/fovea", "/var/cache/fovea"]
EXPOSE 8080
CMD ["up"]
LABEL org.opencontainers.image.title="Fovea"


FROM builder AS cuda-dependencies
ARG EXTRAS
# FAISS for GPUs takes the place of that for processors, if there is one: both have one import name. It brings CUDA 12
# beside torch's.
# hadolint ignore=DL3013
RUN pip --python /opt/fovea/bin/python install --only-binary=:all: ".[$EXTRAS]" \
    && pip --python /opt/fovea/bin/python uninstall --yes fovea-serving \
    && if pip --python /opt/fovea/bin/python show --quiet faiss-cpu; then \
        pip --python /opt/fovea/bin/python uninstall --yes faiss-cpu \
        && pip --python /opt/fovea/bin/python install --only-binary=:all: faiss-gpu; fi \
    && rm -rf /opt/fovea/lib/python3.*/site-packages/torch/include /opt/fovea/lib/python3.*/site-packages/torch/test \
    && find /opt/fovea/lib/python3.*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
    && /opt/fovea/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x py312_ /opt/fovea/lib


FROM runtime AS cuda
# The driver comes from the host; some hosts mount it here without telling the linker.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64
COPY --from=cuda-dependencies /opt/fovea /opt/fovea
COPY --from=code /code /
