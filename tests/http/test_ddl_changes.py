"""A table that its owner changes while a gateway serves it: columns, keys, and fences that are damaged."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

import asyncpg
import pytest
from tests.http.conftest import Start
from tests.support.asking import Api, code
from tests.support.interleave import Connect, Connection
from tests.support.manual_clock import UNHURRIED

from fencepost.server.ops.protect import protect, unprotect
from fencepost.testing.servers.processes import eventually

# A gateway, and the owner of its table, who changes it.

EVERY_WRITE: list[tuple[str, str, object]] = [
    ("PATCH", "data/t/1", {"v": "x"}), ("PUT", "data/t/1", {"v": "x"}), ("DELETE", "data/t/1", None),
    ("POST", "data/t", {"v": "x"}), ("PATCH", "data/t?v=eq.a", {"v": "x"}), ("DELETE", "data/t?v=eq.a", None),
    ("POST", "claims", {"resource": "t/1"}),
]  # fmt: skip


@dataclass
class Scene:
    """A gateway, and the owner's connection."""

    api: Api
    owner: Connection
    token: int = 10

    async def write(self, method: str, path: str, body: object = None) -> tuple[int, str | None]:
        """Write with a new token; returns status and the code of an error."""
        self.token += 1
        answer = await self.api.ask(method, path, body, token=self.token)
        return answer.status_code, answer.json()["code"] if answer.status_code >= 400 else None

    async def reload(self) -> None:
        """Make the gateway look, and return once it has a picture that it began after this call.

        The first load may be one that was under way. The one after it was begun later: loads follow one another.
        """

        async def loads() -> str:
            metrics = (await self.api.http.get("/metrics")).text
            return next(line for line in metrics.splitlines() if line.startswith("fencepost_catalog_loads_total"))

        for _ in range(2):
            before = await loads()
            await self.owner.execute("NOTIFY fencepost, 'reload'")

            async def looked(before: str = before) -> bool:
                return await loads() != before

            await eventually(looked, what="a new catalog")


# A gateway that is notified of changes, and one that is not.

LISTENERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE application_name = 'fencepost listener' AND datname = current_database()"""


ONCE: Final = replace(UNHURRIED, connections=replace(UNHURRIED.connections, listen_pause=86_400.0))
"""A gateway of these times that has lost its listening connection does not open another one."""


LISTENING = """
SELECT count(*) = $1 FROM pg_stat_activity
 WHERE application_name = 'fencepost listener' AND datname = current_database() AND query ILIKE 'listen%'"""


@pytest.fixture
async def notified(connect: Connect, database: str, start_gateway: Start) -> AsyncIterator[Scene]:
    """A gateway on a small protected table."""
    owner = await connect()
    await owner.execute("SET search_path = public")
    await owner.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)"
    )
    await protect(owner, "t")
    await owner.execute("CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain VALUES (1, 'x')")
    async with Api.open(await start_gateway(database, ONCE, serve_unprotected=True)) as api:
        assert (await api.ask("GET", "data/t")).status_code == 200
        yield Scene(api, owner)


@pytest.fixture
async def scene(notified: Scene) -> Scene:
    """The same, with a gateway that gets no notification: what it sees, it sees by itself."""
    await _cut_off_notifications(notified.owner)
    return notified


async def _cut_off_notifications(owner: Connection) -> None:
    """End the gateway's listening connection, the only one that it opens."""
    await eventually(lambda: owner.fetchval(LISTENING, 1), what="the gateway listening")
    await owner.fetchval(LISTENERS)
    await eventually(lambda: owner.fetchval(LISTENING, 0), what="the listener's end")


# Tables and columns that come, go, change their names, types or protection under a running gateway.


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


async def test_a_batch_that_lands_as_a_whole_meets_a_table_that_has_changed(scene: Scene) -> None:
    for token, ddl, body in (
        (50, "SELECT", '{"v": "x"}'), (51, "ALTER TABLE t ALTER v TYPE varchar(9)", '{"v": "y"}'),
        (52, "ALTER TABLE t ADD COLUMN late int", '{"late": 7}'),
    ):  # fmt: skip
        await scene.owner.execute(ddl)
        line = f'{{"method": "PATCH", "path": "t/1", "token": {token}, "body": {body}}}'
        sent = {"Content-Type": "application/x-ndjson"}
        answer = await scene.api.http.post("/v1/batch?atomic=true", content=line, headers=sent)
        assert (answer.status_code, answer.json()["status"]) == (200, 200), (ddl, answer.text)


