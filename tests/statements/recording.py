"""Records every statement that a gateway sends for a request, and writes them as text that a person can compare."""

import hashlib
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from tests.support.interleave import connection_to

from fencepost.server.fence.token import Rule

_ONE = ("fetch", "fetchrow", "fetchval", "execute")
_WRITES = re.compile(
    r"(UPDATE|INSERT|DELETE|WITH|SELECT \$\d+::int, |COMMIT)|.*FROM fencepost\.\".*_delete\"\(", re.DOTALL
)
_LINE = re.compile(
    r"(?:FROM|WHERE|SET|RETURNING|UNION ALL|ORDER BY|LEFT JOIN|CROSS JOIN|JOIN|ON CONFLICT|FOR NO KEY UPDATE|FOR UPDATE"
    r"|SELECT|[a-z]+ AS (?:MATERIALIZED )?\()\b ?"
)
_TOKEN = re.compile(r"\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|\(|\)| |[^ ()\"']+")
_TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
_NOT_OF_REQUESTS = (
    "pg_backend_pid", "pg_settings", "pg_terminate_backend", "pg_stat_activity", "LISTEN", "pg_attribute",
    "current_setting(wanted", "transaction_read_only", "note_question",
)  # fmt: skip
"""What connections are settled with, the catalog is read by, and `doctor` is told: not what a request sends."""


@dataclass(eq=False)
class Request:
    """One request, and what was sent for it: statement text and one set of arguments, in order."""

    breaks: bool
    """Whether the connection breaks once the first write has been carried out."""
    sent: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)


AS_ORDERS = "-- as for orders"
_COMMENT: dict[str, Any] = {"initial_indent": "-- ", "subsequent_indent": "-- ", "break_on_hyphens": False}
_HASH = re.compile(r"(?<=_)[0-9a-f]{10}(?=_delete)")
"""What tells the functions of tables with long names apart."""
BEFORE = ("UNION ALL", "DELETE", "CROSS", "LEFT", "ROWS", "DISTINCT")
"""What stays on one line with the word after it."""
FIRST_ISSUED = 10_000
"""What leases draw are tokens above this; which, depends on the tests that ran before."""

_current: ContextVar[Request | None] = ContextVar("request", default=None)


class Recorder:
    """Collects the statements of one table: each distinct text once, with what it was sent for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: dict[str, tuple[tuple[object, ...], list[str]]] = {}
        self._oids: dict[int, str] = {}
        for name in _ONE:
            monkeypatch.setattr(asyncpg.Connection, name, _recording(getattr(asyncpg.Connection, name)))
        many = _recording(asyncpg.Connection.fetchmany, many=True)
        monkeypatch.setattr(asyncpg.Connection, "fetchmany", many)

    async def know_oids(self, url: str) -> None:
        """Look up the oids of tables, of their keys, and of types, which differ from run to run."""
        async with connection_to(url) as connection:
            rows = await connection.fetch(
                "SELECT relation::oid AS oid, name FROM fencepost.protected UNION ALL SELECT indexrelid, name || ' key'"
                " FROM fencepost.protected JOIN pg_index ON indrelid = relation AND indisprimary"
                " UNION ALL SELECT oid, typname FROM pg_type WHERE typrelid = 0"
            )
        self._oids = {row["oid"]: row["name"] for row in rows}

    @contextmanager
    def request(self, *, breaks: bool = False) -> Iterator[Request]:
        """Record what is sent until the block ends."""
        request = Request(breaks)
        token = _current.set(request)
        try:
            yield request
        finally:
            _current.reset(token)

    def keep(self, label: str, request: Request) -> None:
        for sql, arguments in request.sent:
            labels = self._found.setdefault(self._without_oids(sql), (arguments, []))[1]
            if label not in labels:
                labels.append(label)

    def _without_oids(self, text: str) -> str:
        return re.sub(r"\b(\d+)::oid", lambda m: f"<{self._oids[int(m[1])]}>::oid", text)

    def _shown(self, argument: object) -> str:
        if isinstance(argument, int) and argument in self._oids:
            return f"<oid of {self._oids[argument]}>"
        if isinstance(argument, int) and FIRST_ISSUED < argument < FIRST_ISSUED * 10:
            return "<a lease's token>"
        if isinstance(argument, bytes) and len(argument) == hashlib.sha256().digest_size:
            return "<what was asked>"
        text = re.sub(r'"relation": \d+', '"relation": <oid>', repr(argument))
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'\)", "...')", text)
        return text if len(text) < 80 else f"{text[:76]} ..."

    def text(self, table: str, base: str, rule: Rule) -> str:
        """Write all down, sorted by the statement. What is in `base` (orders) too, but for the table's name and the
        comparison of its rule, is only counted; a statement that is there for other requests, or with other arguments,
        is written without its text.
        """
        of_rule = base if rule == "strict" else base.replace("< $", "<= $")
        known = dict(_block(block) for block in of_rule.split("\n\n"))
        blocks, same = list[str](), 0
        for sql, (arguments, labels) in sorted(self._found.items()):
            shown = [f"--   ${n} = {self._shown(each)}" for n, each in enumerate(arguments, 1)]
            above = "\n".join([textwrap.fill(" | ".join(labels), 118, **_COMMENT), *shown])
            body = _HASH.sub("<hash>", _lines(re.sub(r"\s+", " ", sql.strip())))
            as_base = [re.sub(rf"\b{table}(?=\b|_<hash>|_pkey)", "orders", text) for text in (body, above)]
            if as_base == [as_base[0], known.get(as_base[0])]:
                same += 1
            else:
                blocks.append(f"{above}\n{AS_ORDERS if as_base[0] in known else body}\n")
        return "\n".join([f"-- {same} are those of orders\n"] * bool(base) + blocks)


def _block(written: str) -> tuple[str, str]:
    """Take a statement apart as it is written down: its text, and what stands above."""
    lines = written.strip().splitlines()
    above = [line for line in lines if line.startswith("-- ")]
    return "\n".join(lines[len(above) :]), "\n".join(above)


def _lines(sql: str) -> str:
    """Break a statement into lines, at its clauses and those of its CTEs; other parentheses stay as they are."""
    lines, of_ctes = [""], list[bool]()
    for match in _TOKEN.finditer(sql):
        part = match[0]
        if part == " " and all(of_ctes) and _LINE.match(sql, match.end()) and not lines[-1].endswith(BEFORE):
            lines.append("  " * (len(of_ctes) + 1))
            continue
        if part == "(":
            of_ctes.append(lines[-1].endswith((" AS ", " AS MATERIALIZED ")))
        elif part == ")":
            of_ctes.pop()
        lines[-1] += part
    return "\n".join(lines)


def _recording(original: Any, *, many: bool = False) -> Any:
    async def recorded(self: "asyncpg.Connection[asyncpg.Record]", sql: str, *arguments: Any, **options: Any) -> Any:
        request = _current.get()
        if request is None or any(part in sql for part in _NOT_OF_REQUESTS):
            return await original(self, sql, *arguments, **options)
        if not sql.startswith(_TRANSACTIONS):
            request.sent.append((sql, tuple(arguments[0][0]) if many else arguments))
        alone = not self.is_in_transaction() or sql.startswith("COMMIT")
        answer = await original(self, sql, *arguments, **options)
        if request.breaks and alone and _WRITES.match(sql):
            request.breaks = False
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the test has cut it")
        return answer

    return recorded
