"""Gateways of tests: in this process, in a thread, as a process; on the demo, on a database that is made ready."""

import asyncio
import atexit
import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg
import httpx
import pytest
import uvicorn
from alembic import command as command_alembic
from alembic.config import Config
from click.testing import Result
from tests.support.interleave import Connection, connection_to
from tests.support.manual_clock import UNHURRIED
from tests.support.postgres import ReadyMade
from tests.support.servers import all_gone, command, exit_code

from fencepost.server.gateway.gateway import Gateway as UseCases
from fencepost.server.ops import demo, schema
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.postgres.api_keys import NewKey
from fencepost.server.serve import create_app
from fencepost.server.serving.protocol import GuardedProtocol
from fencepost.server.settings import Settings
from fencepost.server.times import Times
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.postgres import clone, in_database
from fencepost.testing.servers.processes import PATIENCE, descendants, mentioning, server_directory

# A live gateway: uvicorn with a loop and a thread of its own, on a free port.


@contextlib.contextmanager
def serving(database: str, times: Times = UNHURRIED, /, **settings: object) -> Iterator[str]:
    """Run a gateway until the block ends; yields its base URL. A start that fails raises."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_app(Settings.model_validate({"database_url": database, "port": 0, **settings}), times)
        config = uvicorn.Config(
            app, http=GuardedProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="gateway")
        thread.start()
        try:
            base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            _wait_until_it_answers(base_url, thread)
            yield base_url
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the gateway did not stop"


def _wait_until_it_answers(base_url: str, thread: threading.Thread) -> None:
    # The listener takes connections from the start, so one request waits for the server: no polling.
    with httpx.Client(base_url=base_url, timeout=0.25, trust_env=False) as client:
        for _ in range(int(PATIENCE / 0.25)):
            assert thread.is_alive(), "the gateway did not start"
            with contextlib.suppress(httpx.TransportError):
                if client.get("/healthz").is_success:
                    return
    pytest.fail(f"the gateway did not answer within {PATIENCE} seconds")


@asynccontextmanager
async def in_thread(database: str, times: Times = UNHURRIED, /, **settings: object) -> AsyncIterator[str]:
    """Do the same, and leave the event loop alone meanwhile."""
    running = serving(database, times, **settings)
    url = await asyncio.to_thread(running.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


# A gateway in the test's own event loop: no sockets, for tests that ask thousands of times.


@asynccontextmanager
async def in_process(
    database: str, times: Times = UNHURRIED, /, **settings: object
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a database until the block ends."""
    app = create_app(Settings.model_validate({"database_url": database, "log_level": "error", **settings}), times)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=PATIENCE) as client,
    ):
        yield client


def gateway_of(client: httpx.AsyncClient) -> UseCases:
    """Give the parts of the gateway that a client of `in_process` asks."""
    gateway: UseCases = client._transport.app.gateway()  # type: ignore[attr-defined]  # noqa: SLF001
    return gateway


# A gateway on the demo's database that all tests of a file share; each of them finds the demo as it was made.

# Written while no trigger judges it. Numbers of tokens and leases go on: what rises goes on rising.
_AS_IT_WAS = f"""
SET session_replication_role = replica;
DELETE FROM public.orders; DELETE FROM public.accounts; DELETE FROM fencepost.marks; DELETE FROM fencepost.idempotency;
DELETE FROM fencepost.waiters; DELETE FROM fencepost.locks; DELETE FROM fencepost.leases; DELETE FROM fencepost.draws;
{demo.ROWS["orders"]};
{demo.ROWS["accounts"]}
"""


@dataclass(frozen=True)
class DemoGateway:
    """A running gateway, and its database."""

    url: str
    dsn: str

    async def reset(self) -> None:
        """Have the demo's rows unwritten, no marks, and nothing held or waited for."""
        async with connection_to(self.dsn) as connection:
            await connection.execute(_AS_IT_WAS)


@contextmanager
def demo_gateway(databases: ReadyMade, times: Times = UNHURRIED, /, **settings: object) -> Iterator[DemoGateway]:
    """Run one on a database of its own until the block ends."""
    dsn, _ = asyncio.run(databases.make_with("demo", demo.load))
    with serving(dsn, times, **settings) as url:
        yield DemoGateway(url, dsn)
    databases.drop(dsn)


# A gateway that wants API keys: a test file has `shared, owner = api_key_gateway.shared, api_key_gateway.owner`.

FOR_ALL = NewKey(None, ("read", "write", "lock"), None, None, "")


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    with demo_gateway(databases, api_keys=True) as gateway:
        yield gateway


@pytest.fixture
async def owner(shared: DemoGateway) -> AsyncIterator[Connection]:
    """Give a connection to its database, which makes keys."""
    async with connection_to(shared.dsn) as connection:
        yield connection


