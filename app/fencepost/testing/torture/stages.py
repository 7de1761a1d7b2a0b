"""What a run plays on: servers of its own, or a gateway that runs already; and the tables that it makes there."""

import asyncio
import functools
import http.client
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import Account, EmbeddedServerError, embedded_bin_dir, reachable_binaries
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import ProtectError, protect, unprotect
from fencepost.server.postgres.upkeep import raise_generation
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.gateway import ask, gateway_environment, is_ready
from fencepost.testing.servers.kubernetes import ADMIN, Cluster
from fencepost.testing.servers.lock_services import LOCK_SERVICES, MissingServerError, redis
from fencepost.testing.servers.postgres import Connection, Standby, make_synchronous
from fencepost.testing.servers.processes import free_port
from fencepost.testing.servers.server import Server, ServerError
from fencepost.testing.torture.assignment import BUILTIN, JOBS, BadInputError, Fenced, RunFailedError
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.faults import ADVISORY, KINDS, Need, choose, spared
from fencepost.testing.torture.holders import run_token


@dataclass(slots=True)
class StageGateway:
    """A gateway that this run has started. Clients reach it by `front`, and it reaches PostgreSQL by `back`."""

    name: str
    server: Server
    front: Link
    back: Link


@dataclass(slots=True)
class Stage:
    """urls: of the gateways, as clients reach them. source: what these call the token source. database_url: None where
    the run may not connect.
    """

    urls: tuple[str, ...]
    source: str
    database_url: str | None
    directory: Path
    gateways: list[StageGateway] = field(default_factory=list)
    primary: "OwnPrimary | None" = None
    lock_service: list[Server] = field(default_factory=list)
    to_database: Link | None = None
    """By which `database_url` leads to the primary, if the run has started it."""
    has: frozenset[Need] = frozenset({"holders"})
    faults: tuple[str, ...] = ()


# The lock services of a run: real servers, each with the settings under which its tokens rise.

_REDLOCK_NODES: Final = 5
_NODE_TIMEOUT_MS: Final = 60


def start_lock_service(source: str, name: str, directory: Path, stack: ExitStack) -> tuple[str, list[Server]]:
    """Start the servers of a source; they end with `stack`. Returns what FENCEPOST_SOURCES has, and the servers.

    `name`: what gateways call it.

    Raises BadInputError when one is not installed.
    """
    if source == BUILTIN:
        return "", []
    if source == "postgres-advisory":
        return f"{name}=postgres-advisory:", []
    try:
        if source == "kubernetes":
            cluster = stack.enter_context(Cluster(directory / source))
            path = cluster.kubeconfig("admin", {"token": ADMIN})
            return f"{name}=kubernetes://kubeconfig?file={path}", [cluster.apiserver]
        if source == "redlock":
            nodes = [redis(directory / f"redis{number}") for number in range(_REDLOCK_NODES)]
            places = ",".join(node.url.removeprefix("redis://").removesuffix("/0") for node in nodes)
            url = f"redlock://{places}/0?node_timeout_ms={_NODE_TIMEOUT_MS}"
        else:
            nodes = [LOCK_SERVICES[source](directory / source)]
            url = nodes[0].url
    except MissingServerError as error:
        raise BadInputError(f"the source {source} cannot be started: {error}") from error
    return f"{name}={url}", [stack.enter_context(node.server) for node in nodes]


_WITHIN: Final = 30.0  # seconds
_ROWS: Final = "id text PRIMARY KEY, value text NOT NULL"
_JOBS: Final = f"{_ROWS}, status text NOT NULL DEFAULT 'new', locked_until timestamptz"
"""`locked_until` is of the control, whose workers lock their jobs by hand."""
_ENTRIES: Final = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, value text NOT NULL"


async def make(database_url: str, tables: Sequence[Fenced], source: str) -> None:
    """Create and protect these, all or none, and no others. Raises asyncpg.PostgresError, ProtectError, OSError."""
    connection = await asyncpg.connect(database_url)
    made: list[Fenced] = []
    try:
        for table in tables:
            await _make(connection, table, source)
            made.append(table)
    except BaseException:
        await _drop_each(connection, made)
        raise
    finally:
        await connection.close()


async def _make(connection: Connection, table: Fenced, source: str) -> None:
    columns = _JOBS if table.kind in JOBS else _ENTRIES if table.kind == "ledger" else _ROWS
    await connection.execute(f"CREATE TABLE public.{table.name} ({columns})")
    if table.kind in JOBS:
        await connection.execute(f"CREATE INDEX ON public.{table.name} (id) WHERE status = 'new'")
    if table.is_plain:
        return
    scope = f"{table.prefix}_scope/{{id}}" if table.kind == "scoped" else None
    try:
        await protect(
            connection, f"public.{table.name}", rule=table.rule, source=source, scope=scope, work=table.kind in JOBS
        )
    except BaseException:
        await connection.execute(f"DROP TABLE public.{table.name}")
        raise


