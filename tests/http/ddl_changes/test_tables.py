"""Tables that come, go, change their names or their protection under a running gateway."""

import pytest
from tests.http.ddl_changes.conftest import LISTENERS
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


async def test_a_lost_listener_comes_back_and_looks(notified: Scene) -> None:
    async def tables() -> str:
        return str((await notified.api.http.get("/readyz")).json()["catalog"]).partition(", ")[2]

    before = await tables()

    async def ended() -> bool:
        return bool(await notified.owner.fetchval(LISTENERS))

    await eventually(ended, what="a listener to end")
    await notified.owner.execute("CREATE TABLE public.fresh (id int PRIMARY KEY)")

    async def seen() -> bool:
        return await tables() != before

    await eventually(seen, what="the table made while no connection listened")
    assert "fencepost_listener_losses_total 1.0" in (await notified.api.http.get("/metrics")).text


async def test_a_table_unprotected_by_another_process(notified: Scene) -> None:
    await unprotect(notified.owner, "t")

    async def received() -> bool:
        return 'fencepost_tables{protected="yes"} 0.0' in (await notified.api.http.get("/metrics")).text

    await eventually(received, what="the gateway notified of unprotect")
    for method, path, body in EVERY_WRITE:
        assert await notified.write(method, path, body) == (403, "FP005"), (method, path)
