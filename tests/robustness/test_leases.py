"""Leases while gateways, leaders and holders are killed or paused: order, several gateways, elections."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.benches import leading, running_ensemble, running_etcd
from tests.support.elections import WITHIN, Candidate, Contest, contest
from tests.support.gateways import Gateway, serving_process
from tests.support.interleave import Connection, connection_to
from tests.support.lease_gateways import Grant, History, Side, in_line, open_side, post, release, running
from tests.support.lease_racing import EXPIRED, MINUTE, LeaseRace, sweep_all
from tests.support.servers import all_gone
from tests.support.violations import judging, promised

from fencepost.server.ops import demo
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.server.postgres import leases
from fencepost.server.postgres.leases import hash_secret
from fencepost.testing import Link, partitioned
from fencepost.testing.servers.postgres import clone, in_database
from fencepost.testing.servers.processes import (
    PATIENCE,
    descendants,
    eventually,
    free_port,
    new_directory,
    remove_directory,
)

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

# Locks over several gateways, HTTP and all, of which one is killed, or whose PostgreSQL restarts.
# The gateway that is killed is a process of its own.

WAIT = 300_000


async def wait(
    client: httpx.AsyncClient, observer: Connection, owner: str, **asked: object
) -> asyncio.Task[httpx.Response]:
    """Start waiting for the lock `x`; return once the place in the queue is taken."""
    task = asyncio.create_task(post(client, "x", owner=owner, wait_ms=WAIT, **asked))
    await in_line(observer, owner)
    return task


async def lease(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 201, answer.text
    given: dict[str, str] = answer.json()
    return given


def assert_waits(task: asyncio.Task[httpx.Response]) -> None:
    """Assert that a request waits for the lock, which another one holds."""
    promised(not task.done() or task.result().status_code != 201, "two hold one lock")
    assert not task.done()


async def waiting(observer: Connection) -> list[str]:
    rows = await observer.fetch("SELECT owner FROM fencepost.live_waiters WHERE name = 'x' ORDER BY ticket")
    return [row[0] for row in rows]


# Two gateways on one database

# Gateways and a PostgreSQL that go away


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a PostgreSQL of our own, on a port of its own, which can be restarted."""
    directory = new_directory()
    try:
        server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory / "data", port=free_port())
        server.start()
        asyncio.run(upgrade(server.url))
        asyncio.run(demo.load(server.url))  # `serve --demo` does it too, and two at once would collide
        yield server
        server.stop()
    finally:
        remove_directory(directory)


@pytest.fixture
async def observer(server: PostgresServer) -> AsyncIterator[Connection]:
    async with connection_to(server.url) as connection:
        for table in ("locks", "leases", "draws", "waiters", "gateways"):
            await connection.execute(f"TRUNCATE fencepost.{table}")
        yield connection


@pytest.fixture
async def processes(server: PostgresServer, short_dir: Path) -> AsyncIterator[list[tuple[Gateway, httpx.AsyncClient]]]:
    """Run two gateways as processes."""
    async with AsyncExitStack() as stack:
        started = []
        for name in ("one", "two"):
            (short_dir / name).mkdir()
            started.append(
                stack.enter_async_context(serving_process(short_dir / name, FENCEPOST_DATABASE_URL=server.url))
            )
        gateways = await asyncio.gather(*started)
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, trust_env=False))
            for gateway in gateways
        ]
        yield list(zip(gateways, clients, strict=True))