@pytest.mark.parametrize(("method", "body"), [("PATCH", {"v": "x"}), ("DELETE", None)])
async def test_if_match_meets_a_table_whose_mark_is_no_version_now(scene: Scene, method: str, body: object) -> None:
    tag = (await scene.api.ask("GET", "data/t/1")).headers["etag"]
    await protect(scene.owner, "t", rule="epoch")
    answer = await scene.api.ask(method, "data/t/1", body, token=50, headers={"If-Match": tag})
    assert code(answer) == (400, "FP016")


async def test_a_table_protected_by_another_process(scene: Scene) -> None:
    assert await scene.write("PATCH", "data/plain/1", {"v": "y"}) == (403, "FP005")
    await protect(scene.owner, "plain")
    assert await scene.write("PATCH", "data/plain/1", {"v": "y"}) == (200, None)


async def test_a_lost_listener_comes_back_and_looks(notified: Scene) -> None:
    async def tables() -> str:
        return str((await notified.api.http.get("/readyz")).json()["catalog"]).partition(", ")[2]

    before = await tables()
    await eventually(lambda: notified.owner.fetchval(LISTENERS), what="a listener to end")
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


async def test_a_value_is_read_as_the_type_that_its_column_has_now(scene: Scene) -> None:
    """Nothing fails when the value is cut to the old type, and then stored in the new one."""
    at = "2026-01-01T13:00:00+00:00"
    await scene.owner.execute("ALTER TABLE t ADD COLUMN d date")
    for method, path, body, rows in (
        ("PATCH", "data/t/1", {"d": at}, 1), ("PUT", "data/t/1", {"d": at}, 1), ("PUT", "data/t/7", {"d": at}, 1),
        ("POST", "data/t", {"id": 8, "d": at}, 1), ("POST", "data/t", [{"id": 9, "d": at}, {"id": 10, "d": at}], 2),
        ("PATCH", "data/t?id=eq.1", {"d": at}, 1), ("PATCH", "data/t", [{"id": 1, "d": at}], 1),
    ):  # fmt: skip
        await scene.owner.execute("ALTER TABLE t ALTER COLUMN d TYPE date")
        assert await scene.write("PATCH", "data/t/2", {"d": "2026-01-01"}) == (200, None), "the gateway has seen a date"
        await scene.owner.execute("ALTER TABLE t ALTER COLUMN d TYPE timestamptz")
        assert (await scene.write(method, path, body))[0] in (200, 201, 204)
        stored = await scene.owner.fetchval("SELECT count(*) FROM t WHERE d = $1::text::timestamptz", at)
        assert stored == rows, (method, path)


@pytest.mark.parametrize("filter_", ["d=eq.{}", "d=in.({})", "not.or=(d.neq.{},id.eq.2)"])
async def test_a_filter_compares_with_the_type_that_a_column_has_now(scene: Scene, filter_: str) -> None:
    at = "2026-01-01T13:00:00Z"
    asked = filter_.format(at)
    for table in ("t", "plain"):
        await scene.owner.execute(f"ALTER TABLE {table} ADD COLUMN d date")
        assert (await scene.api.ask("GET", f"data/{table}?d=eq.2026-01-01")).json() == []
        await scene.owner.execute(f"ALTER TABLE {table} ALTER COLUMN d TYPE timestamptz USING '{at}'")
        assert (await scene.api.ask("GET", f"data/{table}?{asked}&id=eq.1&select=id")).json() == [{"id": 1}]
    await scene.owner.execute("ALTER TABLE t ALTER COLUMN d TYPE date")
    assert await scene.write("PATCH", "data/t?d=eq.2026-01-01", {"v": "x"}) == (204, None)
    await scene.owner.execute(f"ALTER TABLE t ALTER COLUMN d TYPE timestamptz USING '{at}'")
    assert await scene.write("PATCH", f"data/t?{asked}", {"v": "y"}) == (204, None)
    assert await scene.owner.fetchval("SELECT v FROM t WHERE id = 1") == "y"


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


PAIRS = """
CREATE TABLE public.pairs (a int, b int, v text, PRIMARY KEY (a, b)); INSERT INTO pairs VALUES (1, 2, ''), (2, 1, '')"""
SWAP = "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY ({})"


