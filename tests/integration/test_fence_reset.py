"""`fencepost fence reset`: a mark from a made-up token is lowered, recorded, and lets no stale holder in unseen."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, run_plan
from tests.support.postgres import Unmade
from tests.support.racing import (
    NEW,
    OPERATOR,
    ORDERS,
    STRANGER,
    Race,
    assert_seen,
    meanwhile,
    open_race,
    operators,
    outcome,
    written,
)
from tests.support.servers import command
from tests.support.use_cases import delete, keyed, listed, matching, once, open_gateway, patch, post, put, result_of

from fencepost.cli.main import main
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import TABLES
from fencepost.server.ops.protect import ProtectError, plan_protect, protect, unprotect
from fencepost.server.postgres.query import Field, Selected
from fencepost.server.postgres.upkeep import Reset, ResetError, reset

BOGUS = 2**61
WHY = "INC-7: a script made the token up"
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(database: str) -> Run:
    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, ["fence", "--database-url", database, *arguments])

    return run


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Orders under external tokens: `k` has a bogus mark, `other` 40, `gone` was deleted under a bogus token."""
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", BOGUS)
    await race.insert(race.a, "other", 40)
    await race.insert(race.a, "gone", 41)
    await race.delete(race.a, "gone", BOGUS)
    return race


async def logged(race: Race) -> list[tuple[object, ...]]:
    rows = await race.observer.fetch(
        "SELECT verb, resource, old_mark, new_mark, reason FROM fencepost.break_glass_log ORDER BY at, resource"
    )
    return [tuple(row) for row in rows]


async def test_a_rows_mark_is_lowered_and_recorded(race: Race, run: Run) -> None:
    done = await run("reset", "orders/k", "--to", "50", "--reason", WHY)
    assert done.exit_code == 0, done.output
    assert done.output == (
        f"orders/k: its mark was {BOGUS} and is 50 now, which is recorded. Tokens up to it are refused: their"
        " holders acquire the lock anew.\n"
    )
    assert await logged(race) == [("RESET", "orders/k", BOGUS, 50, WHY)]
    assert (await race.live_mark("k"), await race.recorded("k")) == (50, (50, False))
    assert not written(await race.update(race.a, "k", 50)), "a token up to the new mark is stale or spent"
    assert await race.verdict("k", 49) == "stale"
    assert written(await race.update(race.a, "k", 51))
    status = await command("status", database=race.dsn)
    assert f"RESET  orders/k: {BOGUS} to 50  {WHY}" in " ".join(status.output.split(" "))


async def test_a_key_without_a_row(race: Race, run: Run) -> None:
    assert (await run("reset", "orders/gone", "--to", "50", "--reason", WHY)).exit_code == 0
    assert await race.recorded("gone") == (50, True)
    assert await outcome(race.insert(race.a, "gone", 49)) == "FP409"
    assert written(await race.insert(race.a, "gone", 51))
    assert await logged(race) == [("RESET", "orders/gone", BOGUS, 50, WHY)]


async def test_a_scope_and_a_floor(race: Race, run: Run) -> None:
    await race.observer.execute(
        "CREATE TABLE items (id int PRIMARY KEY, account int NOT NULL); INSERT INTO items VALUES (1, 42), (2, 7)"
    )
    await protect(race.observer, "items", scope="account/{account}")
    entering = "SELECT refused_by FROM fencepost.enter('account', ARRAY[$1], $2)"
    assert await race.observer.fetchval(entering, "account/42", BOGUS) is None
    assert await race.observer.fetchval(entering, "account/7", 90) is None
    low = await run("reset", "account/42", "--to", "89", "--reason", WHY)
    assert (low.exit_code, "is below 90, the next lower mark (or floor) of account" in low.output) == (1, True)
    assert (await run("reset", "account/42", "--to", "90", "--reason", WHY)).exit_code == 0
    assert await race.observer.fetchval(entering, "account/42", 90) == 90
    assert await race.observer.fetchval(entering, "account/42", 91) is None
    row = await run("reset", "items/1", "--to", "90", "--reason", WHY)
    assert (row.exit_code, "items has the scope account/{account}, whose mark it is: name the scope" in row.output) == (
        1,
        True,
    )

    await race.observer.execute("SELECT fencepost.prune('account', $1::bigint)", BOGUS)
    assert (await run("reset", "account", "--to", "91", "--reason", WHY)).exit_code == 0
    assert await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = 'account'") == 91
    assert [each[:4] for each in await logged(race)] == [
        ("RESET", "account/42", BOGUS, 90),
        ("RESET", "account", BOGUS, 91),
    ]


