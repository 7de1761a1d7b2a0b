"""What a planted bug is: the product with one safety line broken, and the bounded run that has to find it.

The bugs themselves are in `bugs.py`. A line that is to be broken and is not there (any
more) is an AssertionError: the bug would change nothing, and prove nothing.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psycopg

from fencepost.server.ops.functions import Functions
from fencepost.testing.checker import Model
from fencepost.testing.servers.postgres import Connection
from fencepost.testing.servers.processes import eventually
from fencepost.testing.torture import Config, stages
from fencepost.testing.torture.stages import OwnPrimary


@dataclass(frozen=True)
class Setting:
    """A configuration of a run, which bugs share: so do they share the runs that show the product without them.

    It ends after `operations`. own_servers: it starts a PostgreSQL, which faults can restart; else it has a database
    of the session's. around: what is done around the run in the process of the test.
    """

    name: str
    workload: str
    operations: int = 1500
    faults: str = "none"
    resources: int = 2
    gateways: int = 1
    loaders: int = 1
    tasks: int = 16
    holders: int = 0
    own_servers: bool = False
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def words(self) -> str:
        """Say it in a table: the workload, and its faults."""
        return f"`{self.workload}`" + ("" if self.faults == "none" else f" with `{self.faults.replace(',', '`, `')}`")


@dataclass(frozen=True)
class Line:
    """`old` becomes `new` in an SQL function of the schema fencepost."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class TableLine:
    """The same in a function that each protected table has for itself. `part`: which, as in ops/protecting."""

    part: str
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """One bug. `model`: of the checker, which has to find it. Where several lines of defence stand, all are broken.

    gateway, worker: change the modules of a gateway's, or of a worker's process before it starts. harness: what is
    done around the run in the process of the test.
    """

    name: str
    model: Model
    setting: Setting
    lines: tuple[Line, ...] = ()
    statements: tuple[str, ...] = ()
    table_lines: tuple[TableLine, ...] = ()
    gateway: Callable[[], None] | None = None
    worker: Callable[[], None] | None = None
    harness: Callable[[], AbstractContextManager[object]] = nullcontext


def config(setting: Setting, out: Path, seed: int, database_url: str | None, bug: str = "none") -> Config:
    """Give the run of a setting, with processes that have the bug of this name."""
    return Config(
        out=out,
        seed=seed,
        workload=setting.workload,
        faults=setting.faults,
        operations=setting.operations,
        minutes=2.0,
        database_url=None if setting.own_servers else database_url,
        gateways=setting.gateways,
        loaders=setting.loaders,
        tasks=setting.tasks,
        holders=setting.holders,
        resources=setting.resources,
        gateway_command=(sys.executable, "-m", "tests.torture.mutated", bug, "fencepost"),
        worker_command=(sys.executable, "-m", "tests.torture.mutated", bug, "fencepost.testing.torture.worker"),
    )


def plant(connection: psycopg.Connection, planted: Planted) -> None:
    """Break the database, in the connection's transaction."""
    for statement in planted.statements:
        connection.execute(statement.encode())
    for line in planted.lines:
        found = connection.execute("SELECT pg_get_functiondef(%s::text::regprocedure)", (line.function,)).fetchone()
        assert found is not None
        connection.execute(replaced(found[0], line.old, line.new, line.function).encode())


@contextmanager
def protecting(planted: Planted) -> Iterator[None]:
    """Let tables that are protected meanwhile have functions with the bug."""
    bodies = Functions.bodies

    def broken(functions: Functions) -> Mapping[str, str]:
        made = bodies(functions)
        for line in planted.table_lines:
            made[line.part] = replaced(made[line.part], line.old, line.new, line.part)
        return made

    with mock.patch.object(Functions, "bodies", broken):
        yield


def replaced(text: str, old: str, new: str, where: str) -> str:
    """Replace, and see to it that there was something to replace."""
    assert old in text, f"{where} has no {old!r}"
    return text.replace(old, new)


def swap(owner: object, name: str, broken: Any) -> Any:
    """Put `broken` in the place of what a module or a class calls so; returns what was there.

    AssertionError when there is nothing of that name (any more).
    """
    assert hasattr(owner, name), f"{owner} has no {name}"
    was = getattr(owner, name)
    setattr(owner, name, broken)
    return was


# The runs that bugs share.

_MORE_TOKENS: Final = 200
"""nextval logs 32 ahead: a standby has to be further behind to give tokens again."""


@contextmanager
def _lagging_standby() -> Iterator[None]:
    """Let commits not wait for the standby, and let it be some grants behind when it is promoted.

    Acknowledged grants are lost then, as in any failover to an asynchronous standby. A generation that is raised makes
    up for that: no token comes again.
    """
    fail_over = OwnPrimary.fail_over

    async def asynchronous(_connection: Any) -> None:
        pass

    async def drawn(connection: Connection) -> int:
        return int(await connection.fetchval("SELECT last_value FROM fencepost.tokens"))

    async def until_many_more_are_drawn(connection: Connection) -> None:
        before = await drawn(connection)

        async def enough() -> bool:
            return await drawn(connection) > before + _MORE_TOKENS

        await eventually(enough, what="more grants")

    async def cut_off(standby: Connection) -> None:
        await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await standby.execute("SELECT pg_reload_conf()")

        async def alone() -> bool:
            return not await standby.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

        await eventually(alone, what="the standby cut off")

    def lagging(of: OwnPrimary) -> tuple[str, int]:
        assert of._standby is not None  # noqa: SLF001 - the lag is no fault of the product's harness
        asyncio.run(stages._on(of._standby.url, cut_off))  # noqa: SLF001
        asyncio.run(stages._on(of.url, until_many_more_are_drawn))  # noqa: SLF001
        return fail_over(of)

    with (
        mock.patch.object(stages, "make_synchronous", asynchronous),
        mock.patch.object(OwnPrimary, "fail_over", lagging),
    ):
        yield


ROWS: Final = Setting("rows", "register", operations=1200)
SCOPES: Final = Setting("scopes", "register", operations=800, faults="delay-database")
LOCKS: Final = Setting("locks", "mutex", operations=2500, resources=1, tasks=6)
KEYS: Final = Setting("keys", "idempotent", operations=600)
KEYS_AT_ONCE: Final = Setting("keys at once", "idempotent", operations=2500, faults="delay-database", gateways=2)
"""Answers of PostgreSQL that come late leave time between the steps of a write."""
LOST_ANSWERS: Final = Setting("lost answers", "register", operations=800, faults="cut-after-commit")
CLIENTS: Final = Setting(
    "clients", "client", operations=1800, faults="partition-client", resources=2, gateways=2, tasks=8
)
CLIENTS_ANSWERS: Final = Setting("answers to clients", "client", operations=1500, faults="cut-client", tasks=8)
CLIENT_SETS: Final = Setting("sets of clients", "client-set", operations=300)
CRASHES: Final = Setting("crashes", "register", operations=2000, faults="restart-immediate", own_servers=True)
GENERATIONS: Final = Setting("generations", "register", operations=2000, faults="failover", own_servers=True)
FAILOVERS: Final = Setting(
    "failovers", "mutex", operations=5000, faults="failover", resources=1, own_servers=True, around=_lagging_standby
)
