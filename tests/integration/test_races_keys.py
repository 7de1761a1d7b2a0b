"""Stepped through the use cases: writes by key and claims (R1 to R5, R7), several rows (R10), and the commit."""

import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, NEW, ORDERS, Key, Race, open_race, outcome, owner, protected_table
from tests.support.use_cases import (
    answer_after,
    delete,
    gateway_pid,
    keyed,
    listed,
    matching,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import Write
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.postgres.connection import Connection, Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.many import ManyWritten
from fencepost.server.postgres.marks import KeyState, ask
from fencepost.server.postgres.query import Condition, Field
from fencepost.server.postgres.tables import ProtectedTable

# Stepped against each other through the use cases: single-row writes by key (R1, R2, R4, R5); claims, which fence
# before the first write (R7); multi-row writes, which are all or nothing (R10); and marks, which outlive rows (R6).


@BOTH_RULES
async def test_put_that_waits_for_a_post_replaces_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "ok"), (37, "ok")):
            key = f"k{token}"
            making, request = race.insert(race.a, key, 36, status="a", n=1), put(gateway, keyed(key, token, status="b"))
            assert result_of(await answer_after(race, gateway, making, request=request)) == answer, token
            row = await race.row(key) or {}
            assert (row["status"], row["n"]) == (("b", 0) if answer == "ok" else ("a", 1)), token


@BOTH_RULES
async def test_post_that_loses_to_a_newer_post_is_stale_and_not_a_duplicate(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "23505"), (37, "23505")):
            key = f"k{token}"
            making, request = race.insert(race.a, key, 36), post(gateway, listed(token, {"order_id": key}))
            assert result_of(await answer_after(race, gateway, making, request=request)) == answer, token


async def claimed(gateway: Gateway, key: str, token: int) -> Outcome:
    return await claim(gateway, Claim(Resource("orders", (key,)), Token(token)))


@pytest.mark.parametrize("race", ["epoch"], indirect=True)
async def test_under_epoch_a_claim_and_writes_share_a_token(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((30, "ok"), (34, "ok"), (33, "FP001"), (34, "ok")):
            assert result_of(await claimed(gateway, "k", token)) == answer, token
        assert result_of(await patch(gateway, keyed("k", 34))) == "ok"


@BOTH_RULES
async def test_a_claimed_key_without_a_row_refuses_every_older_write(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answer = await claimed(gateway, "k", 40)
        assert isinstance(answer, Done)
        assert (list(answer.rows), answer.mark, answer.resource) == ([], 40, "orders/k")
        assert await race.recorded("k") == (40, True)
        assert result_of(await post(gateway, listed(39, {"order_id": "k"}))) == "FP001"
        assert result_of(await put(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await delete(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await claimed(gateway, "k", 39)) == "FP001"
        assert result_of(await claimed(gateway, "k", 40)) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 41))) == "FP006"
        assert result_of(await put(gateway, keyed("k", 41))) == "created"
        assert result_of(await claimed(gateway, "k", 42)) == "ok"


@BOTH_RULES
# Requests to one key, and what they are answered if they find no row and their token passes.
@pytest.mark.parametrize(
    ("send", "passed"),
    [
        pytest.param(lambda gateway, key, token: put(gateway, keyed(key, token, status="b")), "created", id="put"),
        pytest.param(lambda gateway, key, token: delete(gateway, keyed(key, token)), "FP006", id="delete"),
        pytest.param(claimed, "ok", id="claim"),
    ],
)
async def test_what_waits_for_a_delete_is_refused_or_finds_no_row(
    race: Race, send: Callable[[Gateway, str, int], Coroutine[Any, Any, Outcome]], passed: str
) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else passed), (35, passed)):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            deleting, request = race.delete(race.a, key, 34), send(gateway, key, token)
            assert result_of(await answer_after(race, gateway, deleting, request=request)) == answer, token
            assert await race.live_mark(key) == (token if answer == "created" else None), token
            raised = answer in ("created", "ok")
            assert await race.recorded(key) == (token if raised else 34, answer != "created"), token


async def seed(race: Race, marks: dict[str, int]) -> None:
    for key, mark in marks.items():
        await race.insert(race.a, key, mark)


