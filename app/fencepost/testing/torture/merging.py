"""One history of a run: made of the parts that its processes have written, with a last reading of all rows."""

import asyncio
import heapq
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from fencepost.testing.history import Recorder
from fencepost.testing.history.events import header_line
from fencepost.testing.torture.assignment import JOBS, OF_BATCH, Fenced
from fencepost.testing.torture.holders import (
    DATABASE_ERRORS,
    HolderAnswer,
    HolderDatabase,
    HolderExchange,
    LostError,
    NotSentError,
    mark_read,
)
from fencepost.testing.torture.workloads import Workload

_BEGINS: Final = frozenset({"invoke", "fault"})
_NAMELESS: Final = "note"


@dataclass(frozen=True, slots=True)
class Merged:
    """What is in a history, counted: accepted operations by `op`, refused ones by `op` and reason."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, op: str, end: Mapping[str, Any]) -> None:
        if end["event"] == "ok":
            self.accepted[op] += 1
        elif end["event"] == "refused":
            self.refused[op, end["reason"]] += 1


@dataclass(frozen=True, slots=True)
class Voided:
    """What a failover has done to tokens: those `below` are void. `since`: when it began, on the history's clock."""

    since: int
    below: int

    def refuses(self, token: int | None, at: int) -> bool:
        """Whether this token may have been refused at this time because it is void."""
        return token is not None and token < self.below and self.since < at


def merge(parts: Sequence[Path], destination: Path, header: Mapping[str, Any], voided: Sequence[Voided] = ()) -> Merged:
    """Make one history of the parts, in the order of time and with new ids. A last line without its end, of a process
    that was killed, is left out.

    `voided`: by the failovers of the run. No operation of the history has raised the mark that refuses such a token.
    Where the rule is epoch the answer does not show this mark (else `outcome` knows it by that): so its refusal as
    stale becomes one for another reason here.

    It uses as much memory as there are operations open at one time.
    """
    numbers = itertools.count(1)
    open_ids: dict[tuple[int, int], tuple[int, str | None, int | None]] = {}
    merged = Merged()
    with destination.open("xb") as file:
        file.write(header_line(header))
        for _, part, event in heapq.merge(*(_events(n, path) for n, path in enumerate(parts)), key=itemgetter(0)):
            kind = event["event"]
            if kind != _NAMELESS:
                was = (part, event["id"])
                if kind in _BEGINS:
                    event["id"] = next(numbers)
                    open_ids[was] = event["id"], event.get("op"), event.get("token")
                else:
                    event["id"], op, token = open_ids.pop(was)
                    shows_no_mark = event.get("reason") == "stale" and event.get("mark") is None
                    if shows_no_mark and any(each.refuses(token, event["time"]) for each in voided):
                        event["reason"] = "other"
                    if op is not None:
                        merged.count(op, event)
            _write(file, event)
    return merged


def _write(file: BinaryIO, event: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(event) + b"\n")


