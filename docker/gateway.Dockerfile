# The gateway, without torch and without the services' code.
#   docker build -f docker/gateway.Dockerfile -t localhost/fovea-gateway:0.1.0 .
ARG PYTHON_IMAGE=docker.io/library/python:3.11.15-slim-bookworm

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


FROM builder AS dependencies
# hadolint ignore=DL3013
RUN pip --python /opt/fovea/bin/python install --only-binary=:all: ".[gateway,telemetry]" \
    && pip --python /opt/fovea/bin/python uninstall --yes fovea-serving \
    && /opt/fovea/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/fovea/lib


FROM builder AS code
COPY README.md LICENSE ./
COPY gateway gateway
COPY services services
RUN rm -r services/nn services/jobs services/predict services/generate services/embed services/score services/curate \
    && pip --python /opt/fovea/bin/python install --no-deps --root /code . \
    && python -m compileall -q --invalidation-mode unchecked-hash /code/opt/fovea/lib


FROM ${PYTHON_IMAGE} AS gateway
# Nothing is installed any more after this, so the installer goes; and the standard library is compiled, since nobody
# may write to it later.
RUN pip uninstall --yes --root-user-action=ignore pip setuptools wheel \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x 'lib2to3|site-packages' /usr/local/lib/python3.11 \
    && groupadd --gid 10001 fovea \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install -d -o 10001 -g 10001 /etc/fovea
COPY docker/probe.py /opt/fovea/probe.py
# The root file system may be read-only, /etc/fovea too: only `fovea keys` writes there.
ENV PATH=/opt/fovea/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    FOVEA_HOST=0.0.0.0
COPY --from=dependencies /opt/fovea /opt/fovea
COPY --from=code /code /
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/opt/fovea/probe.py"]
ENTRYPOINT ["fovea"]
CMD ["serve", "gateway"]
LABEL org.opencontainers.image.title="Fovea gateway" \
      org.opencontainers.image.licenses="MIT"