@pytest.mark.parametrize("meanwhile", ["unprotected", "protected"])
async def test_a_key_in_another_order_is_noticed_at_the_first_write(scene: Scene, meanwhile: str) -> None:
    """Its types are the same: nothing but the key itself tells that a path means another row now."""
    await scene.owner.execute(PAIRS)
    await protect(scene.owner, "pairs")
    columns = ["a, b", "b, a"]
    for method, body in (
        ("PATCH", {"v": "x"}), ("PATCH", {"v": "w", "a": 1, "b": 2}), ("PUT", {"v": "y"}), ("DELETE", None),
        ("PUT", {"v": "z"}),
    ):  # fmt: skip
        await scene.write("PATCH", "data/pairs/1,2", {})  # a gateway that has seen the key
        columns.reverse()
        if meanwhile == "unprotected":
            await unprotect(scene.owner, "pairs")
        await scene.owner.execute(SWAP.format(columns[0]))
        await protect(scene.owner, "pairs")
        scene.token += 1000
        assert (await scene.write(method, "data/pairs/1,2", body))[0] in (200, 201, 204), method
        a, b = (1, 2) if columns[0] == "a, b" else (2, 1)
        found = await scene.owner.fetchval("SELECT v FROM pairs WHERE a = $1 AND b = $2", a, b)
        assert found == (None if body is None else body["v"]), method


async def test_after_a_key_in_another_order_a_delete_is_refused_until_protect_has_run(scene: Scene) -> None:
    await scene.owner.execute(PAIRS)
    await protect(scene.owner, "pairs")
    await scene.write("PATCH", "data/pairs/1,2", {})
    await scene.owner.execute(SWAP.format("b, a"))
    assert await scene.write("DELETE", "data/pairs/1,2") == (403, "FP005")


@pytest.mark.parametrize(
    ("table", "path", "member", "expected"),
    [
        ("pairs", "data/pairs/1,2?select=v", "v", "{}"),
        ("plain", "data/plain/1,2?select=v", "v", "{}"),
        ("pairs", "fences?resource=pairs/1,2", "mark", "{}"),
        ("scoped", "fences?resource=scoped/1,2", "resource", "of/{}"),
    ],
)
async def test_a_path_names_the_row_that_has_its_key_now(
    scene: Scene, table: str, path: str, member: str, expected: str
) -> None:
    """For who reads the row, or what is known of it. The key of `plain` has more columns than it had, too."""
    await scene.owner.execute("DROP TABLE plain")
    await scene.owner.execute(PAIRS.replace("pairs", table).replace("v text", "v text NOT NULL"))
    await scene.owner.execute(f"UPDATE {table} SET v = a")
    if table == "pairs":
        await protect(scene.owner, table)
        await scene.owner.execute("UPDATE pairs SET last_fence_token = a")
    for order, a in (("a, b", 1), ("b, a", 2), ("a, b", 1)):
        await scene.owner.execute(SWAP.replace("pairs", table).format(order))
        if table != "plain":
            await protect(scene.owner, table, scope="of/{v}" if table == "scoped" else None)
        assert (await scene.api.ask("GET", path)).json()[member] == expected.format(a)


async def test_a_row_is_found_that_no_partition_could_have_by_the_key_that_was(scene: Scene) -> None:
    """PostgreSQL then reads no partition, and looks at nothing that stands beside the key."""
    await scene.owner.execute(
        "CREATE TABLE pairs (a int, b int, v text, PRIMARY KEY (a, b)) PARTITION BY LIST (b);"
        "CREATE TABLE p1 PARTITION OF pairs FOR VALUES IN (1); INSERT INTO pairs VALUES (5, 1, '')"
    )
    await protect(scene.owner, "pairs")
    for method, path, status in (
        ("GET", "fences?resource=pairs/1,5", 200), ("GET", "data/pairs/1,5", 200), ("PATCH", "data/pairs/1,5", 200),
        ("DELETE", "data/pairs/1,5", 204),
    ):  # fmt: skip
        await scene.owner.execute(SWAP.format("a, b"))
        await protect(scene.owner, "pairs")
        assert await scene.write("PATCH", "data/pairs/5,1", {}) == (200, None)
        await scene.owner.execute(SWAP.format("b, a"))
        await protect(scene.owner, "pairs")
        scene.token += 1000
        answer = await scene.api.ask(method, path, {} if method == "PATCH" else None, token=scene.token)
        assert answer.status_code == status, method
        assert path.startswith("data") or answer.json()["row_exists"]


