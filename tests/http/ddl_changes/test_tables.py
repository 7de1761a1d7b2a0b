"""Tables that come, go, change their names or their protection under a running gateway."""

import asyncio

import pytest
from tests.http.ddl_changes.scene import EVERY_WRITE, Scene
from tests.support.asking import code

from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.testing.servers.waiting import eventually

pytestmark = pytest.mark.versions


async def test_tables_that_come_and_go(scene: Scene) -> None:
    await scene.owner.execute("CREATE TABLE fresh (id int PRIMARY KEY); INSERT INTO fresh VALUES (1)")
    assert (await scene.api.ask("GET", "data/fresh")).json() == [{"id": 1}]
    await scene.owner.execute("DROP TABLE fresh")
    assert code(await scene.api.ask("GET", "data/fresh")) == (404, "FP007")
    await scene.owner.execute("DROP TABLE t CASCADE")
    assert await scene.write("PATCH", "data/t/1", {}) == (404, "FP007")


async def test_a_renamed_table(scene: Scene) -> None:
    await scene.owner.execute("ALTER TABLE plain RENAME TO simple")
    assert (await scene.api.ask("GET", "data/simple/1")).status_code == 200
    assert code(await scene.api.ask("GET", "data/plain/1")) == (404, "FP007")
    await scene.owner.execute("ALTER TABLE t RENAME TO u")
    status, refusal = await scene.write("PATCH", "data/u/1", {"v": "x"})
    stale = await scene.api.ask("PATCH", "data/u/1", {"v": "y"}, token=1)
    if status == 200:
        assert code(stale) == (409, "FP001"), "a fence that goes on must go on judging"
    else:
        assert (status, refusal) == (403, "FP005")


async def test_a_table_dropped_and_made_anew_is_not_protected(scene: Scene) -> None:
    await scene.owner.execute(
        "DROP TABLE t CASCADE; CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1)"
    )
    for method, path, body in (
        ("PATCH", "data/t/1", {}), ("PUT", "data/t/1", {}), ("DELETE", "data/t/1", None), ("POST", "data/t", {"id": 5}),
        ("DELETE", "data/t?id=eq.1", None), ("PATCH", "data/t?id=eq.1", {}),
    ):  # fmt: skip
        assert await scene.write(method, path, body) == (403, "FP005"), (method, path)
    assert await scene.owner.fetchval("SELECT count(*) FROM t") == 1


async def test_a_table_protected_by_another_process(scene: Scene) -> None:
    assert await scene.write("PATCH", "data/plain/1", {"v": "y"}) == (403, "FP005")
    await protect(scene.owner, "plain")
    assert await scene.write("PATCH", "data/plain/1", {"v": "y"}) == (200, None)


async def test_a_table_unprotected_by_another_process(notified: Scene) -> None:
    await unprotect(notified.owner, "t")

    async def received() -> bool:
        return 'fencepost_tables{protected="yes"} 0.0' in (await notified.api.http.get("/metrics")).text

    await eventually(received, what="the gateway notified of unprotect")
    for method, path, body in EVERY_WRITE:
        assert await notified.write(method, path, body) == (403, "FP005"), (method, path)


async def test_ddl_during_requests_never_makes_a_5xx(notified: Scene) -> None:
    scene = notified
    seen: list[tuple[int, str | None]] = []
    done = asyncio.Event()

    async def ask(worker: int) -> None:
        token = 1000 * (worker + 1)
        while not done.is_set():
            token += 10
            read = await scene.api.http.get("/v1/data/t?order=id")
            write = await scene.api.http.patch("/v1/data/t/1", json={"v": "x"}, headers={"X-Fence-Token": str(token)})
            many = await scene.api.http.patch("/v1/data/t?id=eq.2", json={}, headers={"X-Fence-Token": str(token)})
            made = await scene.api.http.put(f"/v1/data/t/{worker + 10}", json={}, headers={"X-Fence-Token": str(token)})
            seen.extend(
                (answer.status_code, answer.json()["code"] if answer.status_code >= 400 else None)
                for answer in (read, write, many, made)
            )

    workers = [asyncio.create_task(ask(number)) for number in range(3)]
    for number in range(12):
        await scene.owner.execute(f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}")
        await scene.owner.execute("ALTER TABLE t ALTER COLUMN n TYPE text")
        await scene.owner.execute(f"ALTER TABLE t DROP COLUMN c{number}")
        await scene.owner.execute("ALTER TABLE t ALTER COLUMN n TYPE int USING n::int")
        mark = len(seen)

        async def more(mark: int = mark) -> bool:
            return len(seen) > mark + 12 or any(task.done() for task in workers)

        await eventually(more, what="requests going on")
    done.set()
    await asyncio.gather(*workers)
    assert [each for each in seen if each[0] >= 500] == []
    assert {each[0] for each in seen} <= {200, 201, 204, 409}, {each for each in seen if each[0] >= 400}