async def test_waiters_of_a_killed_gateway_hold_no_other_up(
    processes: list[tuple[Gateway, httpx.AsyncClient]], observer: Connection
) -> None:
    (killed, first_client), (_, client) = processes
    holder = await lease(await post(client, "x"))
    first = await wait(first_client, observer, "at the killed gateway")
    second = await wait(client, observer, "second")
    third = await wait(client, observer, "third")
    os.kill(killed.process.pid, signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        await first
    await release(client, holder)  # and the first in the queue is not there to take it
    given = await lease(await asyncio.wait_for(second, PATIENCE))
    await release(client, given)
    await release(client, await lease(await asyncio.wait_for(third, PATIENCE)))


async def test_a_waiter_gets_the_lock_though_postgresql_restarts(server: PostgresServer, observer: Connection) -> None:
    async with running(server.url) as client:
        holder = await lease(await post(client, "x", ttl_ms=300_000))
        first = await wait(client, observer, "first")
        second = await wait(client, observer, "second")
        await observer.close()
        server.stop()
        server.start()

        async def back() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await eventually(back, what="the gateway's readiness")
        assert_waits(first)
        assert_waits(second)
        await release(client, holder)
        await release(client, await lease(await asyncio.wait_for(first, PATIENCE)))
        await release(client, await lease(await asyncio.wait_for(second, PATIENCE)))


# Tokens rise (R9): random schedules of all that can happen to a lock, and a history that is checked afterwards.

EXPIRE_ANY = """
UPDATE fencepost.leases SET expires_at = least(expires_at, clock_timestamp() - $1 * interval '1 s')
 WHERE lease_id IN (SELECT lease_id FROM fencepost.leases WHERE ended_at IS NULL ORDER BY random() LIMIT 1
                       FOR UPDATE SKIP LOCKED)"""


async def racing(dsn: str) -> LeaseRace:
    return LeaseRace(await quiet(dsn), await quiet(dsn), await quiet(dsn), await quiet(dsn))


async def quiet(dsn: str) -> Connection:
    """Connect, and leave nothing of the session's own to be logged later: catalog lookups set hint bits."""
    connection: Connection = await asyncpg.connect(dsn)
    await connection.fetch("SELECT count(*) FROM pg_class UNION ALL SELECT last_value FROM fencepost.tokens")
    return connection


# One after another, in every order that hypothesis can think of

LOCKS = ("a", "b", "c")
STEP = st.one_of(
    st.tuples(st.just("acquire"), st.sets(st.sampled_from(LOCKS), min_size=1), st.integers(1, 3)),
    st.tuples(st.just("mint"), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("renew"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("expire"), st.integers(0, 5), st.sampled_from([1, 11])),
    st.tuples(st.just("clock steps back"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("sweep"), st.just(0), st.sampled_from([0, 3600])),
    st.tuples(st.just("repeat"), st.integers(0, 5), st.just(0)),
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sequential(postgres: PostgresServer, template: str, runner: asyncio.Runner) -> Iterator[LeaseRace]:
    """Give connections to a database that all examples share; their locks have names of their own."""
    name = "test_lease_order"
    url = in_database(postgres.url, name)

    async def make() -> LeaseRace:
        await clone(postgres.url, name, template)
        return await racing(url)

    async def drop(race: LeaseRace) -> None:
        for connection in (race.a, race.b, race.c, race.observer):
            await connection.close()
        async with connection_to(postgres.url) as server:
            await server.execute(f"DROP DATABASE {name}")

    race = runner.run(make())
    yield race
    runner.run(drop(race))


_examples = itertools.count()


@pytest.mark.long("crashes and restores of PostgreSQL")
def test_tokens_rise_whatever_happens_to_the_locks(sequential: LeaseRace, runner: asyncio.Runner) -> None:
    @settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEP, min_size=3, max_size=25))
    def play(steps: list[tuple[str, object, int]]) -> None:
        runner.run(Schedule(sequential, f"{next(_examples)}/").play(steps))

    play()


class Schedule:
    """Runs steps and keeps the books: what holds which lock, by the rules."""

    def __init__(self, race: LeaseRace, prefix: str) -> None:
        self.race, self.prefix = race, prefix
        self.history = History()
        self.granted: list[tuple[int, str, Grant]] = []
        self.live: set[int] = set()

    async def play(self, steps: list[tuple[str, object, int]]) -> None:
        with judging():
            for number, (what, which, count) in enumerate(steps):
                if what == "acquire" and isinstance(which, set):
                    locks = tuple(self.prefix + name for name in sorted(which))
                    await self.acquire(locks, f"{self.prefix}{number}", count)
                elif what == "sweep":
                    await sweep_all(self.race.observer, float(count))
                elif self.granted and isinstance(which, int):
                    await self.change(what, *self.granted[which % len(self.granted)], count)
                self.history.check()
        await self.race.observer.execute(
            "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 day'"
        )

    async def acquire(self, locks: tuple[str, ...], secret: str, count: int) -> None:
        began = self.history.tick()
        got = await self.race.acquire(self.race.a, *locks, secret=secret, tokens=count)
        in_the_way = any(set(grant.locks) & set(locks) for lease, _, grant in self.granted if lease in self.live)
        assert got.verdict == ("held" if in_the_way else "granted"), got
        if got.verdict == "granted":
            grant = Grant(locks, began, self.history.tick(), [int(token) for token in got.lease.tokens])
            self.history.grants.append(grant)
            self.granted.append((got.lease.lease_id, secret, grant))
            self.live.add(got.lease.lease_id)

    async def change(self, what: str, lease: int, secret: str, grant: Grant, count: int) -> None:
        race, alive = self.race, lease in self.live
        match what:
            case "mint":
                minted = await race.mint(race.b, lease, secret, count)
                assert (minted is not None) is alive, "a lease that is lost mints nothing"
                grant.tokens += [int(token) for token in minted.tokens] if minted else []
            case "renew":
                assert (await race.renew(race.b, lease, secret) is not None) is alive
            case "release":
                assert await race.release(race.b, lease, secret) is True
                self.live.discard(lease)
            case "expire":
                await race.expire(lease, count)
                self.live.discard(lease)
            case "clock steps back":
                # What no holder has taken over or swept may live on; it is asked, for the books.
                await race.step_clock_back(lease)
                if await leases.inspect(race.observer, lease):
                    self.live.add(lease)
            case _:
                again = await race.acquire(race.c, *grant.locks, secret=secret)
                known = any(live in self.live for live, its, _ in self.granted if its == secret)
                assert (again.verdict == "repeated") is known, again
                if again.verdict == "granted":
                    new = Grant(
                        grant.locks, self.history.tick(), self.history.tick(), [int(t) for t in again.lease.tokens]
                    )
                    self.history.grants.append(new)
                    self.granted.append((again.lease.lease_id, secret, new))
                    self.live.add(again.lease.lease_id)


# All at once, while gateways come and go


@pytest.mark.long("crashes and restores of PostgreSQL")
async def test_tokens_rise_while_everything_happens_at_once(database: str) -> None:
    history = History()
    # Let workers acquire, mint and release with leases that time out, and others expire, sweep and change
    # gateways.
    seed = 1
    done = asyncio.Event()
    upheaval = asyncio.create_task(stir(database, done, seed))
    try:
        await asyncio.gather(*(work(database, history, random.Random(seed * 100 + n), 25) for n in range(6)))
    finally:
        done.set()
        await upheaval
    history.check()
    grants_of_a = sum("a" in grant.locks for grant in history.grants)
    assert grants_of_a > 10, "a storm in a teacup"


async def stir(dsn: str, done: asyncio.Event, seed: int) -> None:
    """Let leases run out, and sweep, until it is done."""
    rng = random.Random(seed)
    async with connection_to(dsn) as connection:
        while not done.is_set():
            await connection.execute(EXPIRE_ANY, rng.choice((0.001, 11.0)))
            if rng.random() < 0.5:
                await sweep_all(connection, 0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), rng.random() / 50)


async def work(dsn: str, history: History, rng: random.Random, rounds: int) -> None:
    """Acquire, mint, release or forget; now and then at a new gateway."""
    async with contextlib.AsyncExitStack() as stack:
        side: Side | None = None
        for _ in range(rounds):
            if side is None or rng.random() < 0.1:
                await stack.aclose()  # all of them together would have more connections than PostgreSQL gives
                side = await stack.enter_async_context(open_side(dsn, pool_size=1))
            await one_lease(side, history, rng)


async def one_lease(side: Side, history: History, rng: random.Random) -> None:
    locks = tuple(rng.sample(LOCKS, rng.randint(1, 3)))
    secret = f"{rng.random()}"
    began = history.tick()
    got = await side.acquire(*locks, secret=secret, wait_ms=rng.choice((0, 0, 200)), ttl_ms=rng.choice((5, 60_000)))
    if got.verdict not in ("granted", "repeated"):
        return
    grant = Grant(locks, began, history.tick(), [int(token) for token in got.lease.tokens])
    history.grants.append(grant)
    for _ in range(rng.randint(0, 3)):
        minted = await side.locks.mint(got.lease.lease_id, hash_secret(secret), rng.randint(1, 3))
        if minted is None:
            return
        grant.tokens += [int(token) for token in minted.tokens]
    if rng.random() < 0.6:
        await side.locks.release(got.lease.lease_id, hash_secret(secret))


# PostgreSQL is killed


@pytest.fixture
async def crashing() -> AsyncIterator[PostgresServer]:
    """Run a PostgreSQL of our own that writes its log to disk only when it must: what is not flushed is lost."""
    directory = new_directory()
    options = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "bgwriter_lru_maxpages": "0"}
    server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory / "data", options=options)
    try:
        server.start()
        await upgrade(server.url)
        yield server
    finally:
        server.stop()
        remove_directory(directory)


