"""As races.py: tables of the built-in source (R12), which has issued ISSUED tokens."""

from dataclasses import replace

from tests.support.interleave import Connection
from tests.support.racing import ISSUED, Race, outcome
from tests.support.use_cases import delete, keyed, listed, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import MAX_TOKEN, Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.use_cases import claim
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.marks import claim_absent

UNISSUED = ISSUED + 1


async def claim_under_an_old_catalog_is_refused(race: Race) -> None:
    """R12: a claim that waits while its table changes its source is judged by the source of then."""
    await protect(race.observer, "orders", source="external")
    holder = await race.begin(race.a)
    await race.a.execute("SELECT fencepost.raise_mark('orders/k', 40, 'strict', true)")
    # It has not touched the table yet, so nothing keeps the table from changing.
    known = replace(race.table, fence=replace(race.fence, source="external"))
    claiming = claim_absent(race.b, known, ("k",), Token(MAX_TOKEN), "orders/k")
    waiter = await race.waits(race.b, outcome(claiming))
    await protect(race.observer, "orders", source="builtin")
    await holder.rollback()
    assert await waiter == "FP018"
    assert await race.recorded("k") is None


async def unissued_is_reported_before_missing(race: Race) -> None:
    """R5, R12: 404 and 23505 are for tokens that were issued."""
    await race.insert(race.a, "there", 30)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    async with open_gateway(race.dsn) as gateway:
        for key in ("never", "gone"):
            assert result_of(await patch(gateway, keyed(key, UNISSUED, status="x"))) == "FP018", key
            assert result_of(await delete(gateway, keyed(key, UNISSUED))) == "FP018", key
            assert result_of(await put(gateway, keyed(key, UNISSUED, status="x"))) == "FP018", key
            assert result_of(await claim(gateway, Claim(Resource("orders", (key,)), Token(UNISSUED)))) == "FP018", key
        assert result_of(await patch(gateway, keyed("never", ISSUED, status="x"))) == "FP006"
        assert result_of(await patch(gateway, keyed("gone", 39, status="x"))) == "FP001"
        answer = await post(gateway, listed(UNISSUED, {"order_id": "there"}))
        assert result_of(answer) == "FP018"
        assert isinstance(answer, Problem)
        assert (answer.resource, answer.presented_token) == ("orders/there", UNISSUED)
        assert answer.extra == {}
        assert str(ISSUED) not in answer.detail, "it is its holder's"
        assert result_of(await post(gateway, listed(ISSUED, {"order_id": "there"}))) == "23505"


async def nextval_waits_for_the_tokens_to_move(race: Race) -> None:
    """R9, R12: no session draws a token between the look at the marks and the move past them."""
    moving = await race.begin(race.a)
    await race.a.execute("SELECT fencepost.issue_beyond(5000)")
    draw = await race.waits(race.b, race.b.fetchval("SELECT nextval('fencepost.tokens')"))
    await moving.commit()
    assert await draw == 5001
    moving = await race.begin(race.a)
    await race.a.execute("SELECT fencepost.issue_beyond(9000)")
    draw = await race.waits(race.b, race.b.fetchval("SELECT nextval('fencepost.tokens')"))
    await moving.rollback()
    assert await draw == 5002, "a move that was taken back has not happened"


async def tokens_never_move_back(race: Race) -> None:
    """R9: a move that waited for draws which went further has nothing left to do."""
    drawing = await race.begin(race.a)
    await race.a.fetchval("SELECT nextval('fencepost.tokens')")
    move = await race.waits(race.b, race.b.execute(f"SELECT fencepost.issue_beyond({ISSUED + 5})"))
    await race.a.execute("SELECT nextval('fencepost.tokens') FROM generate_series(1, 20)")
    await drawing.commit()
    await move
    assert await issued(race.observer) == ISSUED + 21
    assert await race.c.fetchval("SELECT nextval('fencepost.tokens')") == ISSUED + 22
    await race.c.execute("SELECT fencepost.issue_beyond(3)")
    assert await issued(race.observer) == ISSUED + 22


async def two_moves_at_once_do_not_deadlock(race: Race) -> None:
    """R9: neither holds what the other needs: the first look takes no lock that lasts."""
    first = await race.begin(race.a)
    await race.a.execute("SELECT fencepost.issue_beyond(3)")  # looks, and has nothing to do
    second = await race.begin(race.b)
    await race.b.execute("SET LOCAL lock_timeout = '500ms'")
    assert await outcome(race.b.execute("SELECT fencepost.issue_beyond(5000)")) == "SELECT 1"
    await second.commit()
    await race.a.execute("SELECT fencepost.issue_beyond(6000)")
    await first.commit()
    assert await issued(race.observer) == 6000


async def issued(connection: Connection) -> int:
    """How far the built-in source is."""
    number: int = await connection.fetchval("SELECT fencepost.issued()")
    return number
