"""Consumers that end or are killed, and databases that are copied: one effect of each message."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.robustness.test_failover import REFUSED, Holder, acquire, code, holder, patch, put, raised, read
from tests.support.consuming import Queue, make_tables, opened, write, wrong_effects
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, connection_to
from tests.support.manual_clock import UNHURRIED
from tests.support.servers import command
from tests.support.violations import assert_none, promised

from fencepost.cli.main import main
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import Times, UpkeepTimes
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import (
    PATIENCE,
    descendants,
    eventually,
    free_port,
    new_directory,
    remove_directory,
)

pytestmark = pytest.mark.long("crashes and restores of PostgreSQL")

# Processes of `fencepost consume` that are asked to end, and workers of one that are killed: each acknowledged message
# has one effect, in the order of its resource. The oracle is a trigger's log in the database. Consumers that are
# killed or paused: queues/test_queues.py.

RESOURCES = 40


class Consumers:
    """Processes of `fencepost consume`, by their members' names."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database = database
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, member: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        with (self.directory / member).open("a") as errors:
            self.processes[member] = subprocess.Popen(
                [sys.executable, "-m", "fencepost", "consume", DEFAULT, "--member", member, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment | {"FENCEPOST_DATABASE_URL": self.database},
            )
        return self.processes[member]

    async def begun(self, member: str) -> None:
        output = self.processes[member].stdout
        assert output is not None
        line = await asyncio.wait_for(asyncio.to_thread(output.readline), 2 * PATIENCE)
        assert f"{DEFAULT}" in line, (self.directory / member).read_text()

    def kill(self, member: str) -> None:
        process = self.processes.pop(member)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def end(self) -> None:
        for member in list(self.processes):
            self.kill(member)


@asynccontextmanager
async def consumers(database: str, directory: Path) -> AsyncIterator[Consumers]:
    running = Consumers(database, directory)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
async def queue(database: str, connect: Connect) -> AsyncIterator[Queue]:
    """Give the queue, with an oracle, and without a consumer."""
    owner = await connect()
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        yield queue


async def _submit(queue: Queue, numbers: range, expected: dict[str, list[int]], seed: int) -> None:
    messages, chance = [], random.Random(f"{seed} {numbers}")
    for number in numbers:
        resource = f"orders/k{chance.randrange(RESOURCES)}"
        expected[resource].append(number)
        messages.append(write(resource, body={"n": number}))
    await queue.append_at_once(messages)


def _is_a_worker(pid: int) -> bool:
    return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()


async def _owners(owner: Connection) -> set[str]:
    rows = await owner.fetch("SELECT member FROM fencepost.queue_owners WHERE until > clock_timestamp()")
    return {row["member"] for row in rows if row["member"] is not None}


@pytest.mark.long("storms")
async def test_sigterm_leaves_nothing_half_done_and_the_partitions_at_once(
    queue: Queue, database: str, tmp_path: Path, seed: int
) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    async with consumers(database, tmp_path) as running:
        process = running.start("a")
        await running.begun("a")
        await _submit(queue, range(1, 1001), expected, seed)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert await _owners(queue.owner) == set()
        undone = await queue.owner.fetchval("SELECT count(*) FROM fencepost.queued")
        effects = await queue.owner.fetchval("SELECT count(*) FROM public.effects")
        promised(undone + effects == 1000, f"{effects} effects, and {undone} of 1000 messages are to be done")
        running.start("b")
        await running.begun("b")
        await queue.empty(60)
    assert_none(await wrong_effects(queue.owner, expected), f"FENCEPOST_STORM_SEED={seed}")


@pytest.mark.long("storms")
async def test_workers_share_the_partitions_and_one_that_dies_is_started_again(
    queue: Queue, database: str, tmp_path: Path, seed: int
) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    async with consumers(database, tmp_path) as running:
        parent = running.start("a", "--workers", "2")
        await running.begun("a")

        async def both() -> bool:
            return await _owners(queue.owner) == {"a-1", "a-2"}

        await eventually(both, within=2 * PATIENCE, what="both have partitions")
        await _submit(queue, range(1, 501), expected, seed)
        workers = [pid for pid in descendants(parent.pid) if _is_a_worker(pid)]
        os.kill(workers[0], signal.SIGKILL)
        await _submit(queue, range(501, 1001), expected, seed)
        await queue.empty(60)
        await eventually(both, within=2 * PATIENCE, what="both have partitions again")
        parent.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(parent.wait, 30) == 0
    assert_none(await wrong_effects(queue.owner, expected), f"FENCEPOST_STORM_SEED={seed}")


@pytest.mark.long("storms")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kafka:none",), "kafka:none is not configured here"),
        (("postgres:other",), "'postgres:other' is no queue"),
        ((DEFAULT, "--queues", "nats://h/x"), "nats:// is no queue"),
        ((DEFAULT, "--database-url", "postgresql://me@127.0.0.1:1/db"), "cannot connect to PostgreSQL"),
    ],
)
def test_what_keeps_it_from_starting_is_one_clear_line(arguments: tuple[str, ...], said: str, database: str) -> None:
    ended = CliRunner().invoke(
        main, ["consume", *arguments, "--start-timeout", "0"], env={"FENCEPOST_DATABASE_URL": database}
    )
    assert ended.exit_code == 1
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


