# Pellucid with its demo, for docker-compose.yml: the services `relay` and `demo`.
FROM python:3.13-slim-bookworm

# The demo asks about a repository, which may belong to another user.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*' \
    && useradd --uid 10001 --create-home pellucid

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY sdk /src/sdk
COPY exporters /src/exporters
COPY dashboards /src/dashboards
COPY docs/runbooks.md /src/docs/runbooks.md
RUN pip install --no-cache-dir --disable-pip-version-check --constraint /src/constraints.txt "/src[demo]"

USER pellucid
WORKDIR /home/pellucid
ENTRYPOINT ["pellucid"]