async def test_what_cannot_be_mended_is_reported(race: Race, run: Run) -> None:
    await race.observer.execute(
        "CREATE TABLE free (id int PRIMARY KEY); CREATE TABLE numbers (id int PRIMARY KEY);"
        "CREATE TABLE boxes (id int PRIMARY KEY, size int NOT NULL)"
    )
    await protect(race.observer, "numbers")
    await protect(race.observer, "boxes", scope="size/{size}")
    await race.observer.execute("UPDATE fencepost.protected SET max_token = 100 WHERE name = 'orders'")
    refused = [
        (("orders/nothing", "--to", "50"), "orders/nothing has no mark: there is nothing to mend"),
        (
            ("orders/other", "--to", "40"),
            "orders/other has the mark 40, which is not above 40: there is nothing to mend",
        ),
        (("orders/other", "--to", "41"), "there is nothing to mend"),
        (("orders/k", "--to", "39"), "39 is below 40, the next lower mark (or floor) of orders"),
        (("orders/k", "--to", str(2**62)), "there is nothing to mend"),
        (("orders/k", "--to", "101"), "101 is above 100, the highest token that the table takes"),
        (("orders/k",), "--to is needed: the newest token that the lock service of orders has given out"),
        (("nowhere/k", "--to", "50"), "there is no table or scope nowhere"),
        (("free/1", "--to", "50"), "free is not protected"),
        (("orders/k,2", "--to", "50"), "the key of orders has 1 value(s), order_id, not 2"),
        (("numbers/x", "--to", "50"), 'invalid input syntax for type integer: "x"'),
        (("orders/%zz", "--to", "50"), "must be followed by two hexadecimal digits"),
        (("nowhere", "--to", "50"), "there is no floor of this name"),
        (("now%zz", "--to", "50"), "must be followed by two hexadecimal digits"),
        (("size/1,2", "--to", "50"), "size: a scope of boxes is named like size/{size}"),
        (("size/x", "--to", "50"), 'size/x: invalid input syntax for type bigint: "x"'),
        (("orders", "--to", "50"), "orders has no mark: there is nothing to mend"),
    ]
    for arguments, message in refused:
        result = await run("reset", *arguments, "--reason", WHY)
        assert (result.exit_code, message in result.output) == (1, True), (arguments, result.output)
        assert "Traceback" not in result.output, arguments
        assert (await logged(race), await race.live_mark("k")) == ([], BOGUS), arguments


