"""A token above what the table takes raises no mark, whatever brings it (R12), and what lowers a mark.

It is above the ceiling of an external table, or the built-in source, which has issued ISSUED tokens, never issued it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from tests.races.openings import BUILTIN, STRICT, opened
from tests.support.interleave import Connection
from tests.support.racing import ISSUED, NEW, Race, outcome, protected_table, written
from tests.support.use_cases import delete, keyed, listed, matching, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import MAX_TOKEN, Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.use_cases import claim
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.marks import Appeared, claim_absent
from fencepost.server.postgres.upkeep import Reset, ResetError, reset

HIGHEST = 2**62 - 1
"""What a table of an external source takes if nothing else is set."""
TOO_HIGH = (HIGHEST + 1, MAX_TOKEN)


def highest(race: Race) -> int:
    """Return the highest token that the race's table takes."""
    return ISSUED if race.fence.pinned else HIGHEST


def too_high(race: Race) -> tuple[int, int]:
    return (highest(race) + 1, MAX_TOKEN)


JUMP = 100
Work = Callable[[str], Awaitable[object]]


async def bounded(race: Race, max_token: int | None = None, max_jump: int | None = None) -> None:
    """Set the table's ceiling, and look at it anew."""
    await protect(race.observer, "orders", max_token=max_token, max_jump=max_jump)
    race.table = await protected_table(race.observer, "orders")


async def _claim(race: Race, connection: Connection, key: str, token: int) -> int | Appeared | None:
    """Claim a key without a row, and ask nothing of the observer."""
    return await claim_absent(connection, race.table, (key,), Token(token), f"orders/{key}")


@opened(STRICT, BUILTIN)
async def test_update_above_the_ceiling_is_refused(race: Race) -> None:
    """The gateway's own UPDATE, plain and multi-row, and a claim of a row."""
    await race.insert(race.a, "k", 30, status="new")
    for token in too_high(race):
        assert await outcome(race.update(race.a, "k", token, status="x")) == "FP018"
        assert await outcome(race.claim(race.a, "k", token)) == "FP018"
        assert await outcome(race.update_many(race.a, token, status="x")) == "FP018"
    assert await race.live_mark("k") == 30
    assert written(await race.update(race.a, "k", highest(race))), "the ceiling itself is a token"


@opened(STRICT, BUILTIN)
async def test_direct_update_above_the_ceiling_is_refused(race: Race) -> None:
    """Whichever way the token is given (R14)."""
    await race.insert(race.a, "k", 30)
    update = "UPDATE public.orders SET status = 'x'"
    assert await race.direct(race.a, update, highest(race) + 1) == "FP018"
    assert await race.direct(race.a, update, f"orders={MAX_TOKEN}") == "FP018"
    assert await race.direct(race.a, f"{update}, last_fence_token = {MAX_TOKEN}") == "FP018"
    assert await race.direct(race.a, f"{update}, last_fence_token = -{highest(race) + 1}") == "FP018"
    assert await race.direct(race.a, f"{update}, last_fence_token = {MAX_TOKEN}", 40) == "FP018", "a good one beside it"
    upsert = "INSERT INTO public.orders (order_id) VALUES ('k') ON CONFLICT (order_id) DO UPDATE SET status = 'x'"
    assert await race.direct(race.a, upsert, MAX_TOKEN) == "FP018"
    assert await race.live_mark("k") == 30
    assert await race.direct(race.a, update, highest(race)) == "ok"


@opened(STRICT, BUILTIN)
async def test_insert_above_the_ceiling_is_refused(race: Race) -> None:
    """POST, the INSERT of a PUT, direct SQL and COPY."""
    for token in too_high(race):
        assert await outcome(race.insert(race.a, "k", token)) == "FP018"
        assert await outcome(race.insert_one(race.a, "k", token)) == "FP018"
        assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", token) == "FP018"
        values = f"INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', {token})"
        assert await race.direct(race.a, values) == "FP018"
        copied = race.a.copy_records_to_table(
            "orders", schema_name="public", columns=["order_id", "last_fence_token"], records=[("k", token)]
        )
        assert await outcome(copied) == "FP018"
    assert (await race.row("k"), await race.recorded("k")) == (None, None)
    assert written(await race.insert(race.a, "k", highest(race)))


