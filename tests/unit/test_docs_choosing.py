"""docs/choosing.md: every claim's evidence is there, and the table of guarantees is the code's."""

import re

from tests.unit.test_docs_names import ROOT, defined_in
from tests.unit.test_docs_sources import URLS

from fencepost.server.locks.source import Capabilities, SourceContext, kind_of, make

CHOOSING = ROOT / "docs" / "choosing.md"
EVIDENCE = re.compile(r"\b[CT][1-9][0-9]*\b")


def capabilities() -> dict[str, Capabilities]:
    """What each source promises, by the scheme of its URL."""
    somewhere = SourceContext("locks", "postgresql://x@127.0.0.1/x")
    return {kind_of(url): make(url, somewhere).capabilities for url in URLS.values()}


def section(heading: str) -> str:
    """The part of choosing.md under a heading that begins so."""
    found = re.search(
        rf"^{re.escape(heading)}.*?\n(.*?)(?=^## |\Z)", CHOOSING.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, heading
    return found[1]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table's rows in a section, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def listed() -> dict[str, str]:
    """What the section Evidence has, by its label: a URL, or path::name of a test."""
    found: dict[str, str] = {}
    for line in section("## Evidence").split("\n"):
        if not line:
            continue
        if cited := re.fullmatch(r"- (C\d+) \S.*: <(\S+)>", line):
            entries = [(cited[1], cited[2])]
        else:
            path = re.match(r"- `(tests/\S+\.py)`", line)
            assert path is not None, line
            entries = [(label, path[1] + name) for label, name in re.findall(r"(T\d+) `(::\w+)`", line)]
            assert entries, line
        for label, what in entries:
            assert label not in found, f"{label} is listed twice"
            found[label] = what
    return found


def test_each_test_that_is_named_exists() -> None:
    named = [what for label, what in listed().items() if label.startswith("T")]
    assert len(named) > 20
    for what in named:
        path, _, name = what.partition("::")
        assert name in defined_in(path), what


def test_what_is_listed_is_used_and_what_is_used_is_listed() -> None:
    text = CHOOSING.read_text("utf-8")
    claims = text[: text.index("## Evidence")]
    assert set(EVIDENCE.findall(claims)) == set(listed())


def test_the_table_of_guarantees_is_the_codes() -> None:
    orders = {"its own, ordered over all locks": "source", "its own, ordered within each": "lock"}
    promised = {
        name[1 : name.index("]")]: (
            orders.get(tokens, "database" if tokens == "drawn in PostgreSQL" else tokens),
            {"first come, first served": True, "by chance": False}[waiters],
            ttl,
            {"the service": True, "the end of a session": False}[ended],
        )
        for name, tokens, waiters, ttl, ended in rows("## What each source guarantees")
    }
    assert promised == {
        name: (found.order, found.fair, f"{found.least_ttl_ms} ms", found.ttl_from_server)
        for name, found in capabilities().items()
    }


def test_each_source_has_its_rows() -> None:
    described = {row[0].strip("`") for row in rows("## What each source breaks on")}
    assert described == set(capabilities()) | {"built-in"}, (
        "docs/choosing.md, What each source breaks on: a row for each"
    )
