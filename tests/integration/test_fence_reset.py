"""`fencepost fence reset`: a mark from a made-up token is lowered, recorded, and lets no stale holder in unseen."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import OPERATOR, STRANGER, Race, open_race, operators, outcome, written
from tests.support.servers import command

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
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


REFUSED = [
    (("orders/nothing", "--to", "50"), "orders/nothing has no mark: there is nothing to mend"),
    (("orders/other", "--to", "40"), "orders/other has the mark 40, which is not above 40: there is nothing to mend"),
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


async def test_what_cannot_be_mended_is_reported(race: Race, run: Run) -> None:
    await race.observer.execute(
        "CREATE TABLE free (id int PRIMARY KEY); CREATE TABLE numbers (id int PRIMARY KEY);"
        "CREATE TABLE boxes (id int PRIMARY KEY, size int NOT NULL)"
    )
    await protect(race.observer, "numbers")
    await protect(race.observer, "boxes", scope="size/{size}")
    await race.observer.execute("UPDATE fencepost.protected SET max_token = 100 WHERE name = 'orders'")
    for arguments, message in REFUSED:
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