async def drop(database_url: str, tables: Sequence[Fenced]) -> None:
    """Drop them. Their marks stay in the schema fencepost: a mark never falls. Raises RunFailedError."""
    try:
        connection = await asyncpg.connect(database_url, timeout=_WITHIN, server_settings={"lock_timeout": "30s"})
        try:
            await _drop_each(connection, tables)
        finally:
            await connection.close()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ProtectError) as error:
        names = ", ".join(f"public.{table.name}" for table in tables)
        raise RunFailedError(
            f"the tables of the run could not be dropped: {str(error) or type(error).__name__}. Those that are left of"
            f" {names} have to be dropped by hand: fencepost unprotect TABLE, and DROP TABLE"
        ) from error


async def _drop_each(connection: Connection, tables: Sequence[Fenced]) -> None:
    for table in tables:
        name = f"public.{table.name}"
        if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
            continue
        if not table.is_plain:
            await unprotect(connection, name)
        await connection.execute(f"DROP TABLE {name}")


# A gateway that runs already: looked at before anything is made. Afterwards only marks of dropped tables are left.

_OK: Final = 200
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_READY_MEMBERS: Final = frozenset({"status", "database", "origin", "sources"})


@contextmanager
def foreign_stage(config: Config, directory: Path, prefix: str, made: list[Fenced]) -> Iterator[Stage]:
    """Make the tables in the gateway's database, and drop them after the block. Raises BadInputError.

    A workload without tables has one made too: it shows that the database is the gateway's.
    """
    assert config.url is not None  # noqa: S101 - for the type
    has = foreign_available(config)
    kinds = choose(config.faults, has, spared(config.source, trusts=config.play.trusts))
    ready = look(config.url)
    # A gateway with --admin-port shows no more than its status here: then the first acquire shows whether it has it.
    if "sources" in ready and config.source not in {BUILTIN, *ready["sources"]}:
        known = ", ".join([BUILTIN, *ready["sources"]])
        raise BadInputError(f"the gateway at {config.url} has no source {config.source}. It has: {known}.")
    if made and config.database_url is None:
        raise BadInputError(
            f"the workload {config.workload} needs tables of its own, which are made past the gateway: give the"
            " gateway's database with --database-url. (The workload mutex needs none.)"
        )
    if config.database_url is None:
        yield Stage((config.url,), config.source_name, None, directory, has=has, faults=kinds)
        return
    if not made and "builtin" not in has:
        raise BadInputError(
            f"--database-url does nothing for the workload {config.workload} with the source {config.source}: it has no"
            " tables, and its leases are not in the database. Leave it out."
        )
    made = made or [Fenced(prefix, "strict")]
    try:
        asyncio.run(make(config.database_url, made, config.source_name))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ProtectError) as error:
        raise BadInputError(f"the tables cannot be made in the database of --database-url: {error}") from error
    try:
        require_served(config.url, made)
        yield Stage((config.url,), config.source_name, config.database_url, directory, has=has, faults=kinds)
    finally:
        asyncio.run(drop(config.database_url, made))


def foreign_available(config: Config) -> frozenset[Need]:
    """What faults can be done to in a run against a gateway that another program has started."""
    has: set[Need] = {"holders"}
    if config.database_url is not None:
        has.add("database")
        if config.source == BUILTIN:
            has.add("builtin")
    return frozenset(has) - spared(config.source, trusts=config.play.trusts)


