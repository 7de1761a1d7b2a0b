"""Fences that are damaged or taken off under a running gateway: no stale write is accepted."""

import pytest
from tests.http.ddl_changes.scene import EVERY_WRITE, Scene

pytestmark = pytest.mark.versions


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(
            "DROP TRIGGER zzz_fencepost_insmark ON t",
            marks=pytest.mark.xfail(
                strict=True,
                reason="only this trigger judges an INSERT, and nothing notifies the gateway that it is gone",
            ),
        ),
        "ALTER TABLE t DISABLE TRIGGER ALL",
    ],
)
async def test_a_stale_insert_is_refused_though_a_trigger_is_gone(scene: Scene, harm: str) -> None:
    assert (await scene.api.ask("DELETE", "data/t/1", token=50)).status_code == 204
    await scene.owner.execute(harm)
    answer = await scene.api.ask("POST", "data/t", {"id": 1, "v": "risen"}, token=40)
    assert answer.status_code in (403, 409)


@pytest.mark.parametrize(
    "harm",
    [
        "ALTER TABLE t DISABLE TRIGGER zzz_fencepost_upd",
        "DROP TRIGGER zzz_fencepost_del ON t",
        "ALTER TABLE t DROP COLUMN last_fence_token CASCADE",
        "ALTER TABLE t DROP COLUMN last_fence_token CASCADE; ALTER TABLE t ADD last_fence_token bigint DEFAULT 0",
        "ALTER TABLE t RENAME last_fence_token TO mark; ALTER TABLE t ADD last_fence_token bigint NOT NULL DEFAULT 0",
        "ALTER TABLE t RENAME COLUMN id TO key",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
    ],
)
async def test_a_broken_fence_refuses_every_write(notified: Scene, harm: str) -> None:
    scene = notified
    await scene.owner.execute(harm)
    await scene.reload()
    before = await scene.owner.fetch("SELECT v, n FROM t ORDER BY n")
    for method, path, body in EVERY_WRITE:
        assert await scene.write(method, path, body) == (403, "FP005"), (method, path)
    assert await scene.owner.fetch("SELECT v, n FROM t ORDER BY n") == before
    assert (await scene.api.ask("GET", "data/t")).status_code == 200, "reads go on"
