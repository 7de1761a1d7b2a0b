"""What the SQL functions that end in _each promise to batches."""

import asyncio
from typing import Any

from tests.races.openings import on_scopes, opened
from tests.support.racing import Race, mark, outcome
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.fence.token import MAX_TOKEN

ENTER = "fencepost.enter_each(text, text[], bigint[], oid, text)"
STRICT, EPOCH, BUILTIN = on_scopes(), on_scopes("epoch"), on_scopes(source="builtin")
pytestmark = opened(STRICT)

_ENTER = (
    "SELECT e.verdict FROM fencepost.enter_each('account', $1, $2, 'items'::regclass, 'account/{account_id}') AS e"
    " ORDER BY e.number"
)


async def enter(connection: Any, *asked: tuple[str | None, int]) -> list[str] | str:
    """Enter scopes in a transaction that is open: their verdicts, or the error's SQLSTATE."""
    rows = await outcome(connection.fetch(_ENTER, [scope for scope, _ in asked], [token for _, token in asked]))
    return rows if isinstance(rows, str) else [row["verdict"] for row in rows]


async def marked(race: Race, token: int) -> None:
    await race.observer.execute("SELECT fencepost.enter('account', ARRAY['account/42', 'account/7'], $1)", token)


async def both(race: Race, first: int, second: int) -> list[str]:
    """Write to account 42 and to account 7 in one batch."""
    async with open_gateway(race.dsn) as gateway:
        writes = (patch(gateway, keyed("1", first, "items", n=1)), patch(gateway, keyed("3", second, "items", n=1)))
        return [result_of(answer) for answer in await asyncio.gather(*writes)]


@opened(BUILTIN)
async def test_an_unissued_token_stays_out_where_there_is_a_mark(race: Race) -> None:
    await marked(race, 20)
    assert await both(race, MAX_TOKEN, 40) == ["FP018", "ok"]
    assert (await mark(race), await mark(race, "account/7")) == (20, 40)


@opened(BUILTIN)
async def test_an_unissued_token_stays_out_where_there_is_no_mark(race: Race) -> None:
    assert await both(race, MAX_TOKEN, 40) == ["FP018", "ok"]
    assert (await mark(race), await mark(race, "account/7")) == (None, 40)


async def test_a_floor_counts_above_a_mark(race: Race) -> None:
    await marked(race, 20)
    await race.observer.execute("UPDATE fencepost.floors SET floor = 45 WHERE name = 'account'")
    entering = await race.begin(race.b)
    assert await enter(race.b, ("account/42", 44), ("account/7", 46)) == ["unclear", "entered"]
    await entering.rollback()
    assert await both(race, 44, 46) == ["FP001", "ok"]
    assert (await mark(race), await mark(race, "account/7")) == (20, 46)


@opened(STRICT, EPOCH)
async def test_a_mark_refuses(race: Race) -> None:
    await marked(race, 40)
    assert await enter(race.b, ("account/42", 39), ("account/7", 41)) == ["refused", "entered"]
    assert await enter(race.b, ("account/42", 40)) == ["refused" if race.strict else "entered"]


async def test_a_mark_that_is_raised_meanwhile_refuses(race: Race) -> None:
    assert await _meanwhile(race, "UPDATE fencepost.marks SET last_fence_token = 45") == ["refused"]
    assert await mark(race) == 45


async def test_a_floor_that_rises_meanwhile_undoes_what_was_entered(race: Race) -> None:
    assert await _meanwhile(race, "UPDATE fencepost.floors SET floor = 50 WHERE name = 'account'") == "40001"
    assert await mark(race) == 30


async def _meanwhile(race: Race, statement: str) -> list[str] | str:
    """Run a statement between the moment at which marks were looked at and that at which they are locked."""
    await marked(race, 30)
    await race.observer.execute(
        "CREATE FUNCTION public.hold(a text[]) RETURNS text[] LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(4242); RETURN a; END'"
    )
    definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", ENTER)
    before, update, after = definition.partition("UPDATE fencepost.marks k")
    await race.observer.execute(before + update + after.replace("unnest(p_scopes)", "unnest(public.hold(p_scopes))", 1))
    holder = await race.begin(race.a)
    await race.a.execute("SELECT pg_advisory_xact_lock(4242)")
    entering = await race.begin(race.b)
    task = await race.waits(race.b, enter(race.b, ("account/42", 40)))
    await race.observer.execute(statement)
    await holder.commit()
    entered = await task
    await (entering.rollback() if isinstance(entered, str) else entering.commit())
    return entered


async def test_a_mark_that_is_locked_is_not_waited_for(race: Race) -> None:
    await marked(race, 30)
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM fencepost.marks WHERE resource = 'account/42' FOR UPDATE")
    await race.b.execute("SET lock_timeout = '1s'")
    assert await enter(race.b, ("account/42", 40), ("account/7", 40)) == ["busy", "entered"]
    await holder.rollback()


@opened(STRICT, EPOCH)
async def test_one_operation_enters_a_scope_and_the_mark_is_its_token(race: Race) -> None:
    for first in (None, 30):
        if first is not None:
            await race.observer.execute("TRUNCATE fencepost.marks")
            await marked(race, first)
        asked = [("account/42", 40), (None, 43), ("account/42", 42), ("account/7", 41)]
        verdicts = await enter(race.b, *asked)
        assert isinstance(verdicts, list)
        assert verdicts[1] == "unclear"
        assert sorted(verdicts) == ["busy", "entered", "entered", "unclear"]
        entered = next(token for (scope, token), v in zip(asked, verdicts, strict=True) if scope and v == "entered")
        assert (await mark(race), await mark(race, "account/7")) == (entered, 41)
        assert await race.observer.fetchval("SELECT bool_and(row_absent) FROM fencepost.marks")


async def test_a_scope_of_no_table_is_not_entered(race: Race) -> None:
    sql = _ENTER.replace("'account/{account_id}'", "'accounts/{account_id}'")
    assert await outcome(race.b.fetch(sql, ["account/42"], [40])) == "FP000"


async def test_keys_are_distinguished(race: Race) -> None:
    """New, in flight, reused, and a replay: something in the log, so that its commit waits for the standby."""
    record = (
        "SELECT fencepost.idem_record_each("
        "ARRAY[''], ARRAY['done'], ARRAY['x'::bytea], ARRAY['{}'::json], ARRAY['y'], ARRAY[NULL])"
    )
    begin = "SELECT k.state, k.outcome, k.rows FROM fencepost.idem_begin_each('', $1, $2) AS k ORDER BY k.number"
    await race.observer.execute(record)
    other = await race.begin(race.a)
    assert [row["state"] for row in await race.a.fetch(begin, ["held", "done"], [b"x", b"other"])] == ["new", "reused"]
    assert await race.a.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL")
    mine = await race.begin(race.b)
    found = await race.b.fetch(begin, ["free", "held", "done"], [b"x", b"x", b"x"])
    assert [row["state"] for row in found] == ["new", "in flight", "replay"]
    assert (found[2]["outcome"], found[2]["rows"]) == ("{}", "y")
    assert await race.b.fetchval("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
    await other.rollback()
    await mine.rollback()
    again = await race.begin(race.b)
    assert [row["state"] for row in await race.b.fetch(begin, ["held"], [b"x"])] == ["new"], "it was given back"
    await again.rollback()
