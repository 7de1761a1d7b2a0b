"""A lock service that forgets what it handed out is quarantined, until an operator raises its generation (R12)."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from tests.conformance.benches import redis_server, running_etcd, running_zookeeper
from tests.sources.conftest import Api, serving
from tests.support.interleave import connection_to

from fencepost.cli.main import main
from fencepost.testing.servers.lock_services import DURABLE
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port

pytestmark = pytest.mark.long("lock services that are restored")

NAME = "lock_service"


@dataclass
class Restorable:
    """A lock service, what to do to save its state, and to put the saved state back."""

    url: str
    save: Callable[[], Awaitable[None]]
    restore: Callable[[], Awaitable[None]]


@pytest.fixture
def redis_service(tmp_path: Path) -> Iterator[Restorable]:
    """One Redis, whose files are copied while it is stopped, as a backup of its volume would."""
    port = free_port()
    with redis_server(tmp_path / "redis", port, *DURABLE) as server:

        async def save() -> None:
            server.stop()
            shutil.copytree(tmp_path / "redis", tmp_path / "saved")
            server.start()
            await server.serves()

        async def restore() -> None:
            server.stop()
            shutil.rmtree(tmp_path / "redis")
            shutil.copytree(tmp_path / "saved", tmp_path / "redis")
            server.start()
            await server.serves()

        yield Restorable(f"redis://127.0.0.1:{port}/0", save, restore)


@pytest.fixture
def etcd_service(tmp_path: Path) -> Iterator[Restorable]:
    """One etcd, by its own `snapshot save` and `snapshot restore`."""
    snapshot = str(tmp_path / "snapshot.db")
    with running_etcd(tmp_path) as bench:

        async def save() -> None:
            await bench.ctl("snapshot", "save", snapshot)

        async def restore() -> None:
            await bench.crash()
            shutil.rmtree(tmp_path / "n0")
            await bench.ctl("snapshot", "restore", snapshot, "--data-dir", str(tmp_path / "n0"), *bench.identity(0))
            await bench.restart()

        yield Restorable(bench.url, save, restore)


@pytest.fixture
def zookeeper_service(tmp_path: Path) -> Iterator[Restorable]:
    """One ZooKeeper, whose files are copied while it is stopped."""
    with running_zookeeper(tmp_path) as bench:

        async def save() -> None:
            await asyncio.to_thread(bench.server.stop)
            shutil.copytree(bench.data, tmp_path / "saved")
            await bench.restart()

        async def restore() -> None:
            await asyncio.to_thread(bench.server.stop)
            shutil.rmtree(bench.data)
            shutil.copytree(tmp_path / "saved", bench.data)
            await bench.restart()

        yield Restorable(bench.url, save, restore)


@pytest.fixture(params=["redis_service", "etcd_service", "zookeeper_service"])
def service(request: pytest.FixtureRequest) -> Restorable:
    found: Restorable = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def api(service: Restorable, database: str, stack: AsyncExitStack) -> Api:
    return await serving(stack, database, NAME, service.url)


async def fencepost(api: Api, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments], env={"FENCEPOST_DATABASE_URL": api.database})


async def available(api: Api, lock: str, **asked: object) -> httpx.Response:
    """Ask until the gateway has found the service again."""

    async def ask() -> httpx.Response | None:
        answer = await api.post(lock, **asked)
        return None if answer.status_code == 503 and answer.json()["code"] == "FP024" else answer

    return await eventually(ask, within=2 * PATIENCE, what="the service")


async def test_an_old_snapshot_that_is_restored_quarantines_the_source(api: Api, service: Restorable) -> None:
    await api.grant("orders/before")
    await service.save()
    held = (await available(api, "orders/k", tokens=20)).json()
    assert (await api.write(held["tokens"][0])).status_code == 200
    await service.restore()

    configured = f"{NAME}={service.url}"
    behind = await fencepost(api, "doctor", "--sources", configured)
    assert (behind.exit_code, "it has not come as far as" in behind.output) == (1, True), behind.output
    refused = await available(api, "orders/other", wait_ms=10_000)
    assert (refused.status_code, refused.json()["code"]) == (503, "FP015")
    assert f"fencepost source raise {NAME}" in refused.json()["hint"]
    again = await api.post("orders/another")
    assert again.json()["code"] == "FP015", "also for those that ask later"
    minted = await api.on(held, "tokens")
    assert minted.json()["code"] in ("FP015", "FP012")
    assert (await api.write(held["tokens"][1])).status_code == 200, "granted tokens go on"

    ready = await api.client.get("/readyz")
    assert (ready.status_code, ready.json()["sources"][NAME].startswith("quarantined at generation 0: ")) == (200, True)
    assert f'fencepost_source_quarantined{{source="{NAME}"}} 1.0' in (await api.client.get("/metrics")).text
    listed = await fencepost(api, "source")
    assert (listed.exit_code, "quarantined at generation 0" in listed.output) == (1, True)
    status = await fencepost(api, "status")
    assert f"source {NAME}: quarantined at generation 0" in status.output
    looked = await fencepost(api, "doctor", "--sources", configured)
    assert f"source {NAME}: quarantined at generation 0" in looked.output

    assert (await fencepost(api, "source", "raise", NAME, "--reason", " ")).exit_code == 2
    assert (await fencepost(api, "source", "raise", "nobody", "--reason", "x")).exit_code == 1
    raised = await fencepost(api, "source", "raise", NAME, "--reason", "restored the backup of Tuesday")
    assert (raised.exit_code, f"{NAME} is at generation 1" in raised.output) == (0, True)
    assert (await api.on(held, "renew")).status_code == 410, "leases of the generation before are over"
    anew = await api.grant("orders/after", wait_ms=10_000)
    assert int(anew["token"]) > 2**48
    assert (await api.write(anew["token"])).status_code == 200
    stale = await api.write(held["tokens"][2])
    assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
    sound = await fencepost(api, "doctor", "--sources", configured)
    assert f"source {NAME}: generation 1, issued" in sound.output
    assert "it has not come as far" not in sound.output
    assert f'fencepost_source_quarantined{{source="{NAME}"}} 0.0' in (await api.client.get("/metrics")).text
    async with connection_to(api.database) as connection:
        log = await connection.fetch(
            "SELECT event, generation, detail FROM fencepost.source_log WHERE source = $1 ORDER BY at", NAME
        )
    assert [(row["event"], row["generation"]) for row in log] == [("registered", 0), ("quarantined", 0), ("raised", 1)]
    assert log[2]["detail"] == "restored the backup of Tuesday"


@pytest.mark.parametrize("service", ["redis_service"], indirect=True)
async def test_a_stale_token_of_an_earlier_generation_does_not_get_to_rows_without_a_mark(api: Api) -> None:
    """A row that the new generation has not written has an old mark, and an old token may be above that."""
    held = await api.grant("orders/k", tokens=3)
    assert (await api.write(held["tokens"][0])).status_code == 200
    assert (await fencepost(api, "source", "raise", NAME, "--reason", "a drill")).exit_code == 0
    refused = await api.write(held["tokens"][1])
    assert (refused.status_code, refused.json()["code"]) == (409, "FP001")
    created = await api.client.put(
        "/v1/data/orders/new", json={"status": "x"}, headers={"X-Fence-Token": held["tokens"][1]}
    )
    assert (created.status_code, created.json()["code"]) == (409, "FP001")
    claimed = await api.client.post(
        "/v1/claims", json={"resource": "orders/absent"}, headers={"X-Fence-Token": held["tokens"][1]}
    )
    assert (claimed.status_code, claimed.json()["code"]) == (409, "FP001")
