"""Recipes of the docs run as they stand: payments, a lock in Redis, one active worker, cron on two machines."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.cli.running import Running, whole_lines, written
from tests.conformance.benches import redis_server
from tests.http.conftest import Start
from tests.support.interleave import Connect, Connection
from tests.support.recipes import DOCS, recipe, recipes, run, run_recipe, steps, surroundings
from tests.support.servers import all_gone, until

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import PATIENCE, descendants, eventually, free_port

# docs/recipes/payments-without-locks.md runs as it stands; the provider is a stand-in that loses answers.

PAGE = DOCS / "recipes" / "payments-without-locks.md"
PAYMENT = ("pay-7", "order-123", Decimal("42.50"))


@dataclass
class Provider:
    """Charges once for each key. `loses`: how many answers get lost, before or after the charge."""

    loses: dict[str, int] = field(default_factory=dict)
    charges: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self._may_lose("before")
        # Without a key each request is a payment of its own.
        key = request.headers.get("Idempotency-Key", f"unnamed {self.asked}")
        charge = self.charges.setdefault(key, f"ch_{len(self.charges) + 1}")
        self._may_lose("after")
        return httpx.Response(200, json={"id": charge})

    def _may_lose(self, when: str) -> None:
        if self.loses.get(when, 0) > 0:
            self.loses[when] -= 1
            raise httpx.ReadError("the connection broke")

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="http://provider.test", transport=httpx.MockTransport(self))


@pytest.fixture
def shop(database: str) -> Iterator["psycopg.Connection[Any]"]:
    """Give a connection to a database with the page's table."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(recipe("table", PAGE).encode())
        yield connection


@pytest.fixture
def pay() -> Any:
    return run_recipe("pay", PAGE)["pay"]


def test_every_block_of_the_page_is_run() -> None:
    assert set(recipes(PAGE)) == {"table", "insert", "pay", "take"}
    assert len(re.findall(r"^```\w+$", PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(PAGE))


@pytest.mark.usefixtures("shop")
async def test_the_console_of_the_page_is_true(postgres: PostgresServer, database: str) -> None:
    for command, expected in steps(recipe("insert", PAGE)):
        done = await asyncio.to_thread(run, command, postgres, database)
        assert done.stdout.rstrip("\n") == expected, command


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_payment_whose_answer_was_lost_is_charged_once_when_repeated(
    shop: "psycopg.Connection[Any]", pay: Any, lost: str
) -> None:
    provider = Provider(loses={lost: 2})
    with provider.client() as client:
        for _ in range(2):
            with pytest.raises(httpx.ReadError):
                pay(shop, client, *PAYMENT)
        assert pay(shop, client, *PAYMENT) == "ch_1"
        assert provider.asked == 3
        assert pay(shop, client, *PAYMENT) == "ch_1"
    assert (provider.asked, len(provider.charges)) == (3, 1), "what is known is not asked again"


async def test_of_twenty_at_once_with_as_many_keys_one_pays_the_order(
    shop: "psycopg.Connection[Any]", database: str, pay: Any
) -> None:
    provider = Provider()

    def press(number: int) -> str | None:
        with psycopg.connect(database, autocommit=True) as connection, provider.client() as client:
            try:
                charge: str = pay(connection, client, f"pay-{number}", *PAYMENT[1:])
            except ValueError:
                return None
            return charge

    answer = await asyncio.gather(*(asyncio.to_thread(press, number) for number in range(20)))
    assert [charge for charge in answer if charge] == ["ch_1"]
    found = shop.execute("SELECT count(*), max(charge) FROM payments").fetchone()
    assert found == (1, "ch_1")


def test_workers_take_one_each_and_a_dead_workers_is_free_again(shop: "psycopg.Connection[Any]", database: str) -> None:
    shop.execute("INSERT INTO payments VALUES ('a', 'order-1', 1), ('b', 'order-2', 2)")
    take = recipe("take", PAGE).encode()
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(closing(psycopg.connect(database))) for _ in range(3))
        assert [[row[0] for row in worker.execute(take)] for worker in (one, two, three)] == [["a"], ["b"], []]
        three.rollback()
        for dead, key in ((one, "a"), (two, "b")):
            shop.execute("SELECT pg_terminate_backend(%s, 5000)", (dead.info.backend_pid,))  # returns when it has ended
            assert [row[0] for row in three.execute(take)] == [key], key
            three.execute("UPDATE payments SET charge = 'ch' WHERE key = %s", (key,))


