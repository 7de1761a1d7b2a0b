"""The table of docs/sources.md has what the sources declare of themselves."""

import re
from pathlib import Path

import pytest

from fencepost.server.locks.source import KINDS, Capabilities, SourceContext, make

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text("utf-8")
URLS = {
    "redis": "redis://a",
    "rediss": "rediss://a",
    "redlock": "redlock://a,b,c",
    "zookeeper": "zookeeper://a",
    "etcd": "etcd://a",
    "etcds": "etcds://a",
    "kubernetes": "kubernetes://in-cluster",
    "postgres-advisory": "postgres-advisory:",
}
ORDER = {"source": "all locks", "lock": "one lock", "database": "all locks, drawn in PostgreSQL"}


def cells(capabilities: Capabilities, extra: str | None) -> list[str]:
    return [
        ORDER[capabilities.order],
        "yes" if capabilities.fair else "no",
        "the service" if capabilities.ttl_from_server else "the gateway that took it",
        f"{capabilities.least_ttl_ms} ms",
        "yes" if capabilities.verifies else "no",
        "nothing" if extra is None else f"`.[{extra}]`",
    ]


def rows() -> dict[str, list[str]]:
    """Read the table: by each scheme, what stands in its row."""
    found = {}
    for line in PAGE.splitlines():
        name, *others = [cell.strip() for cell in line.strip("|").split("|")]
        for scheme in re.findall(r"`([a-z-]+):(?://)?`", name):
            found[scheme] = others
    return found


@pytest.mark.parametrize("scheme", KINDS)
def test_each_source_is_described_as_it_is(scheme: str) -> None:
    assert scheme in URLS, "add a URL of this scheme to URLS"
    source = make(URLS[scheme], SourceContext("it", "postgresql://x@127.0.0.1/x"))
    assert rows().get(scheme) == cells(source.capabilities, KINDS[scheme][1]), "its row in docs/sources.md, Which one"


def test_no_source_is_described_that_is_not_there() -> None:
    assert set(rows()) == set(KINDS), "the table of docs/sources.md has the schemes of locks/source.py"
