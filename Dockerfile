# syntax=docker/dockerfile:1
# rlboost-jax for any of its processes; `rlboost rollout` by default.
#
#   docker build -t rlboost .                                                  for CPUs
#   docker build -t rlboost:cuda --build-arg EXTRA=cuda13 .                    for NVIDIA GPUs
#   docker build -t rlboost:hf --build-arg EXTRAS=hf,math .                    with extras of ours
#   docker build -t rlboost --build-arg PYTHON_IMAGE=registry.example/python:3.12.11-slim-bookworm .
#
# docs/how-to/images.md has what to give a container, and what not. No secret is in any layer: what
# opens a manager comes in the environment (RLBOOST_JOIN) or as a mounted folder.

# The CUDA libraries of EXTRA=cuda13 are wheels: the host needs its driver and container toolkit only.
ARG PYTHON_IMAGE=docker.io/library/python:3.12.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG EXTRA=""
ARG EXTRAS=""
ARG PIP_OPTIONS=""
# The compiler is for the kernels of CPUs; it stays in this stage. Its version is that of the image.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . /src
RUN python3 -m venv /opt/rlboost \
 && /opt/rlboost/bin/python -m pip install --no-cache-dir --disable-pip-version-check ${PIP_OPTIONS} \
      -c requirements.lock ./kernels ".${EXTRAS:+[${EXTRAS}]}" ${EXTRA:+"jax[${EXTRA}]"} \
 && /opt/rlboost/bin/python -m compileall -q -j 0 /opt/rlboost/lib

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 rlboost \
 && useradd --uid 10001 --gid rlboost --create-home --shell /usr/sbin/nologin rlboost \
 && mkdir -m 700 /runs /home/rlboost/.cache \
 && chown rlboost:rlboost /runs /home/rlboost/.cache
COPY --from=build /opt/rlboost /opt/rlboost
ENV PATH=/opt/rlboost/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RLBOOST_HEALTH=/tmp/rlboost-health
USER 10001:10001
WORKDIR /runs
# Healthy: its event loop has run within a minute. A server that compiles, or looks for its manager, is.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["rlboost", "health"]
ENTRYPOINT ["rlboost"]
CMD ["rollout", "--help"]
