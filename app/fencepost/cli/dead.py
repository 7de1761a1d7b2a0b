"""`fencepost dead`: dead letters, listed, shown, retried and dropped."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
from click.core import ParameterSource
from pydantic import SecretStr

from fencepost.cli.queue import chosen_queues, only_queue
from fencepost.cli.shared import database_url, one_line, run_command, settings_options
from fencepost.server.consuming.applying import reason_of
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.seal import SealKeys, number_of
from fencepost.server.fence.token import accepts
from fencepost.server.gateway.plan import require_key
from fencepost.server.observe.events import Event, SourceTrouble
from fencepost.server.postgres import queues
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.marks import read_resource
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.queues import DROPPED, IN_HAND, RETRIED_AS, Result, Stopped
from fencepost.server.postgres.scopes import marks, scope_of_row
from fencepost.server.postgres.tables import Catalog, ProtectedTable
from fencepost.server.queues import message as messages
from fencepost.server.queues.log import DeadLetter, Log, LogError, Message, Position, partition_of
from fencepost.server.settings import Settings

# The message that retries a dead letter: what the letter's said, under another name; its caller stays whose it was.
#
# A letter with a caller is believed by the record of its write, which a consumer has made before it put the letter,
# and which stays for as long as the letter is there (prune_idempotency). Who can write to where letters are, in Kafka
# for example, has no letter by that. What was refused because it came too late, or whose caller was not looked at, is
# retried only where no copy of it can have been forgotten.

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
                database.for_writing, lambda connection: self._require_record(connection, letter), repeatable=True
            )
        except messages.MalformedMessageError as error:
            raise NotRetriedError(f"{_name(letter)}: {error}; drop it") from error

    async def _require_record(self, connection: Connection, letter: DeadLetter) -> None:
        """Raise MalformedMessageError where the write of the letter did not fail as the letter says."""
        if self.keys is None or not _has_caller(letter):
            known = (await queues.results(connection, [letter.id])).get(letter.id)
            if known is not None and (known.owner or known.claimed):
                raise messages.MalformedMessageError("its write was that of a caller, and the letter has none")
            return
        signed = messages.verify(letter.message, self.queue, self.keys)
        content = messages.content_of(letter.message)
        failed = await _failed(connection, letter, content)
        placed = failed or await _failed(connection, letter, messages.content_at(letter.position, content))
        if placed is None:
            raise messages.MalformedMessageError("there is no record of a write that failed with this message")
        if placed.letter not in (None, IN_HAND):
            raise messages.MalformedMessageError(f"it is there again, and was {placed.letter} before")
        if not placed.owner:
            signed.require_remembered(await queues.forgotten_to(connection, self.queue))
        if failed is None:
            # It stood where it does not belong, and may be a copy: a record of the write is there for so long.
            signed.require_in_time(_now(), self.kept_for)
            if await queues.result_of_message(connection, letter.id, content) is not None:
                raise messages.MalformedMessageError(_COPY)
        elif not failed.owner:
            signed.require_in_time(failed.at.timestamp(), self.kept_for)

    async def _claim(self, database: Database, letter: DeadLetter) -> None:
        """Let the letter's record be that of all copies of its message: none has an effect beside the retry. Raises
        NotRetriedError where one was decided meanwhile.
        """
        content = messages.content_of(letter.message)
        if _has_caller(letter) and not await run_write(
            database.for_writing, lambda connection: queues.claim(connection, letter.id, content), repeatable=True
        ):
            raise NotRetriedError(f"{_name(letter)}: {_COPY}; drop it")

    def message(self, letter: DeadLetter, nonce: str) -> Message:
        """Make the message. It has another nonce: with the old one it would be a copy of the message that failed. Its
        Idempotency-Key, the letter's id where the message had none, lets it have one effect, also when the letter is
        retried again: because a retry was cut off, or the letter came back.
        """
        unsigned = messages.unsigned_of(letter.message)
        kept = [(name, value) for name, value in unsigned.headers if name.lower() != messages.WRITE_NONCE]
        if not any(name.lower() == messages.IDEMPOTENCY_KEY for name, _ in kept):
            kept.append((messages.IDEMPOTENCY_KEY, letter.id.encode()))
        made = replace(unsigned, headers=(*kept, (messages.WRITE_NONCE, nonce.encode())))
        if self.keys is None or not _has_caller(letter):
            return made
        signed = messages.verify(letter.message, self.queue, self.keys)
        return messages.sign(made, self.queue, self.keys, signed.caller, _now())


async def _require_newer(connection: Connection, catalog: Catalog, letter: DeadLetter) -> None:
    """Raise NotRetriedError where the fence would refuse the token that the letter's message carries. What only the
    write itself shows, because the message is malformed or there is no such table, is left to it.
    """
    try:
        write = messages.read_message(letter.message)
        resource, token = write.named, number_of(write.token)
    except messages.MalformedMessageError:
        return
    table = catalog.find_or_scope(resource.table)
    if token is None or table is None or not isinstance(table, ProtectedTable):
        return
    try:
        mark = await _mark(connection, table, resource)
    except (RefusedError, QueryError):
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
        return messages.parse_write_id(letter.id).position
    except messages.MalformedWriteIdError:
        return letter.position


async def _failed(connection: Connection, letter: DeadLetter, content: bytes) -> Result | None:
    found = await queues.result_of_message(connection, letter.id, content)
    return None if found is None or found.id != letter.id or found.state != "failed" else found


def _has_caller(letter: DeadLetter) -> bool:
    return any(name.lower() == messages.CALLER for name, _ in letter.message.headers)


def _name(letter: DeadLetter) -> str:
    return f"{letter.id} {_resource(letter)}"


def _now() -> float:
    return time.time()  # noqa: TID251 - compared with when messages were signed


T = TypeVar("T")
_ALL: Final = 1_000_000
_WIDTH: Final = 100
_LOOK_EVERY: Final = 0.1
"""Seconds between two looks for decisions."""
_LOOK_AT: Final = 1000
"""How many writes a look asks for."""
_GONE: Final = "the resource is stopped by this write, and its dead letter is gone"
_SETTINGS: Final = ("database_url", "data_dir", "queues")

Work = Callable[[Log, Database], Awaitable[T]]


@click.group()
def dead() -> None:
    """List, show, retry and drop dead letters: queued writes that could not be applied.

    QUEUE is postgres:default, or the name of one in FENCEPOST_QUEUES: kafka:TOPIC, redis:STREAM.
    """


@dead.command("list")
@click.argument("queue", required=False)
@click.option("--most", type=click.IntRange(1), default=100, show_default=True, help="How many, the oldest first.")
@click.option("--resource", default=None, help="Only those of this resource: orders/order-123.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@settings_options(*_SETTINGS)
def list_(settings: Settings, queue: str | None, most: int, resource: str | None, as_json: bool) -> None:
    """List the dead letters of QUEUE: id, resource, when, why. After them, resources that are stopped by a letter that
    is not there any more. Without FENCEPOST_QUEUES there is one queue, and QUEUE may be left out.
    """
    queue = queue or only_queue(settings)

    async def look(log: Log, database: Database) -> tuple[Sequence[DeadLetter], int, Sequence[Stopped]]:
        letters = await log.dead.list(_ALL if resource is not None else most)
        of_resource = [each for each in letters if resource in (None, _resource(each))][:most]
        without = [each for each in await _without_letter(log, database, queue) if resource in (None, each.resource)]
        return of_resource, sum((await log.dead.count()).values()), without

    letters, count, without = _on_queue(settings, queue, look)
    for each in letters:
        if as_json:
            click.echo(json.dumps(_as_json(each), ensure_ascii=False))
        else:
            click.echo(f"{each.id}  {_resource(each)}  {_when(each)}\n  {each.reason[:_WIDTH]}")
    if not as_json and len(letters) < count:
        click.echo(f"{len(letters)} of {count}")
    for stop in without:
        if as_json:
            told = {"id": stop.write_id, "reason": _GONE, "at": _iso(stop.at), "resource": stop.resource, "gone": True}
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            click.echo(
                f"{stop.write_id}  {stop.resource}  {_iso(stop.at)}\n"
                f"  {_GONE}: `fencepost dead drop {queue} {stop.write_id}` lets it go on"
            )


@dead.command()
@click.argument("queue")
@click.argument("letter", metavar="ID")
@settings_options(*_SETTINGS)
def show(settings: Settings, queue: str, letter: str) -> None:
    """Show the dead letter ID as JSON: its message, with headers and body, and why it could not be applied."""

    async def look(log: Log, database: Database) -> DeadLetter | None:
        (letter_id,) = await _ids_of_letters(database, [letter])
        return await log.dead.get(letter_id)

    found = _on_queue(settings, queue, look)
    if found is None:
        raise click.ClickException(f"{queue} has no dead letter {letter}")
    click.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False))


def _chosen(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the arguments and options that choose letters, and these settings."""

    def chosen(command: Callable[..., None]) -> Callable[..., None]:
        for decorate in (
            click.argument("letters", metavar="[ID]...", nargs=-1),
            click.argument("queue"),
            click.option("--resource", default=None, help="All of this resource, in their order: orders/order-123."),
            click.option("--all", "everything", is_flag=True, help="All that are there."),
            settings_options(*names),
        ):
            command = decorate(command)
        return command

    return chosen


