"""What happens between the gateway's reading of a row's scope, its entering, and its write (R8): stepped."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import CASCADES, NEW, PARTS, Race, entered, mark, scoped_race
from tests.support.use_cases import delete, gateway_pid, keyed, listed, matching, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.write import Write
from fencepost.server.ops.protect import plan_protect, protect

SCOPE = "account/{account_id}"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await scoped_race(connect, unmade, "strict")
    await race.observer.execute("ALTER TABLE items ADD status text NOT NULL DEFAULT 'new'")
    await race.observer.execute(PARTS)
    await protect(race.observer, "parts", scope=SCOPE)
    return race


async def waits(race: Race, gateway: Gateway, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
    return await race.waits_at(await gateway_pid(gateway), work)


async def item(race: Race, key: int) -> tuple[int, int] | None:
    row = await race.observer.fetchrow("SELECT account_id, n FROM items WHERE id = $1", key)
    return None if row is None else (row["account_id"], row["n"])


def many(token: int, **values: int) -> Write:
    return matching(NEW, token, "items", **values)


@pytest.mark.parametrize(
    ("verb", "there", "answer"), [("patch", 40, "ok"), ("delete", 40, "ok"), ("patch", 60, "FP001")]
)
async def test_a_row_made_anew_in_another_scope_is_judged_by_that_one(
    race: Race, gateway: Gateway, verb: str, there: int, answer: str
) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/42")
    await entered(race, race.a, there, "account/7")
    remade = "DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (1, 7)"
    await race.a.execute(remade)
    request = keyed("1", 50, "items", n=5)
    write = await waits(race, gateway, patch(gateway, request) if verb == "patch" else delete(gateway, request))
    await holder.commit()
    outcome = await write
    assert result_of(outcome) == answer
    assert (outcome.resource if isinstance(outcome, Problem) else outcome.scope) == "account/7"
    assert (await mark(race), await mark(race, "account/7")) == (40, max(there, 50)), "it gave the first mark back"
    assert await item(race, 1) == ((7, 0) if answer != "ok" else (7, 5) if verb == "patch" else None)


async def test_a_row_deleted_meanwhile_is_missing_and_no_mark_is_raised(race: Race, gateway: Gateway) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/42")
    await race.a.execute("DELETE FROM items WHERE id = 1")
    write = await waits(race, gateway, patch(gateway, keyed("1", 50, "items", n=5)))
    await holder.commit()
    assert result_of(await write) == "FP006"
    assert await mark(race) == 40


@pytest.mark.parametrize("table", ["items", "parts"])
async def test_a_put_of_a_key_that_another_scope_takes_meanwhile_is_refused(
    race: Race, gateway: Gateway, table: str
) -> None:
    key = "90" if table == "items" else ("eu", "90")
    sql = "INSERT INTO items VALUES (90, 7)" if table == "items" else "INSERT INTO parts VALUES ('eu', 90, 7)"
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/7")
    await race.a.execute(sql)
    write = await waits(race, gateway, put(gateway, keyed(key, 50, table, account_id=42)))
    await holder.commit()
    outcome = await write
    assert isinstance(outcome, Problem)
    assert (outcome.name, await mark(race)) == ("FP016", None), outcome
    assert "account/7" in outcome.detail
    assert result_of(await put(gateway, keyed(key, 51, table, account_id=7))) == "ok"


@pytest.mark.parametrize("verb", ["patch", "post"])
async def test_one_scope_that_refuses_refuses_all(race: Race, gateway: Gateway, verb: str) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 60, "account/7")
    rows = [{"id": 91, "account_id": 42}, {"id": 92, "account_id": 7}]
    write = await waits(race, gateway, {
        "patch": lambda: patch(gateway, many(50, n=5)),
        "post": lambda: post(gateway, listed(50, *rows, table="items")),
    }[verb]())  # fmt: skip
    await holder.commit()
    outcome = await write
    assert isinstance(outcome, Problem)
    assert outcome.body()["rows"] == [{"resource": "account/7", "current_token": "60"}]
    assert (await mark(race), await mark(race, "account/7")) == (None, 60)
    assert [await item(race, key) for key in (1, 2, 3, 91)] == [(42, 0), (42, 0), (7, 0), None]


async def test_rows_that_come_meanwhile_are_written_in_scopes_entered_only(race: Race, gateway: Gateway) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/42", "account/300")
    await race.a.execute("INSERT INTO items VALUES (93, 42), (94, 300); UPDATE items SET status = 'old' WHERE id = 2")
    write = await waits(race, gateway, patch(gateway, many(50, n=5)))
    await holder.commit()
    outcome = await write
    assert not isinstance(outcome, Problem)
    assert [await item(race, key) for key in (1, 2, 3, 93, 94)] == [(42, 5), (42, 0), (7, 5), (42, 5), (300, 0)]
    assert await mark(race, "account/300") == 40


SUPPRESS = """
CREATE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER {name} BEFORE INSERT OR UPDATE OR DELETE ON public.items FOR EACH ROW EXECUTE FUNCTION public.swallow()
"""


async def test_a_trigger_that_swallows_the_write_leaves_no_mark(race: Race, gateway: Gateway) -> None:
    for name in ("aaa_first", "zzzz_last"):
        await race.observer.execute(SUPPRESS.format(name=name))
        for write in (
            patch(gateway, keyed("1", 50, "items", n=5)),
            delete(gateway, keyed("1", 50, "items")),
            put(gateway, keyed("1", 50, "items", account_id=42)),
            put(gateway, keyed("95", 50, "items", account_id=42)),
            post(gateway, listed(50, {"id": 95, "account_id": 42}, table="items")),
            patch(gateway, many(50, n=5)),
            delete(gateway, many(50)),
        ):
            outcome = await write
            assert isinstance(outcome, Problem), name
            assert outcome.body()["code"] == "FP403", name
        assert (await mark(race), await mark(race, "account/7")) == (None, None), name
        await race.observer.execute("DROP FUNCTION public.swallow CASCADE")


@pytest.mark.parametrize("name", ["aaa_first", "zzzz_last"])
async def test_a_trigger_that_moves_a_row_to_another_scope_is_reported(race: Race, gateway: Gateway, name: str) -> None:
    await race.observer.execute(
        "CREATE FUNCTION public.move() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.account_id := 7; RETURN NEW; END';"
        f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON public.items FOR EACH ROW EXECUTE FUNCTION public.move()"
    )
    refused = await post(gateway, listed(50, {"id": 95, "account_id": 42}, table="items"))
    assert isinstance(refused, Problem)
    assert (refused.http_status, refused.body()["code"], refused.resource) == (409, "FP428", "account/7")
    assert "A trigger of items moved the row to the scope account/7" in refused.detail
    assert "the gateway cannot write such rows" in refused.detail
    made = await put(gateway, keyed("95", 50, "items", account_id=42))
    assert isinstance(made, Problem)
    assert (made.http_status, made.detail) == (409, refused.detail)
    assert result_of(await patch(gateway, keyed("1", 50, "items", n=5))) == "FP016"
    assert result_of(await post(gateway, listed(50, {"id": 96, "account_id": 7}, table="items"))) == "created"
    assert await mark(race) is None


async def test_a_cascade_into_another_scope_is_refused_and_into_the_same_is_not(race: Race, gateway: Gateway) -> None:
    await race.observer.execute(CASCADES)
    for table in ("lines", "owned"):
        await protect(race.observer, table, scope=SCOPE)
    await protect(race.observer, "tags")
    assert result_of(await delete(gateway, keyed("1", 50, "items"))) == "ok"
    for key, resource in (("2", "account/7"), ("3", "tags/3")):
        refused = await delete(gateway, keyed(key, 51, "items"))
        assert isinstance(refused, Problem), (key, resource)
        assert (refused.http_status, refused.body()["code"], refused.resource) == (409, "FP428", resource), (
            key,
            resource,
        )
        assert f"also writes to {resource}" in refused.detail, (key, resource)
    assert await item(race, 2) == (42, 0)
    assert await mark(race) == 50


@pytest.mark.parametrize("verb", ["patch", "post"])
async def test_a_table_that_leaves_its_scope_meanwhile_is_written_by_its_new_rule(
    race: Race, gateway: Gateway, verb: str
) -> None:
    """Whatever the gateway believed when the request came: it waits for `protect`, and learns of it."""
    plan = await plan_protect(race.observer, "items", scope="")
    changing = await race.begin(race.c)
    for statement in ("SET LOCAL search_path = pg_catalog", *plan.statements):
        await race.c.execute(statement)
    write = await waits(race, gateway, {
        "patch": lambda: patch(gateway, keyed("1", 50, "items", n=5)),
        "post": lambda: post(gateway, listed(50, {"id": 97, "account_id": 42}, table="items")),
    }[verb]())  # fmt: skip
    await changing.commit()
    outcome = await write
    assert result_of(outcome) == ("ok" if verb == "patch" else "created"), outcome
    key = 1 if verb == "patch" else 97
    assert await race.observer.fetchval("SELECT last_fence_token FROM items WHERE id = $1", key) == 50
    assert await mark(race) is None


@pytest.mark.parametrize("verb", ["patch", "put new", "delete", "patch many"])
async def test_a_table_that_enters_a_scope_meanwhile_is_written_by_its_new_rule(
    race: Race, gateway: Gateway, verb: str
) -> None:
    """The request was on its way by the rule of rows, and the scope's trigger has no token of it."""
    await race.observer.execute("CREATE TABLE late (id int PRIMARY KEY, account_id int NOT NULL, status text, n int)")
    await race.observer.execute("INSERT INTO late VALUES (1, 42, 'new', 0)")
    await protect(race.observer, "late")
    await gateway.catalog.reload()
    plan = await plan_protect(race.observer, "late", scope=SCOPE)
    changing = await race.begin(race.c)
    for statement in ("SET LOCAL search_path = pg_catalog", *plan.statements):
        await race.c.execute(statement)
    filtered = matching(NEW, 50, "late", n=5)
    write = await waits(race, gateway, {
        "patch": lambda: patch(gateway, keyed("1", 50, "late", n=5)),
        "put new": lambda: put(gateway, keyed("2", 50, "late", account_id=42)),
        "delete": lambda: delete(gateway, keyed("1", 50, "late")),
        "patch many": lambda: patch(gateway, filtered),
    }[verb]())  # fmt: skip
    await changing.commit()
    outcome = await write
    assert result_of(outcome) == ("created" if verb == "put new" else "ok"), outcome
    assert await mark(race) == 50


