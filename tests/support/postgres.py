"""PostgreSQL servers of tests: databases made ready, poolers and proxies before them, their catalogs as text."""

import asyncio
import contextlib
import os
import pwd
import random
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest
from tests.support.interleave import Connection, connection_to

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import EmbeddedServerError, embedded_bin_dir
from fencepost.testing.servers.postgres import Databases, in_database
from fencepost.testing.servers.processes import free_port, listens, new_directory, remove_directory, server_directory
from fencepost.testing.servers.server import Server

# PostgreSQL for the tests: which servers there are. They are as durable as by default.

SERVERS = ("embedded-18", "debian-15")
"""The servers that tests run on."""

_OPTIONS = {"max_prepared_transactions": "5", "jit": "off", "max_wal_size": "64MB", "min_wal_size": "32MB"}


def debian_bin_dir(version: int = 15) -> Path | None:
    """Return the folder of Debian's PostgreSQL programs, or None when the package is not installed."""
    folder = Path(f"/usr/lib/postgresql/{version}/bin")
    return folder if (folder / "initdb").is_file() else None


def server_bin_dir(kind: str) -> Path:
    """Return the folder of the programs of one of SERVERS; skips where it is not installed."""
    if kind == "debian-15":
        return debian_bin_dir(15) or pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    try:
        return embedded_bin_dir()
    except EmbeddedServerError as error:
        pytest.skip(str(error))


def installed_servers() -> list[str]:
    """List those of SERVERS that are installed; the first one where none is, so that tests skip with its reason."""
    try:
        embedded_bin_dir()
    except EmbeddedServerError:  # no wheels for this Python
        return [SERVERS[1]]
    return list(SERVERS) if debian_bin_dir() else [SERVERS[0]]


def first_server() -> str:
    """Return the installed one of SERVERS that tests run on which are about something else than PostgreSQL."""
    return installed_servers()[0]


@contextmanager
def session_server(kind: str) -> Iterator[PostgresServer]:
    """Run one of SERVERS until the block ends."""
    bin_dir = server_bin_dir(kind)
    with (
        server_directory() as directory,
        PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", options=_OPTIONS) as server,
    ):
        yield server


# Databases in which something was done already: it is done once a worker, and then copied as the migrated one is.
#
# Making a table, protecting it and looking at it costs as much as all else of a short test.

T = TypeVar("T")


class ReadyMade(Databases):
    """Makes databases on one server, also copies of those in which something was done."""

    def __init__(self, url: str, template: str) -> None:
        super().__init__(url, template)
        self._done: dict[Hashable, tuple[str, Any]] = {}

    async def make_with(self, kind: Hashable, prepare: Callable[[str], Awaitable[T]]) -> tuple[str, T]:
        """Make a copy of a database that was prepared; returns its URL, and what `prepare` returned.

        The first of a kind is prepared, and stays as it is then: `prepare` leaves no connection open.
        """
        if kind not in self._done:
            first = self.make()
            self._done[kind] = first.rpartition("/")[2], await prepare(first)
        template, result = self._done[kind]
        migrated, self._template = self._template, template
        try:
            return self.make(), result
        finally:
            self._template = migrated