@dead.command()
@click.option(
    "--wait",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds for which a decision is waited for, since the last one.",
)
@click.option(
    "--no-wait", is_flag=True, help="Drop the letters once their messages are appended, without the decisions."
)
@_chosen(*_SETTINGS, "seal_keys_file", "idempotency_retention")
def retry(
    settings: Settings,
    queue: str,
    letters: tuple[str, ...],
    resource: str | None,
    everything: bool,
    wait: float,
    no_wait: bool,
) -> None:
    """Append the messages of dead letters to the end of QUEUE again, as they were, and wait for what they come to.

    The letter of a write that is applied, or fails again under another letter, is dropped. That of a write which the
    fence refuses stays, and the exit code is 1. A letter that the fence would refuse now is not appended. A resource
    that a letter had stopped goes on when the letter is appended. Letters of one resource are appended in their order.
    Those of callers with a role are signed anew, with the keys of the gateway: --seal-keys-file. One that cannot be
    retried is named, and stays; with --all the others are retried all the same. --all leaves letters of which the
    message was in another partition than its key belongs to.
    """
    from fencepost.server.parts import read_seal_keys  # noqa: PLC0415 - heavy
    from fencepost.server.startup import StartupError  # noqa: PLC0415

    with one_line(StartupError):
        again = Retrying(queue, read_seal_keys(settings), settings.idempotency_retention)
    _require_choice(letters, resource, everything=everything)
    waits = click.get_current_context().get_parameter_source("wait") is not ParameterSource.DEFAULT
    if no_wait and waits:
        raise click.UsageError("--wait and --no-wait exclude each other.")

    async def act(log: Log, database: Database) -> tuple[int, int, list[str]]:
        found = await _find(log, await _ids_of_letters(database, letters), resource, ())
        for stop in await _without_letter(log, database, queue):
            if everything or stop.write_id in letters or stop.resource == resource:
                click.echo(f"{stop.write_id} {stop.resource}: {_GONE}, and nothing can be appended: drop it", err=True)
        partitions = (await log.state()).partitions if everything else None
        found, refused = await again.choose(database, found, partitions)
        appended = {await _append(log, database, again, letter): letter for letter in found}
        if not no_wait:
            return len(found), await _decided(log, database, queue, appended, wait), refused
        for write_id, letter in appended.items():
            await _over(log, database, queue, letter, f"{RETRIED_AS}{write_id}")
            click.echo(f"{_name(letter)}: whether it is applied is not known yet: GET /v1/writes/{write_id}")
        return len(found), 0, refused

    done, open_, refused = _on_queue(settings, queue, act)
    for each in refused:
        click.echo(each, err=True)
    if refused:
        raise click.ClickException(f"{len(refused)} of the letters cannot be retried, and are there as they were")
    if open_:
        raise click.ClickException(f"{open_} of {done} letters were not applied")
    click.echo("" if done else "no dead letters", nl=not done)


