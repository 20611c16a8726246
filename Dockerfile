# Runs phiseg as an unprivileged user. See docs/how-to/container.md for how to build and run the image.
# BASE must be a Debian-based image with Python 3.11 or newer and its venv module.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# Package index for torch; empty means the default index of pip. The page above shows a build without CUDA.
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/phiseg/bin:$PATH
WORKDIR /source
RUN python3 -m venv /opt/phiseg
COPY constraints.txt ./
RUN test -z "${TORCH_INDEX}" || PIP_INDEX_URL="${TORCH_INDEX}" pip install -c constraints.txt --no-deps torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
    pip wheel -c constraints.txt --no-deps --wheel-dir /wheels .
RUN pip install -c constraints.txt /wheels/*.whl

FROM ${BASE}
RUN useradd --create-home --uid 10001 phiseg
COPY --from=build /opt/phiseg /opt/phiseg
ENV PATH=/opt/phiseg/bin:$PATH MPLCONFIGDIR=/var/tmp/matplotlib
WORKDIR /data
USER 10001
ENTRYPOINT ["phiseg"]
CMD ["--help"]
