"""`fencepost serve` as a process: its start, its end, several workers, and what it refuses."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.http.raw import RawConnection
from tests.support.gateways import STARTS_WITHIN, Gateway, launch, refused, serving_as_it_is, serving_process, workers
from tests.support.interleave import Connect, Connection, connection_to, holding
from tests.support.servers import all_gone, established, until

from fencepost.cli.main import main
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir, running_url
from fencepost.server.ops.migrate import upgrade
from fencepost.server.serving.server import ListenError, listen
from fencepost.testing.servers.postgres import run_on
from fencepost.testing.servers.processes import PATIENCE, alive, descendants, eventually, free_port, mentioning

# `fencepost serve` as a process: what it starts, and what it leaves behind however it ends.

ORDER = "/v1/data/orders/order-123"


@asynccontextmanager
async def row_held(directory: Path) -> AsyncIterator[Connection]:
    """Hold the demo row's lock on a connection of our own, so that a request waits for it."""
    url = str(running_url(directory / "data"))
    async with holding(url, "SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE") as connection:
        yield connection


async def a_request_waits(directory: Path) -> None:
    query = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')"
    async with connection_to(str(running_url(directory / "data"))) as observer:
        await eventually(lambda: observer.fetchval(query), what="a request waiting for the row")


async def refuses_connections(url: str) -> None:
    """Return once nothing listens there: the gateway drains."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def none_listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # it was closed between our two packets: look again
            return False
        writer.close()
        await writer.wait_closed()
        return False

    await eventually(none_listens, what="the end of listening")


def patch_order(client: httpx.AsyncClient, url: str, token: int, status: str) -> "asyncio.Task[httpx.Response]":
    headers = {"X-Fence-Token": str(token)}
    return asyncio.create_task(client.patch(url + ORDER, headers=headers, json={"status": status}))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        yield client


async def test_ctrl_c_and_kill_9_leave_no_process_and_lose_no_write(short_dir: Path, client: httpx.AsyncClient) -> None:
    """What PostgreSQL has committed outlives a kill -9: integration/test_embedded.py."""
    async with serving_process(short_dir, "--workers", "2") as gateway:
        assert (await patch_order(client, gateway.url, 34, "shipped")).status_code == 200
        left = gateway.processes()
        gateway.interrupt()
        assert await gateway.ended() == 0
        await all_gone(left)
        assert "Traceback" not in gateway.errors.read_text()
    async with serving_process(short_dir, "--workers", "2") as gateway:
        assert (await client.get(gateway.url + ORDER)).json()["status"] == "shipped"
        assert "not properly shut down" not in (short_dir / "data" / "postgresql.log").read_text()
        left = gateway.processes()
        assert len(left) >= 4
        gateway.process.kill()
        gateway.process.wait()
        await all_gone(left)


async def test_ctrl_c_while_the_database_is_being_made_leaves_nothing_half_done_and_a_first_start_greets(
    short_dir: Path,
) -> None:
    process = launch("--port", "0", "--data-dir", str(short_dir / "data"), errors=short_dir / "stderr")
    with process:
        begun = short_dir / "data" / "pgdata.new" / "base"
        await until(begun.exists, within=STARTS_WITHIN, what="the beginning of initdb")
        left = [process.pid, *descendants(process.pid)]
        os.killpg(process.pid, signal.SIGINT)
        await all_gone(left)
        assert process.wait() == 0
    assert (short_dir / "stderr").read_text() == ""
    assert not (short_dir / "data" / "pgdata").exists()
    # The next start is the first one: its greeting names the docs and a request that works.
    async with serving_as_it_is(short_dir) as gateway:
        assert f"{gateway.url}/docs" in gateway.greeting
        curl = gateway.greeting.rpartition("try")[2].strip()
        answer = await asyncio.to_thread(
            subprocess.run, f"{curl} -s", shell=True, capture_output=True, text=True, check=True
        )
        assert '"shipped"' in answer.stdout


@workers
async def test_sigterm_finishes_the_request_in_flight(short_dir: Path, client: httpx.AsyncClient, workers: str) -> None:
    async with serving_process(short_dir, "--workers", workers) as gateway:
        async with row_held(short_dir) as holder:
            request = patch_order(client, gateway.url, 34, "shipped")
            await a_request_waits(short_dir)
            gateway.process.send_signal(signal.SIGTERM)
            await refuses_connections(gateway.url)
            assert not request.done()
            await holder.execute("COMMIT")
        assert (await request).status_code == 200
        assert await gateway.ended() == 0


async def test_a_write_that_outlasts_the_time_for_stopping_has_an_unknown_outcome(
    short_dir: Path, client: httpx.AsyncClient
) -> None:
    async with serving_process(short_dir, "--shutdown-timeout", "1") as gateway, row_held(short_dir):
        request = patch_order(client, gateway.url, 34, "shipped")
        await a_request_waits(short_dir)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await request
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "FP009", "1")
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()


@workers
async def test_a_second_ctrl_c_does_not_wait(short_dir: Path, client: httpx.AsyncClient, workers: str) -> None:
    long = ("--shutdown-timeout", "600", "--lock-timeout", "600", "--statement-timeout", "600")
    async with serving_process(short_dir, "--workers", workers, *long) as gateway, row_held(short_dir):
        request = patch_order(client, gateway.url, 34, "shipped")
        await a_request_waits(short_dir)
        gateway.interrupt()
        await refuses_connections(gateway.url)
        gateway.interrupt()
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()
        await asyncio.gather(request, return_exceptions=True)


async def test_sighup_has_the_tables_looked_at_anew(short_dir: Path, client: httpx.AsyncClient) -> None:
    async with serving_process(short_dir) as gateway:

        async def tables() -> str:  # asking it loads nothing
            return str((await client.get(f"{gateway.url}/readyz")).json()["catalog"]).partition(", ")[2]

        before, url = await tables(), running_url(short_dir / "data")
        await run_on(str(url), "CREATE TABLE public.fresh (id int PRIMARY KEY)")
        assert await tables() == before
        gateway.process.send_signal(signal.SIGHUP)

        async def seen() -> bool:
            return await tables() != before

        await eventually(seen, what="the new table")
        postmaster = (short_dir / "data" / "pgdata" / "postmaster.pid").read_text().splitlines()[0]
        os.kill(int(postmaster), signal.SIGKILL)
        assert await gateway.ended() == 1, "it ends when PostgreSQL does"
        assert "the embedded PostgreSQL ended by itself" in gateway.errors.read_text()


async def test_other_addresses_are_served_when_asked_for_and_the_embedded_server_has_room_for_all_its_connections(
    short_dir: Path, client: httpx.AsyncClient
) -> None:
    variables = {"FENCEPOST_ALLOW_REMOTE": "1", "FENCEPOST_JWT_SECRET": "x" * 32, "FENCEPOST_JWT_ROLE_CLAIM_KEY": ""}
    async with serving_process(short_dir, "--host", "0.0.0.0", "--pool-size", "150", **variables) as gateway:
        assert gateway.url.startswith("http://127.0.0.1:")
        assert (await client.get(gateway.url + "/healthz")).status_code == 200
        async with connection_to(str(running_url(short_dir / "data"))) as connection:
            assert int(await connection.fetchval("SHOW max_connections")) > 150 + 4 + 7 + 1


async def test_a_table_orders_of_the_users_own_is_no_demo(short_dir: Path, database: str, connect: Connect) -> None:
    await (await connect()).execute("CREATE TABLE public.orders (id int PRIMARY KEY)")
    async with serving_as_it_is(short_dir, FENCEPOST_DATABASE_URL=database) as gateway:
        assert gateway.greeting.splitlines()[-1].startswith("  demo  was not made: there is a table orders"), gateway


# When `fencepost serve` cannot start: one line that gives the reason, an exit code, and nothing touched.


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


async def test_a_data_directory_in_use_is_one_line(short_dir: Path) -> None:
    async with serving_process(short_dir) as gateway:
        again = short_dir / "again"
        again.mkdir()
        given = ("--port", "0", "--data-dir", str(short_dir / "data"))
        code, output = await asyncio.to_thread(refused, *given, directory=again)
        assert code == 1
        pid = gateway.process.pid
        assert output == f"Error: the data directory {short_dir}/data is in use by fencepost (pid {pid})\n"
        assert alive(pid)


def test_a_busy_port_is_one_line_and_touches_nothing(short_dir: Path) -> None:
    with busy_port() as port:
        code, output = refused("--data-dir", str(short_dir / "data"), directory=short_dir, FENCEPOST_PORT=str(port))
    assert (code, output.count("\n")) == (1, 1)
    assert output.startswith(f"Error: port {port} on 127.0.0.1 is in use")
    assert not (short_dir / "data").exists()


def test_an_address_that_cannot_be_taken_is_named_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ports need privileges is a setting of the machine, so the refusal is made up."""
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is no address of this machine; .* --host or FENCEPOST_HOST$"):
        listen("192.0.2.1", 0, allow_remote=True)

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied)
    with pytest.raises(ListenError, match=r"^port 1 on 127\.0\.0\.1 needs privileges .* --port or FENCEPOST_PORT$"):
        listen("127.0.0.1", 1, allow_remote=False)