async def _append(log: Log, database: Database, again: Retrying, letter: DeadLetter) -> str:
    """Append the message of a letter again, and return the id of its write. That a retry has begun is noted first: a
    message that comes again meanwhile puts no letter any more.
    """
    await _note(database, again.queue, letter.id, _resource(letter), IN_HAND)
    nonce = messages.new_nonce()
    appended = str(messages.WriteId(again.queue, await log.append(again.message(letter, nonce)), nonce))
    click.echo(f"{_name(letter)}: appended again as {appended}")
    return appended


async def _over(log: Log, database: Database, queue: str, letter: DeadLetter, became: str) -> None:
    await _note(database, queue, letter.id, _resource(letter), became)
    await log.dead.drop(letter.id)


async def _decided(log: Log, database: Database, queue: str, appended: Mapping[str, DeadLetter], wait: float) -> int:
    """Wait for what the writes of these ids come to, say so, and drop the letters of those that are applied or have
    another letter by now. Returns how many were not applied. A letter that stays can be retried again: its write has
    one effect.
    """
    undecided, others, last = list(appended), 0, time.monotonic()
    while undecided and time.monotonic() - last <= wait:
        found = await _results(database, undecided[:_LOOK_AT])
        for write_id, result in found.items():
            undecided.remove(write_id)
            others += not await _settled(log, database, queue, appended[write_id], write_id, result)
        if found:
            last = time.monotonic()
        else:
            await asyncio.sleep(_LOOK_EVERY)
    for write_id in undecided:
        click.echo(f"{_name(appended[write_id])}: {write_id} is not decided yet, and the letter stays", err=True)
    if undecided:
        click.echo(f"nothing was decided for {wait:g} s: does a consumer run? `fencepost queue {queue}`", err=True)
    return others + len(undecided)