async def crash(server: PostgresServer, postmaster: int) -> None:
    """Kill the postmaster, and with it everything that was not flushed; start it again."""
    everything = [postmaster, *descendants(postmaster)]
    os.kill(postmaster, signal.SIGKILL)
    await all_gone(everything)
    assert not server.running
    server.stop()
    server.start()


async def postmaster_of(connection: Connection) -> int:
    lines: str = await connection.fetchval("SELECT pg_read_file('postmaster.pid')")
    return int(lines.split(maxsplit=1)[0])


@pytest.mark.long("crashes and restores of PostgreSQL")
async def test_kill_9_of_postgresql_right_after_a_grant_never_repeats_a_token(crashing: PostgresServer) -> None:
    history = History()
    for number in range(3):
        race = await racing(crashing.url)
        postmaster = await postmaster_of(race.observer)
        # The transaction that logs the next block of the sequence has not committed, and never will.
        under_way = await race.begin(race.c)
        for _ in range(34):
            await race.c.fetchval("SELECT nextval('fencepost.tokens')")
        assert under_way
        name = f"lock {number}"
        secret = f"secret {number}"
        began = history.tick()
        got = await race.acquire(race.a, name, "always", secret=secret, ttl_ms=10 * MINUTE)
        assert got.verdict == "granted"
        grant = Grant((name, "always"), began, history.tick(), [int(token) for token in got.lease.tokens])
        history.grants.append(grant)
        minted = await race.mint(race.b, got.lease.lease_id, secret, 2)
        assert minted is not None
        grant.tokens += [int(token) for token in minted.tokens]
        await crash(crashing, postmaster)
        for connection in (race.a, race.b, race.c, race.observer):
            connection.terminate()
        async with connection_to(crashing.url) as connection:
            promised(await leases.inspect(connection, got.lease.lease_id), "an acknowledged lease is lost")
            await connection.execute(EXPIRED, got.lease.lease_id, 1.0)
        history.check()