# A database that was never migrated, and the roles that migrate it, own its tables, and use them.

_numbers = itertools.count(1)


FOREIGN = """
SELECT c.relname || ' of ' || pg_get_userbyid(c.relowner) FROM pg_class c
 WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind <> 'i' AND c.relowner <> $1::regrole
UNION ALL SELECT p.proname || ' of ' || pg_get_userbyid(p.proowner) FROM pg_proc p
 WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proowner <> $1::regrole
UNION ALL SELECT t.typname || ' of ' || pg_get_userbyid(t.typowner) FROM pg_type t
 WHERE t.typnamespace = 'fencepost'::regnamespace AND t.typowner <> $1::regrole
UNION ALL SELECT 'schema of ' || pg_get_userbyid(n.nspowner) FROM pg_namespace n
 WHERE n.nspname = 'fencepost' AND n.nspowner <> $1::regrole"""


ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, v text)"


@dataclass
class OwnedDatabase:
    """A database, and roles made for it: `app` owns tables, `admin` may make roles."""

    url: str
    root: Connection
    number: int
    opened: list[Connection] = field(default_factory=list)

    @property
    def owner(self) -> str:
        return f"fence owner {self.number}"

    @property
    def app(self) -> str:
        return f"app_{self.number}"

    @property
    def admin(self) -> str:
        return f"admin_{self.number}"

    def url_of(self, role: str) -> str:
        return self.url.replace(self.url.partition("://")[2].partition("@")[0], f"{role}:secret")

    async def login(self, role: str) -> Connection:
        connection = await asyncpg.connect(self.url_of(role))
        self.opened.append(connection)
        return connection

    async def command(self, *arguments: str, role: str | None = None) -> Result:
        url = self.url if role is None else self.url_of(role)
        return await command(*arguments, database=url)

    async def foreign(self) -> list[str]:
        """List what in the schema fencepost does not belong to the owner."""
        return [row[0] for row in await self.root.fetch(FOREIGN, f'"{self.owner}"')]


@asynccontextmanager
async def building(postgres: PostgresServer, template: str | None = None) -> AsyncIterator[OwnedDatabase]:
    """Make the database, as a copy of a migrated one or as one that never was, and its roles. Drops them afterwards."""
    number = next(_numbers)
    server = await asyncpg.connect(postgres.url)
    name = f"owned_{number}"
    if template is None:
        await server.execute(f"CREATE DATABASE {name}")
    else:
        await clone(postgres.url, name, template)
    root = await asyncpg.connect(in_database(postgres.url, name))
    owned = OwnedDatabase(in_database(postgres.url, name), root, number)
    await root.execute(
        f"CREATE ROLE {owned.app} LOGIN PASSWORD 'secret';"
        f"CREATE ROLE {owned.admin} LOGIN CREATEROLE PASSWORD 'secret';"
        f"GRANT CREATE ON DATABASE {name} TO {owned.admin}; GRANT CREATE ON SCHEMA public TO {owned.app}"
    )
    try:
        yield owned
    finally:
        for connection in [*owned.opened, root]:
            await connection.close()
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
        for role in (owned.app, owned.admin, owned.owner):
            await server.execute(f'DROP ROLE IF EXISTS "{role}"')
        await server.close()


# A version of Fencepost that is still to come: this one's migrations, and a revision more.
#
# The revision is made from the template that `alembic revision` takes, and its change as a real one would be: by the
# revision, for a schema that is there, and in the files of migrations/schema, for a new one.

REVISION: Final = "9999"
CHANGE: Final = ("ALTER TABLE fencepost.marks ADD COLUMN future integer",)
FILES: Final = {"marks.sql": ("clock_timestamp()\n) WITH", "clock_timestamp(),\n  future integer\n) WITH")}
"""By file, what is replaced, and by what."""


@contextmanager
def next_version(
    directory: Path, works_from: str, change: Sequence[str] = CHANGE, files: Mapping[str, tuple[str, str]] = FILES
) -> Iterator[None]:
    """Be the next version, whose schema works for gateways from a revision on."""
    scripts = directory / "migrations"
    shutil.copytree(schema.scripts_dir(), scripts, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    decided = "CREATE OR REPLACE FUNCTION fencepost.compatible_from() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE"
    _revise(scripts, [*change, f"{decided} RETURN '{works_from}'::text"])
    for name, (old, new) in {**files, "versions.sql": (f"'{schema.newest()}'::text", f"'{works_from}'::text")}.items():
        path = scripts / "schema" / name
        text = path.read_text("utf-8")
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "scripts_dir", lambda: scripts)
        yield


