"""Bugs of Idempotency-Keys, and of writes whose outcome is unknown (R15, R16)."""

from collections.abc import Sequence
from typing import Any, Final

from tests.torture.bugs.settings import KEYS, KEYS_AT_ONCE, LOST_ANSWERS
from tests.torture.planted import Line, Planted, swap

from fencepost.server.gateway import alone, keyed
from fencepost.server.gateway.keyed import _Batches
from fencepost.server.postgres.connection import Connection

BEGIN: Final = "fencepost.idem_begin(text, text, bytea)"
BEGIN_EACH: Final = "fencepost.idem_begin_each(text, text[], bytea[])"
RECORD: Final = "fencepost.idem_record(text, text, bytea, integer, text[], bytea)"
RECORD_EACH: Final = "fencepost.idem_record_each(text[], text[], bytea[], integer[], text[], bytea[])"
_TWO_RECORDS: Final = "ALTER TABLE fencepost.idempotency DROP CONSTRAINT idempotency_pkey"
"""The primary key of the records is the last line of defence: the second write of a key would be undone by it."""


def _records_are_written_after_the_commit() -> None:
    async def nothing(*_: object) -> None:
        return None

    async def broken(batches: _Batches, connection: Connection, batch: Sequence[Any]) -> Any:
        answers = await run(batches, connection, batch)
        await record(connection, batch, range(len(batch)), answers)
        return answers

    record = swap(keyed, "_record", nothing)
    run = swap(_Batches, "run_in_transaction", broken)


def _unknown_outcomes_are_repeated() -> None:
    """Neither is the old backend ended, nor are key and mark looked at."""

    async def broken(*_: object, **__: object) -> None:
        return None

    swap(alone, "_settle", broken)


BUGS: Final = [
    Planted(
        "an Idempotency-Key is recorded after the commit",
        "set",
        KEYS_AT_ONCE,
        statements=(_TWO_RECORDS,),
        gateway=_records_are_written_after_the_commit,
    ),
    Planted(
        "an Idempotency-Key's lock is not tried",
        "set",
        KEYS_AT_ONCE,
        (
            Line(BEGIN, "IF NOT pg_try_advisory_xact_lock", "IF false AND NOT pg_try_advisory_xact_lock"),
            Line(BEGIN_EACH, "SELECT pg_try_advisory_xact_lock(", "SELECT true OR pg_try_advisory_xact_lock("),
        ),
        statements=(_TWO_RECORDS,),
    ),
    Planted(
        "any request is answered with what its Idempotency-Key was answered",
        "once",
        KEYS,
        (
            Line(BEGIN, "IF r.payload_hash <> p_hash", "IF false"),
            Line(BEGIN_EACH, "WHEN i.payload_hash <> u.hash THEN", "WHEN false THEN"),
        ),
    ),
    Planted(
        "writes with an Idempotency-Key are not recorded",
        "set",
        KEYS,
        (
            Line(RECORD, "VALUES (p_caller, p_key, p_hash, p_status, p_headers, p_answer)",
                 "SELECT p_caller, p_key, p_hash, p_status, p_headers, p_answer WHERE false"),
            Line(RECORD_EACH, "AS u(caller, key, hash, status, headers, answer)",
                 "AS u(caller, key, hash, status, headers, answer) WHERE false"),
        ),
    ),
    Planted(
        "a write whose outcome is unknown is repeated without a look",
        "register",
        LOST_ANSWERS,
        gateway=_unknown_outcomes_are_repeated,
    ),
]  # fmt: skip
