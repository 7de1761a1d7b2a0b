"""Bugs of the gateway's statements, and of what it makes of their answers (postgres/statements, gateway)."""

import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tests.torture.bugs.marks import JUDGE_DELETE, JUDGE_UPDATE, NO_TRIGGER
from tests.torture.bugs.settings import ROWS, SCOPES
from tests.torture.planted import Line, Planted, TableLine, replaced, swap

from fencepost.server.gateway import claims, read
from fencepost.server.gateway.claims import ClaimOfRow
from fencepost.server.postgres import keyed, many, marks
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.keyed import FencedRow, WriteStatement
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.row_sql import RowWrite, compiled
from fencepost.server.postgres.tables import ProtectedTable

_ANY: Final = "<> 0 AND 0 <"
"""Stands where the mark is compared with the token, and is always true."""


@contextlib.contextmanager
def _comparing(operator: str) -> Any:
    """Let statements that are made meanwhile compare the mark so."""
    comparison = swap(marks, "comparison", lambda _rule: operator)
    try:
        yield
    finally:
        swap(marks, "comparison", comparison)


def _unconditional(verb: str, operator: str = _ANY) -> None:
    def broken(*arguments: Any, **options: Any) -> WriteStatement:
        with _comparing(operator):
            return made(*arguments, **options)

    made: Callable[..., WriteStatement] = swap(keyed, verb, broken)


def _update_does_not_compare() -> None:
    _unconditional("update")


def _delete_does_not_compare() -> None:
    _unconditional("delete")


def _an_equal_token_passes() -> None:
    _unconditional("update", "<=")


def _check_then_write() -> None:
    tables: dict[int, ProtectedTable] = {}

    def unconditional(table: ProtectedTable, *arguments: Any, **options: Any) -> WriteStatement:
        with _comparing(_ANY):
            made: WriteStatement = update(table, *arguments, **options)
        tables[id(made.statement)] = table
        return made

    async def checked(
        statement: WriteStatement, connection: Connection, batch: Sequence[RowWrite]
    ) -> list[FencedRow | None]:
        table = tables.get(id(statement.statement))
        if table is None or table.fence.scope is not None:
            return await run(statement, connection, batch)
        standing = await marks.ask(connection, table, [write.key for write in batch])
        passing = [
            number
            for number, (write, state) in enumerate(zip(batch, standing, strict=True))
            if state.live is not None and state.live < write.token
        ]
        answers: list[FencedRow | None] = [None] * len(batch)
        written = await run(statement, connection, [batch[number] for number in passing]) if passing else []
        for number, answer in zip(passing, written, strict=True):
            answers[number] = answer
        return answers

    update = swap(keyed, "update", unconditional)
    run: Callable[..., Awaitable[list[FencedRow | None]]] = swap(WriteStatement, "run", checked)


def _zero_rows_is_stale() -> None:
    async def broken(_connection: Connection, table: ProtectedTable, keys: Sequence[Any]) -> list[KeyState]:
        return [KeyState(f"{table.fence.name}/{key[0]}", 2**62, None) for key in keys]

    swap(marks, "ask", broken)


def _question_is_remembered() -> None:
    """Each key's first answer is used for a second: as if the snapshot were that of an older transaction."""
    known: dict[Any, tuple[float, KeyState]] = {}

    async def broken(connection: Connection, table: ProtectedTable, keys: Sequence[Any]) -> list[KeyState]:
        fresh = await ask(connection, table, keys)
        now = time.monotonic()
        for key, state in zip(keys, fresh, strict=True):
            if known.get((table.oid, key), (0.0, state))[0] < now - 1:
                known[table.oid, key] = now, state
        return [known[table.oid, key][1] for key in keys]

    ask = swap(marks, "ask", broken)


def _the_array_is_judged_by_its_first_row() -> None:
    line, first = "SELECT FROM hit WHERE", "SELECT FROM (TABLE hit LIMIT 1) AS hit WHERE"

    def compiled_broken(text: str, *arguments: Any) -> Any:
        return compiled(replaced(text, line, first, "the statement of arrays"), *arguments)

    def broken(*arguments: Any) -> Any:
        swap(many, "compiled", compiled_broken)
        try:
            return by_array(*arguments)
        finally:
            swap(many, "compiled", compiled)

    by_array = swap(many, "by_array", broken)


def _claim_is_rolled_back() -> None:
    async def broken(operation: ClaimOfRow, connection: Connection) -> Any:
        transaction = connection.transaction()
        await transaction.start()
        try:
            return await attempt(operation, connection)
        finally:
            await transaction.rollback()

    attempt = swap(ClaimOfRow, "write", broken)


def _claim_of_a_key_without_a_row_raises_nothing() -> None:
    async def broken(*_: object) -> None:
        return None

    swap(claims, "claim_absent", broken)


def _reads_are_remembered() -> None:
    known: dict[Any, tuple[float, Any]] = {}

    async def broken(gateway: Any, request: Any, table: Any) -> Any:
        kept = known.get((request.table, request.key))
        if kept is None or kept[0] < time.monotonic() - 0.05:
            kept = known[request.table, request.key] = time.monotonic(), await read_one(gateway, request, table)
        return dataclasses.replace(kept[1])

    read_one = swap(read, "read_one", broken)


BUGS: Final = [
    Planted("UPDATE does not compare the token", "register", ROWS, (NO_TRIGGER,), gateway=_update_does_not_compare),
    Planted(
        "an UPDATE passes with a token that equals the mark",
        "register",
        ROWS,
        (
            Line(JUDGE_UPDATE, "fencepost.verdict(rule,", "fencepost.verdict('epoch',"),
            Line(JUDGE_UPDATE, "nullif(nullif(new_mark, old_mark), 0)", "nullif(new_mark, 0)"),
        ),
        gateway=_an_equal_token_passes,
    ),
    Planted("check, then write", "register", ROWS, (NO_TRIGGER,), gateway=_check_then_write),
    Planted(
        "DELETE does not compare the token",
        "register",
        ROWS,
        (
            Line(
                JUDGE_DELETE,
                "IF verdict <> 'accepted'",
                "IF given IS NOT NULL THEN token := given; ELSIF verdict <> 'accepted'",
            ),
        ),
        table_lines=(
            TableLine("delete", "AND r.last_fence_token OPERATOR(pg_catalog.<", "AND 0 OPERATOR(pg_catalog.<"),
        ),
        gateway=_delete_does_not_compare,
    ),
    Planted("a write that reaches no row is answered as stale", "register", ROWS, gateway=_zero_rows_is_stale),
    Planted(
        "why a write reached no row is asked of an old snapshot", "register", SCOPES, gateway=_question_is_remembered
    ),
    Planted(
        "an array is judged by its first row alone",
        "register",
        ROWS,
        (NO_TRIGGER,),
        gateway=_the_array_is_judged_by_its_first_row,
    ),
    Planted("a claim is not committed", "register", ROWS, gateway=_claim_is_rolled_back),
    Planted(
        "a claim of a key without a row raises no mark",
        "register",
        ROWS,
        gateway=_claim_of_a_key_without_a_row_raises_nothing,
    ),
    Planted("reads are served from what was read before", "register", ROWS, gateway=_reads_are_remembered),
]