async def test_what_is_missing_is_reported(run: Run) -> None:
    for arguments, message in (
        (("orders/k", "--to", "50"), "Missing option '--reason'"),
        (("orders/k", "--to", "50", "--reason", "  "), "a reason is needed"),
        (("orders/k", "--to", "0", "--reason", WHY), "0 is not in the range"),
        (("--reason", WHY), "Missing argument 'RESOURCE'"),
    ):
        result = await run("reset", *arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output


async def test_marks_of_one_bogus_token_do_not_bound_each_others_reset(race: Race) -> None:
    for key in ("k", "gone"):
        assert (await reset(race.observer, f"orders/{key}", 40, WHY)).new == 40, key
    await race.observer.execute("SELECT fencepost.prune('orders', $1::bigint)", BOGUS)
    assert await reset(race.observer, "orders", 40, WHY) == Reset("orders", BOGUS, 40)


async def test_a_source_that_knows_its_newest_token_gives_the_new_mark(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, source="builtin")
    await race.insert(race.a, "k", 30)
    await race.observer.execute("ALTER TABLE orders DISABLE TRIGGER USER")
    await race.observer.execute(f"UPDATE orders SET last_fence_token = {BOGUS}")
    await race.observer.execute("ALTER TABLE orders ENABLE TRIGGER USER")
    with pytest.raises(ResetError, match="has issued 1000 by now, and the mark can be set to that only"):
        await reset(race.observer, "orders/k", 31, WHY)
    assert await reset(race.observer, "orders/k", None, WHY) == Reset("orders/k", BOGUS, 1000)
    assert await race.verdict("k", 1000) == "spent", "no token that is outstanding passes"
    with pytest.raises(ResetError, match="nothing to mend"):
        await reset(race.observer, "orders/k", None, WHY)


async def test_only_a_role_that_may_break_the_glass_resets_a_mark(race: Race) -> None:
    async with operators(race.observer):
        for login, may in ((STRANGER, False), (OPERATOR, True)):
            await race.observer.execute(
                f"GRANT SELECT ON fencepost.protected TO {login}; SET SESSION AUTHORIZATION {login}"
            )
            answer = await outcome(reset(race.observer, "orders/k", 50, WHY))
            await race.observer.execute("RESET SESSION AUTHORIZATION")
            assert answer == (Reset("orders/k", BOGUS, 50) if may else "42501"), (login, may)


async def test_the_function_itself_bounds_a_role_that_may_break_the_glass(race: Race) -> None:
    assert await race.claim_absent(race.a, "absent", 70) is None
    await race.observer.execute("SELECT set_config('fencepost.break_glass', 'INC-7', false)")
    for table, resource, old, new, why in (
        ("orders", "orders/gone", BOGUS, 69, "69 is below 70, another mark"),
        ("orders", "orders/gone", 69, 60, "has a mark above 69"),
        ("t", "orders/gone", BOGUS, 60, "orders/gone is no resource of t"),
        ("orders", "orders/gone", BOGUS, 0, "is below"),
        ("orders", "orders/gone", BOGUS, None, "no mark falls"),
        ("orders", "orders", 89, 80, "has a mark above 89"),
    ):
        await race.observer.execute(
            "UPDATE fencepost.floors SET floor = 90 WHERE $1 = name AND $1 = $2", table, resource
        )
        with pytest.raises(asyncpg.PostgresError, match=why) as refused:
            await race.observer.execute("SELECT fencepost.reset_mark($1, $2, $3, $4)", table, resource, old, new)
        assert refused.value.sqlstate == "FP400", why
        assert await race.recorded("gone") == (BOGUS, True), why


async def test_a_trigger_that_keeps_the_row_from_being_written_undoes_it(race: Race) -> None:
    await race.observer.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER keep BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION keep()"
    )
    with pytest.raises(ResetError, match="a trigger or rule of orders keeps its mark from being written"):
        await reset(race.observer, "orders/k", 50, WHY)
    assert (await race.live_mark("k"), await logged(race)) == (BOGUS, [])


async def test_a_bogus_mark_does_not_spread(connect: Connect, unmade: Unmade) -> None:
    """A mark above the ceiling is refused where `protect` would carry it on, with the command that mends it."""
    race = await open_race(connect, unmade)
    owner = race.observer
    await protect(owner, "orders", max_token=2**63 - 1)
    for key, token in (("k", 2**62), ("gone", 50)):
        await owner.execute(f"INSERT INTO orders (order_id, last_fence_token) VALUES ('{key}', {token})")
    refused = "orders/k has the mark 4611686018427387904, above 4611686018427387903, the highest token"
    mend = "fencepost fence reset 'orders/k' --to N --reason"
    for change in ({"max_token": 2**62 - 1}, {"max_token": 2**62 - 1, "scope": "state/{status}"}):
        with pytest.raises(Exception, match=refused) as caught:
            await protect(owner, "orders", **change)
        assert mend in str(caught.value)
    await reset(owner, "orders/k", 50, WHY)
    await protect(owner, "orders", max_token=2**62 - 1, scope="state/{status}")

    await protect(owner, "orders", max_token=2**63 - 1)
    await owner.execute("SELECT fencepost.enter('state', ARRAY['state/new'], $1)", 2**62)
    with pytest.raises(Exception, match="state/new has the mark 4611686018427387904") as caught:
        await protect(owner, "orders", max_token=2**62 - 1, scope="")
    assert "fencepost fence reset 'state/new' --to N" in str(caught.value)
    assert await owner.fetchval("SELECT max(floor) FROM fencepost.floors") < 2**62
    await reset(owner, "state/new", 50, WHY)
    await protect(owner, "orders", max_token=2**62 - 1, scope="")
    assert await race.live_mark("k") == 50


