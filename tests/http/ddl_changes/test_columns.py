"""Columns that are changed under a running gateway: added, dropped, renamed, of another type."""

import asyncpg
import pytest
from tests.http.ddl_changes.scene import Scene

from fencepost.storage.protecting.protect import protect, unprotect

pytestmark = pytest.mark.versions


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
            assert stale.status_code in (400, 403, 404, 409) or (path.endswith("00") and stale.status_code == 201), (
                method
            )
    assert await scene.owner.fetchval("SELECT v FROM t WHERE id = 1") == "a"
    await protect(scene.owner, "t")
    await scene.reload()
    assert await scene.write("PUT", "data/t/9000000000", {}) in ((200, None), (201, None))
    assert await scene.write("DELETE", "data/t/9000000000") == (204, None)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("PUT", "data/t/1", {"v": "x"}), ("DELETE", "data/t/1", None), ("POST", "claims", {"resource": "t/1"})],
)
async def test_a_renamed_key_is_noticed_at_the_first_write(scene: Scene, method: str, path: str, body: object) -> None:
    await scene.owner.execute("ALTER TABLE t RENAME COLUMN id TO key")
    assert await scene.write(method, path, body) == (403, "FP005")
    assert await scene.owner.fetchval("SELECT v FROM t WHERE key = 1") == "a"