@pytest.mark.long("crashes and restores of PostgreSQL")
async def test_the_control_a_token_that_is_only_drawn_comes_again(crashing: PostgresServer) -> None:
    logging, drawing = await quiet(crashing.url), await quiet(crashing.url)
    postmaster = await postmaster_of(drawing)
    transaction = logging.transaction()
    await transaction.start()
    for _ in range(34):
        await logging.fetchval("SELECT nextval('fencepost.tokens')")
    drawn = [await drawing.fetchval("SELECT nextval('fencepost.tokens')") for _ in range(3)]
    await crash(crashing, postmaster)
    logging.terminate()
    drawing.terminate()
    async with connection_to(crashing.url) as connection:
        again = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    assert again <= drawn[-1], "bare tokens survived: this server flushes too much to show anything"


# Leaders that die, stop, or are cut off, and lock services whose own leader dies: whatever happens, no two writes of
# two terms are accepted out of order, and there is a leader again.


async def led_and_followed(contest: Contest, first_url: str, second_url: str) -> tuple[Candidate, Candidate, int]:
    """Start two candidates, one after the other; returns them when the first has written, with its term."""
    first = await contest.candidate(first_url, "first")
    term = (await first.printed("wrote"))["wrote"]
    return first, await contest.candidate(second_url, "second"), term