@opened(STRICT, BUILTIN)
async def test_delete_above_the_ceiling_is_refused(race: Race) -> None:
    """Keyed, multi-row, and direct SQL."""
    await race.insert(race.a, "k", 30, status="new")
    for token in too_high(race):
        assert await outcome(race.delete(race.a, "k", token)) == "FP018"
        assert await outcome(race.delete_many(race.a, token)) == "FP018"
        assert await race.direct(race.a, "DELETE FROM public.orders", token) == "FP018"
    assert (await race.live_mark("k"), await race.recorded("k")) == (30, (30, False))
    assert written(await race.delete(race.a, "k", highest(race)))


@opened(STRICT, BUILTIN)
async def test_claim_of_an_absent_key_above_the_ceiling_is_refused(race: Race) -> None:
    """No trigger sees it."""
    for token in too_high(race):
        assert await outcome(race.claim_absent(race.a, "k", token)) == "FP018"
    assert await race.recorded("k") is None
    assert await outcome(race.claim_absent(race.a, "k", highest(race))) is None


async def test_claim_while_the_ceiling_sinks_is_refused(race: Race) -> None:
    """A claim that waits for a mark while its table gets a lower ceiling: the catalog that it goes by is outdated."""
    holder = await race.begin(race.a)
    await race.a.execute("SELECT fencepost.raise_mark('orders/k', 40, 'strict', true)")
    waiter = await race.waits(race.b, outcome(_claim(race, race.b, "k", 5000)))
    await protect(race.observer, "orders", max_token=1000)
    await holder.rollback()
    assert await waiter == "FP000"
    assert await race.recorded("k") is None


async def _by_key(gateway: Gateway, key: str, token: int) -> dict[str, str]:
    """The answer of each of the gateway's verbs on one key to a token."""
    return {
        "patch": result_of(await patch(gateway, keyed(key, token, status="x"))),
        "delete": result_of(await delete(gateway, keyed(key, token))),
        "put": result_of(await put(gateway, keyed(key, token, status="x"))),
        "post": result_of(await post(gateway, listed(token, {"order_id": key}))),
        "posts": result_of(await post(gateway, listed(token, {"order_id": key}, {"order_id": f"{key}2"}))),
        "array": result_of(await patch(gateway, listed(token, {"order_id": key, "status": "x"}))),
        "claim": result_of(await claim(gateway, Claim(Resource("orders", (key,)), Token(token)))),
    }


async def _by_filter(gateway: Gateway, token: int) -> dict[str, str]:
    """The answer of its verbs on many rows; the row `there` matches."""
    return {
        "patch many": result_of(await patch(gateway, matching(NEW, token, status="x"))),
        "delete many": result_of(await delete(gateway, matching(NEW, token))),
    }


async def test_every_verb_of_the_gateway_reports_it(race: Race) -> None:
    """FP018 on a row that is there, was deleted, or never was; and it comes before missing and duplicate."""
    await race.insert(race.a, "there", 30, status="new")
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    async with open_gateway(race.dsn) as gateway:
        for token in TOO_HIGH:
            for key in ("there", "gone", "never"):
                answers = await _by_key(gateway, key, token) | await _by_filter(gateway, token)
                assert set(answers.values()) == {"FP018"}, (key, answers)
        answer = await patch(gateway, keyed("never", MAX_TOKEN, status="x"))
        assert isinstance(answer, Problem)
        assert (answer.resource, answer.presented_token) == ("orders/never", MAX_TOKEN)
        assert f"above {HIGHEST}" in answer.detail
        assert "--max-token" in (answer.hint or "")
        assert answer.extra == {"highest": str(HIGHEST)}
        assert result_of(await patch(gateway, keyed("never", HIGHEST, status="x"))) == "FP006"
    assert (await race.live_mark("there"), await race.recorded("gone")) == (30, (40, True))
    assert await race.recorded("never") is None