@pytest.mark.parametrize(("key", "other"), [("k", "gone"), ("gone", "k")], ids=["an update", "an insert"])
async def test_a_write_under_way_is_waited_for(race: Race, key: str, other: str) -> None:
    await reset(race.observer, f"orders/{other}", 50, WHY)
    holder = await race.begin(race.a)
    assert written(await (race.update if key == "k" else race.insert)(race.a, key, BOGUS + 5))
    resetting = await race.waits(race.b, reset(race.b, f"orders/{key}", 50, WHY))
    await holder.commit()
    assert await resetting == Reset(f"orders/{key}", BOGUS + 5, 50)
    assert (await race.live_mark(key), await race.recorded(key)) == (50, (50, False))
    assert await race.update(race.a, key, 50) is None
    assert written(await race.update(race.a, key, 51))


# A protected table that has lost its column of marks: no mark is forgotten by what `protect` makes of it (R6).


GONE = "ALTER TABLE public.orders DROP COLUMN last_fence_token CASCADE"
RENAMED = "ALTER TABLE public.orders RENAME COLUMN last_fence_token TO mark"
UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'live'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('gone')"


async def opened(connect: Connect, unmade: Unmade, source: str) -> Race:
    race = await open_race(connect, unmade, "strict", source=source)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    await race.insert(race.a, "live", 50)
    return race


async def advice(race: Race) -> str:
    return "\n".join([each.text for each in await examine(TABLES, race.observer) if each.level == "error"])


async def lost(race: Race, harm: str = GONE) -> None:
    await race.observer.execute(harm)
    for statement in (UPDATE, INSERT, "DELETE FROM public.orders"):
        assert await race.direct(race.a, statement, 60) not in ("ok", "FP409"), "nothing is written meanwhile"


async def test_the_rows_take_up_what_the_built_in_source_has_issued(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    issued = await race.observer.fetchval("SELECT fencepost.issued()")
    await lost(race)
    assert "fencepost protect orders" in await advice(race)
    await protect(race.observer, "orders")
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 45) == "FP409", statement
        assert await race.direct(race.a, statement, issued) == "FP409", statement
    for statement in (UPDATE, INSERT):
        later = await race.observer.fetchval("SELECT nextval('fencepost.tokens')")
        assert await race.direct(race.a, statement, later) == "ok", statement
    assert await race.observer.fetchval("SELECT max(floor) FROM fencepost.floors WHERE name = 'orders'") == issued
    default = "SELECT column_default FROM information_schema.columns WHERE column_name = 'last_fence_token'"
    assert await race.observer.fetchval(default + " AND table_name = 'orders'") == "0"


async def test_those_of_an_external_source_only_with_a_word(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    assert "--above" in await advice(race)
    for source in (None, "builtin"):
        with pytest.raises(ProtectError, match="marks are lost"):
            await protect(race.observer, "orders", source=source)
    await protect(race.observer, "orders", above=100)
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 100) == "FP409", statement
        assert await race.direct(race.a, statement, 101) == "ok", statement


async def test_the_marks_that_are_known_count_if_they_are_higher(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    await protect(race.observer, "orders", above=10)
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 40) == "FP409", statement