class Unmade:
    """The database of a test, until somebody needs it: then a fresh one, or a copy of what is needed."""

    def __init__(self, databases: ReadyMade) -> None:
        self._databases = databases
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Its URL. Makes a fresh, migrated database if there is none yet."""
        self._url = self._url or self._databases.make()
        return self._url

    async def made_with(self, kind: Hashable, prepare: Callable[[str], Awaitable[T]]) -> T:
        """Make it as a copy (see ReadyMade.make_with), or prepare the one that is there already."""
        if self._url is not None:
            return await prepare(self._url)
        self._url, result = await self._databases.make_with(kind, prepare)
        return result

    def drop(self) -> None:
        """Drop it, if it was made."""
        if self._url is not None:
            self._databases.drop(self._url)


# PgBouncer before a PostgreSQL, for what must notice that it is there.

SETTINGS = "extra_float_digits, idle_session_timeout, statement_timeout, client_connection_check_interval"
KEEPALIVES = "tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout"


@asynccontextmanager
async def pooled(dsn: str, mode: str, *, ignored: bool = False, options: str = "") -> AsyncIterator[str]:
    """Run PgBouncer in this `pool_mode`; gives the database's URL through it. `ignored`: it drops the settings of a
    startup packet in silence. `options`: more lines of its configuration.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer: apt-get install pgbouncer")
    parts, home, port = urlsplit(dsn), new_directory(), free_port()
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{parts.path[1:]} = host=127.0.0.1 port={parts.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
        f"auth_file = {home / 'users'}\npool_mode = {mode}\nuser = {_user()}\n"
        + (f"ignore_startup_parameters = {SETTINGS}, {KEEPALIVES}\n" if ignored else "")
        + options
    )
    (home / "users").write_text(f'"{parts.username}" "{unquote(parts.password or "")}"\n')
    server = Server([program, config], home / "log", lambda: listens(port))
    try:
        server.start()
        await server.serves()
        yield dsn.replace(f":{parts.port}/", f":{port}/")
    finally:
        server.stop()
        remove_directory(home)


def _user() -> str:
    """Whom it runs as: it refuses root."""
    return "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


# A TCP proxy that cuts connections: on demand, when it sees certain bytes, or at a byte chosen by chance.
#
# For what a `Link` of the harness does not do: mute a connection at certain bytes of any protocol and keep it open,
# and cut each connection at a byte of its own.

Budget = Callable[[], int | None]
"""Gives, for each new connection, after how many bytes it is cut; None: never."""


class _Link:
    """One connection through the proxy. A cut ends the near side; the far side may stay open, as in real networks."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, left: int | None) -> None:
        self.near, self.far, self.left = near, far, left
        self.muted = self.cut = False


class CuttingProxy:
    """Stands before a server, in the test's own loop."""

    def __init__(self, host: str, port: int, budget: Budget, chance: random.Random) -> None:
        self._host, self._port = host, port
        self._budget, self._chance = budget, chance
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.cutting = True
        self.refusing = False
        self.mute_after: bytes | None = None
        """Once a client has sent this, it gets nothing any more on that connection."""
        self.mute_skips = 0
        """How often it may be sent before that."""
        self.muted = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, far_writer, self._budget())
        self._links.add(link)
        for pump in (self._pump(link, reader, far_writer, to_server=True), self._pump(link, far_reader, writer)):
            self._spawn(pump)

    def cut_all(self, *, half_open: bool = True) -> None:
        """End every client's side now; the server notices only unless `half_open`."""
        for link in list(self._links):
            self._cut(link, half_open=half_open)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            link.near.transport.abort()
            link.far.transport.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut(self, link: _Link, *, half_open: bool) -> None:
        if link.cut:
            return
        link.cut = True
        self.cuts += 1
        link.near.transport.abort()
        if not half_open:
            link.far.transport.abort()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    if link.cut or (link.muted and not to_server):
                        continue  # swallowed
                    if to_server and self.mute_after is not None and self.mute_after in data:
                        link.muted = self.mute_skips == 0
                        self.mute_skips = max(self.mute_skips - 1, 0)
                    if self.cutting and link.left is not None:
                        data, whole = data[: link.left], len(data)
                        link.left -= whole
                    writer.write(data)
                    await writer.drain()
                    if link.muted:
                        self.muted.set()
                    if self.cutting and link.left is not None and link.left <= 0:
                        self._cut(link, half_open=self._chance.random() < 0.5)
        finally:
            if not link.cut:
                link.near.transport.abort()
                link.far.transport.abort()
            elif not to_server:  # the server has hung up, or the test is over
                link.far.transport.abort()
            if not to_server:
                self._links.discard(link)


