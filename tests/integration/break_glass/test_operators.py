"""Who may break the glass (R14), with which reason, and by which ways no role can."""

import json

from tests.integration.break_glass.refusals import message, refusal
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import (
    DELETE,
    INSERT,
    OPERATOR,
    STRANGER,
    UPDATE,
    Race,
    count,
    open_race,
    operators,
    racer,
    run,
)
from tests.support.servers import command
from tests.support.use_cases import keyed, listed, open_gateway, patch, post, put, result_of


async def test_a_reason_has_three_letters_at_least(plain: Race) -> None:
    for reason in ("x", "ok", "  a b  ", "\t\n \n", "a\n\nb"):
        for statement in (UPDATE, INSERT.replace("'k'", "'z'"), DELETE):
            assert await run(plain.a, statement, glass=reason, login=OPERATOR) == "FP400", (reason, statement)
    assert await count(plain) == 0


async def test_an_empty_reason_leaves_the_glass_whole(plain: Race) -> None:
    assert await run(plain.a, UPDATE, glass="", login=OPERATOR) == "FP428"
    assert await run(plain.a, UPDATE, login=OPERATOR) == "ok"
    # '' and not NULL from now on in this session.
    assert await run(plain.a, UPDATE, glass=None, login=OPERATOR) == "FP428"


async def test_a_role_without_privileges_learns_what_it_lacks(plain: Race) -> None:
    for statement in (UPDATE, DELETE, INSERT.replace("'k'", "'z'")):
        assert await run(plain.a, statement, login=STRANGER) == "42501", statement
    await plain.a.execute(f"SET SESSION AUTHORIZATION {STRANGER}")
    try:
        refused = await refusal(plain.a, UPDATE)
    finally:
        await plain.a.execute("RESET SESSION AUTHORIZATION")
    assert message(refused) == f"{STRANGER} may not break the glass: fencepost.break_glass is set"
    assert getattr(refused, "detail", "") == "That is for roles which may execute fencepost.may_break_glass()."
    assert getattr(refused, "hint", "").endswith(f"GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO {STRANGER}")
    assert await run(plain.a, UPDATE, token=31, login=STRANGER) == "ok", "a good token needs no glass"
    assert await count(plain) == 0


async def test_a_role_that_another_role_made_opens_nothing(plain: Race) -> None:
    """A role that may create roles could make one of any name, and is its member: only our own privilege counts."""
    race = plain
    await race.observer.execute("CREATE ROLE glass_maker LOGIN CREATEROLE; GRANT ALL ON public.orders TO glass_maker")
    try:
        make = ("DROP ROLE IF EXISTS fencepost_operators", "CREATE ROLE fencepost_operators")
        assert await run(race.a, make, glass=None, login="glass_maker") == "ok"
        assert await run(race.a, UPDATE, login="glass_maker") == "42501"
        grant = "GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO glass_maker"
        assert await run(race.a, grant, glass=None, login="glass_maker") == "42501"
        await race.observer.execute(grant)
        assert await run(race.a, UPDATE, login="glass_maker") == "ok"
    finally:
        await race.observer.execute("DROP OWNED BY glass_maker; DROP ROLE fencepost_operators, glass_maker")


async def test_without_such_a_role_it_is_for_who_owns_the_schema(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer, role=False):
        assert await run(race.a, UPDATE, login=OPERATOR) == "42501"
        owner = await race.observer.fetchval(
            "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname='fencepost'"
        )
        await race.observer.execute(f"GRANT {owner} TO {OPERATOR}")
        assert await run(race.a, UPDATE, login=OPERATOR) == "ok"


async def test_a_function_that_runs_as_its_owner_does_not_open_the_case_for_its_caller(plain: Race) -> None:
    """Nor does SET ROLE close it: the login counts."""
    race = plain
    body = "UPDATE public.orders SET n = 9"
    await race.observer.execute(
        f"CREATE FUNCTION public.as_owner() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ {body} $$"
    )
    assert await run(race.a, "SELECT public.as_owner()", login=STRANGER) == "42501"
    await race.observer.execute(f"GRANT {STRANGER} TO {OPERATOR}")
    assert await run(race.a, [f"SET LOCAL ROLE {STRANGER}", UPDATE], login=OPERATOR) == "ok"


async def test_a_role_that_may_not_break_the_glass_records_and_learns_nothing(plain: Race) -> None:
    race = plain
    for call in (
        "fencepost.record_break_glass('orders', 'orders/k', 'UPDATE')",
        "fencepost.mark_behind_glass('orders', 'orders/k', NULL)",
    ):
        assert await run(race.a, f"SELECT {call}", login=STRANGER) == "42501", call
        assert await run(race.a, f"SELECT {call}", glass=None, login=STRANGER) == "ok", call
    assert await race.a.fetchval("SELECT fencepost.mark_behind_glass('orders', 'orders/k', 7)") is None
    assert await count(race) == 0


async def test_a_reason_in_the_gateways_role_opens_nothing(plain: Race, connect: Connect) -> None:
    """ALTER DATABASE, or ROLE, gives it to everybody who connects: the gateway does not take it."""
    race = plain
    await race.delete(race.a, "k", 34)
    for setting in ("fencepost.break_glass = 'left behind'", "fencepost.token = '99'"):
        name = await race.observer.fetchval("SELECT quote_ident(current_database())")
        await race.observer.execute(f"ALTER DATABASE {name} SET {setting}")
    ordinary = await connect()
    assert await ordinary.fetchval("SELECT current_setting('fencepost.break_glass')") == "left behind"
    assert await (await racer(connect)).fetchval("SELECT current_setting('fencepost.break_glass')") == ""
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await post(gateway, listed(34, {"order_id": "k"}))) == "FP002"
        assert result_of(await put(gateway, keyed("k", 34, n=1))) == "FP002"
        assert result_of(await put(gateway, keyed("k", 35, n=1))) == "created"
        assert result_of(await patch(gateway, keyed("k", 35, n=1))) == "FP002"
    assert await count(race) == 0


async def test_status_shows_the_last_five_uses(plain: Race) -> None:
    async def status(*options: str) -> str:
        answered = await command("status", *options, database=plain.dsn)
        assert answered.exit_code == 0, answered.output
        return answered.output

    assert "glass" not in await status()
    assert json.loads(await status("--json"))["broken_glass"] == []
    for number in range(7):
        assert await run(plain.a, UPDATE, glass=f"INC-{number}:\n the   worker", login=OPERATOR) == "ok"
    text = await status()
    assert "done in the place of a holder, without its token" in text
    assert [f"INC-{number}: the worker" in text for number in range(7)] == [False, False] + [True] * 5
    assert text.index("INC-6") < text.index("INC-2"), "newest first"
    seen = json.loads(await status("--json"))
    assert [use["resource"] for use in seen["broken_glass"]] == ["orders/k"] * 5
    assert seen["broken_glass"][0]["login"] == OPERATOR
    assert seen["protected"][0]["name"] == "orders"
    assert [sorted(each) for each in seen["kept"]] == [["bytes", "records", "what"]] * len(seen["kept"])
