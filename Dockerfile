# SPDX-License-Identifier: Apache-2.0
# The programs, built, and ./run as the default command: see docs/cluster.md#docker.

# Debian packages, which need root. .devcontainer uses this stage.
FROM debian:trixie-slim AS packages
RUN useradd --create-home ladder && install -d -o ladder /ladder
WORKDIR /ladder
COPY tools/setup.sh tools/
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        ca-certificates git python3 && \
    LADDER_TORCH_DIR=later tools/setup.sh && \
    rm -rf /var/lib/apt/lists/*
USER ladder

# LibTorch comes before the sources, whose changes keep its layer.
FROM packages
COPY requirements.txt requirements-twins.txt ./
RUN tools/setup.sh twins
COPY --chown=ladder . .
RUN tools/configure.sh release && cmake --build --preset release --target stages suite
CMD ["./run"]