async def _settled(log: Log, database: Database, queue: str, letter: DeadLetter, write_id: str, result: Result) -> bool:
    """Say what the write that retries a letter came to, and drop the letter unless the fence refused the write. Whether
    it was applied.
    """
    state, reason = result.state, reason_of(result.came_to)
    if state == "refused":
        click.echo(f"{_name(letter)}: refused, and the letter stays: {reason}", err=True)
        return False
    await _over(log, database, queue, letter, f"{RETRIED_AS}{write_id}")
    if state == "applied":
        click.echo(f"{_name(letter)}: applied")
        return True
    click.echo(f"{_name(letter)}: failed again, and its letter is {result.id} now: {reason}", err=True)
    return False


@dead.command()
@_chosen(*_SETTINGS)
def drop(settings: Settings, queue: str, letters: tuple[str, ...], resource: str | None, everything: bool) -> None:
    """Drop dead letters: their writes will not happen. A resource that such a letter had stopped goes on, also where
    the letter itself is gone.
    """
    _require_choice(letters, resource, everything=everything)

    async def act(log: Log, database: Database) -> int:
        ids = await _ids_of_letters(database, letters)
        without = await _without_letter(log, database, queue)
        found = await _find(log, ids, resource, [each.write_id for each in without])
        for letter in found:
            await _over(log, database, queue, letter, DROPPED)
            click.echo(f"{_name(letter)}: dropped")
        stops = [each for each in without if everything or each.write_id in ids or each.resource == resource]
        for stop in stops:
            await _note(database, queue, stop.write_id, stop.resource, DROPPED)
            click.echo(f"{stop.write_id} {stop.resource}: the letter was gone; the resource goes on")
        return len(found) + len(stops)

    if _on_queue(settings, queue, act) == 0:
        click.echo("no dead letters")


def _require_choice(letters: Sequence[str], resource: str | None, *, everything: bool) -> None:
    if sum((bool(letters), resource is not None, everything)) != 1:
        raise click.UsageError("name the letters by ID, or by --resource, or --all")


