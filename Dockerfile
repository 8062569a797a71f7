# Only the service: no compiler, no development tools, no torch. Everything installed is locked with hashes.
#   make image IMAGE=kerf:0.1.0
#   docker run --rm -p 127.0.0.1:8888:8888 -e KERF_SERVER__HOST=0.0.0.0 kerf:0.1.0 demo
# The base can be any image with Python 3.11 or newer and venv.
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
# Purpose: `serve`, or `fit` for the job that fits a rank to the cluster's history.
ARG FOR=serve
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements requirements
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r requirements/build.txt
RUN python -m venv --without-pip /opt/kerf \
    && /opt/build/bin/pip --python /opt/kerf/bin/python install --require-hashes \
       --only-binary :all: -r "requirements/${FOR}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY extender extender
COPY model model
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/kerf/bin/python install --no-deps --no-index /dist/kerf-*.whl \
    && /opt/kerf/bin/python -m compileall -q /opt/kerf/lib

FROM ${BASE}
COPY --from=build /opt/kerf /opt/kerf
ENV PATH=/opt/kerf/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# `make image` adds version, revision, date and source.
LABEL org.opencontainers.image.title="Kerf" \
      org.opencontainers.image.description="A GPU-aware kube-scheduler extender" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
EXPOSE 8888
ENTRYPOINT ["kerf"]
CMD ["serve"]
