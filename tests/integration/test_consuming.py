"""Queued writes are applied: in order of each resource, each once, and what cannot be is a dead letter."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from tests.support.consuming import (
    Queue,
    both_applied_and_not_done,
    consumed,
    make_tables,
    opened,
    token,
    write,
    wrong_effects,
)
from tests.support.interleave import Connect, Connection
from tests.support.violations import assert_none

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.postgres import sources
from fencepost.server.postgres.queues import MessageRow, append
from fencepost.server.queues.log import Message, partition_of
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import PATIENCE, eventually


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def queue(database: str, owner: Connection) -> AsyncIterator[Queue]:
    """Give the queue of two tables that take all their writes by it."""
    await make_tables(owner)
    async with opened(database, owner) as queue:
        yield queue


def _method(value: bytes) -> tuple[str, bytes]:
    return ("method", value)


POISON: dict[str, tuple[Message, str]] = {
    "a constraint": (write("orders/k1", body={"status": "bad"}), "23514: "),
    "an unknown column": (write("orders/k2", body={"colour": "red"}), "FP016: body: colour"),
    "a value that is none": (write("orders/k3", body={"n": "many"}), "22P02: "),
    "no row": (write("orders/none", body={"n": 1}), "FP006: "),
    "no table": (write("nothing/k4", body={"n": 1}), "FP007: "),
    "no JSON": (Message(b"orders/k5", b"{n: 1", (_method(b"PATCH"),)), "FP016: body: not JSON"),
    "an array": (write("orders/k6", "POST", [{"order_id": "k6"}, {"order_id": "k7"}]), "FP016: message: body: "),
    "no method": (Message(b"orders/k8", b"{}"), "FP016: message: header method: missing"),
    "an unknown header": (
        Message(b"orders/k9", b"{}", (_method(b"PATCH"), ("if-match", b"1"))),
        "FP016: message: header if-match: unknown",
    ),
    "a key that is no name": (write("orders", body={"n": 1}), "FP016: message: key: "),
    "a key that is not UTF-8": (Message(b"orders/\xff", b"{}", (_method(b"PATCH"),)), "FP016: message: key: "),
    "a key that is spelled otherwise": (write("items/07", body={"n": 1}), "FP016: message: key: items/07 is written"),
    "another spelling of the table": (write("public.orders/k1", body={"n": 1}), "FP016: message: key: "),
    "another row than the key's": (write("orders/k10", "POST", {"order_id": "k11"}), "FP016: message: body: "),
    "a key that is cut when it is stored": (
        write("coded/abc ", "POST", {"code": "abc "}),
        "FP016: body: the key abc  would be changed when stored",
    ),
    "a row that is there": (write("orders/k12", "POST", {"order_id": "k12"}), "23505: "),
    "a token": (write("orders/k13", body={"n": 1}, token=token(5)), "FP016: message: header fence-token: "),
    "an unknown query": (write("orders/k14", body={"n": 1}, query=b"n=eq.1"), "FP016: query: "),
    "a wrong preference": (write("orders/k15", body={"n": 1}, prefer=b"return=everything"), "FP016: Prefer"),
}


async def test_poison_messages_are_dead_letters_with_their_reasons_and_all_others_go_on(queue: Queue) -> None:
    for message, _ in POISON.values():
        await queue.append(message)
        if message.key.startswith(b"orders/k"):  # the next one of the same resource
            await queue.append(write(message.key.decode(), "PUT", {"n": 7}))
    async with consumed(queue):
        await queue.empty()
    letters = await queue.letters()
    for name, (message, reason) in POISON.items():
        letter = letters.pop(message.key.decode("utf-8", "replace"))
        assert letter.reason.startswith(reason), f"{name}: {letter.reason}"
        assert letter.message == message, f"{name}: headers and body are kept"
    assert letters == {}
    good = sum(message.key.startswith(b"orders/k") for message, _ in POISON.values())
    assert await queue.states() == {"failed": len(POISON), "applied": good}
    assert await queue.owner.fetchval("SELECT count(*) FROM orders WHERE n = 7") == good


async def test_a_write_that_never_ends_in_time_is_a_dead_letter_while_others_are_applied(
    database: str, owner: Connection
) -> None:
    await make_tables(owner)
    slow = "BEGIN IF NEW.n = 1 THEN PERFORM pg_sleep(600); END IF; RETURN NEW; END"
    await owner.execute(f"CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS '{slow}'")
    await owner.execute(
        "CREATE TRIGGER slow BEFORE UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.slow()"
    )
    async with opened(database, owner, statement_timeout=0.5) as queue, consumed(queue):
        await queue.append(write("orders/k1", body={"n": 1}), write("orders/k1", body={"n": 2}))

        async def buried() -> bool:
            await queue.append(write("orders/k2", body={"n": 3}))  # where nothing is applied, PostgreSQL is slow
            return "orders/k1" in await queue.letters()

        await eventually(buried, within=2 * PATIENCE, what="a dead letter")
        await queue.empty()
        letters = await queue.letters()
    assert {resource: each.reason for resource, each in letters.items()} == {
        "orders/k1": "57014: canceling statement due to statement timeout"
    }
    assert [await queue.n(key) for key in ("k1", "k2")] == [2, 3]


async def test_no_message_is_refused_by_an_outdated_picture_of_its_table(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the picture the message lacks a token, and would be a dead letter."""
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        catalog = queue.gateway.catalog
        before = catalog.current
        await unprotect(owner, "orders")
        await protect(owner, "orders", queue=DEFAULT)

        async def noticed() -> bool:
            fence = catalog.current.tables["orders"].fence
            return fence is not None and fence.queue == DEFAULT

        await eventually(noticed, what="the gateway to notice that the table has a queue")
        monkeypatch.setattr(catalog, "_current", before)  # as if it had not been
        has_changed = catalog.has_changed
        changes: list[bool] = []

        async def seen(*asked: Any) -> bool:
            changes.append(await has_changed(*asked))
            return changes[-1]

        monkeypatch.setattr(catalog, "has_changed", seen)
        consumer = consumer_of(queue.gateway, DEFAULT, queue.settings, "member-0")
        async with consuming(queue.gateway, {DEFAULT: consumer}, queue.settings):
            await queue.append(write("orders/k1", body={"n": 1}))
            await queue.empty()
        assert (await queue.n("k1"), await queue.letters(), changes[:1]) == (1, {}, [True])