def refused_here(port: int, *arguments: str, directory: Path, **variables: str) -> str:
    """Run serve in this process, which starts ten times faster than one of its own; return its one line. It must fail
    before it listens on the port, which is busy, and before it touches its data.
    """
    given = ("serve", *arguments, "--port", str(port), "--data-dir", str(directory / "data"))
    result = CliRunner().invoke(main, given, env=variables)
    assert (result.exit_code in (1, 2), result.stdout, result.stderr.count("\n")) == (True, "", 1), result.output
    assert not (directory / "data").exists(), arguments
    return result.stderr


def test_other_addresses_than_loopback_need_a_word_and_authentication(short_dir: Path) -> None:
    with busy_port() as port:
        for host in ("0.0.0.0", "::"):
            assert "--allow-remote" in refused_here(port, "--host", host, directory=short_dir), host
        for arguments in (
            ("--host", "0.0.0.0", "--allow-remote"),
            ("--allow-remote",),
            ("--host", "0.0.0.0", "--allow-remote", "--jwt-role-claim-key", ""),
        ):
            assert "needs authentication" in refused_here(port, *arguments, directory=short_dir), arguments


def test_settings_that_cannot_be_are_refused_in_one_line(short_dir: Path) -> None:
    secret = "a secret that has thirty-two bytes and more"
    with busy_port() as port:
        for arguments, why in (
            (("--jwt-secret", "topsecret"), "at least 32 bytes"),
            (("--jwt-secret", '{"kty":"oct","k":"topsecrets0w"}'), "a secret has at least 32 bytes"),
            (("--jwt-secret", "@/nowhere"), "it cannot be read"),
            (("--jwt-secret", secret, "--jwt-jwks", "https://id.example/jwks"), "give one of them"),
            (("--jwt-jwks", "http://id.example/jwks"), "use https"),
            (("--anon-role", "web"), "give --jwt-secret, --jwt-jwks or --api-keys"),
            (("--jwt-secret", secret, "--anon-role", "x" * 64), "no name of a role"),
            (("--jwt-aud", "orders"), "give --jwt-secret or --jwt-jwks"),
            (("--rate-limit", "5/second"), "the rate limit is of callers"),
            (("--failed-rate-limit", "5/s"), "failed rate limit"),
            (("--allowed-hosts", "shop.example:443"), "is no name of a host"),
            (("--cors-origins", "shop.example"), "is no origin"),
            (("--sources", "a=redis://one a=redis://two"), "FENCEPOST_SOURCES: a stands there twice"),
        ):
            output = refused_here(port, *arguments, directory=short_dir)
            assert why in output, arguments
            assert "topsecret" not in output, arguments
            assert secret not in output, arguments