@BOTH_RULES
async def test_one_stale_row_refuses_the_request_and_every_one_is_listed(race: Race) -> None:
    await seed(race, {"a": 30, "b": 50, "c": 40, "d": 60})
    listed = {"orders/b": "50", "orders/d": "60"} | ({"orders/c": "40"} if race.strict else {})
    async with open_gateway(race.dsn) as gateway:
        for answer in (await patch(gateway, matching(NEW, 40, status="x")), await delete(gateway, matching(NEW, 40))):
            assert isinstance(answer, Problem)
            assert answer.name == "FP001"
            rows = answer.extra["rows"]
            assert isinstance(rows, list)
            assert {row["resource"]: row["current_token"] for row in rows} == {
                resource: race.shown(int(mark)) for resource, mark in listed.items()
            }
    assert [await race.live_mark(key) for key in "abcd"] == [30, 50, 40, 60]


@BOTH_RULES
async def test_rows_that_only_equal_the_token_are_spent_under_strict(race: Race) -> None:
    await seed(race, {"a": 30, "b": 40})
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, matching(NEW, 40, n=1))
        assert result_of(answer) == ("FP002" if race.strict else "ok")
        answer = await delete(gateway, matching(NEW, 40))
        assert result_of(answer) == ("FP002" if race.strict else "ok")


async def test_a_multi_row_delete_leaves_a_mark_for_each_row_and_no_token_behind(race: Race) -> None:
    await seed(race, {"a": 30, "b": 31, "c": 32})
    assert isinstance(await race.delete_many(race.b, 40), ManyWritten)
    for key in "abc":
        assert await race.recorded(key) == (40, True)
    await race.insert(race.a, "a", 41)
    assert await race.direct(race.b, "DELETE FROM public.orders") == "FP428"


async def test_a_filter_that_matches_nothing_writes_nothing_and_is_no_refusal(race: Race) -> None:
    assert await race.update_many(race.b, 40, status="x") == ManyWritten([])
    assert await race.delete_many(race.b, 40) == ManyWritten([])
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 0


async def test_two_posts_of_the_same_keys_in_crossing_order_do_not_deadlock(race: Race) -> None:
    """Rows go in by key, whatever the body's order; the answer keeps the body's."""
    holder = await race.begin(race.a)
    rows = await race.insert_rows(race.a, [{"order_id": "b"}, {"order_id": "a"}], 36)
    assert ['"b"' in row.json for row in rows] == [True, False]
    waiter = await race.waits(race.b, outcome(race.insert_rows(race.b, [{"order_id": "a"}, {"order_id": "b"}], 35)))
    await holder.commit()
    assert await waiter == "23505"


async def test_an_insert_that_waited_for_a_delete_that_aborts_meets_a_duplicate(race: Race) -> None:
    await race.insert(race.a, "k", 32)
    holder = await race.begin(race.a)
    await race.delete(race.a, "k", 34)
    waiter = await race.waits(race.b, outcome(race.insert(race.b, "k", 33)))
    await holder.rollback()
    assert await waiter == "23505"
    assert await race.verdict("k", 33) == "again"
    assert await outcome(race.insert(race.b, "k", 31)) == "23505"
    assert await race.verdict("k", 31) == "stale"


async def test_marks_move_with_a_renamed_table_that_is_protected_again(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 34)
    await race.observer.execute("SELECT fencepost.prune('orders', 10)")
    await race.observer.execute("ALTER TABLE orders RENAME TO sales")
    assert await race.direct(race.a, "INSERT INTO public.sales VALUES ('gone', 'x', 0, 33)") == "FP409"
    await protect(race.observer, "sales")
    race.table = await protected_table(race.observer, "sales")
    assert (race.fence.name, race.rule) == ("sales", race.table.fence and race.table.fence.rule)
    assert await race.recorded("gone") == (34, True)
    assert await outcome(race.insert(race.b, "gone", 33)) == "FP409"
    assert await race.delete(race.b, "k", 31)
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE resource LIKE 'orders/%'") == 0
    assert await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = 'sales'") == 10
    left = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname LIKE 'orders_%'"
    assert await race.observer.fetchval(left) == 0


async def test_a_renamed_table_is_not_written_until_it_is_protected_again(race: Race) -> None:
    """Another table may have taken its old name by then, and its functions would delete from that one."""
    await race.insert(race.a, "k", 30)
    await race.observer.execute("ALTER TABLE orders RENAME TO orders_old")
    await race.observer.execute(ORDERS)
    await race.observer.execute("ALTER TABLE orders ADD last_fence_token bigint NOT NULL DEFAULT 0")
    await race.observer.execute("INSERT INTO orders VALUES ('k', 'of another table', 0, 1)")
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await delete(gateway, keyed("k", 31, "orders_old"))) == "FP005"
        assert result_of(await patch(gateway, keyed("k", 31, "orders_old"))) == "FP005"
        assert result_of(await patch(gateway, keyed("k", 31))) == "FP005"
    assert await race.observer.fetchval("SELECT status FROM orders WHERE order_id = 'k'") == "of another table"