async def test_a_message_in_another_partition_than_its_keys_is_a_dead_letter(queue: Queue) -> None:
    message = write("orders/k1", body={"n": 1})
    wrong = (partition_of(message.key, 8) + 1) % 8
    await append(queue.owner, [MessageRow(wrong, message.key, message.headers, message.value)])
    async with consumed(queue):
        await queue.empty()
    assert (await queue.letters())["orders/k1"].reason.startswith("FP016: message: partition: it is in")
    assert await queue.n("k1") == 0


async def test_each_verb_is_answered_as_it_would_have_been_at_once(queue: Queue) -> None:
    await queue.append(
        write("orders/new", "POST", {"order_id": "new", "n": 1}),
        write("orders/new", "PUT", {"status": "open"}, prefer=b"return=minimal"),
        write("orders/new", "PATCH", {"n": 3}, query=b"select=n"),
        write("orders/new", "DELETE"),
    )
    async with consumed(queue):
        await queue.empty()
    rows = await queue.owner.fetch(
        "SELECT status, answer FROM fencepost.idempotency WHERE caller = 'queue' ORDER BY created_at"
    )
    assert [row["status"] for row in rows] == [201, 204, 200, 204]
    assert orjson.loads(rows[0]["answer"]) == [{"order_id": "new", "status": "new", "n": 1}]
    assert orjson.loads(rows[2]["answer"]) == {"n": 3}
    mark = await queue.owner.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE resource = 'orders/new'")
    assert mark == 4, "the position of the last one, plus one"


