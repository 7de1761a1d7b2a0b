"""R1, R2, R4, R5: single-row writes by key, stepped against each other through the use cases; and tempting variants."""

from tests.support.racing import Race, gateway_pid, keyed, open_gateway, outcome, posted, result_of

from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.gateway.use_cases import delete, insert, patch, put
from fencepost.gateway.writes.keyed import KeyedWrite
from fencepost.storage.protecting.protect import protect


async def test_put_that_waits_for_a_delete_creates_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "created"), (35, "created")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed(key, token, status="b")))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.live_mark(key) == (token if answer == "created" else None), token


async def test_put_that_waits_for_a_post_replaces_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "ok"), (37, "ok")):
            key = f"k{token}"
            holder = await race.begin(race.a)
            await race.insert(race.a, key, 36, status="a", n=1)
            waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed(key, token, status="b")))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            row = await race.row(key) or {}
            assert (row["status"], row["n"]) == (("b", 0) if answer == "ok" else ("a", 1)), token


async def test_put_that_waits_for_a_put_replaces_or_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as one, open_gateway(race.dsn) as two:
        holder = await race.begin(race.a)
        await race.update(race.a, "k", 40)
        late = await race.waits_at(await gateway_pid(one), put(one, keyed("k", 39, status="late")))
        new = await race.waits_at(await gateway_pid(two), put(two, keyed("k", 41, status="new")))
        await holder.commit()
        assert result_of(await late) == "FP001"
        assert result_of(await new) == "ok"
    assert (await race.row("k") or {})["status"] == "new"


async def test_put_goes_on_when_the_delete_that_it_waited_for_aborts(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.delete(race.a, "k", 34)
        assert result_of(await put(gateway, keyed("k", 29))) == "FP001"  # without waiting: no outcome makes 29 good
        waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed("k", 31)))
        await holder.rollback()
        assert result_of(await waiter) == "ok"
    assert await race.live_mark("k") == 31


async def test_post_that_loses_to_a_newer_post_is_stale_and_not_a_duplicate(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "23505"), (37, "23505")):
            key = f"k{token}"
            holder = await race.begin(race.a)
            await race.insert(race.a, key, 36)
            post = insert(gateway, posted(token, {"order_id": key}))
            waiter = await race.waits_at(await gateway_pid(gateway), post)
            await holder.commit()
            assert result_of(await waiter) == answer, token


async def test_delete_that_waits_for_a_delete_learns_who_came_first(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "FP006"), (35, "FP006")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), delete(gateway, keyed(key, token)))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.recorded(key) == (34, True), token


async def test_three_writers_on_a_deleted_row_end_with_the_newest(race: Race) -> None:
    """34 deletes; 33 and 35 wait to create. Whichever is woken first, 33 never stays."""
    for order in ((33, 35), (35, 33)):
        key = f"k{order[0]}"
        await race.insert(race.a, key, 32)
        holder = await race.begin(race.a)
        await race.delete(race.a, key, 34)
        first = await race.waits(race.b, outcome(race.insert(race.b, key, order[0])))
        second = await race.waits(race.c, outcome(race.insert(race.c, key, order[1])))
        await holder.commit()
        answers = {order[0]: await first, order[1]: await second}
        assert isinstance(answers[35], list)
        assert answers[33] in ("FP409", "23505")
        assert await race.live_mark(key) == 35
        assert await race.recorded(key) == (35, False)


async def test_a_write_without_a_token_is_refused_whether_the_row_exists_or_not(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        for key in ("k", "nobody"):
            for verb in (patch, put, delete):
                answer = await verb(gateway, KeyedWrite("orders", (key,), None))
                assert result_of(answer) == "FP003"


async def test_the_largest_token_is_taken_and_then_nothing_is(race: Race) -> None:
    largest = 2**63 - 1
    await protect(race.observer, "orders", max_token=largest)
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, keyed("k", largest))) == "ok"
        assert result_of(await patch(gateway, keyed("k", largest))) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", largest - 1))) == "FP001"
        assert result_of(await delete(gateway, keyed("k", largest - 1))) == "FP001"
        assert result_of(await put(gateway, KeyedWrite("orders", ("one",), Token(1)))) == "created"