# --max-jump


async def test_a_leap_is_refused(race: Race) -> None:
    """Too far above the mark of a row, of a deleted key, and above none, by any verb."""
    await bounded(race, max_jump=JUMP)
    await race.insert(race.a, "there", 30, status="new")
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    async with open_gateway(race.dsn) as gateway:
        for key, mark in (("there", 30), ("gone", 40), ("never", 0)):
            answers = await _by_key(gateway, key, mark + JUMP + 1)
            assert set(answers.values()) == {"FP018"}, (key, answers)
        answers = await _by_filter(gateway, 30 + JUMP + 1)
        assert set(answers.values()) == {"FP018"}, answers
        answer = await patch(gateway, keyed("never", JUMP + 1, status="x"))
        assert isinstance(answer, Problem)
        assert answer.detail.startswith(f"Token {JUMP + 1} for orders/never is more than {JUMP} above 0")
    assert await race.direct(race.a, "UPDATE public.orders SET n = 1", 30 + JUMP + 1) == "FP018"
    assert await race.direct(race.a, f"UPDATE public.orders SET last_fence_token = {30 + JUMP + 1}") == "FP018"
    assert (await race.live_mark("there"), await race.recorded("gone")) == (30, (40, True))
    assert await race.recorded("never") is None
    assert written(await race.update(race.a, "there", 30 + JUMP)), "the longest leap"
    assert written(await race.insert(race.a, "gone", 40 + JUMP))
    assert await outcome(race.claim_absent(race.a, "never", JUMP)) is None
    assert written(await race.delete(race.a, "there", 30 + 2 * JUMP))


async def test_a_leap_is_measured_from_the_mark_that_is_there_then(race: Race) -> None:
    """An INSERT and a claim wait for the transaction that raises the mark, and are compared with what it left."""
    await bounded(race, max_jump=JUMP)
    post: Work = lambda key: race.insert(race.b, key, 150)  # noqa: E731
    claim_it: Work = lambda key: _claim(race, race.b, key, 150)  # noqa: E731
    for key, work in (("a", post), ("b", claim_it)):
        holder = await race.begin(race.a)
        assert await _claim(race, race.a, key, 90) is None, key
        waiter = await race.waits(race.b, outcome(work(key)))
        await holder.commit()
        assert await waiter != "FP018", key
        assert await race.recorded(key) == (150, key == "b"), key
    for key, work in (("c", post), ("d", claim_it)):
        holder = await race.begin(race.a)
        assert await _claim(race, race.a, key, 90) is None, key
        waiter = await race.waits(race.b, outcome(work(key)))
        await holder.rollback()
        assert await waiter == "FP018", key
        assert await race.recorded(key) is None, key


async def test_a_leap_is_measured_from_the_floor_too(race: Race) -> None:
    """What was pruned had a mark up to the floor; and live rows may be behind it."""
    await race.insert(race.a, "there", 30)
    await bounded(race, max_jump=JUMP)
    await race.observer.execute("SELECT fencepost.prune('orders', 1000)")
    assert await outcome(race.insert(race.a, "new", 1000 + JUMP + 1)) == "FP018"
    assert await outcome(race.claim_absent(race.a, "new", 1000 + JUMP + 1)) == "FP018"
    assert await outcome(race.update(race.a, "there", 1000 + JUMP + 1)) == "FP018"
    assert written(await outcome(race.insert(race.a, "new", 1000 + JUMP)))
    assert written(await outcome(race.update(race.a, "there", 1000 + JUMP)))


# Tokens of the built-in source