# Copies of the database in the original's place, each made as operators make them (R19): dump, clone, data directory.
# System identifier and timeline are the original's each time. What was written since the copy was made is forgotten,
# so the same tokens are handed out again: a gateway, also one that lived through it, lets nothing through until the
# generation is raised.


class Copied:
    """A server of its own with a database `shop`; orders takes built-in tokens."""

    def __init__(self, server: PostgresServer, directory: Path, port: int) -> None:
        self.server, self._data, self._port = server, directory / "data", port
        self._spare = directory / "spare"
        self.path = f"{server.bin_dir}:{os.environ['PATH']}"

    @property
    def url(self) -> str:
        return in_database(self.server.url, "shop")

    async def run(self, command: str) -> None:
        """Run a shell command with the server's own programs."""
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", f"set -eo pipefail; {command}"],
            env=os.environ | {"PATH": self.path},
            check=False,
            capture_output=True,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr

    async def on_server(self, *statements: str) -> None:
        async with connection_to(in_database(self.server.url, "postgres")) as db:
            for statement in statements:
                await db.execute(statement)

    def copy_directory(self) -> None:
        """Copy the data directory, and go on with the original."""
        self.server.stop()
        shutil.copytree(self._data, self._spare, symlinks=True)
        _own_alike(self._data, self._spare)
        self.server.start()

    def put_the_copy_in_place(self) -> None:
        self.server.stop()
        shutil.rmtree(self._data)
        self._spare.rename(self._data)
        self.server.start()

    @contextmanager
    def spare_server(self) -> Iterator[PostgresServer]:
        """Run the copy by itself, on another port."""
        spare = PostgresServer(
            bin_dir=self.server.bin_dir, data_dir=self._spare, port=free_port(), options={"shared_buffers": "16MB"}
        )
        try:
            spare.start()
            yield spare
        finally:
            spare.stop()

    def crash(self) -> None:
        """End the server as a power failure does, and start it again."""
        os.kill(int((self._data / "pgdata" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        self.server.stop()
        self.server.start()


def _own_alike(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            found = path.stat()
            os.chown(target / path.relative_to(source), found.st_uid, found.st_gid)


@pytest.fixture
def copied(bin_dir: Path) -> Iterator[Copied]:
    directory, port = new_directory(), free_port()
    server = PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", port=port, options={"shared_buffers": "16MB"})
    try:
        server.start()
        yield Copied(server, directory, port)
    finally:
        server.stop()
        remove_directory(directory)


@asynccontextmanager
async def shop(copied: Copied, times: Times = UNHURRIED) -> AsyncIterator[httpx.AsyncClient]:
    await copied.on_server("CREATE DATABASE shop")
    await upgrade(copied.url)
    async with connection_to(copied.url) as db:
        await db.execute("CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new')")
        await protect(db, "orders", source="builtin")
    async with in_process(copied.url, times) as http:
        first = await holder(http, "before")
        assert (await put(http, "k", first.tokens[0], "copied")).status_code == 201
        await http.delete(f"/v1/leases/{first.lease_id}", headers=first.headers)
        yield http


async def answering(http: httpx.AsyncClient) -> None:
    """Return once the gateway has a connection again."""

    async def reached() -> bool:
        return bool((await http.get("/readyz")).json()["database"] == "reachable")

    await eventually(reached, what="an answer of the database")


async def is_refused_until_raised(
    http: httpx.AsyncClient, url: str, paused: Holder, message: str, *, seen_by_doctor: bool = True
) -> None:
    """Paused holder A has written under a token that the copy has forgotten, and has more of them."""
    for gateway in (http,) if not seen_by_doctor else (http, None):
        async with _given(gateway, url) as asked:
            assert await read(asked, "k") == "copied", "what A wrote is forgotten"
            refusal = await patch(asked, "k", paused.tokens[2], "ZOMBIE")
            assert code(refusal) == REFUSED, refusal.text
            assert message in refusal.json()["detail"]
            assert code(await acquire(asked, "B", tokens=3)) == REFUSED
            ready = await asked.get("/readyz")
            assert (ready.status_code, message in ready.json()["origin"]) == (503, True), ready.text
    for program in ("doctor", "generation") if seen_by_doctor else ():
        answered = await command(program, database=url)
        assert (answered.exit_code, message in answered.output) == (1, True), answered.output
        assert "generation raise --reason" in answered.output
    mended = await raised(url)
    assert mended.exit_code == 0, mended.output
    assert (await http.get("/readyz")).status_code == 200
    successor = await holder(http, "B", tokens=3)
    promised(min(successor.tokens) > max(paused.tokens), f"tokens fall from {paused.tokens} to {successor.tokens}")
    assert code(await patch(http, "k", paused.tokens[2], "ZOMBIE")) == (409, "FP001")
    assert (await patch(http, "k", successor.tokens[0], "second")).status_code == 200
    assert (await command("doctor", database=url)).exit_code == 0


@asynccontextmanager
async def _given(gateway: httpx.AsyncClient | None, url: str) -> AsyncIterator[httpx.AsyncClient]:
    if gateway is not None:
        yield gateway
        return
    async with in_process(url) as started_now:
        yield started_now


async def paused_holder(http: httpx.AsyncClient) -> Holder:
    """Give A, which has written what is forgotten later."""
    paused = await holder(http, "A", tokens=5)
    assert (await patch(http, "k", paused.tokens[1], "acknowledged")).status_code == 200
    return paused


async def test_a_dump_restored_over_its_own_database(copied: Copied, tmp_path: Path) -> None:
    async with shop(copied) as http:
        await copied.run(f"pg_dump -Fc '{copied.url}' > {tmp_path}/dump")
        paused = await paused_holder(http)
        await copied.run(f"pg_restore --clean --if-exists -d '{copied.url}' {tmp_path}/dump")
        await http.get("/readyz")
        await is_refused_until_raised(http, copied.url, paused, "a dump was restored over it")


async def test_open_connections_do_not_outlive_a_restore(copied: Copied, tmp_path: Path) -> None:
    """The gateway's connections stay open through it, and none asks /readyz: it looks by itself."""
    async with shop(copied) as http:
        await copied.run(f"pg_dump -Fc '{copied.url}' > {tmp_path}/dump")
        paused = await paused_holder(http)
        await copied.run(f"pg_restore --clean --if-exists -d '{copied.url}' {tmp_path}/dump")

        async def refuses() -> bool:
            return "fencepost_origin_accepted 0.0" in (await http.get("/metrics")).text

        await eventually(refuses, what="the gateway's own look")
        async with connection_to(copied.url) as db:  # as if others were given the numbers again
            await db.execute("SELECT nextval('fencepost.tokens') FROM generate_series(1, 20)")
        answers = await asyncio.gather(*(patch(http, "k", token, "ZOMBIE") for token in paused.tokens[2:]))
        assert {code(answer) for answer in answers} == {REFUSED}, "by each connection"


async def test_a_dump_restored_into_another_database_of_the_cluster(copied: Copied, tmp_path: Path) -> None:
    async with shop(copied) as http:
        await copied.run(f"pg_dump -Fc '{copied.url}' > {tmp_path}/dump")
        paused = await paused_holder(http)
    await copied.on_server("CREATE DATABASE restored")
    other = in_database(copied.server.url, "restored")
    await copied.run(f"pg_restore -d '{other}' {tmp_path}/dump")
    async with in_process(other) as http:
        await is_refused_until_raised(http, other, paused, "was raised in another database of this cluster")


@pytest.mark.parametrize("way", ["dump", "template"])
async def test_a_copy_that_was_given_the_originals_name(copied: Copied, tmp_path: Path, way: str) -> None:
    async with shop(copied) as http:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'"
        if way == "dump":
            await copied.run(f"pg_dump -Fc '{copied.url}' > {tmp_path}/dump")
            await copied.on_server("CREATE DATABASE copy")
            await copied.run(f"pg_restore -d '{in_database(copied.server.url, 'copy')}' {tmp_path}/dump")
        else:
            await copied.on_server("ALTER DATABASE shop ALLOW_CONNECTIONS false", cut)
            await copied.on_server("CREATE DATABASE copy TEMPLATE shop", "ALTER DATABASE shop ALLOW_CONNECTIONS true")
        await answering(http)
        paused = await paused_holder(http)
        await copied.on_server(
            "ALTER DATABASE shop ALLOW_CONNECTIONS false",
            cut,
            "ALTER DATABASE shop RENAME TO shop_was",
            "ALTER DATABASE copy RENAME TO shop",
        )
        await answering(http)
        await is_refused_until_raised(http, copied.url, paused, "was raised in another database of this cluster")


async def test_renaming_the_original_needs_no_operator(copied: Copied) -> None:
    async with shop(copied) as http:
        paused = await paused_holder(http)
    await copied.on_server("ALTER DATABASE shop RENAME TO store")
    store = in_database(copied.server.url, "store")
    async with connection_to(store) as db:
        await db.execute("VACUUM FULL fencepost.generations")
    async with in_process(store) as http:
        assert (await patch(http, "k", paused.tokens[2], "second")).status_code == 200


async def test_an_older_copy_of_the_data_directory_is_refused_by_a_gateway_that_lived_on(copied: Copied) -> None:
    """By its position alone: no moment is left after the copy."""
    async with shop(copied, replace(UNHURRIED, upkeep=UpkeepTimes(look_every=3600))) as http:
        copied.copy_directory()
        await answering(http)
        paused = await paused_holder(http)
        assert (await http.get("/readyz")).status_code == 200, "the gateway has met the position after A's write"
        copied.put_the_copy_in_place()
        await answering(http)
        async with connection_to(copied.url) as db:  # which soon carries the copy past the position that gave it away
            await db.execute("CREATE TABLE public.filler AS SELECT repeat('x', 100) FROM generate_series(1, 10000)")
        await is_refused_until_raised(
            http, copied.url, paused, "was replaced by an older copy of its data directory", seen_by_doctor=False
        )


async def test_an_older_copy_that_is_ahead_is_refused(copied: Copied) -> None:
    """The copy is started by itself first, and written to: by its WAL it is ahead of what the gateway has met."""
    async with shop(copied) as http:
        copied.copy_directory()
        await answering(http)
        paused = await paused_holder(http)
        await moment_met(http, copied.url)
        copied.server.stop()
        with copied.spare_server() as spare:
            async with connection_to(in_database(spare.url, "shop")) as db:
                await db.execute("CREATE TABLE public.filler AS SELECT repeat('x', 100) FROM generate_series(1, 10000)")
                await db.execute("SELECT pg_switch_wal()")
                await db.execute("SELECT fencepost.leave_moment()")  # as another gateway on it would
        copied.put_the_copy_in_place()
        await answering(http)
        await is_refused_until_raised(
            http, copied.url, paused, "is another copy of the database than the one", seen_by_doctor=False
        )


async def test_of_two_hosts_of_a_url_the_copy_is_refused(copied: Copied) -> None:
    """The original is served before and after it, for what was seen of the copy is nothing about the original."""
    async with shop(copied) as http:
        copied.copy_directory()
        await answering(http)
    with copied.spare_server() as spare:
        port, other = (httpx.URL(url).port for url in (copied.server.url, spare.url))
        both = copied.url.replace(f":{port}/", f":{port},{httpx.URL(copied.url).host}:{other}/")
        async with connection_to(in_database(spare.url, "shop")) as db:
            await db.execute("SELECT pg_switch_wal()")
        async with in_process(both) as http:
            paused = await paused_holder(http)
            await moment_met(http, copied.url)
            copied.server.stop()
            await answering(http)
            refusal = await patch(http, "k", paused.tokens[2], "ZOMBIE")
            assert "is another copy of the database" in refusal.json()["detail"], refusal.text
            copied.server.start()
            await eventually(lambda: ready(http), what="the original again")
            assert (await patch(http, "k", paused.tokens[2], "second")).status_code == 200


async def ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def moment_met(http: httpx.AsyncClient, url: str) -> None:
    """Return once the gateway has left a moment behind all that was written, and has met it."""

    async def left() -> bool:
        async with connection_to(url) as db:
            return not await db.fetchval("SELECT fencepost.moment_due()")

    await eventually(left, what="a moment")
    assert await ready(http)


async def test_a_crash_that_loses_unacknowledged_commits_is_not_taken_for_a_copy(copied: Copied) -> None:
    async with shop(copied) as http:
        paused = await paused_holder(http)
        for number in range(3):
            async with connection_to(copied.url) as db:
                await db.execute("SET synchronous_commit = off")
                await db.execute(f"CREATE TABLE public.lost_{number} AS SELECT n FROM generate_series(1, 3000) n")
                for n in range(100):
                    await db.execute(f"INSERT INTO public.lost_{number} VALUES ({n})")
                assert (await http.get("/readyz")).status_code == 200
                copied.crash()
            await answering(http)
            ready = await http.get("/readyz")
            assert ready.status_code == 200, ready.text
        assert (await patch(http, "k", paused.tokens[2], "second")).status_code == 200