def test_a_database_that_cannot_be_reached_is_one_line(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    url = f"postgresql://u:secret@127.0.0.1:{port}/db"
    given = ("--port", "0", "--start-timeout", "0")
    code, output = refused(*given, directory=short_dir, FENCEPOST_DATABASE_URL=url)
    assert (code, output.count("\n")) == (1, 1)
    assert "secret" not in output


def test_on_the_users_own_database_nothing_heavy_is_loaded(short_dir: Path) -> None:
    url = "postgresql://u@127.0.0.1:1/db"
    given = ("--port", "0", "--start-timeout", "0")
    _, output = refused(*given, directory=short_dir, FENCEPOST_DATABASE_URL=url, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip() for line in output.splitlines()}
    assert "fencepost.server.serve" in loaded, output[-500:]
    heavy = {"alembic", "sqlalchemy", "httpx"}
    assert loaded & heavy == set()
    script = "import sys, fencepost.server.serving.worker, fencepost.server.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & heavy == set()


def test_a_database_without_the_schema_gets_the_advice_to_migrate(short_dir: Path, postgres: PostgresServer) -> None:
    code, output = refused("--port", "0", directory=short_dir, FENCEPOST_DATABASE_URL=postgres.url)
    assert (code, output.count("\n")) == (1, 1)
    assert "fencepost migrate" in output


# Several workers: each gets its share of the connections, whatever happens to the others.

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class WorkerConnection(RawConnection):
    """A connection to the gateway, kept open."""

    @property
    def port(self) -> int:
        port: int = self.writer.get_extra_info("sockname")[1]
        return port

    async def ask(self) -> int:
        await self.send(_REQUEST)
        return (await asyncio.wait_for(self.answer(), PATIENCE)).status

    async def closed_by_the_other_side(self) -> None:
        assert await asyncio.wait_for(self.ended(), PATIENCE)


class Clients:
    """Connections to one gateway, and which worker has them."""

    def __init__(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        self._gateway, self._stack = gateway, stack
        self.port = int(gateway.url.rpartition(":")[2])

    async def connect(self, count: int) -> list[WorkerConnection]:
        """Open connections all at once, without a request on them."""

        async def one() -> WorkerConnection:
            connection = WorkerConnection(*await asyncio.open_connection("127.0.0.1", self.port))
            self._stack.callback(connection.close)
            return connection

        return await asyncio.gather(*(one() for _ in range(count)))

    async def answered(self, count: int) -> list[WorkerConnection]:
        """Open connections all at once, each of which has had an answer."""
        connections = await self.connect(count)
        assert await asyncio.gather(*(connection.ask() for connection in connections)) == [200] * count
        return connections

    def workers(self) -> list[int]:
        return [pid for pid in mentioning("spawn_main") if pid in self._gateway.processes()]

    def held(self) -> dict[int, set[int]]:
        return established(self.port, self.workers())


@asynccontextmanager
async def served(directory: Path, workers: int, *arguments: str) -> AsyncIterator[tuple[Gateway, Clients]]:
    async with serving_process(directory, "--workers", str(workers), *arguments) as gateway, AsyncExitStack() as stack:
        yield gateway, Clients(gateway, stack)


@pytest.mark.long("tests of several worker processes")
async def test_a_killed_workers_replacement_gets_connections(short_dir: Path) -> None:
    async with served(short_dir, 2) as (_, clients):
        first = clients.workers()
        connections = await clients.answered(8)
        lost = clients.held()[first[0]]
        assert len(lost) == 4
        os.kill(first[0], signal.SIGKILL)
        await all_gone([first[0]])  # until then its channel may still take a connection, which ends with it
        for connection in connections:
            if connection.port in lost:
                await connection.closed_by_the_other_side()
            else:
                assert await connection.ask() == 200

        async def replaced() -> bool:  # meanwhile everybody is served by the other
            await clients.answered(1)
            held = clients.held()
            return len(held) == 2 and all(len(ports) > 0 for ports in held.values())

        await eventually(replaced, what="a connection for the new worker")
        assert first[0] not in clients.workers()


@pytest.mark.long("tests of several worker processes")
async def test_sighup_reloads_in_every_worker_and_ends_no_connection_and_sigterm_ends_them(short_dir: Path) -> None:
    # What a load without news says is for debugging.
    async with served(short_dir, 2, "--log-level", "debug") as (gateway, clients):
        connections = await clients.answered(4)
        before = clients.workers()
        loads = gateway.errors.read_text().count("catalog loaded")
        gateway.process.send_signal(signal.SIGHUP)
        await until(
            lambda: gateway.errors.read_text().count("catalog loaded") >= loads + 2, what="the tables loaded anew"
        )
        assert [await connection.ask() for connection in connections] == [200] * 4
        assert clients.workers() == before
        connections += await clients.connect(4)
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(connection.closed_by_the_other_side() for connection in connections))
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()


@pytest.mark.long("tests of several worker processes")
async def test_a_worker_that_dies_while_the_database_is_away_comes_back_with_it(short_dir: Path) -> None:
    directory = short_dir / "postgres"
    server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory, port=free_port())
    server.start()
    try:
        url = server.url
        await upgrade(url)
        async with (
            serving_process(short_dir, "--workers", "2", "--start-timeout", "0", FENCEPOST_DATABASE_URL=url) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
            AsyncExitStack() as stack,
        ):
            first = set(Clients(gateway, stack).workers())
            assert len(first) == 2
            server.stop()
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            await until(
                lambda: "Application startup failed" in gateway.errors.read_text(), what="a worker that cannot start"
            )
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/data/orders")).status_code == 503
            assert gateway.process.poll() is None

            server.start()

            async def all_back() -> bool:
                now = set(Clients(gateway, stack).workers())
                return len(now) == 2 and victim not in now and (await client.get("/readyz")).status_code == 200

            await eventually(all_back, what="two workers again")
            assert (await client.get("/v1/data/orders/order-123")).status_code == 200
            gateway.interrupt()
            assert await gateway.ended() == 0
    finally:
        server.stop()