# R6: one mark per key value, whatever its type, its text, the session's settings, and the names of things.

SPELLINGS = [
    ("numeric", "1.0", "1.00", "1"),
    ("numeric", "100", "1e2", "100"),
    ("numeric", "-0.50", "-0.5", "-0.5"),
    ("integer", "7", "007", "7"),
    ("date", "2024-02-01", "February 1, 2024", "2024-02-01"),
    ("timestamp", "2024-02-01 03:04:05", "2024-02-01T03:04:05.000", "2024-02-01 03:04:05"),
    ("timestamptz", "2024-02-01 03:04:05+00", "2024-02-01 12:04:05+09", "2024-02-01 03:04:05+00"),
    ("bytea", "\\x00ff", "\\000\\377", "\\x00ff"),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("boolean", "t", "yes", "true"),
    ("char(3)", "a", "a  ", "a"),
    ("text", "a/b,c;d%e", "a/b,c;d%e", "a%2Fb%2Cc%3Bd%25e"),
]  # fmt: skip


async def tables(connect: Connect, database: str) -> list[Race]:
    """Give a table for each type of SPELLINGS, k0 and on. They share one race's connections."""
    first = await open_race(connect, database)
    races = []
    for number, (type_, *_) in enumerate(SPELLINGS):
        await first.observer.execute(f"CREATE TABLE k{number} (id {type_} PRIMARY KEY)")
        await protect(first.observer, f"k{number}")
        races.append(replace(first, table=await protected_table(first.observer, f"k{number}")))
    return races


async def test_two_spellings_of_a_key_are_one_resource(connect: Connect, database: str) -> None:
    for race, (_, one, other, key) in zip(await tables(connect, database), SPELLINGS, strict=True):
        resource = f"{race.fence.name}/{key}"
        assert (await race.standing(one)).resource == (await race.standing(other)).resource == resource
        assert await race.insert_one(race.a, one, 30), key
        assert await race.update(race.a, other, 31), key
        assert await race.delete(race.a, other, 34), key
        marks = await race.observer.fetch("SELECT resource, last_fence_token FROM fencepost.marks WHERE row_absent")
        assert [tuple(mark) for mark in marks] == [(resource, 34)], key
        assert await outcome(race.insert_one(race.a, other, 33)) == "FP409", key
        await race.observer.execute("DELETE FROM fencepost.marks")


async def test_composite_keys_that_read_alike_are_two_resources(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, ddl="CREATE TABLE k (a text, b text, PRIMARY KEY (b, a))", name="k")
    keys: list[Key] = [("x,y", "z"), ("x", "y,z"), ("x/y", "z"), ("x%2Cy", "z"), ("", "")]
    for number, key in enumerate(keys):
        assert await race.insert(race.a, key, 30 + number)
        assert await race.delete(race.a, key, 50 + number)
    assert [await race.recorded(key) for key in keys] == [(50 + number, True) for number in range(len(keys))]


@pytest.fixture
async def parts(connect: Connect, unmade: Unmade) -> Race:
    """A partitioned table."""
    ddl = """
        CREATE TABLE parts (region text, id int, status text DEFAULT 'new', PRIMARY KEY (region, id))
          PARTITION BY LIST (region);
        CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
        CREATE TABLE parts_rest PARTITION OF parts DEFAULT"""
    return await open_race(connect, unmade, ddl=ddl, name="parts")


