# Pellucid for docker-compose.yml: the targets `relay` and `demo`, which has git and the demo's hubs as well.
FROM python:3.13-slim-bookworm AS build
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY sdk /src/sdk
COPY exporters /src/exporters
COPY dashboards /src/dashboards
COPY docs/runbooks.md /src/docs/runbooks.md
RUN pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir /wheels /src \
    && cp /src/constraints.txt /wheels/

FROM python:3.13-slim-bookworm AS relay
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --disable-pip-version-check --constraint /wheels/constraints.txt \
        "$(echo /wheels/*.whl)[view]" \
    && useradd --uid 10001 --create-home pellucid
USER pellucid
WORKDIR /home/pellucid
ENTRYPOINT ["pellucid"]

FROM relay AS demo
USER root
# The demo asks about a repository, which may belong to another user.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*' \
    && pip install --no-cache-dir --disable-pip-version-check --constraint /wheels/constraints.txt \
        "$(echo /wheels/*.whl)[demo]"
USER pellucid