@pytest.mark.parametrize("table", ["plain", "items"])
async def test_a_trigger_that_writes_to_another_table_is_reported_without_reading_the_catalog_anew(
    race: Race, gateway: Gateway, table: str
) -> None:
    """By rows and by scope: FP428 has the gateway look whether the table has changed, and that is all."""
    await race.observer.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, account_id int, n int); INSERT INTO plain VALUES (1, 42, 0);"
        "CREATE FUNCTION public.elsewhere() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN UPDATE public.other SET n = 1; RETURN NEW; END';"
        "CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (1, 0);"
        f"CREATE TRIGGER elsewhere BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION public.elsewhere()"
    )
    for name in ("plain", "other"):
        await protect(race.observer, name)
    begun = (await gateway.catalog.reload()).begun
    refused = await patch(gateway, keyed("1", 50, table, n=5))
    assert isinstance(refused, Problem)
    assert (refused.http_status, refused.body()["code"], refused.resource) == (409, "FP428", "other/1")
    assert "also writes to other/1" in refused.detail
    assert gateway.catalog.current.begun == begun, "it was looked at, and not loaded"


async def test_a_table_that_was_dropped_does_not_count_in_the_scopes_rule(race: Race) -> None:
    """A registration that outlived its table must not decide by which rule the others are judged."""
    await race.observer.execute("DROP TABLE items, parts CASCADE")
    await protect(race.observer, "notes", scope="", source="external")
    await protect(race.observer, "notes", scope=SCOPE, rule="epoch")
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.protected WHERE rule = 'strict'") == 0
    for _ in range(2):
        assert await entered(race, race.a, 50, "account/42") == {"account/42": None}