def _events(part: int, path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Give the events of a part in the order of time: those that were recorded late (Recorder.invoke, `since`) are few,
    and kept in memory.
    """
    late = sorted((event for event, is_late in _in_file(path) if is_late), key=itemgetter("time"))
    on_time = (event for event, is_late in _in_file(path) if not is_late)
    for event in heapq.merge(late, on_time, key=itemgetter("time")):
        yield event["time"], part, event


def _in_file(path: Path) -> Iterator[tuple[dict[str, Any], bool]]:
    """Give the events of a part as they stand there, and whether one of a later time stands before."""
    latest = 0
    with path.open("rb") as file:
        file.readline()  # the header
        for line in file:
            if line.endswith(b"\n"):
                event = orjson.loads(line)
                yield event, event["time"] < latest
                latest = max(latest, event["time"])


# What is there after a run: each row and each set is read once more, when no worker runs any longer.
#
# Those that an operation has named are read, whether the table has them or not: what was lost as a whole is in no
# list.

_READER: Final = "last"
_WITHIN: Final = 10.0
_TRIES: Final = 60
_PAUSE: Final = 0.5
_PAGE: Final = 1000
_OK: Final = 200
_MISSING: Final = 404
_INVOKE: Final = b'"event":"invoke"'
_MAKES: Final = frozenset({"write", "add"})


def written(parts: Iterable[Path]) -> set[str]:
    """Give the resources that were written or added to, of these parts of a history."""
    found = set()
    for part in parts:
        with part.open("rb") as file:
            for line in file:
                if _INVOKE in line and line.endswith(b"\n") and (event := orjson.loads(line))["op"] in _MAKES:
                    found.add(event["resource"])
    return found


async def read_all(
    urls: Sequence[str],
    prefix: str,
    workload: Workload,
    recorder: Recorder,
    named: Collection[str],
    token: Callable[[], str] | None = None,
    database_url: str | None = None,
) -> None:
    """Read all tables of the run by way of one of the gateways, and of these resources those that no table has.

    A table without a fence is read as it was written: at `database_url`, past the gateway, which serves protected
    tables only. Raises TimeoutError when no gateway answers for long, or the database.
    """
    exchanges = [HolderExchange(url, within=_WITHIN, token=token) for url in urls]
    database = HolderDatabase(database_url, prefix) if database_url is not None else None
    try:
        for kind in workload.tables:
            table = Fenced(prefix, kind)
            beginning = table.resource("")
            keys = sorted(each.removeprefix(beginning) for each in named if each.startswith(beginning))
            if kind in JOBS:
                await _read_jobs(exchanges, database, table, recorder, keys)
            elif kind == "plain":
                assert database is not None  # noqa: S101 - for the type: Workload.database says so
                stored = await _stored(database, table, "id, value")
                _record_sets(table, recorder, keys, ((name, value.split(",")) for name, value in stored))
            elif kind == workload.sets:
                _record_sets(table, recorder, keys, await _members(exchanges, table))
            else:
                await _read_rows(exchanges, table, recorder, keys)
    finally:
        if database is not None:
            await database.close()
        for exchange in exchanges:
            exchange.close()


async def _read_rows(exchanges: list[HolderExchange], table: Fenced, recorder: Recorder, keys: Iterable[str]) -> None:
    there = [row["id"] for row in await _rows(exchanges, table, "id,value")]
    for key in dict.fromkeys((*there, *keys)):
        operation = recorder.invoke(process=_READER, op="read", resource=table.resource(key))
        answer = await _get(exchanges, f"{table.path(key)}?select=value", frozenset({_OK, _MISSING}))
        operation.ok(value=answer.body["value"] if answer.status == _OK else None, token=mark_read(answer))


async def _members(exchanges: list[HolderExchange], table: Fenced) -> Iterable[tuple[str, list[str]]]:
    """Give each set's name with members of it: sets are rows, or (a ledger) their members are."""
    if table.kind == "ledger":
        return [(row["account"], [row["value"]]) for row in await _rows(exchanges, table, "id,account,value")]
    return [(row["id"], row["value"].split(",")) for row in await _rows(exchanges, table, "id,value")]


async def _read_jobs(
    exchanges: list[HolderExchange],
    database: HolderDatabase | None,
    table: Fenced,
    recorder: Recorder,
    keys: Iterable[str],
) -> None:
    """Read each job as a row; and the jobs of each batch as a set, of those that are done, once for each effect.

    A job that is done has the value of the worker that did it: that is one effect. One more is each row of an effect
    which another worker left (workloads.py). Marks are not recorded: the history has no claim whose answer was lost.
    """
    since = time.monotonic_ns()
    if table.is_plain:
        assert database is not None  # noqa: S101 - for the type: Workload.database says so
        columns = [tuple(row) for row in await _stored(database, table, "id, value, status")]
    else:
        columns = [(row["id"], row["value"], row["status"]) for row in await _rows(exchanges, table, "id,value,status")]
    jobs = {key: (value, status) for key, value, status in columns if status != "effect"}
    done = {key: value for key, (value, status) in jobs.items() if status == "done"}
    effects = [(job, worker) for worker, job, status in columns if status == "effect"]
    found = [*done, *(job for job, worker in effects if done.get(job) != worker)]
    batches = [key for key in keys if OF_BATCH not in key]
    _record_sets(table, recorder, batches, ((key.partition(OF_BATCH)[0], [key]) for key in found))
    for key in dict.fromkeys((*jobs, *(key for key in keys if OF_BATCH in key))):
        operation = recorder.invoke(process=_READER, op="read", resource=table.resource(key), since=since)
        operation.ok(value=jobs[key][0] if key in jobs else None)


async def _stored(database: HolderDatabase, table: Fenced, columns: str) -> list[Any]:
    """Read a table that the gateway does not serve. PostgreSQL may still be recovering."""
    for _ in range(_TRIES):
        try:
            return await database.fetch(f"SELECT {columns} FROM public.{table.name} ORDER BY id")
        except DATABASE_ERRORS:
            await asyncio.sleep(_PAUSE)
    raise TimeoutError(f"PostgreSQL has not answered within {_TRIES * _PAUSE:g} s after the faults were over")


def _record_sets(
    table: Fenced, recorder: Recorder, keys: Iterable[str], found: Iterable[tuple[str, list[str]]]
) -> None:
    sets: dict[str, list[str]] = defaultdict(list, {key: [] for key in keys})
    for name, members in found:
        sets[name] += members
    for name, members in sets.items():
        recorder.invoke(process=_READER, op="read_set", resource=table.resource(name)).ok(values=tuple(members))


async def _rows(exchanges: list[HolderExchange], table: Fenced, columns: str) -> list[dict[str, Any]]:
    """Read a whole table, page by page, in the order of its key."""
    found: list[dict[str, Any]] = []
    while True:
        after = f"&id=gt.{found[-1]['id']}" if found else ""
        answer = await _get(exchanges, f"{table.path(None)}?select={columns}&order=id.asc&limit={_PAGE}{after}")
        page: list[dict[str, Any]] = answer.body
        found += page
        if len(page) < _PAGE:
            return found


async def _get(exchanges: list[HolderExchange], path: str, expected: Collection[int] = (_OK,)) -> HolderAnswer:
    """Ask until a gateway answers so: one may still be starting, or PostgreSQL recovering."""
    for attempt in range(_TRIES):
        try:
            answer = await exchanges[attempt % len(exchanges)].send("GET", path, {})
        except (NotSentError, LostError):
            pass
        else:
            if answer.status in expected:
                return answer
        await asyncio.sleep(_PAUSE)
    raise TimeoutError(f"no gateway has answered GET {path} within {_TRIES * _PAUSE:g} s after the faults were over")