async def _note(database: Database, queue: str, letter_id: str, resource: str, became: str) -> None:
    """Note what becomes of a letter, and let its resource go on, if the letter stopped it."""

    async def note(connection: Connection) -> None:
        await queues.close_letter(connection, letter_id, became)
        await queues.clear_resource(connection, queue, resource, letter_id)

    await run_write(database.for_writing, note, repeatable=True)


async def _results(database: Database, ids: Sequence[str]) -> dict[str, Result]:
    return await run_write(database.for_writing, lambda connection: queues.results(connection, ids), repeatable=True)


async def _ids_of_letters(database: Database, ids: Sequence[str]) -> list[str]:
    """Give the ids that the letters of these writes have, each once: where a message is in the log twice, its letter
    has the id under which it was decided.
    """
    decided = await _results(database, ids)
    return list(dict.fromkeys(decided[each].id if each in decided else each for each in ids))


async def _find(log: Log, ids: Sequence[str], resource: str | None, known: Sequence[str]) -> Sequence[DeadLetter]:
    """Find letters in the order of their positions. Raises ClickException for one that is neither there nor `known`."""
    if ids:
        found = []
        for letter_id in ids:
            letter = await log.dead.get(letter_id)
            if letter is not None:
                found.append(letter)
            elif letter_id not in known:
                raise click.ClickException(f"there is no dead letter {letter_id}; nothing was done")
    else:
        found = [each for each in await log.dead.list(_ALL) if resource in (None, _resource(each))]
    return sorted(found, key=lambda each: (place_of(each).partition, place_of(each).offset))


async def _without_letter(log: Log, database: Database, queue: str) -> Sequence[Stopped]:
    """List the resources that are stopped by a letter that is not there any more: its log was emptied, for example."""
    async with database.connection() as connection:
        stops = await queues.stopped(connection, queue)
    return [each for each in stops if await log.dead.get(each.write_id) is None]


def _on_queue(settings: Settings, queue: str, work: Work[T]) -> T:
    """Run `work` on a queue's log. What goes wrong is one line and exit code 1."""
    from fencepost.server.queues.registry import queues_opened  # noqa: PLC0415 - heavy
    from fencepost.server.serve import check_database, database_for_commands  # noqa: PLC0415
    from fencepost.server.startup import StartupError  # noqa: PLC0415

    dsn = database_url(settings)
    resolved = settings.model_copy(update={"database_url": SecretStr(dsn)})

    async def run() -> T:
        wanted = chosen_queues(resolved, [queue])
        await check_database(dsn)
        async with (
            database_for_commands(resolved) as database,
            queues_opened(wanted, database, dsn, _report, register=False) as logs,
        ):
            return await work(logs[queue], database)

    with one_line(StartupError, LogError):
        return run_command(run)


def _report(event: Event) -> None:
    if isinstance(event, SourceTrouble):
        raise click.ClickException(f"{event.source}: {event.reason}")


def _resource(letter: DeadLetter) -> str:
    return letter.message.key.decode("utf-8", "replace")


def _when(letter: DeadLetter) -> str:
    return _iso(datetime.fromtimestamp(letter.at, UTC))


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _shown(name: str, value: bytes) -> str:
    """Show a header: of a sealed token the number, because with its seal it could be used; of a caller who it is."""
    if name.lower() == messages.FENCE_TOKEN:
        value = value.partition(b".")[0]
    caller = messages.claimed(Message(b"", None, ((name, value),))) if name.lower() == messages.CALLER else None
    return value.decode("utf-8", "replace") if caller is None else f"{caller.name} as {caller.role}"


def _as_json(letter: DeadLetter) -> dict[str, object]:
    value = letter.message.value
    return {
        "id": letter.id,
        "reason": letter.reason,
        "at": _when(letter),
        "partition": letter.position.partition,
        "offset": str(letter.position.offset),
        "resource": _resource(letter),
        "headers": [[name, _shown(name, each)] for name, each in letter.message.headers],
        "body": None if value is None else value.decode("utf-8", "replace"),
        "left_out": letter.left_out or None,
    }
