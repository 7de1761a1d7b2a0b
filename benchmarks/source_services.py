"""The lock services that are compared: the real servers of the conformance suite, and one gateway for all."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.conformance.benches import BENCHES

from benchmarks.processes import gateway, run
from benchmarks.source_clients import BUILTIN
from fencepost.testing.servers.kubernetes import installed

TTL_MS: Final = 2000
"""Of the holders that are killed. No source here has a longer one as its least."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A token source. `bench`: its name in tests/conformance/benches.py, which runs its server.

    `crash_s`: seconds for which the service keeps the hold of a process that was killed, by its settings here.
    `ended_by`: which setting that is.
    """

    name: str
    bench: str
    what: str
    crash_s: float
    ended_by: str
    version: tuple[str, ...] = ()
    found: str = r"(\d+\.\d+\S*)"


KINDS: Final = (
    Kind(BUILTIN, "", "PostgreSQL, the gateway's own; a grant is a commit", TTL_MS / 1000, "TTL"),
    Kind(
        *("redis", "redis", "one Redis, appendfsync always", TTL_MS / 1000, "TTL"),
        *(("redis-server", "--version"), r"v=(\S+)"),
    ),
    Kind(
        *("redlock", "redlock", "five Redis, appendfsync always, node_timeout_ms=200", TTL_MS / 1000, "TTL"),
        *(("redis-server", "--version"), r"v=(\S+)"),
    ),
    Kind(
        *("etcd", "etcd", "one etcd, fsync as it comes", TTL_MS / 1000, "TTL"),
        *(("etcd", "--version"), r"etcd Version: (\S+)"),
    ),
    Kind(
        *("zookeeper", "zookeeper", "one ZooKeeper, forceSync=yes, tickTime=200", 2.0, "session timeout"),
        *(("java", "-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.version.VersionInfoMain"),),
    ),
    Kind("postgres_advisory", "advisory", "a PostgreSQL of its own; writes nothing", 0.0, "connection"),
    Kind(
        *("kubernetes", "kubernetes", "a kube-apiserver, its etcd without fsync"),
        *(TTL_MS / 1000, "TTL, since the waiter looked"),
        *(("kube-apiserver", "--version"), r"Kubernetes (\S+)"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Services:
    """What runs: the sources' URLs by name, the gateway's port, what could not be started and why."""

    urls: Mapping[str, str]
    port: int
    dsn: str
    left_out: Mapping[str, str]


def start(stack: ExitStack, directory: Path, dsn: str, only: str, **settings: str) -> Services:
    """Start the servers of all sources with `only` in their name, and a gateway with one worker and these variables.
    They end with `stack`.

    The built-in one is always there: it is what others are compared with.
    """
    urls, left_out = {BUILTIN: BUILTIN}, {}
    for kind in KINDS:
        if kind.name == BUILTIN or only not in kind.name:
            continue
        where = directory / kind.name
        where.mkdir(mode=0o755)
        try:
            bench = stack.enter_context(BENCHES[kind.bench](where))
        except pytest.skip.Exception as missing:
            left_out[kind.name] = str(missing)
            continue
        urls[kind.name] = bench.url
    configured = " ".join(f"{name}={url}" for name, url in urls.items() if name != BUILTIN)
    port = stack.enter_context(
        gateway(dsn, directory, workers=1, program="fencepost", FENCEPOST_SOURCES=configured, **settings)
    )
    return Services(urls, port, dsn, left_out)


def version(kind: Kind) -> str:
    """Ask a source's server for its version; nothing where it cannot be asked."""
    if not kind.version:
        return ""
    program, *arguments = kind.version
    if program == "kube-apiserver":
        program = str(installed())
    found = re.search(kind.found, run([program, *arguments], within=30, logs=True))
    return found[1] if found else ""
