"""What a planted bug is: the product with one safety line broken, and the bounded run that has to find it.

The bugs themselves are in `bugs/`, one module a part of the product. A line that is to be broken and is not there (any
more) is an AssertionError: the bug would change nothing, and prove nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from fencepost.server.ops.functions import Functions
from fencepost.testing.checker import Model
from fencepost.testing.torture import Config


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