@opened(BUILTIN)
async def test_claim_under_an_old_catalog_is_refused(race: Race) -> None:
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


@opened(BUILTIN)
async def test_unissued_is_reported_before_missing(race: Race) -> None:
    """R5, R12: 404 and 23505 are for tokens that were issued."""
    await race.insert(race.a, "there", 30)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    unissued = ISSUED + 1
    async with open_gateway(race.dsn) as gateway:
        for key in ("never", "gone"):
            assert result_of(await patch(gateway, keyed(key, unissued, status="x"))) == "FP018", key
            assert result_of(await delete(gateway, keyed(key, unissued))) == "FP018", key
            assert result_of(await put(gateway, keyed(key, unissued, status="x"))) == "FP018", key
            assert result_of(await claim(gateway, Claim(Resource("orders", (key,)), Token(unissued)))) == "FP018", key
        assert result_of(await patch(gateway, keyed("never", ISSUED, status="x"))) == "FP006"
        assert result_of(await patch(gateway, keyed("gone", 39, status="x"))) == "FP001"
        answer = await post(gateway, listed(unissued, {"order_id": "there"}))
        assert result_of(answer) == "FP018"
        assert isinstance(answer, Problem)
        assert (answer.resource, answer.presented_token) == ("orders/there", unissued)
        assert answer.extra == {}
        assert str(ISSUED) not in answer.detail, "it is its holder's"
        assert result_of(await post(gateway, listed(ISSUED, {"order_id": "there"}))) == "23505"


@opened(BUILTIN)
async def test_nextval_waits_for_the_tokens_to_move(race: Race) -> None:
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


@opened(BUILTIN)
async def test_tokens_never_move_back(race: Race) -> None:
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


@opened(BUILTIN)
async def test_two_moves_at_once_do_not_deadlock(race: Race) -> None:
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


# What lowers a mark


async def test_a_mark_is_not_lowered_by_hand(race: Race) -> None:
    """A mark falls only where this transaction's own record allows it."""
    await race.insert(race.a, "k", 2**61)
    await race.insert(race.a, "other", 40)
    await reset(race.observer, "orders/k", 60, "INC-7")
    await race.update(race.a, "k", 2**61)
    async with race.observer.transaction():
        await race.observer.execute("SELECT set_config('fencepost.break_glass', 'INC-7', true)")
        await race.observer.execute("UPDATE public.orders SET last_fence_token = 60 WHERE order_id = 'k'")
    assert await race.live_mark("k") == 2**61


async def test_a_reset_waits_for_a_claim_under_way(race: Race) -> None:
    """A claim under way of a key without a row ends first, and is seen."""
    await race.claim_absent(race.a, "k", 50)
    holder = await race.begin(race.a)
    assert await race.claim_absent(race.a, "k", 2**61) is None
    resetting = await race.waits(race.b, reset(race.b, "orders/k", 60, "INC-7"))
    await holder.commit()
    assert await resetting == Reset("orders/k", 2**61, 60)


async def test_a_reset_by_hand_stays_above_other_marks(race: Race) -> None:
    """Also for a role that may break the glass and calls the function itself."""
    await race.claim_absent(race.a, "k", 2**61)
    await race.claim_absent(race.a, "other", 70)
    async with race.observer.transaction():
        await race.observer.execute("SELECT set_config('fencepost.break_glass', 'INC-7', true)")
        await outcome(race.observer.execute("SELECT fencepost.reset_mark('orders', 'orders/k', $1, 60)", 2**61))
    assert await race.recorded("k") == (2**61, True)


async def test_a_reset_stays_above_other_marks(race: Race) -> None:
    await race.claim_absent(race.a, "k", 2**61)
    await race.claim_absent(race.a, "other", 70)
    refused = False
    try:
        await reset(race.observer, "orders/k", 60, "INC-7")
    except ResetError:
        refused = True
    assert refused, "it was lowered below another mark"