async def test_a_put_that_meets_its_own_key_late_is_no_duplicate(parts: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two rounds the row is there only while it is asked for; then it is made anew where the PUT would create it."""
    key, rounds = ("eu", "1"), 0

    async def there(connection: Connection, table: ProtectedTable, keys: Sequence[tuple[str, ...]]) -> list[KeyState]:
        nonlocal rounds
        rounds += 1
        if rounds <= 2:
            await parts.insert(parts.a, key, 30 + 2 * rounds)
        states = await ask(connection, table, keys)
        if rounds <= 2:
            await parts.delete(parts.a, key, 31 + 2 * rounds)
        if rounds == 3:
            await parts.insert(parts.a, key, 40)
        return states

    monkeypatch.setattr("fencepost.server.postgres.marks.ask", there)
    async with open_gateway(parts.dsn) as gateway:
        # The key is spelled in two ways: no batch decides that.
        assert result_of(await put(gateway, keyed(key, 50, table="parts", id="01", status="put"))) == "ok"
    assert rounds == 3
    assert await parts.live_mark(key) == 50


async def test_multi_row_writes_of_a_partitioned_table_are_judged_once_locked(parts: Race) -> None:
    for region in ("eu", "us"):
        await parts.insert(parts.a, (region, "1"), 30, status="new")
    async with open_gateway(parts.dsn) as gateway:
        for verb, token in ((patch, 40), (delete, 50)):
            newer = parts.update(parts.a, ("us", "1"), token + 5)
            new = (Condition(Field("status"), "eq", "new"),)
            write = matching(new, token, "parts", status="new")
            answer = await answer_after(parts, gateway, newer, request=verb(gateway, write))
            assert result_of(answer) == "FP001", token


async def test_a_table_whose_columns_are_called_like_ours_is_fenced(connect: Connect, database: str) -> None:
    """The name is that of the table, of its key and, doubled, of a column."""
    race = await open_race(connect, database)
    names = [
        "token", "before", "k1", "k0", "r", "b", "i", "x", "w", "hit", "json", "mark", "what", "value", "n", "resource",
        "ordinality", "old", "new", 'quo"ted', "spa ce", "$fn$", "a=b", "a/b", "per%cent", "back\\slash",
        "apo'strophe", "user", "select", "Größe", "k" * 63,
    ]  # fmt: skip
    for name in names:
        quoted, column = '"' + name.replace('"', '""') + '"', f"_{name}"[:50]
        quoted_column = '"' + column.replace('"', '""') + '"'
        ddl = f"CREATE TABLE {quoted} ({quoted} text PRIMARY KEY, {quoted_column} text, x text, mark text, status text)"
        if name in ("x", "mark"):
            ddl = ddl.replace(f" {name} text,", "")
        await race.observer.execute(ddl)
        await protect(race.observer, name)
    async with open_gateway(database) as gateway:
        for name in names:
            await every_verb_is_judged(gateway, name)
    for name in names:
        named = replace(race, table=await protected_table(race.observer, name))
        assert await named.row("k") is not None, name
        # All that reads the rows with their names: what leaves marks, takes them up, and meets them.
        await unprotect(race.observer, name)
        for source in ("external", "builtin"):
            await protect(race.observer, name, source=source)
            assert await named.live_mark("k") == 36, name


async def every_verb_is_judged(gateway: Gateway, name: str) -> None:
    column = f"_{name}"[:50]
    row = {name: "k", column: "v", "status": "new"}

    def some(token: int, **changes: str) -> Write:
        values = {column: "w"} | changes
        return keyed("k", token, name, **values)

    made = listed(30, row, table=name)
    assert result_of(await post(gateway, made)) == "created", name
    assert result_of(await patch(gateway, some(29))) == "FP001", name
    assert result_of(await patch(gateway, some(31))) == "ok", name
    answer = await put(gateway, some(32, status="new"))
    assert result_of(answer) == "ok", answer
    assert json.loads(getattr(answer, "rows", ["{}"])[0])[column] == "w", name
    assert result_of(await claim(gateway, Claim(Resource(name, ("k",)), Token(33)))) == "ok", name
    new = (Condition(Field(column), "eq", "w"),)
    many = matching(new, 34, name, status="y")
    assert result_of(await patch(gateway, many)) == "ok", name
    assert result_of(await delete(gateway, matching(new, 33, name))) == "FP001", name
    assert result_of(await delete(gateway, some(34))) == "FP002", name
    await delete(gateway, matching(new, 35, name))
    assert result_of(await put(gateway, some(32))) == "FP001", name
    assert result_of(await put(gateway, some(36))) == "created", name


# R4: the answer follows the commit, deadlocks and serialization failures are retried inside, commits are durable.


async def test_a_constraint_checked_at_commit_refuses_every_verb(race: Race) -> None:
    deferred = """
        CREATE TABLE depth (n integer PRIMARY KEY);
        INSERT INTO depth VALUES (0);
        ALTER TABLE orders ADD CONSTRAINT orders_n_fkey FOREIGN KEY (n) REFERENCES depth DEFERRABLE INITIALLY DEFERRED;
        CREATE TABLE kept (order_id text REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
    """
    await race.observer.execute(deferred)
    await race.insert(race.a, "k", 30)
    await race.observer.execute("INSERT INTO kept VALUES ('k')")
    many = matching(NEW, 31)
    async with open_gateway(race.dsn) as gateway:
        answers = {
            "patch": await patch(gateway, keyed("k", 31, n=7)),
            "put": await put(gateway, keyed("k", 31, n=7)),
            "put new": await put(gateway, keyed("z", 31, n=7)),
            "post": await post(gateway, listed(31, {"order_id": "z", "n": 7})),
            "delete": await delete(gateway, keyed("k", 31)),
            "patch many": await patch(gateway, matching(NEW, 31, n=7)),
            "delete many": await delete(gateway, many),
        }
    for verb, answer in answers.items():
        assert isinstance(answer, Problem), f"{verb} was answered with {answer}"
        assert (answer.name, answer.http_status) == ("23503", 409), (verb, answer)
    assert await race.live_mark("k") == 30
    assert await race.recorded("k") == (30, False)
    assert await race.row("z") is None
    assert await race.recorded("z") is None


async def test_a_deadlock_is_retried_and_ends_with_a_verdict(race: Race) -> None:
    """The gateway holds row a and waits for b; the other holds b and then wants a. The gateway is the victim."""
    await race.insert_rows(race.a, [{"order_id": "a"}, {"order_id": "b"}], 30)
    async with open_gateway(race.dsn) as gateway:
        async with gateway.database.connection() as connection:
            # Who checks first is the victim, and it checks once: late enough that the other waits by then.
            await connection.execute("SET deadlock_timeout = '2s'")
        await race.a.execute("SET deadlock_timeout = '1min'")
        holder = await race.begin(race.a)
        await race.update(race.a, "b", 45)
        request = matching(NEW, 40, status="x")
        waiter = await race.waits_at(await gateway_pid(gateway), patch(gateway, request))
        assert await race.update(race.a, "a", 45)  # passes once the gateway gave way
        await holder.commit()
        answer = await waiter
    assert isinstance(answer, Problem)
    assert (answer.name, answer.current_token) == ("FP001", 45)  # judged anew, after the retry
    assert [await race.live_mark(key) for key in "ab"] == [45, 45]


async def test_a_serialization_failure_is_retried_and_never_reported_as_stale(race: Race) -> None:
    """A trigger of the user's raises 40001 for the first three tries."""
    await race.observer.execute("""
        CREATE SEQUENCE tries;
        CREATE FUNCTION moody() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF nextval('public.tries') % 4 <> 0 THEN RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'not now'; END IF;
          RETURN coalesce(NEW, OLD);
        END $$;
        CREATE TRIGGER moody BEFORE INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION moody()""")
    async with open_gateway(race.dsn) as gateway:
        new = matching(NEW, 36, n=1)
        answers = [
            result_of(await put(gateway, keyed("k", 31))),
            result_of(await patch(gateway, keyed("k", 32))),
            result_of(await claim(gateway, Claim(Resource("orders", ("k",)), Token(33)))),
            result_of(await delete(gateway, keyed("k", 34))),
            result_of(await post(gateway, listed(35, {"order_id": "k"}))),
            result_of(await patch(gateway, new)),
            result_of(await delete(gateway, matching(NEW, 37))),
        ]
    assert answers == ["created", "ok", "ok", "ok", "created", "ok", "ok"]
    assert await race.observer.fetchval("SELECT last_value FROM tries") == 28
    assert await race.recorded("k") == (37, True)


async def test_a_serialization_failure_without_end_is_a_busy_database(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute("""
        CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01', MESSAGE = 'never'; END $$;
        CREATE TRIGGER never BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION never()""")
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, keyed("k", 31))
    assert isinstance(answer, Problem)
    assert (answer.http_status, answer.name, answer.type.retryable) == (503, "40P01", True)


async def test_an_old_snapshot_fails_and_is_not_called_stale(race: Race) -> None:
    """Direct SQL in REPEATABLE READ: 40001 for UPDATE, DELETE and INSERT."""
    await race.insert(race.a, "k", 30)
    for work in ("update", "delete", "insert"):
        old = race.b.transaction(isolation="repeatable_read")
        await old.start()
        await race.b.fetch("SELECT FROM orders")
        if work == "insert":
            await race.delete(race.a, "k", 40)
            answer = await outcome(race.insert(race.b, "k", 39))
        else:
            await race.update(race.a, "k", 31 if work == "update" else 32)
            answer = await outcome(getattr(race, work)(race.b, "k", 50))
        await old.rollback()
        assert answer == "40001", work


async def test_a_commit_waits_at_least_for_on(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    for set_to, kept in (("remote_apply", "remote_apply"), ("remote_write", "on"), ("local", "on")):
        await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {set_to}")
        opened = await Database.open(database, Limits())
        try:
            async with opened.connection() as gateway:
                assert await gateway.fetchval("SHOW synchronous_commit") == kept
        finally:
            await opened.close()