async def test_a_refusal_reports_presented_and_current_token(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        for answer in (
            await patch(gateway, keyed("k", 29)),
            await put(gateway, keyed("k", 29)),
            await delete(gateway, keyed("k", 29)),
            await insert(gateway, posted(29, {"order_id": "k"})),
        ):
            assert isinstance(answer, Problem)
            assert (answer.name, answer.resource) == ("FP001", "orders/k")
            assert (answer.presented_token, answer.current_token, answer.type.retryable) == (29, 30, False)
            assert answer.retry_after is None


# Controls: the same interleavings with the tempting SQL instead

W = "CREATE TABLE w (id text PRIMARY KEY, s text, mark bigint); INSERT INTO w VALUES ('k', '', 30)"


async def test_control_le_lets_a_token_write_twice(race: Race) -> None:
    """`<=` on a strict table's column: both operations with token 35 are accepted."""
    await race.observer.execute(
        "CREATE TABLE w (id text PRIMARY KEY, s text, mark bigint); INSERT INTO w VALUES ('k', '', 30)"
    )
    write = "UPDATE public.w SET s = s || $1, mark = 35 WHERE id = 'k' AND mark <= 35 RETURNING s"
    holder = await race.begin(race.a)
    assert await race.a.fetchval(write, "a") == "a"
    waiter = await race.waits(race.b, race.b.fetchval(write, "b"))
    await holder.commit()
    assert await waiter == "ab"


async def test_control_check_and_write_in_two_statements_overwrite_the_successor(race: Race) -> None:
    await race.observer.execute(
        "CREATE TABLE w (id text PRIMARY KEY, s text, mark bigint); INSERT INTO w VALUES ('k', '', 30)"
    )
    assert await race.b.fetchval("SELECT mark < 34 FROM public.w")
    await race.a.execute("UPDATE public.w SET s = 'new', mark = 35 WHERE mark < 35")
    await race.b.execute("UPDATE public.w SET s = 'stale', mark = 34")
    assert await race.observer.fetchval("SELECT s FROM w") == "stale"


async def test_control_a_mark_in_another_table_keeps_the_old_snapshot(race: Race) -> None:
    await race.observer.execute(
        "CREATE TABLE w (id text PRIMARY KEY, s text); INSERT INTO w VALUES ('k', '');"
        " CREATE TABLE wm (id text PRIMARY KEY, mark bigint); INSERT INTO wm VALUES ('k', 30)"
    )
    write = "UPDATE public.w SET s = $2 WHERE (SELECT mark FROM public.wm WHERE id = 'k') < $1::bigint RETURNING s"
    holder = await race.begin(race.a)
    await race.a.fetch(write, 35, "new")
    await race.a.execute("UPDATE public.wm SET mark = 35")
    waiter = await race.waits(race.b, race.b.fetchval(write, 34, "stale"))
    await holder.commit()
    assert await waiter == "stale"


async def test_control_a_diagnosis_in_the_same_statement_answers_nonsense(race: Race) -> None:
    """Refused by the statement, and the mark is 30 < 34."""
    await race.insert(race.a, "k", 30)
    holder = await race.begin(race.a)
    await race.update(race.a, "k", 35)
    both = """WITH u AS (UPDATE public.orders SET last_fence_token = 34 WHERE order_id = 'k' AND last_fence_token < 34
                         RETURNING 1)
              SELECT (SELECT count(*) FROM u) AS written, (SELECT last_fence_token FROM public.orders) AS mark"""
    waiter = await race.waits(race.b, race.b.fetchrow(both))
    await holder.commit()
    assert tuple(await waiter or ()) == (0, 30)
    assert await race.verdict("k", 34) == "stale"  # the next statement knows