# docs/recipes/redis-dedupe-and-fence.md runs as it stands, on a real Redis and the gateway.

REDIS_PAGE = DOCS / "recipes" / "redis-dedupe-and-fence.md"
STORY = ("dedupe", "give-back", "protect", "paused", "successor", "stale", "made-up", "forgets")
_END = "-- the end of a command"


@dataclass(frozen=True)
class Story:
    """Runs the page's commands where its gateway, Redis and PostgreSQL are."""

    server: PostgresServer
    database: str
    gateway: str
    redis: int

    async def run_recipes(self, *names: str) -> None:
        """Run these recipes in one shell, which keeps their variables, and compare what they print."""
        answered = [step for name in names for step in steps(recipe(name, REDIS_PAGE))]
        script = f"\necho {_END}\n".join(command for command, _ in answered)
        output = (await self.run(script)).split(f"{_END}\n")
        assert len(output) == len(answered)
        for (command, expected), answer in zip(answered, output, strict=True):
            assert answer.rstrip("\n") == expected, command

    async def run(self, script: str) -> str:
        """Run a shell script, and return what it prints."""
        here = script.replace("http://127.0.0.1:8080", self.gateway)
        here = here.replace("redis-cli", f"redis-cli --no-raw -p {self.redis}")
        done = await asyncio.to_thread(run, here, self.server, self.database, FENCEPOST_DATABASE_URL=self.database)
        return done.stdout


@pytest.fixture
async def story(database: str, start_gateway: Start, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Story]:
    port = free_port()
    # What the page's `fencepost serve` is given.
    found = re.search(r'FENCEPOST_SOURCES="(\S+)" fencepost serve', recipe("serve", REDIS_PAGE))
    assert found is not None
    with redis_server(tmp_path / "redis", port):
        gateway = await start_gateway(database, sources=found[1].replace("6379", str(port)))
        yield Story(postgres, database, gateway, port)


