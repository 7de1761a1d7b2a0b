"""Fences that are damaged or taken off under a running gateway: no stale write is accepted."""

import pytest
from tests.http.ddl_changes.scene import EVERY_WRITE, Scene

from fencepost.server.ops.protect import protect

HARMS = (
    "ALTER TABLE {t} DISABLE TRIGGER zzz_fencepost_upd",
    "DROP TRIGGER zzz_fencepost_del ON {t}",
    "ALTER TABLE {t} DROP COLUMN last_fence_token CASCADE",
    "ALTER TABLE {t} DROP COLUMN last_fence_token CASCADE; ALTER TABLE {t} ADD last_fence_token bigint DEFAULT 0",
    "ALTER TABLE {t} RENAME last_fence_token TO mark; ALTER TABLE {t} ADD last_fence_token bigint NOT NULL DEFAULT 0",
    "ALTER TABLE {t} RENAME COLUMN id TO key",
    "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
)


@pytest.mark.parametrize("harm", ["DROP TRIGGER zzz_fencepost_insmark ON t", "ALTER TABLE t DISABLE TRIGGER ALL"])
async def test_a_stale_insert_is_refused_though_a_trigger_is_gone(scene: Scene, harm: str) -> None:
    assert (await scene.api.ask("DELETE", "data/t/1", token=50)).status_code == 204
    await scene.owner.execute(harm)
    answer = await scene.api.ask("POST", "data/t", {"id": 1, "v": "risen"}, token=40)
    assert answer.status_code in (403, 409)


@pytest.mark.versions
async def test_a_broken_fence_refuses_every_write(notified: Scene) -> None:
    scene = notified
    for number, harm in enumerate(HARMS):
        table = f"t{number}"
        await scene.owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text, n int)")
        await protect(scene.owner, table)
        await scene.owner.execute(f"INSERT INTO {table} VALUES (1, 'a', 1, 1), (2, 'b', 2, 1)")
        await scene.owner.execute(harm.format(t=table))
    await scene.reload()
    for number, harm in enumerate(HARMS):
        rows = f"SELECT v, n FROM t{number} ORDER BY n"
        before = await scene.owner.fetch(rows)
        for method, path, body in EVERY_WRITE:
            at = path.replace("data/t", f"data/t{number}")
            sent = {"resource": f"t{number}/1"} if path == "claims" else body
            assert await scene.write(method, at, sent) == (403, "FP005"), (harm, method, path)
        assert await scene.owner.fetch(rows) == before, harm
        assert (await scene.api.ask("GET", f"data/t{number}")).status_code == 200, "reads go on"