async def succeeded(contest: Contest, second: Candidate, term: int) -> int:
    """Return the second's term once it has written."""
    new = (await second.printed("wrote"))["wrote"]
    promised(new > term, f"the term {new} came after {term}")
    await contest.check(term, new)
    return int(new)


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")
async def test_a_paused_leader_wakes_up_and_is_refused(database: str) -> None:
    async with running(database) as http, contest(database) as election:
        url = str(http.base_url)
        first, second, term = await led_and_followed(election, url, url)
        first.pause()
        new = await succeeded(election, second, term)
        first.resume()
        lost = await first.printed("lost")
        await election.goes_on()
        await election.check(term, new)
        assert lost == {"lost": term, "last": "FP001"}


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")
async def test_a_leader_that_is_cut_off_from_the_gateway_is_refused_when_it_is_back(database: str) -> None:
    async with running(database) as http, contest(database) as election:
        with Link.to(str(http.base_url)) as link:
            first, second, term = await led_and_followed(election, link.url, str(http.base_url))
            with partitioned(link):
                new = await succeeded(election, second, term)
            lost = await first.printed("lost")
        await election.check(term, new)
        assert lost == {"lost": term, "last": "FP001"}


@contextmanager
def cut_off(port: int) -> Iterator[None]:
    """Drop all packets from and to a port of loopback."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("no rights to cut the network: run as root, apt-get install iptables")
    rules = [("OUTPUT", "-o", "lo", "-p", "tcp", side, str(port), "-j", "DROP") for side in ("--dport", "--sport")]
    added = []
    try:
        for rule in rules:
            refused = subprocess.run(["iptables", "-w", "-I", *rule], capture_output=True, text=True, check=False)
            if refused.returncode != 0:
                pytest.skip(f"iptables does not work here: {refused.stderr.strip()}")
            added.append(rule)
        yield
    finally:
        for rule in added:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True)


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")
async def test_a_leader_whose_gateway_is_cut_off_from_the_service_is_refused(database: str, tmp_path: Path) -> None:
    """Its gateway still reaches PostgreSQL: nothing but the fence is in the way."""
    with running_etcd(tmp_path, nodes=3) as etcd:
        alone, *others = etcd.endpoints
        async with (
            running(database, sources=f"etcd=etcd://{alone}") as here,
            running(database, sources=f"etcd=etcd://{','.join(others)}") as there,
            contest(database, "etcd") as election,
        ):
            first, second, term = await led_and_followed(election, str(here.base_url), str(there.base_url))
            with cut_off(int(alone.rpartition(":")[2])):
                new = await succeeded(election, second, term)
                lost = await first.printed("lost")
            await election.goes_on()
            await election.check(term, new)
            assert lost == {"lost": term, "last": "FP001"}


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")
async def test_etcds_own_leader_is_killed(database: str, tmp_path: Path) -> None:
    with running_etcd(tmp_path, nodes=3) as etcd:
        async with running(database, sources=f"etcd={etcd.url}") as http, contest(database, "etcd") as election:
            url = str(http.base_url)
            first, second, term = await led_and_followed(election, url, url)
            etcd.nodes[await etcd.leader()].crash()
            await still_works(election, first, second, term)


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")
async def test_zookeepers_own_leader_is_killed(database: str, tmp_path: Path) -> None:
    with running_ensemble(tmp_path) as servers:
        url = f"zookeeper://{','.join(f'127.0.0.1:{port}' for port in servers)}?session_timeout_s=6"
        async with running(database, sources=f"zookeeper={url}") as http, contest(database, "zookeeper") as election:
            gateway = str(http.base_url)
            first, second, term = await led_and_followed(election, gateway, gateway)
            servers[leading(servers)].crash()
            await still_works(election, first, second, term)


async def still_works(election: Contest, first: Candidate, second: Candidate, term: int) -> None:
    """Writes go on, whichever leads by now, also when the leader dies."""
    await election.goes_on()
    leads = (await election.history())[-1].term
    leader, other = (first, second) if {"elected": leads} in first.lines else (second, first)
    await leader.kill()

    async def another_client_wrote() -> bool:
        return (await election.history())[-1].term > leads

    await eventually(another_client_wrote, within=WITHIN, what="the other's write")
    new = (await election.history())[-1].term
    assert {"elected": new} in other.lines
    await election.check(term, new)