@asynccontextmanager
async def cutting_proxy(
    url: str, budget: Budget = lambda: None, seed: int = 0
) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """Run a proxy before the server of a URL; gives it, and the URL that leads through it."""
    parts = urlsplit(url)
    proxy = CuttingProxy(parts.hostname or "127.0.0.1", parts.port or 80, budget, random.Random(seed))
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, url.replace(f":{parts.port}", f":{port}", 1)
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()


# All that PostgreSQL's catalog has of the schema fencepost, as lines of text that two databases can be compared by.
#
# Run by hand: `python -m tests.support.postgres URL` prints one database; `diff` shows what a change changed.

# The owner's name is written OWNER, and grants are sorted: both differ between databases that are alike.
_ACL = """
(SELECT coalesce(string_agg(concat(CASE g.grantee WHEN 0 THEN 'PUBLIC' WHEN {owner} THEN 'OWNER'
                                    ELSE pg_get_userbyid(g.grantee) END, ' ', g.privilege_type), ', '
                            ORDER BY g.grantee <> 0, pg_get_userbyid(g.grantee), g.privilege_type), 'none')
   FROM aclexplode(coalesce({acl}, acldefault({kind}, {owner}))) g)"""


def _acl(kind: str, acl: str, owner: str) -> str:
    return _ACL.format(kind=kind, acl=acl, owner=owner)


_RELATION = """CAST(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END AS "char")"""
_OWNER = "CASE WHEN {0} = n.nspowner THEN 'OWNER' ELSE pg_get_userbyid({0}) END"
_OURS = "n.nspname = 'fencepost'"
_NOTE = "coalesce(' -- ' || obj_description({oid}, '{catalog}'), '')"

# Each gives (what, text): `what` names the object and orders the dump.
_PARTS = {
    "schema": f"""
SELECT n.nspname,
       'acl ' || {_acl("'n'", "n.nspacl", "n.nspowner")} || {_NOTE.format(oid="n.oid", catalog="pg_namespace")}
  FROM pg_namespace n WHERE {_OURS}""",
    "relation": f"""
SELECT c.relname, concat_ws('; ', 'kind ' || c.relkind::text, 'owner ' || {_OWNER.format("c.relowner")},
         'options ' || c.reloptions::text, 'persistence ' || c.relpersistence::text,
         CASE WHEN c.relrowsecurity THEN 'row security' END,
         'acl ' || {_acl(_RELATION, "c.relacl", "c.relowner")}) || {_NOTE.format(oid="c.oid", catalog="pg_class")}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind NOT IN ('i', 'c')""",
    "column": f"""
SELECT concat(c.relname, ' ', lpad(a.attnum::text, 2, '0')),
       concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
         'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'identity ' || nullif(a.attidentity::text, ''),
         'COLLATE ' || nullif(a.attcollation, 0)::regcollation::text, 'storage ' || a.attstorage::text,
         'acl ' || a.attacl::text)
         || coalesce(' -- ' || col_description(c.oid, a.attnum), '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE {_OURS} AND c.relkind NOT IN ('i', 'S') AND a.attnum > 0""",
    "constraint": f"""
SELECT concat(k.conrelid::regclass, ' ', k.conname), pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE {_OURS}""",
    "index": f"""
SELECT c.relname, pg_get_indexdef(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind = 'i'""",
    "sequence": f"""
SELECT c.relname, concat_ws(' ', format_type(q.seqtypid, NULL), q.seqstart, q.seqincrement, q.seqmin, q.seqmax,
         q.seqcache, q.seqcycle, 'owned by ' || d.refobjid::regclass || '.' || d.refobjsubid)
  FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refobjsubid > 0 WHERE {_OURS}""",
    "view": f"""
SELECT c.relname, pg_get_viewdef(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind IN ('v', 'm')""",
    "type": f"""
SELECT t.typname, concat_ws('; ', 'type ' || t.typtype::text, 'owner ' || {_OWNER.format("t.typowner")},
         'acl ' || {_acl("'T'", "t.typacl", "t.typowner")}) || {_NOTE.format(oid="t.oid", catalog="pg_type")}
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_class c ON c.oid = t.typrelid
 WHERE {_OURS} AND t.typelem = 0 AND (c.oid IS NULL OR c.relkind = 'c')""",
    "function": f"""
SELECT f.oid::regprocedure::text, concat_ws('; ', 'owner ' || {_OWNER.format("f.proowner")},
         'acl ' || {_acl("'f'", "f.proacl", "f.proowner")}) || {_NOTE.format(oid="f.oid", catalog="pg_proc")}
         || E'\\n' || pg_get_functiondef(f.oid)
  FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE {_OURS} AND f.prokind <> 'a'""",
    "trigger": f"""
SELECT concat(t.tgrelid::regclass, ' ', t.tgname), concat(pg_get_triggerdef(t.oid), ' ', t.tgenabled)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {_OURS} AND NOT t.tgisinternal""",
    "policy": f"""
SELECT concat(p.polrelid::regclass, ' ', p.polname), pg_get_expr(p.polqual, p.polrelid)
  FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS}""",
    "event trigger": f"""
SELECT e.evtname, concat_ws(' ', e.evtevent, e.evttags::text, f.oid::regprocedure, e.evtenabled)
  FROM pg_event_trigger e JOIN pg_proc f ON f.oid = e.evtfoid JOIN pg_namespace n ON n.oid = f.pronamespace
 WHERE {_OURS}""",
}