async def test_the_word_is_for_a_table_that_has_lost_its_marks(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    with pytest.raises(ProtectError, match="--above"):
        await protect(race.observer, "orders", above=100)
    await race.observer.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    await protect(race.observer, "t", source="builtin")
    await race.observer.execute("ALTER TABLE public.t DROP COLUMN last_fence_token CASCADE")
    with pytest.raises(ProtectError, match="--above"):
        await protect(race.observer, "t", above=100)
    await race.observer.execute("ALTER TABLE public.orders DROP COLUMN last_fence_token CASCADE")
    with pytest.raises(ProtectError, match="--above 100 is above 99, the highest token that the table takes"):
        await protect(race.observer, "orders", above=100, max_token=99)


async def test_a_column_that_was_renamed_is_to_be_renamed_back(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    await lost(race, RENAMED)
    back = 'ALTER TABLE "public"."orders" RENAME COLUMN "mark" TO last_fence_token'
    assert back in await advice(race)
    with pytest.raises(ProtectError) as refused:
        await protect(race.observer, "orders")
    assert back in str(refused.value)
    await race.observer.execute(back)
    await protect(race.observer, "orders")
    assert await race.direct(race.a, UPDATE, 45) == "FP409"
    assert await race.direct(race.a, UPDATE, 51) == "ok"


async def test_a_column_that_is_lost_between_look_and_lock_is_not_made_anew(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    plan = await plan_protect(race.observer, "orders")
    await lost(race)
    with pytest.raises(asyncpg.PostgresError, match="marks are lost"):
        await run_plan(race.observer, plan)


async def test_it_takes_what_is_above_its_marks_into_a_scope(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    with pytest.raises(ProtectError, match="marks are lost"):
        await protect(race.observer, "orders", scope="number/{n}")
    await protect(race.observer, "orders", scope="number/{n}", above=100)
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'x'", 100) == "FP409"
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'x'", 101) == "ok"


async def test_unprotect_does_not_forget_either(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    issued = await race.observer.fetchval("SELECT fencepost.issued()")
    await lost(race)
    await unprotect(race.observer, "orders")
    await protect(race.observer, "orders")
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, issued) == "FP409", statement


async def test_unprotect_of_an_external_table_asks_for_the_word_first(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    with pytest.raises(ProtectError, match=r"marks are lost.* run `fencepost protect orders --above N`"):
        await unprotect(race.observer, "orders")
    await protect(race.observer, "orders", above=100)
    await unprotect(race.observer, "orders")


@pytest.mark.parametrize("source", ["builtin", "external"])
async def test_a_column_that_was_taken_away_after_unprotect_is_made_anew_with_all_marks(
    connect: Connect, unmade: Unmade, source: str
) -> None:
    race = await opened(connect, unmade, source)
    await meanwhile(race.observer, "orders", GONE)
    assert await race.direct(race.a, UPDATE, 50) == "FP409"
    assert await race.direct(race.a, INSERT, 40) == "FP409"
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 51) == "ok", statement


@pytest.mark.parametrize("harm", [GONE, RENAMED])
async def test_a_column_that_was_made_anew_holds_no_marks(connect: Connect, unmade: Unmade, harm: str) -> None:
    race = await opened(connect, unmade, "external")
    await race.observer.execute(harm)
    await race.observer.execute("ALTER TABLE public.orders ADD COLUMN last_fence_token bigint NOT NULL DEFAULT 0")
    assert await advice(race)
    with pytest.raises(ProtectError, match="DROP COLUMN last_fence_token CASCADE"):
        await protect(race.observer, "orders")
    await race.observer.execute(GONE)
    if harm == RENAMED:
        await race.observer.execute("ALTER TABLE public.orders RENAME COLUMN mark TO last_fence_token")
        await protect(race.observer, "orders")
    else:
        await protect(race.observer, "orders", above=50)
    assert await race.direct(race.a, UPDATE, 50) == "FP409"
    assert await race.direct(race.a, UPDATE, 51) == "ok"


# No statement lowers a mark or a floor; one statement may, which names it (R6).


async def deleted_under(race: Race, table: str, token: int) -> None:
    assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES (1)", token - 1) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table} WHERE id = 1", token) == "ok"


async def test_no_statement_lowers_a_mark_or_a_floor(connect: Connect, unmade: Unmade) -> None:
    """But one that names the mark that is to fall, which lowers this one and no other."""
    public_race = await open_race(connect, unmade, "strict")
    await public_race.observer.execute("SET search_path = public")
    await public_race.observer.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await protect(public_race.observer, "t")
    await deleted_under(public_race, "t", 50)
    await public_race.observer.execute("UPDATE fencepost.floors SET floor = 40 WHERE name = 't'")
    lowerings = {
        "marks": "UPDATE fencepost.marks SET last_fence_token = last_fence_token - 1 WHERE resource = 't/1'",
        "marks by an upsert": "INSERT INTO fencepost.marks AS k VALUES ('t/1', 3, '0', true) ON CONFLICT (resource)"
        " DO UPDATE SET last_fence_token = excluded.last_fence_token",
        "floors": "UPDATE fencepost.floors SET floor = floor - 1 WHERE name = 't'",
    }
    for what, lowering in lowerings.items():
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="marks never fall"):
            await public_race.observer.execute(lowering)
        for named, answer in (("t/2", "55000"), ("t" if what == "floors" else "t/1", "ok")):
            sql = f"SET LOCAL fencepost.lowering = '{named}'; {lowering}"
            assert await public_race.direct(public_race.observer, sql) == answer, (what, named)


# A fence that was switched off, or whose columns were renamed, under a gateway that has not heard of it (R13).


PARTED = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new', n integer NOT NULL DEFAULT 0)
  PARTITION BY RANGE (order_id);
CREATE TABLE public.part PARTITION OF orders DEFAULT"""

STATUS = (Selected(Field("status")),)

Request = Callable[[Gateway], Awaitable[Outcome]]
DELETES: dict[str, Request] = {
    "one": lambda gateway: delete(gateway, keyed("k", 60)),
    "one, of which a column is shown": lambda gateway: delete(gateway, replace(keyed("k", 60), select=STATUS)),
    "one, alone": lambda gateway: delete(gateway, replace(keyed("k", 60), idempotency_key=once())),
    "by filter": lambda gateway: delete(gateway, matching(NEW, 60)),
}
REQUESTS: dict[str, dict[str, Request]] = {
    "DELETE": DELETES,
    "INSERT": {
        "POST": lambda gateway: post(gateway, listed(40, {"order_id": "gone", "n": 1})),
        "POST of several": lambda gateway: post(
            gateway, listed(40, {"order_id": "gone", "n": 1}, {"order_id": "new", "n": 1})
        ),
        "PUT": lambda gateway: put(gateway, keyed("gone", 40, n=1)),
        "PUT, alone": lambda gateway: put(gateway, replace(keyed("gone", 40, n=1), idempotency_key=once())),
    },
    "UPDATE": {
        "PATCH": lambda gateway: patch(gateway, keyed("k", 60, n=2)),
        "by filter": lambda gateway: patch(gateway, matching(NEW, 60, n=2)),
        "of an array": lambda gateway: patch(gateway, listed(60, {"order_id": "k", "n": 2})),
    },
}


async def as_a_whole(gateway: Gateway) -> Outcome:
    async def use(part: Gateway) -> Outcome:
        raise Undone(await delete(part, keyed("k", 60)))

    return await atomically(gateway, use)


DELETES["in a batch that lands as a whole"] = as_a_whole


@pytest.mark.versions
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("ALTER TABLE {table} DISABLE TRIGGER USER", id="all of the user's"),
        pytest.param("ALTER TABLE {table} DISABLE TRIGGER zzz_fencepost_{trigger}", id="one"),
        pytest.param("ALTER TABLE {table} ENABLE REPLICA TRIGGER zzz_fencepost_{trigger}", id="for replicas"),
        pytest.param("DROP TRIGGER zzz_fencepost_{trigger} ON orders", id="dropped"),
        pytest.param("SET session_replication_role = replica", id="in the gateway's sessions"),
    ],
)
@pytest.mark.parametrize(
    ("ddl", "scope", "table", "triggers"),
    [
        pytest.param(ORDERS, None, "orders", {"DELETE": "del", "INSERT": "insmark"}, id="rows"),
        pytest.param(PARTED, None, "part", {"DELETE": "del", "INSERT": "insmark"}, id="partitions"),
        pytest.param(
            ORDERS, "account/{n}", "orders", dict.fromkeys(("DELETE", "INSERT", "UPDATE"), "scope"), id="scopes"
        ),
    ],
)
async def test_nothing_is_written_where_the_fence_does_not_fire(
    connect: Connect, unmade: Unmade, ddl: str, scope: str | None, table: str, triggers: dict[str, str], how: str
) -> None:
    race = await open_race(connect, unmade, ddl=ddl)
    await protect(race.observer, "orders", scope=scope)
    rows = "INSERT INTO orders VALUES ('k'), ('gone'); DELETE FROM orders WHERE order_id = 'gone'"
    await race.observer.execute(f"BEGIN; SET LOCAL fencepost.token = '50'; {rows}; COMMIT")
    before = await race.observer.fetch("SELECT * FROM orders")
    for verb, trigger in triggers.items():
        for name, request in REQUESTS[verb].items():
            async with open_gateway(race.dsn, batch_pool_size=1) as gateway:
                harm = how.format(table=table, trigger=trigger)
                if harm.startswith("SET"):
                    for lend in (gateway.database.connection, gateway.database.batch_connection):
                        async with lend() as connection:
                            await connection.execute(harm)
                else:
                    await race.observer.execute(harm)
                # A PUT finds no row, and asks for the mark.
                assert result_of(await request(gateway)) in ("FP005", "FP001" if "PUT" in name else ""), name
            assert await race.observer.fetch("SELECT * FROM orders") == before, name
            await protect(race.observer, "orders", scope=scope)


@pytest.mark.parametrize("name", DELETES)
async def test_a_row_of_a_table_that_inherits_is_not_deleted(connect: Connect, unmade: Unmade, name: str) -> None:
    race = await open_race(connect, unmade)
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("CREATE TABLE heir () INHERITS (orders); INSERT INTO heir VALUES ('k')")
        assert result_of(await DELETES[name](gateway)) == "FP005"
    assert await race.row("k") is not None


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
@pytest.mark.parametrize("scope", [None, "at/{at}"])
@pytest.mark.parametrize("name", DELETES)
async def test_no_foreign_key_leads_past_a_fence_that_is_off(
    connect: Connect, unmade: Unmade, name: str, scope: str | None, action: str
) -> None:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    await race.observer.execute(
        f"CREATE TABLE items (id int PRIMARY KEY, at int NOT NULL, of text REFERENCES orders ON DELETE {action});"
        " INSERT INTO items VALUES (1, 1, 'k')"
    )
    await protect(race.observer, "items", scope=scope)
    await race.observer.execute("ALTER TABLE items DISABLE TRIGGER USER")
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await DELETES[name](gateway)) == "FP005"
    assert await race.observer.fetchval("SELECT of FROM items") == "k"


async def a_write_waits_for_the_triggers_end(race: Race) -> None:
    """The statement's snapshot is from before it got the table's lock: by that, the trigger is there."""
    await race.insert(race.a, "gone", 30)
    await race.insert(race.a, "k", 30)
    await race.delete(race.a, "gone", 50)
    for trigger, late in (
        ("insmark", lambda: race.insert(race.a, "gone", 40)),
        ("del", lambda: race.delete(race.a, "k", 60)),
    ):
        owner = await race.begin(race.b)
        await race.b.execute(f"ALTER TABLE orders DISABLE TRIGGER zzz_fencepost_{trigger}")
        writing = await race.waits(race.a, outcome(late()))
        await owner.commit()
        assert await writing == "FP005"
    assert await race.row("gone") is None
    assert await race.row("k") is not None


@pytest.mark.versions
async def test_a_trigger_that_goes_meanwhile_is_missed(connect: Connect, unmade: Unmade) -> None:
    await a_write_waits_for_the_triggers_end(await open_race(connect, unmade))


async def test_a_look_at_the_statements_snapshot_would_not_see_it(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade)
    await race.observer.execute("ALTER FUNCTION fencepost.fires(oid, text) STABLE")
    await assert_seen(a_write_waits_for_the_triggers_end, race)


@pytest.mark.versions
@pytest.mark.parametrize(
    ("called", "renaming"),
    [
        pytest.param(
            "key",
            "ALTER TABLE orders RENAME order_id TO key; ALTER TABLE orders ADD order_id text NOT NULL DEFAULT 'k'",
            id="its name goes to a new column",
        ),
        pytest.param(
            "status",
            "ALTER TABLE orders RENAME order_id TO key; ALTER TABLE orders RENAME status TO order_id;"
            " ALTER TABLE orders RENAME key TO status",
            id="two columns swap names",
        ),
        pytest.param(
            "order_id",
            "ALTER TABLE orders RENAME last_fence_token TO old;"
            " ALTER TABLE orders ADD last_fence_token bigint NOT NULL DEFAULT 0",
            id="a new column has the marks' name",
        ),
    ],
)
async def test_a_path_means_the_columns_of_the_key_whatever_they_are_called(
    connect: Connect, unmade: Unmade, called: str, renaming: str
) -> None:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30, status="new")
    await race.insert(race.a, "new", 30, status="k")
    requests = {**REQUESTS["UPDATE"], **DELETES}
    async with AsyncExitStack() as stack:
        gateways = {name: await stack.enter_async_context(open_gateway(race.dsn)) for name in ("GET", *requests)}
        await race.observer.execute(renaming)
        before = await race.observer.fetch("SELECT * FROM orders")
        for name, request in requests.items():
            assert result_of(await request(gateways[name])) == "FP005", name
        assert await race.observer.fetch("SELECT * FROM orders") == before
        found = await read_one(gateways["GET"], ReadOne("orders", ("k",)))
        assert isinstance(found, Done)
        assert [json.loads(row)[called] for row in found.rows] == ["k"]
    rekey = f"UPDATE orders SET {called} = 'z', last_fence_token = 60 WHERE {called} = 'k'"
    assert await race.direct(race.a, rekey) == "FP400"
