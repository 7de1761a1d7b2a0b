"""An operator behind broken glass and a holder of a token, at the same time, stepped (R14)."""

from tests.support.interleave import Connection
from tests.support.racing import DELETE, INSERT, REASON, UPDATE, Race, run

from fencepost.server.fence.token import Token
from fencepost.server.postgres.marks import Appeared, claim_absent


async def claim_new(race: Race, connection: Connection, token: int) -> int | Appeared | None:
    return await claim_absent(connection, race.table, ("new",), Token(token), "orders/new")


async def test_a_claim_waits_for_a_row_that_is_inserted_behind_glass(plain: Race) -> None:
    """Without a mark to meet at, the claim would answer "no row" while there is one that older tokens can write."""
    race = plain
    holder = await race.begin(race.a)
    await race.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
    await race.a.execute(INSERT.replace("'k'", "'new'"))
    claim = await race.waits(race.b, claim_new(race, race.b, 40))
    await holder.commit()
    assert isinstance(await claim, Exception), "the claim sees the row"
    assert await race.claim(race.b, "new", 40)
    assert await race.direct(race.a, UPDATE.replace("'k'", "'new'"), 39) == "FP409"


async def test_a_row_behind_glass_waits_for_a_claim_and_does_not_undercut_it(plain: Race) -> None:
    race = plain
    holder = await race.begin(race.a)
    assert await race.claim_absent(race.a, "new", 40) is None
    inserting = await race.waits(race.b, run(race.b, INSERT.replace("'k'", "'new'")))
    await holder.commit()
    assert await inserting == "FP409"
    assert await run(race.b, INSERT.replace("'k'", "'new'")) == "ok", "again, and it takes the claim's mark"
    assert await race.live_mark("new") == 40


async def test_an_operator_who_waits_for_a_newer_holder_keeps_the_newer_mark(plain: Race) -> None:
    race = plain
    holder = await race.begin(race.a)
    assert await race.update(race.a, "k", 60)
    waiter = await race.waits(race.b, run(race.b, UPDATE))
    await holder.commit()
    assert await waiter == "ok"
    assert await race.live_mark("k") == 60
    holder = await race.begin(race.a)
    assert await race.update(race.a, "k", 61)
    deleting = await race.waits(race.b, run(race.b, DELETE))
    await holder.commit()
    assert await deleting == "ok"
    assert await race.recorded("k") == (61, True)
