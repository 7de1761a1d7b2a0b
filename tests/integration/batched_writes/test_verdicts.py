"""Writes that share a transaction get the verdicts that they would get one after the other (group commit).

`together` sends them at the same moment, so that they are one batch; that it was one is seen by their rows' xmin.
"""

import pytest
from tests.integration.batched_writes.sending import together
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, ISSUED, Race, open_race
from tests.support.use_cases import delete, keyed, listed, open_gateway, patch, post, put

from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.keyed import Batch, FencedRow, WriteStatement


@BOTH_RULES
async def test_a_row_several_times_is_judged_one_after_the_other(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        tokens = (33, 35, 34, 36, 36)
        answers = await together(*(patch(gateway, keyed("a", t, status=f"by {t}")) for t in tokens))
    assert answers == ["ok", "ok", "FP001", "ok", "FP002" if race.strict else "ok"]
    row = await race.row("a") or {}
    assert (row["last_fence_token"], row["status"]) == (36, "by 36")


@BOTH_RULES
async def test_all_verbs_in_one_moment(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answers = await together(
            patch(gateway, keyed("a", 40, status="x")),
            patch(gateway, keyed("b", 40, status="x")),
            patch(gateway, keyed("gone", 40, status="x")),
            put(gateway, keyed("c", 40, status="x")),
            put(gateway, keyed("new", 40, status="x")),
            delete(gateway, keyed("d", 40)),
            delete(gateway, keyed("e", 29)),
            post(gateway, listed(40, {"order_id": "p", "n": 1})),
            post(gateway, listed(40, {"order_id": "q", "n": 1})),
            post(gateway, listed(40, {"order_id": "a", "n": 1})),
        )
    assert answers[:5] == ["ok", "ok", "FP006", "ok", "created"]
    assert answers[5:] == ["ok", "FP001", "created", "created", "FP002" if race.strict else "23505"]
    assert (await race.live_mark("d"), await race.recorded("d")) == (None, (40, True))
    assert [await race.live_mark(key) for key in ("a", "b", "c", "new", "p", "q")] == [40] * 6
    xmins = await race.observer.fetch("SELECT xmin::text FROM orders WHERE order_id IN ('a', 'b')")
    assert len(set(xmins)) == 1, "they did not share a transaction: this test proves nothing"


async def test_a_neighbours_fault_changes_no_verdict(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 41, status="ok")),
            patch(gateway, keyed("b", 41, status="bad")),  # a CHECK
            patch(gateway, keyed("c", 41, status=None)),  # NOT NULL
            patch(gateway, keyed("d", 29, status="late")),
            patch(gateway, keyed("e", 41, status="ok")),
        ) == ["ok", "23514", "23502", "FP001", "ok"]
        first, *others, second = await together(
            patch(gateway, keyed("a", 42, number=1)),
            patch(gateway, keyed("b", 42, number="one")),  # no integer
            patch(gateway, keyed("d", 42, number=2)),
            patch(gateway, keyed("c", 42, number=1)),  # only one of them can have it
        )
        assert others == ["22P02", "ok"]
        assert sorted((first, second)) == ["23505", "ok"]
        assert await together(
            patch(gateway, keyed("e", 43, customer=1)),
            patch(gateway, keyed("f", 43, customer=2)),  # there is none, and that is found at COMMIT
        ) == ["ok", "23503"]
    assert [await race.live_mark(key) for key in "bdef"] == [30, 42, 43, 30]


async def test_a_row_that_cannot_be_created_leaves_its_neighbours_what_they_are(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            put(gateway, keyed("a", 40, status="x")),
            put(gateway, keyed("new", 40, status="bad")),
            put(gateway, keyed("b", 40, status="x")),
            put(gateway, keyed("new too", 40, status="x")),
        ) == ["ok", "23514", "ok", "created"]


async def test_a_connection_that_breaks_under_a_put_that_creates_leaves_nothing_behind(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are written by themselves then, and see nothing of what the batch had done."""
    run = WriteStatement.run

    async def broken(statement: WriteStatement, connection: Connection, batch: Batch) -> list[FencedRow | None]:
        rows = await run(statement, connection, batch)
        if statement.sql.startswith("INSERT"):
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return rows

    monkeypatch.setattr(WriteStatement, "run", broken)
    async with open_gateway(race.dsn) as gateway:
        puts = (put(gateway, keyed("c", 40, status="x")), put(gateway, keyed("new", 40, status="x")))
        assert await together(*puts) == ["ok", "created"]
    assert [await race.live_mark(key) for key in ("c", "new")] == [40, 40]


async def test_what_was_written_is_reported_even_if_the_others_cannot_be_asked_about(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await race.observer.execute("ALTER FUNCTION fencepost.mark_without_row(text, text) RENAME TO gone")
        assert await together(
            patch(gateway, keyed("a", 40, status="x")), patch(gateway, keyed("b", 29, status="x"))
        ) == ["ok", "42883"]
        assert await race.live_mark("a") == 40


async def test_a_deleted_keys_mark_refuses_one_and_not_its_neighbours(race: Race) -> None:
    await race.delete(race.a, "a", 50)
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            post(gateway, listed(49, {"order_id": "a"})),
            post(gateway, listed(49, {"order_id": "x"})),
            post(gateway, listed(49, {"order_id": "y"})),
        ) == ["FP001", "created", "created"]
        assert await together(
            put(gateway, keyed("a", 49)), put(gateway, keyed("b", 49)), put(gateway, keyed("z", 49))
        ) == ["FP001", "ok", "created"]
    assert await race.live_mark("a") is None


async def test_an_unissued_token_is_no_neighbours_matter(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, source="builtin")
    for key in ("a", "b"):
        await race.insert(race.a, key, 30)
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, keyed("a", 31)),
            patch(gateway, keyed("b", ISSUED + 1)),
            patch(gateway, keyed("no", ISSUED + 1)),
        ) == ["ok", "FP018", "FP018"]
