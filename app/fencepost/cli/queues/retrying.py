"""The message that retries a dead letter: what the letter's said, under another name; its caller stays whose it was.

A letter with a caller is believed by the record of its write, which a consumer has made before it put the letter, and
which stays for as long as the letter is there (queue_letter_waits). Who can write to where letters are, in Kafka for
example, has no letter by that. What was refused because it came too late, or whose caller was not looked at, is retried
only where no copy of it can have been forgotten.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import asyncpg
import click

from fencepost.server.fence.resource import Resource
from fencepost.server.fence.seal import SealKeys, number_of
from fencepost.server.fence.token import accepts
from fencepost.server.gateway.preconditions import require_key
from fencepost.server.gateway.results import CALLER_HEADER, CLAIMED_HEADER, IN_HAND, letter_of, state_of
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.queues import progress, results
from fencepost.server.postgres.queues.results import Result
from fencepost.server.postgres.statements.asking import read_resource
from fencepost.server.postgres.statements.query import QueryError
from fencepost.server.postgres.statements.scope_marks import marks
from fencepost.server.postgres.statements.scope_names import scope_of_row
from fencepost.server.postgres.tables.cache import CatalogCache
from fencepost.server.postgres.tables.catalog import Catalog, ProtectedTable
from fencepost.server.queues.log import DeadLetter, Message, Position, partition_of
from fencepost.server.queues.message import (
    CALLER,
    IDEMPOTENCY_KEY,
    WRITE_NONCE,
    MalformedMessageError,
    MalformedWriteIdError,
    content_at,
    content_of,
    parse_write_id,
    read_message,
    sign,
    unsigned_of,
    verify,
)

_COPY: Final = "it is a copy of a write that is decided"
_MOVED: Final = (
    "its message was in another partition than its key belongs to, because partitions were added, for example. Later"
    " writes of the resource may be done by now, and this one would undo them: look at the row, and retry it by its ID"
)


class NotRetriedError(click.ClickException):
    """This letter cannot be retried; the message names it, and says why."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """Makes such messages for a queue. `keys` None: none that has a caller. `kept_for`: how many seconds records are
    kept.
    """

    queue: str
    keys: SealKeys | None
    kept_for: float

    async def choose(
        self, database: Database, letters: Sequence[DeadLetter], partitions: int | None = None
    ) -> tuple[list[DeadLetter], list[str]]:
        """Give the letters that can be retried, and why others cannot. One that cannot is a ClickException, where the
        letters were chosen one by one. `partitions`: how many the log has, where all of them are to be retried.
        """
        good, refused = list(letters), []
        catalog = await CatalogCache(database).reload()

        async def require_place(_: Database, letter: DeadLetter) -> None:
            if partitions is not None and partition_of(letter.message.key, partitions) != letter.position.partition:
                raise NotRetriedError(f"{_name(letter)}: {_MOVED}")

        async def require_newer(_: Database, letter: DeadLetter) -> None:
            async with database.connection() as connection:
                await _require_newer(connection, catalog, letter)

        # What is claimed stays so: it comes when nothing else can fail.
        for check in (self.require, require_place, require_newer, self._claim):
            for letter in tuple(good):
                try:
                    await check(database, letter)
                except NotRetriedError as error:
                    if partitions is None:
                        raise click.ClickException(f"{error.message}: nothing was done") from error
                    refused.append(error.message)
                    good.remove(letter)
        return good, refused

    async def require(self, database: Database, letter: DeadLetter) -> None:
        """Raise NotRetriedError for a letter that cannot be retried, ClickException where keys are missing."""
        if letter.left_out:
            lacks = letter.left_out.replace(" and ", " and no ")
            where = f"offset {letter.position.offset} of partition {letter.position.partition} of {self.queue}"
            raise NotRetriedError(
                f"{_name(letter)}: its message was too large, and the letter has no {lacks} of it."
                f" The message is at {where}: append it from there, and drop the letter"
            )
        if self.keys is None and _has_caller(letter):
            raise click.ClickException(
                f"{_name(letter)}: it is the write of a caller, which is to be signed anew: --seal-keys-file"
                " (FENCEPOST_SEAL_KEYS_FILE) names the file with the gateway's keys; nothing was done"
            )
        try:
            await run_write(
                database.for_writing,
                lambda connection: self._require_record(connection, letter),
                repeatable=True,
            )
        except MalformedMessageError as error:
            raise NotRetriedError(f"{_name(letter)}: {error}; drop it") from error

    async def _require_record(self, connection: Connection, letter: DeadLetter) -> None:
        """Raise MalformedMessageError where the write of the letter did not fail as the letter says."""
        if self.keys is None or not _has_caller(letter):
            known = (await results.results(connection, [letter.id])).get(letter.id)
            if known is not None and not {CALLER_HEADER, CLAIMED_HEADER}.isdisjoint(dict(known.answer.headers)):
                raise MalformedMessageError("its write was that of a caller, and the letter has none")
            return
        signed = verify(letter.message, self.queue, self.keys)
        content = content_of(letter.message)
        failed = await _failed(connection, letter, content)
        placed = failed or await _failed(connection, letter, content_at(letter.position, content))
        if placed is None:
            raise MalformedMessageError("there is no record of a write that failed with this message")
        became = letter_of(placed.answer)
        if became not in (None, IN_HAND):
            raise MalformedMessageError(f"it is there again, and was {became} before")
        if CALLER_HEADER not in dict(placed.answer.headers):
            signed.require_remembered(await progress.forgotten_to(connection, self.queue))
        if failed is None:
            # It stood where it does not belong, and may be a copy: a record of the write is there for so long.
            signed.require_in_time(_now(), self.kept_for)
            if await results.result_of_message(connection, letter.id, content) is not None:
                raise MalformedMessageError(_COPY)
        elif CALLER_HEADER not in dict(failed.answer.headers):
            signed.require_in_time(failed.at.timestamp(), self.kept_for)

    async def _claim(self, database: Database, letter: DeadLetter) -> None:
        """Let the letter's record be that of all copies of its message: none has an effect beside the retry. Raises
        NotRetriedError where one was decided meanwhile.
        """
        content = content_of(letter.message)
        if _has_caller(letter) and not await run_write(
            database.for_writing, lambda connection: results.claim(connection, letter.id, content), repeatable=True
        ):
            raise NotRetriedError(f"{_name(letter)}: {_COPY}; drop it")

    def message(self, letter: DeadLetter, nonce: str) -> Message:
        """Make the message. It has another nonce: with the old one it would be a copy of the message that failed. Its
        Idempotency-Key, the letter's id where the message had none, lets it have one effect, also when the letter is
        retried again: because a retry was cut off, or the letter came back.
        """
        unsigned = unsigned_of(letter.message)
        kept = [(name, value) for name, value in unsigned.headers if name.lower() != WRITE_NONCE]
        if not any(name.lower() == IDEMPOTENCY_KEY for name, _ in kept):
            kept.append((IDEMPOTENCY_KEY, letter.id.encode()))
        made = replace(unsigned, headers=(*kept, (WRITE_NONCE, nonce.encode())))
        if self.keys is None or not _has_caller(letter):
            return made
        signed = verify(letter.message, self.queue, self.keys)
        return sign(made, self.queue, self.keys, signed.caller, _now())


async def _require_newer(connection: Connection, catalog: Catalog, letter: DeadLetter) -> None:
    """Raise NotRetriedError where the fence would refuse the token that the letter's message carries. What only the
    write itself shows, because the message is malformed or there is no such table, is left to it.
    """
    try:
        write = read_message(letter.message)
        resource, token = write.named, number_of(write.token)
    except MalformedMessageError:
        return
    table = catalog.find_or_scope(resource.table)
    if token is None or table is None or not isinstance(table, ProtectedTable):
        return
    try:
        mark = await _mark(connection, table, resource)
    except (asyncpg.PostgresError, QueryError):
        return
    if mark is not None and not accepts(table.fence.rule, mark, token):
        raise NotRetriedError(
            f"{_name(letter)}: the fence would refuse its token {token}, since the mark of {write.resource} is {mark}"
            " by now: later writes or claims are done. Drop it, or write what is wanted under a new token"
        )


async def _mark(connection: Connection, table: ProtectedTable, resource: Resource) -> int | None:
    scope = table.fence.scope
    require_key(table, resource.key)
    if scope is None:
        return (await read_resource(connection, table, resource.key)).mark
    name = await scope_of_row(connection, table, scope, resource.key)
    return None if name is None else (await marks(connection, scope, [name]))[0].mark


def place_of(letter: DeadLetter) -> Position:
    """Give the place of the write that a letter is of. It has it in its id, which it is believed by."""
    try:
        return parse_write_id(letter.id).position
    except MalformedWriteIdError:
        return letter.position


async def _failed(connection: Connection, letter: DeadLetter, content: bytes) -> Result | None:
    found = await results.result_of_message(connection, letter.id, content)
    return None if found is None or found.id != letter.id or state_of(found.answer) != "failed" else found


def _has_caller(letter: DeadLetter) -> bool:
    return any(name.lower() == CALLER for name, _ in letter.message.headers)


def _name(letter: DeadLetter) -> str:
    return f"{letter.id} {letter.message.key.decode('utf-8', 'replace')}"


def _now() -> float:
    return time.time()  # noqa: TID251 - compared with when messages were signed