def test_every_block_of_the_redis_page_is_run() -> None:
    assert set(recipes(REDIS_PAGE)) == {*STORY, "serve"}
    assert len(re.findall(r"^```\w+$", REDIS_PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(REDIS_PAGE))


async def test_the_page_is_true(story: Story) -> None:
    await story.run_recipes(*STORY)


async def test_what_redis_forgot_is_done_twice(story: Story) -> None:
    """The dedupe of the page is a saving, no promise."""
    await story.run_recipes("dedupe")
    assert await story.run("redis-cli FLUSHALL") == "OK\n"
    await story.run_recipes("dedupe")


# Machines that run a recipe's `fencepost lock` line: a PATH with a psql that can be held up before it writes.

# Where a test wants it, psql waits before its first UPDATE: the pause between reading and writing.
_PSQL = """#!/bin/sh
case "$*" in *UPDATE*) echo >> {here}/reached; until [ -e {here}/go ]; do sleep 0.02; done;; esac
exec {psql} "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A machine that runs one command line; `reached` has a line for each write that began."""

    running: Running
    directory: Path

    async def is_about_to_write(self) -> None:
        """Return once its script has read, and stands before its write."""
        await written(self.directory / "reached")

    def let_it_write(self) -> None:
        (self.directory / "go").touch()

    def pause_lock(self) -> None:
        """SIGSTOP `fencepost lock`, and only that: its command goes on, and nothing renews or ends it."""
        self.running.signal(signal.SIGSTOP)

    def resume_lock(self) -> None:
        self.running.signal(signal.SIGCONT)

    def die(self) -> None:
        """SIGKILL everything at once, as a machine that loses power."""
        for pid in (self.running.process.pid, *descendants(self.running.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def says(self, text: str) -> None:
        """Return once it has printed this to stderr."""
        await until(
            lambda: any(text in line for line in whole_lines(self.running.errors)),
            what=f"{text!r} in {self.running.printed!r}",
        )


@dataclass(frozen=True)
class Machines:
    """Where machines are: the gateway and the database that they use, and a directory for what they leave."""

    server: PostgresServer
    database: str
    gateway: str
    directory: Path

    @asynccontextmanager
    async def machine(self, name: str, command: str, *, waits: bool = False) -> AsyncIterator[Machine]:
        """Run a command line on one, until the block ends. waits: its psql waits for `let_it_write`."""
        here = self.directory / name
        here.mkdir()
        variables = surroundings(self.server, self.database, FENCEPOST_URL=self.gateway, HOST=name)
        if waits:
            shim = here / "psql"
            shim.write_text(_PSQL.format(here=shlex.quote(str(here)), psql=self.server.bin_dir / "psql"))
            shim.chmod(0o755)
            variables["PATH"] = f"{here}:{variables['PATH']}"
        errors = here / "stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(  # noqa: ASYNC220 - it only starts it
                ["env", "--default-signal", "bash", "-c", f"exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
                start_new_session=True,
            )
        machine = Machine(Running(process, errors), here)
        try:
            yield machine
        finally:
            everything = [process.pid, *descendants(process.pid)]
            machine.die()
            await asyncio.to_thread(process.communicate)
            await all_gone(everything)


# docs/recipes/one-active-worker.md runs as it stands: one works, and another takes over.

WORKER_PAGE = DOCS / "recipes" / "one-active-worker.md"


@pytest.fixture
async def gateway_url(demo_database: str, start_gateway: Start) -> str:
    """Give a gateway on the test's own database, to which the machines write."""
    return await start_gateway(demo_database)


@pytest.fixture
async def machines(demo_database: str, gateway_url: str, postgres: PostgresServer, short_dir: Path) -> Machines:
    """Give the machines' surroundings, with the page's table and worker."""
    for command, expected in steps(recipe("table", WORKER_PAGE)):
        done = await asyncio.to_thread(run, command, postgres, demo_database, FENCEPOST_DATABASE_URL=demo_database)
        assert done.stdout.rstrip("\n") == expected, command
    outbox = "CREATE TABLE outbox (order_id text PRIMARY KEY, host text)"
    await asyncio.to_thread(run, f'psql $DATABASE_URL -qc "{outbox}"', postgres, demo_database)
    worker = short_dir / "worker.sh"
    worker.write_text(recipe("worker", WORKER_PAGE).replace("sleep 1", "sleep 0.05"))
    worker.chmod(0o755)
    return Machines(postgres, demo_database, gateway_url, short_dir)


def line(machines: Machines, *, ttl: str = "15") -> str:
    """The unit's command, with its worker where the test has put it."""
    found = re.search(r"^ExecStart=(.*)$", recipe("unit", WORKER_PAGE), re.MULTILINE)
    assert found is not None
    return found[1].replace("/opt", str(machines.directory)).replace("--ttl 15", f"--ttl {ttl}")


async def works(owner: Connection, host: str) -> int:
    """Return how many rounds there were, once this host has done the last one."""

    async def rounds() -> int:
        found: int = await owner.fetchval("SELECT coalesce(max(rounds) FILTER (WHERE host = $1), 0) FROM workers", host)
        return found

    return await eventually(rounds, within=2 * PATIENCE, what=f"a round of {host}")


async def waits(http: httpx.AsyncClient) -> None:
    async def one_waits() -> bool:
        return any(lock["waiters"] for lock in (await http.get("/v1/locks")).json())

    await eventually(one_waits, what="the second machine in the queue")


@pytest.mark.long("recipes that run as processes")
def test_every_block_of_the_worker_page_is_run() -> None:
    assert set(recipes(WORKER_PAGE)) == {"table", "worker", "unit"}
    assert len(re.findall(r"^```\w+$", WORKER_PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(WORKER_PAGE))


@pytest.mark.long("recipes that run as processes")
@pytest.mark.realtime
async def test_a_worker_whose_lock_command_is_paused_is_refused_once_another_has_taken_over(
    machines: Machines, http: httpx.AsyncClient, connect: Connect
) -> None:
    owner = await connect()
    async with machines.machine("one", line(machines, ttl="3")) as one:
        await works(owner, "one")
        async with machines.machine("two", line(machines)):
            await waits(http)
            one.pause_lock()  # its worker goes on writing, under a lease that runs out
            await one.says("stale token")
            await works(owner, "two")
            before = await works(owner, "two")
            one.resume_lock()
            assert await one.running.ended() == 79
            assert await works(owner, "two") >= before


# docs/recipes/cron-on-two-machines.md runs as it stands, and the pause that it describes happens.

CRON_PAGE = DOCS / "recipes" / "cron-on-two-machines.md"
OLD, NEW = Decimal("19.90"), Decimal("62.40")


@pytest.fixture
async def cron_machines(demo_database: str, gateway_url: str, postgres: PostgresServer, short_dir: Path) -> Machines:
    """Give two machines' surroundings, with the page's table and script."""
    found = Machines(postgres, demo_database, gateway_url, short_dir)
    for command, expected in steps(recipe("table", CRON_PAGE)):
        done = await asyncio.to_thread(run, command, postgres, demo_database, FENCEPOST_DATABASE_URL=demo_database)
        assert done.stdout.rstrip("\n") == expected, command
    install(recipe("script", CRON_PAGE), short_dir / "report.sh")
    return found


def install(code: str, path: Path) -> None:
    path.write_text(code)
    path.chmod(0o755)


def cron_line(machines: Machines, name: str = "crontab") -> str:
    """The command of the page's crontab, with its script where the test has put it."""
    return recipe(name, CRON_PAGE).split(maxsplit=5)[5].strip().replace("/opt", str(machines.directory))


async def total(reader: Connection) -> Decimal:
    found: Decimal = await reader.fetchval("SELECT total FROM reports")
    return found


@pytest.mark.long("recipes that run as processes")
def test_every_block_of_the_cron_page_is_run() -> None:
    assert set(recipes(CRON_PAGE)) == {"table", "script", "crontab", "refused", "once", "once-crontab"}
    assert len(re.findall(r"^```\w+$", CRON_PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(CRON_PAGE))


@pytest.mark.long("recipes that run as processes")
@pytest.mark.realtime
@pytest.mark.parametrize("protected", [True, False])
async def test_a_paused_machine_does_not_write_over_the_other_and_without_a_fence_it_does(
    cron_machines: Machines, http: httpx.AsyncClient, connect: Connect, protected: bool
) -> None:
    owner = await connect()
    command = cron_line(cron_machines)
    if not protected:
        await asyncio.to_thread(
            run,
            "fencepost unprotect reports",
            cron_machines.server,
            cron_machines.database,
            FENCEPOST_DATABASE_URL=cron_machines.database,
        )
        command = command.replace("--claim ", "")
    short = command.replace("--no-wait", "--no-wait --ttl 3")  # the pause need not last
    pays = "SET LOCAL fencepost.token = '5'; UPDATE orders SET status = 'paid' WHERE order_id = 'order-123'"
    async with cron_machines.machine("one", short, waits=True) as one:
        await one.is_about_to_write()
        one.pause_lock()

        async def none_holds() -> bool:
            return not any(lock["held"] for lock in (await http.get("/v1/locks")).json())

        await eventually(none_holds, what="the end of the lease")
        await owner.execute(pays)
        async with cron_machines.machine("two", command) as two:
            assert await two.running.ended() == 0, two.running.printed
        assert await total(owner) == NEW
        one.let_it_write()
        if protected:
            words = re.sub(r"\d+", r"\\d+", recipe("refused", CRON_PAGE).strip())
            await one.says("stale token")
            assert re.search(words, one.running.printed), one.running.printed
        else:
            await eventually(lambda: wrote_over(owner), what="the lost update")
        one.resume_lock()
        assert await one.running.ended() == 79
    assert await total(owner) == (NEW if protected else OLD)


async def wrote_over(owner: Connection) -> bool:
    return await total(owner) == OLD


@pytest.mark.long("recipes that run as processes")
async def test_a_key_means_once_a_night_without_any_lock(cron_machines: Machines, connect: Connect) -> None:
    owner = await connect()
    await owner.execute(
        "CREATE TABLE nights (night date PRIMARY KEY); CREATE TABLE reminders (order_id text, night date)"
    )
    assert "CREATE TABLE nights (night date PRIMARY KEY)" in CRON_PAGE.read_text("utf-8")
    install(recipe("once", CRON_PAGE), cron_machines.directory / "remind.sh")
    commands = [cron_line(cron_machines, "once-crontab")] * 4
    done = await asyncio.gather(
        *(asyncio.to_thread(run, each, cron_machines.server, cron_machines.database) for each in commands)
    )
    assert [(each.returncode, each.stdout) for each in done] == [(0, "")] * 4
    reminded = await owner.fetch("SELECT order_id FROM reminders ORDER BY order_id")
    assert [row["order_id"] for row in reminded] == ["order-123", "order-125"]