_FILLED = """
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'r' ORDER BY 1"""


async def dump(connection: Connection) -> str:
    """Write the schema fencepost down: equal texts are equal schemas, but for OIDs and the order of their making."""
    lines = []
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # names in full
        for part, query in _PARTS.items():
            rows = await connection.fetch(f'SELECT what, t FROM ({query}) AS x(what, t) ORDER BY what COLLATE "C"')
            lines += [f"{part} {row['what']}: {row['t']}" for row in rows]
        for (table,) in await connection.fetch(_FILLED):
            lines.append(f"rows {table}: {await connection.fetchval(f'SELECT count(*) FROM fencepost.{table}')}")
    return "\n".join(lines) + "\n"


async def _print(url: str) -> None:
    async with connection_to(url) as connection:
        sys.stdout.write(await dump(connection))


if __name__ == "__main__":
    asyncio.run(_print(sys.argv[1]))


@asynccontextmanager
async def empty_database(server: PostgresServer, name: str) -> AsyncIterator[str]:
    """Make a database that was never migrated, and drop it afterwards. Gives its URL."""
    async with connection_to(server.url) as connection:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield in_database(server.url, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def database_away(server: PostgresServer, dsn: str) -> AsyncIterator[None]:
    """Let no client into the database, and end who is in."""
    name = dsn.rpartition("/")[2]
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", name
        )
        yield
    finally:
        await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await connection.close()


@asynccontextmanager
async def failing(dsn: str, event: str, plpgsql: str) -> AsyncIterator[None]:
    """Have statements of an event, such as `DELETE ON fencepost.queued`, do this first, in a trigger."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"CREATE FUNCTION public.failing() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {plpgsql}; RETURN NULL; END $$;"
            f"CREATE TRIGGER failing BEFORE {event} FOR EACH STATEMENT EXECUTE FUNCTION public.failing()"
        )
        yield
    finally:
        await connection.execute("DROP FUNCTION IF EXISTS public.failing() CASCADE")
        await connection.close()


@asynccontextmanager
async def renamed(dsn: str, what: str) -> AsyncIterator[None]:
    """Have what the schema has, such as `TABLE fencepost.queued`, under another name: statements that use it fail."""
    connection, (kind, name) = await asyncpg.connect(dsn), what.split()
    await connection.execute(f"ALTER {kind} {name} RENAME TO away")
    try:
        yield
    finally:
        await connection.execute(f"ALTER {kind} fencepost.away RENAME TO {name.partition('.')[2]}")
        await connection.close()
