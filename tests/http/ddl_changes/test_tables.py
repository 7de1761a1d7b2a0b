"""Tables and columns that come, go, change their names, types or protection under a running gateway."""

import asyncpg
import pytest
from tests.http.ddl_changes.conftest import LISTENERS
from tests.http.ddl_changes.scene import EVERY_WRITE, Scene
from tests.support.asking import code

from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.testing.servers.waiting import eventually


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


async def test_a_value_is_not_rounded_to_the_precision_that_a_column_had(scene: Scene) -> None:
    await scene.owner.execute("ALTER TABLE t ADD COLUMN price numeric(10, 2)")
    assert await scene.write("PATCH", "data/t/1", {"price": 1}) == (200, None)
    await scene.owner.execute("ALTER TABLE t ALTER COLUMN price TYPE numeric(10, 4)")
    assert await scene.write("PATCH", "data/t/1", {"price": "1.2345"}) == (200, None)
    assert str(await scene.owner.fetchval("SELECT price FROM t WHERE id = 1")) == "1.2345"


async def test_a_key_of_another_type_is_fenced_or_refused(notified: Scene) -> None:
    scene = notified
    await scene.write("PATCH", "data/t/1", {})
    with pytest.raises(asyncpg.FeatureNotSupportedError):
        await scene.owner.execute("ALTER TABLE t ALTER COLUMN id TYPE bigint")
    await unprotect(scene.owner, "t")
    await scene.owner.execute("ALTER TABLE t ALTER COLUMN id TYPE bigint")
    for path in ("data/t/1", "data/t/9000000000"):
        for method, body in (("PATCH", {}), ("PUT", {}), ("DELETE", None)):
            stale = await scene.api.ask(method, path, body, token=1)
            assert stale.status_code in (400, 403, 404, 409) or (path.endswith("00") and stale.status_code == 201)
    assert await scene.owner.fetchval("SELECT v FROM t WHERE id = 1") == "a"
    await protect(scene.owner, "t")
    await scene.reload()
    assert await scene.write("PUT", "data/t/9000000000", {}) in ((200, None), (201, None))
    assert await scene.write("DELETE", "data/t/9000000000") == (204, None)


async def test_a_renamed_key_is_noticed_at_the_first_write(scene: Scene) -> None:
    for method, path, body in (
        ("PUT", "data/t/1", {"v": "x"}),
        ("DELETE", "data/t/1", None),
        ("POST", "claims", {"resource": "t/1"}),
    ):
        await scene.owner.execute("ALTER TABLE t RENAME COLUMN id TO key")
        assert await scene.write(method, path, body) == (403, "FP005"), method
        assert await scene.owner.fetchval("SELECT v FROM t WHERE key = 1") == "a", method
        await scene.owner.execute("ALTER TABLE t RENAME COLUMN key TO id")
        assert await scene.write("PATCH", "data/t/1", {}) == (200, None), "and so is the old name"


async def test_the_gateway_is_notified_when_another_process_protects_or_unprotects_a_table(notified: Scene) -> None:
    async def so_many(count: int) -> bool:
        metrics = (await notified.api.http.get("/metrics")).text
        return f'fencepost_tables{{protected="yes"}} {count}.0' in metrics

    await protect(notified.owner, "plain")
    await eventually(lambda: so_many(2), what="the gateway notified of protect")
    for table in ("plain", "t"):
        await unprotect(notified.owner, table)
    await eventually(lambda: so_many(0), what="the gateway notified of unprotect")
    for method, path, body in EVERY_WRITE:
        assert await notified.write(method, path, body) == (403, "FP005"), (method, path)