def _revise(scripts: Path, statements: Sequence[str]) -> None:
    config = Config()
    config.set_main_option("script_location", str(scripts))
    command_alembic.revision(config, "The future", head=schema.newest(), rev_id=REVISION)
    (path,) = (scripts / "versions").glob(f"{REVISION}_*.py")
    guard = "        return  # made from migrations/schema just now\n"
    before, found, after = path.read_text("utf-8").partition(guard)
    assert found, "the template has no guard"
    steps = "".join(f"    op.execute({statement!r})\n" for statement in statements)
    undo = after.replace("    pass", '    op.execute("ALTER TABLE fencepost.marks DROP COLUMN IF EXISTS future")')
    path.write_text(before + guard + steps + undo, "utf-8")


@asynccontextmanager
async def gateway_process(database: str, directory: Path) -> AsyncIterator[GatewayServer]:
    """Run `fencepost serve` as a process on a port that stays the same when it is killed and started again."""
    gateway = GatewayServer(database, directory / "gateway.log", "--demo")
    try:
        gateway.start()
        await gateway.serves()
        yield gateway
    finally:
        gateway.crash()


# Running `fencepost serve` as a process whose output is read, and making sure that nothing of it is left.

STARTS_WITHIN = 2 * PATIENCE  # seconds

workers = pytest.mark.parametrize(
    "workers", [pytest.param("1", marks=pytest.mark.long("tests with one worker process")), "2"]
)
"""For tests of the processes of `fencepost serve`: with several, the parent has more to do."""


@dataclass
class Gateway:
    """A running `fencepost serve`."""

    process: subprocess.Popen[str]
    url: str
    greeting: str
    errors: Path

    def interrupt(self) -> None:
        """Press Ctrl-C: a terminal signals the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    async def ended(self, *, within: float = PATIENCE) -> int:
        return await exit_code(self.process, within=within, what="fencepost serve")

    def processes(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]


def launch(*arguments: str, errors: Path, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """Start `fencepost serve` with nothing of our own environment's settings. `prefix` is a command that runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FENCEPOST_", "PG"))}
    with errors.open("w") as stderr:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "fencepost", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment | variables | {"TMPDIR": str(errors.parent)},
            start_new_session=True,
        )


@cache
def demo_data() -> Path:
    """Make the data directory of a gateway that has run once and has ended, with the demo table: a copy of it starts in
    half the time. It is made once, and removed when the tests end.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    directory = stack.enter_context(server_directory())
    given = ("--port", "0", "--data-dir", str(directory / "data"), "--demo")
    with launch(*given, errors=directory / "stderr") as process:
        greeting = read_greeting(process)
        assert "http://" in greeting, (greeting, (directory / "stderr").read_text())
        process.terminate()
    assert process.returncode == 0, (directory / "stderr").read_text()
    return directory / "data"


def copy_demo_data(to: Path) -> None:
    """Copy it, owners and all: PostgreSQL may run as another user."""
    subprocess.run(["cp", "--archive", demo_data(), to], check=True)


@asynccontextmanager
async def serving_process(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Gateway]:
    """Run the gateway on an embedded server in `directory`; afterwards nothing of it is left.

    Where there is no data yet it begins with a copy of `demo_data`.
    """
    own = "--database-url" not in arguments and "FENCEPOST_DATABASE_URL" not in variables
    if own and not (directory / "data").exists():
        await asyncio.to_thread(copy_demo_data, directory / "data")
    async with serving_as_it_is(directory, *arguments, **variables) as gateway:
        yield gateway


@asynccontextmanager
async def serving_as_it_is(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Gateway]:
    """Run it on the data that `directory` has: on none, as at a first start, it makes its own."""
    errors = directory / "stderr"
    given = ("--port", "0", "--data-dir", str(directory / "data"), "--demo", *arguments)
    process = launch(*given, errors=errors, prefix=(), **variables)
    try:
        greeting = await asyncio.wait_for(asyncio.to_thread(read_greeting, process), STARTS_WITHIN)
        found = re.search(r"http://\S+", greeting)
        assert found, f"no greeting: {greeting!r} {errors.read_text()}"
        yield Gateway(process, found[0], greeting, errors)
    finally:
        everything = [process.pid, *descendants(process.pid)]
        process.kill()
        process.communicate(timeout=PATIENCE)
        await all_gone(everything)
        await all_gone(list(mentioning(str(directory / "data"))))


def read_greeting(process: subprocess.Popen[str]) -> str:
    """Read what serve prints in one go: up to the line `try` or `demo`, or to the end of its output."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(("  try", "  demo")):
            break
    return "".join(lines)


def refused(*arguments: str, directory: Path, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Run a serve that must fail; return its exit code and what it printed to stderr. It prints nothing to stdout."""
    process = launch(*arguments, errors=directory / "stderr", prefix=prefix, **variables)
    try:
        out, _ = process.communicate(timeout=STARTS_WITHIN)
    finally:
        process.kill()
    assert out == ""
    return process.returncode, (directory / "stderr").read_text()
