"""Which source a table's tokens come from: what `--source` and `--queue` may be given with (R12)."""

import re
from typing import Final

from fencepost.server.fence.token import BUILTIN, EXTERNAL
from fencepost.server.ops.protecting.check import ProtectError
from fencepost.server.ops.protecting.target import Target
from fencepost.server.postgres import sources
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.row_sql import literal

_QUEUE: Final = re.compile(r"postgres:default|(?:kafka|redis):[A-Za-z0-9._-]{1,48}")


def choose_source(target: Target, source: str | None, queue: str | None, scope: str | None, others: list[str]) -> str:
    """Find the table's source: what was given, what is there, or external. `scope`: as in plan_protect. `others`: the
    options that are given and that a queue's table cannot have. Raises ProtectError.
    """
    now = target.registered
    if source is not None and is_queue(source):
        raise ProtectError(target.name, [f"--source {source}: a queue orders writes and is no lock: --queue {source}."])
    if queue is None:
        chosen = source or (now.source if now else EXTERNAL)
        if is_queue(chosen) and scope:
            raise ProtectError(target.name, [_NO_SCOPE])
        return chosen
    if source is not None:
        others = ["--source", *others]
    if scope:
        others = ["--scope", *others]
    if others:
        raise ProtectError(
            target.name, [f"--queue and {', '.join(others)} exclude each other: its tokens are the queue's positions."]
        )
    if not _QUEUE.fullmatch(queue):
        raise ProtectError(target.name, [f"--queue {queue}: a queue is postgres:default, kafka:TOPIC or redis:STREAM."])
    if scope is None and now is not None and now.scope is not None:
        raise ProtectError(target.name, [_NO_SCOPE, "--no-scope gives each row a mark of its own again."])
    return queue


def choose_seal(target: Target, source: str, sealed: bool | None) -> bool:
    """Find whether the table wants sealed tokens: what was given, or what is there. Raises ProtectError where the
    tokens are a queue's positions, which no client presents.
    """
    now = target.registered
    chosen = sealed if sealed is not None else now is not None and now.sealed
    if chosen and is_queue(source):
        raise ProtectError(
            target.name,
            [
                f"--sealed and {source} exclude each other: the tokens are the queue's positions, and no client"
                " presents any. --no-sealed takes a seal away."
            ],
        )
    return chosen


_NO_SCOPE: Final = "a queue orders the writes of one row, and not those of a scope: their positions cannot be compared."


async def require_source(connection: Connection, target: Target, source: str, *, verify: bool) -> None:
    """Refuse a source that is not known, and --verify where there is nothing to ask. Raises ProtectError."""
    if is_queue(source):  # it becomes known with the table
        if verify:
            raise ProtectError(target.name, [f"--verify: {source} is a queue, and gives no tokens to others."])
        return
    services = {each.name: each for each in await sources.list_known(connection)}
    known = [BUILTIN, EXTERNAL, *(name for name in services if not is_queue(name))]
    if source not in known:
        raise ProtectError(
            target.name,
            [
                f"there is no source {source}; known are {', '.join(known)}.",
                "A gateway that has it in FENCEPOST_SOURCES makes it known, or `fencepost source add NAME=URL`.",
            ],
        )
    if verify and source in services and not services[source].verifies:
        raise ProtectError(
            target.name, [f"--verify: {services[source].kind} does not know which numbers it has issued."]
        )
    if verify and source in (BUILTIN, EXTERNAL):
        raise ProtectError(target.name, [f"--verify asks a lock service, and the source {source} is none."])


def register_sql(source: str) -> list[str]:
    """Make a queue known, before its table's marks are compared with its positions; nothing for another source."""
    if not is_queue(source):
        return []
    return [f"SELECT fencepost.queue_register({literal(source)}, {literal(source.partition(':')[0])})"]