async def test_a_key_fits_that_the_columns_old_precision_would_have_rounded(scene: Scene) -> None:
    await scene.owner.execute("CREATE TABLE made (k numeric(5, 2) PRIMARY KEY)")
    await protect(scene.owner, "made")
    assert (await scene.api.ask("GET", "data/made")).json() == []
    await unprotect(scene.owner, "made")
    await scene.owner.execute("ALTER TABLE made ALTER k TYPE numeric(7, 4)")
    await protect(scene.owner, "made")
    assert await scene.write("PUT", "data/made/1.2345", {}) == (201, None)


async def test_a_type_that_is_renamed_or_moved_is_the_same(scene: Scene) -> None:
    await scene.owner.execute("CREATE DOMAIN public.price AS numeric(9, 2) CHECK (VALUE > 0)")
    await scene.owner.execute("ALTER TABLE t ADD COLUMN p price")
    for change in (
        "CREATE SCHEMA other",
        "ALTER DOMAIN public.price RENAME TO cost", "ALTER DOMAIN public.cost SET SCHEMA other",
        "ALTER SCHEMA other RENAME TO hidden",
    ):  # fmt: skip
        await scene.owner.execute(change)
        assert await scene.write("PATCH", "data/t/1", {"p": "1.25"}) == (200, None), change
        assert (await scene.api.ask("GET", "data/t?p=eq.1.25&select=id")).json() == [{"id": 1}], change


async def test_a_renamed_key_is_noticed_at_the_first_write(scene: Scene) -> None:
    for method, path, body in (
        ("PUT", "data/t/1", {"v": "x"}), ("DELETE", "data/t/1", None), ("POST", "claims", {"resource": "t/1"}),
    ):  # fmt: skip
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


# Fences that are damaged or taken off under a running gateway: no stale write is accepted.


@pytest.mark.parametrize("harm", ["DROP TRIGGER zzz_fencepost_insmark ON t", "ALTER TABLE t DISABLE TRIGGER ALL"])
async def test_a_stale_insert_is_refused_though_a_trigger_is_gone(scene: Scene, harm: str) -> None:
    assert (await scene.api.ask("DELETE", "data/t/1", token=50)).status_code == 204
    await scene.owner.execute(harm)
    answer = await scene.api.ask("POST", "data/t", {"id": 1, "v": "risen"}, token=40)
    assert answer.status_code in (403, 409)


@pytest.mark.versions
async def test_a_broken_fence_refuses_every_write(notified: Scene) -> None:
    scene = notified
    harms = (
        "ALTER TABLE {t} DISABLE TRIGGER zzz_fencepost_upd",
        "DROP TRIGGER zzz_fencepost_del ON {t}",
        "ALTER TABLE {t} DROP COLUMN last_fence_token CASCADE",
        "ALTER TABLE {t} DROP COLUMN last_fence_token CASCADE; ALTER TABLE {t} ADD last_fence_token bigint DEFAULT 0",
        "ALTER TABLE {t} RENAME last_fence_token TO mark;"
        " ALTER TABLE {t} ADD last_fence_token bigint NOT NULL DEFAULT 0",
        "ALTER TABLE {t} RENAME COLUMN id TO key",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
    )
    for number, harm in enumerate(harms):
        table = f"t{number}"
        await scene.owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text, n int)")
        await protect(scene.owner, table)
        await scene.owner.execute(f"INSERT INTO {table} VALUES (1, 'a', 1, 1), (2, 'b', 2, 1)")
        await scene.owner.execute(harm.format(t=table))
    await scene.reload()
    for number, harm in enumerate(harms):
        rows = f"SELECT v, n FROM t{number} ORDER BY n"
        before = await scene.owner.fetch(rows)
        for method, path, body in EVERY_WRITE:
            at = path.replace("data/t", f"data/t{number}")
            sent = {"resource": f"t{number}/1"} if path == "claims" else body
            assert await scene.write(method, at, sent) == (403, "FP005"), (harm, method, path)
        assert await scene.owner.fetch(rows) == before, harm
        assert (await scene.api.ask("GET", f"data/t{number}")).status_code == 200, "reads go on"