async def test_a_generation_that_was_raised_gives_no_message_a_second_effect(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of these messages are above the mark now. Their records refuse them."""
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        await both_applied_and_not_done(queue, monkeypatch)
        await sources.raise_source(owner, DEFAULT, "for a test")
        async with consumed(queue):
            await queue.empty()
    assert_none(await wrong_effects(owner, {"orders/k1": [1, 2]}))


@pytest.mark.parametrize("rule", ["strict", "epoch"])
async def test_what_was_applied_and_not_said_to_be_done_has_no_second_effect(
    database: str, owner: Connection, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tables(owner, rule=rule, source="external", effects=True)
    async with opened(database, owner) as queue:
        await queue.append(
            *(write("orders/k1", body={"n": n}, token=token(5 if rule == "epoch" else n)) for n in (1, 2))
        )
        await both_applied_and_not_done(queue, monkeypatch)
        async with consumed(queue):
            await queue.empty()
    assert_none(await wrong_effects(owner, {"orders/k1": [1, 2]}))
    counted = "SELECT ARRAY[sum(applied), sum(redelivered)]::int[] FROM fencepost.queue_partitions"
    assert await owner.fetchval(counted) == [2, 2]


async def test_a_clients_stale_token_is_refused_and_is_no_dead_letter(database: str, owner: Connection) -> None:
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        await queue.append(
            write("orders/k1", body={"n": 34}, token=token(34)),
            write("orders/k1", body={"n": 33}, token=token(33)),
            write("orders/k1", body={"n": 34}, token=token(34)),
            write("orders/k1", body={"n": 0}),
        )
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": 1, "refused": 2, "failed": 1}
        assert (await queue.letters())["orders/k1"].reason.startswith("FP003: ")
        assert await queue.n("k1") == 34


async def test_two_submissions_with_one_idempotency_key_are_one_write(database: str, owner: Connection) -> None:
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": 1}, idempotency_key=b"key-1") for _ in range(2)))
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": 2}
    assert_none(await wrong_effects(owner, {"orders/k1": [1]}))


async def test_a_resource_stops_at_a_dead_letter_where_that_is_wanted(database: str, owner: Connection) -> None:
    await make_tables(owner)
    async with opened(database, owner, stop_resources=True) as queue:
        await queue.append(
            write("orders/k1", body={"n": 1}),
            write("orders/k1", body={"status": "bad"}),
            write("orders/k1", body={"n": 2}),
            write("orders/k1", body={"n": 3}),
            write("orders/k2", body={"n": 2}),
        )
        async with consumed(queue):
            await queue.empty()
        assert (await queue.n("k1"), await queue.n("k2")) == (1, 2)
        letters = sorted(await queue.log.dead.list(10), key=lambda each: each.position.offset)
        because = f"an earlier write of it is a dead letter: {letters[0].id}"
        stopped = f"FP030: orders/k1 is stopped, since {because}."
        assert [each.reason for each in letters[1:]] == [stopped, stopped], "the first one stays the reason"


async def test_a_log_that_was_set_back_is_quarantined_and_goes_on_in_a_new_generation(queue: Queue) -> None:
    async with consumed(queue):
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2, 3)))
        await queue.empty()
        partition = partition_of(b"orders/k1", 8)
        await queue.owner.execute(f"SELECT setval('fencepost.queue_{partition}', 0)")
        await queue.append(write("orders/k1", body={"n": 4}))

        async def quarantined() -> bool:
            known = await sources.list_known(queue.owner)
            return next(each for each in known if each.name == DEFAULT).quarantined is not None

        await eventually(quarantined, what="the quarantine")
        assert await queue.n("k1") == 3, "its token would have been one that was used"
        await sources.raise_source(queue.owner, DEFAULT, "set back by a test")
        await queue.empty()
    assert await queue.n("k1") == 4
    mark = await queue.owner.fetchval("SELECT last_fence_token FROM orders WHERE order_id = 'k1'")
    assert mark >> 48 == 1