def look(url: str) -> dict[str, Any]:
    """Ask a gateway whether it is one, and ready. Raises BadInputError."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise BadInputError(f"{url} is not a URL of a gateway: {error}.") from error
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise BadInputError(f"{url} is not a URL of a gateway: it is written http://HOST:PORT.")
    try:
        status, body = ask(parts.hostname, port or 80, "/readyz", headers=_headers())
    except (OSError, http.client.HTTPException) as error:
        raise BadInputError(f"no gateway can be reached at {url}: {str(error) or type(error).__name__}.") from error
    if status == _UNAUTHENTICATED and isinstance(body, dict):
        raise BadInputError(f"the gateway at {url} does not accept the token: {body.get('detail')}")
    if not isinstance(body, dict) or not (body.keys() >= _READY_MEMBERS or body.keys() == {"status"}):
        raise BadInputError(f"what answers at {url} is not Fencepost: its /readyz is another one.")
    if status != _OK:
        raise BadInputError(f"the gateway at {url} is not ready: {body}.")
    status, refusal = ask(parts.hostname, port or 80, "/v1/locks", headers=_headers())
    if status in (_UNAUTHENTICATED, _FORBIDDEN) and isinstance(refusal, dict):
        hint = "" if _headers() else " Give a token: --api-token-file."
        raise BadInputError(f"the gateway at {url} does not let the run in: {refusal.get('detail')}{hint}")
    return body


def require_served(url: str, made: list[Fenced]) -> None:
    """Raise BadInputError unless the gateway has these tables: else --database-url is not its database."""
    parts = urlsplit(url)
    for table in made:
        if table.is_plain:
            continue
        path = f"/v1/data/{table.name}?limit=1"
        status, body = ask(parts.hostname or "", parts.port or 80, path, headers=_headers())
        if status in (_UNAUTHENTICATED, _FORBIDDEN) and isinstance(body, dict):
            raise BadInputError(f"the gateway at {url} does not let the run read its tables: {body.get('detail')}")
        if status != _OK:
            raise BadInputError(
                f"the gateway at {url} does not serve the table {table.name}, which was just made in the database of"
                " --database-url: is that the gateway's database, and does the gateway serve the schema public?"
            )


def _headers() -> dict[str, str]:
    token = run_token()
    return {} if token is None else {"Authorization": f"Bearer {token()}"}


# The PostgreSQL of a run: restarted, crashed, and replaced by its standby.
#
# The standby is synchronous, as docs/failover.md asks for: without that a failover loses acknowledged writes by
# itself, and would show nothing about fences.

T = TypeVar("T")

_OPTIONS: Final = {
    "shared_buffers": "32MB",
    "jit": "off",
    # In the data directory, and so gone with it: a primary that was killed leaves what it has in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
}
_OLDEST: Final = f"SELECT CASE $1 WHEN '{BUILTIN}' THEN fencepost.oldest() ELSE fencepost.oldest($1) END"


class OwnPrimary:
    """A PostgreSQL in `directory`. Its address stays until a failover; `url` always has that of the primary."""

    def __init__(self, bin_dir: Path, directory: Path, *, standby: bool) -> None:
        self._bin_dir, self._directory = bin_dir, directory
        self._wants_standby = standby
        self._homes = 0
        self._home = self._new_home()
        self._server = self._server_in(self._home, free_port())
        self._standby: Standby | None = None
        self._standby_port = 0

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._server.start()
        if self._wants_standby:
            self.follow()

    def follow(self) -> None:
        """Make a standby that follows, and let commits wait for it from then on."""
        account = Account.choose(self._directory / self._home.name)
        home, self._standby_port = self._new_home(), free_port()
        home.mkdir(mode=0o700)
        if account.drop:
            os.chown(home, account.uid, account.gid)
        binaries = reachable_binaries(self._bin_dir, account)
        self._standby = Standby(binaries, account, home / "pgdata", self._standby_port)
        self._standby.make(self.url)
        self._next_home = home
        asyncio.run(_on(self.url, make_synchronous))

    def restart(self, *, crash: bool) -> None:
        """Restart it: by SIGQUIT, which is a crash, or by a fast shutdown, which rolls back what is open."""
        if crash:
            os.kill(self._postmaster(), signal.SIGQUIT)
        self._server.stop()
        self._server.start()

    def fail_over(self) -> tuple[str, int]:
        """Kill the primary, promote the standby, raise the generation, and make another standby.

        Returns host and port of the new primary.
        """
        standby, home = self._standby, self._next_home
        assert standby is not None  # noqa: S101 - for the type: the kind of fault needs one
        os.kill(self._postmaster(), signal.SIGKILL)
        self._server.stop()
        asyncio.run(_on(standby.url, _promote))
        standby.stop()
        shutil.copy2(self._home / "password", home / "password")
        if (account := Account.choose(home)).drop:
            os.chown(home / "password", account.uid, account.gid)
        shutil.rmtree(self._home)
        self._home, self._server = home, self._server_in(home, self._standby_port)
        self._server.start()
        asyncio.run(_on(self.url, _raise))
        self.follow()
        return "127.0.0.1", urlsplit(self.url).port or 0

    def oldest(self, source: str) -> int:
        """Give the oldest token of a source that is not void: where its generation begins, or 1."""

        async def ask(connection: Connection) -> int:
            return int(await connection.fetchval(_OLDEST, source))

        return asyncio.run(_on(self.url, ask))

    def stop(self) -> None:
        if self._standby is not None:
            self._standby.stop()
        self._server.stop()

    def _new_home(self) -> Path:
        self._homes += 1
        return self._directory / f"postgresql{self._homes}"

    def _server_in(self, home: Path, port: int) -> PostgresServer:
        return PostgresServer(bin_dir=self._bin_dir, data_dir=home, port=port, options=_OPTIONS)

    def _postmaster(self) -> int:
        return int((self._home / "pgdata" / "postmaster.pid").read_text().split()[0])


async def _on(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await work(connection)
    finally:
        await connection.close()


async def _promote(connection: Connection) -> None:
    if not await connection.fetchval("SELECT pg_promote(true, 30)"):
        raise TimeoutError("the standby was not promoted within 30 s")


async def _raise(connection: Connection) -> None:
    await raise_generation(connection, "fencepost torture has promoted the standby")


_DEBIAN: Final = Path("/usr/lib/postgresql")
_QUIET: Final = ("--log-level", "error")


@contextmanager
def own_stage(config: Config, directory: Path, prefix: str, made: list[Fenced]) -> Iterator[Stage]:
    """Start everything, make the tables, and end everything after the block. Raises BadInputError, RunFailedError.

    `prefix`: begins the names of all that is made.
    """
    has = own_available(config)
    kinds = choose(config.faults, has, spared(config.source, trusts=config.play.trusts))
    source = _source_name(config, prefix)
    with ExitStack() as stack:
        try:
            primary, url = _database(config, directory, stack, standby=any("standby" in KINDS[k].needs for k in kinds))
            urls, services = start_lock_service(config.source, source, directory, stack)
            gateways = [_gateway(config, f"g{n}", url, urls, directory, stack) for n in range(config.gateways)]
            for gateway in gateways:
                gateway.server.wait()
            # A source is known once a gateway that has it was there.
            asyncio.run(make(url, made, source))
            stack.callback(_drop, primary, url, made)
        except (EmbeddedServerError, ServerError) as error:
            raise RunFailedError(str(error)) from error
        except (OSError, asyncpg.PostgresError, ProtectError) as error:
            raise BadInputError(f"the tables cannot be made: {error}") from error
        to_database = stack.enter_context(Link.to(url))
        yield Stage(
            urls=tuple(gateway.front.url for gateway in gateways),
            source=source,
            database_url=to_database.url,
            directory=directory,
            gateways=gateways,
            primary=primary,
            lock_service=services,
            to_database=to_database,
            has=has,
            faults=kinds,
        )


def own_available(config: Config) -> frozenset[Need]:
    """What faults can be done to in a run with servers of its own."""
    has: set[Need] = {"holders", "gateways", "sessions", "database"}
    if config.database_url is None:
        has |= {"postgres", "standby"}
    if config.source != ADVISORY:  # that one is in PostgreSQL
        has.add("builtin" if config.source == BUILTIN else "lock-service")
    return frozenset(has) - spared(config.source, trusts=config.play.trusts)


def _source_name(config: Config, prefix: str) -> str:
    """Name the source: in a database that others use too, not as theirs may be called.

    Its service counts from 1. Under the name of a source that has counted further, that would be a step back, and the
    other programs' source would be in quarantine (R12).
    """
    return config.source_name if config.source == BUILTIN or config.database_url is None else prefix


def _database(config: Config, directory: Path, stack: ExitStack, *, standby: bool) -> tuple[OwnPrimary | None, str]:
    if config.database_url is not None:
        return None, config.database_url
    primary = OwnPrimary(_programs(), directory, standby=False)
    stack.callback(primary.stop)
    primary.start()
    asyncio.run(upgrade(primary.url))
    if standby:
        primary.follow()
    return primary, primary.url


def _programs() -> Path:
    """Find a PostgreSQL: the embedded one, else Debian's newest."""
    try:
        return embedded_bin_dir()
    except EmbeddedServerError as error:
        installed = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
        if not installed:
            raise BadInputError(f"no PostgreSQL to start: {error}; or apt-get install postgresql") from error
        return installed[-1].parent


def _gateway(
    config: Config, name: str, database_url: str, sources: str, directory: Path, stack: ExitStack
) -> StageGateway:
    back = stack.enter_context(Link.to(database_url))
    port = free_port()
    command = [*config.gateway_command, "serve", "--port", str(port), *_QUIET]
    environment = gateway_environment(back.url, **({"FENCEPOST_SOURCES": sources} if sources else {}))
    server = Server(command, directory / f"{name}.log", functools.partial(is_ready, port), environment)
    server.start()
    stack.callback(server.stop)
    front = stack.enter_context(Link.to(f"http://127.0.0.1:{port}"))
    return StageGateway(name, server, front, back)


def _drop(primary: OwnPrimary | None, url: str, made: list[Fenced]) -> None:
    """Drop the tables from a database that goes on to be; one of our own goes as a whole."""
    if primary is None:
        asyncio.run(drop(url, made))
