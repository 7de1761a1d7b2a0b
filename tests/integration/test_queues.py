"""Queued writes on the log postgres:default: applied in order and once, copied, delivered again, recorded."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.integration.test_batched import together
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
from tests.support.interleave import Connect, Connection, blocks_another_session
from tests.support.postgres import Unmade
from tests.support.racing import Race, applied, audited_race
from tests.support.use_cases import gateway_pid, once, open_gateway, patch, result_of
from tests.support.use_cases import keyed as keyed_write
from tests.support.violations import assert_none

from fencepost.server.fence.problem_types import DATABASE_BUSY
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import Rule
from fencepost.server.gateway.attempt import MOST_IDEMPOTENT
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import IdempotentRequest, Replayed, recorded_problem
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.submit import find
from fencepost.server.gateway.use_cases import write as write_row
from fencepost.server.gateway.write import Verb
from fencepost.server.http.answers import decided_answer
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.postgres import keyed, queues, sources
from fencepost.server.postgres import keyed as idempotency
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.keyed import OF_QUEUES
from fencepost.server.postgres.queues import MessageRow, Result, append
from fencepost.server.queues.log import Message, Position, partition_of
from fencepost.server.queues.message import WriteId, content_of, nonce_of, parse_write_id
from fencepost.server.queues.postgres import PostgresConsumer
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import ConsumingTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# Queued writes are applied: in order of each resource, each once, and what cannot be is a dead letter.


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


async def test_poison_messages_are_dead_letters_with_their_reasons_and_all_others_go_on(queue: Queue) -> None:
    poison: dict[str, tuple[Message, str]] = {
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
        "a key that is spelled otherwise": (
            write("items/07", body={"n": 1}),
            "FP016: message: key: items/07 is written",
        ),
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
    for message, _ in poison.values():
        await queue.append(message)
        if message.key.startswith(b"orders/k"):  # the next one of the same resource
            await queue.append(write(message.key.decode(), "PUT", {"n": 7}))
    async with consumed(queue):
        await queue.empty()
    letters = await queue.letters()
    for name, (message, reason) in poison.items():
        letter = letters.pop(message.key.decode("utf-8", "replace"))
        assert letter.reason.startswith(reason), f"{name}: {letter.reason}"
        assert letter.message == message, f"{name}: headers and body are kept"
    assert letters == {}
    good = sum(message.key.startswith(b"orders/k") for message, _ in poison.values())
    assert await queue.states() == {"failed": len(poison), "applied": good}
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
        monkeypatch.setattr(catalog, "current", before)  # as if it had not been
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
    ids = await queue.owner.fetch("SELECT key FROM fencepost.idempotency WHERE caller = 'queue' ORDER BY created_at")
    answers = []
    for row in ids:
        result = await find(queue.gateway, parse_write_id(row["key"]))
        assert isinstance(result, Result)
        answers.append(orjson.loads(orjson.dumps(decided_answer(parse_write_id(row["key"]), result)["answer"])))
    assert [each["status"] for each in answers] == [201, 204, 200, 204]
    bodies = [each["body"] for each in answers]
    assert bodies == [[{"order_id": "new", "status": "new", "n": 1}], None, {"n": 3}, None]
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


# A message that its producer appended twice, at two offsets, is one write: the second one has no effect, though the
# fence lets it pass. Kafka's idempotent producer does this where messages before it timed out.


async def consume(queue: Queue) -> None:
    async with consumed(queue):
        await queue.empty()


async def state(queue: Queue, position: Position, message: Message) -> str:
    """Ask for a write as its page does."""
    found = await find(queue.gateway, WriteId(DEFAULT, position, nonce_of(message)))
    assert isinstance(found, Result), found
    return found.state


@pytest.mark.parametrize(
    ("rule", "batched", "together"),
    [("strict", True, True), ("strict", True, False), ("strict", False, False), ("epoch", False, True)],
)
async def test_a_copy_has_no_effect(
    database: str, owner: Connection, rule: Rule, *, batched: bool, together: bool
) -> None:
    """A table with triggers takes writes one by one; others take them in batches. `together`: taken at once."""
    await make_tables(owner, rule=rule, effects=not batched)
    first, second = (write("orders/k1", body={"n": n}) for n in (1, 2))
    redelivered = "SELECT coalesce(sum(redelivered), 0) FROM fencepost.queue_partitions"
    async with opened(database, owner) as queue:
        positions = await queue.append(first, second)
        if not together:
            await consume(queue)
        positions += await queue.append(first, write("orders/k2", body={"n": 7}))
        await consume(queue)
        assert (await queue.n("k1"), await queue.n("k2")) == (2, 7)
        assert await queue.states() == {"applied": 3}
        assert [await state(queue, each, first) for each in (positions[0], positions[2])] == ["applied", "applied"]
        assert await owner.fetchval(redelivered) == 1
    assert batched or not await wrong_effects(owner, {"orders/k1": [1, 2], "orders/k2": [7]})


@pytest.mark.parametrize(
    ("message", "becomes"),
    [
        (write("orders/new", "POST", {"order_id": "new"}), "applied"),
        (write("orders/k1", body={"n": 4}, idempotency_key=b"key"), "applied"),
        (write("orders/k1", body={"status": "bad"}), "failed"),
    ],
    ids=["POST", "PATCH with a key of its client", "a dead letter"],
)
async def test_a_copy_becomes_what_the_first_one_became(
    database: str, owner: Connection, message: Message, becomes: str
) -> None:
    await make_tables(owner)
    async with opened(database, owner) as queue:
        positions = await queue.append(message, message)
        await consume(queue)
        assert await queue.states() == {becomes: 1}
        assert [await state(queue, each, message) for each in positions] == [becomes, becomes]
        letters = [each.id for each in await queue.log.dead.list(10)]
        assert letters == [str(WriteId(DEFAULT, positions[0], nonce_of(message)))][: becomes == "failed"]


@pytest.mark.parametrize(("batched", "key"), [(True, None), (False, b"key")])
async def test_a_copy_of_what_failed_has_no_effect_though_it_could_be_done_now(
    database: str, owner: Connection, key: bytes | None, *, batched: bool
) -> None:
    """With a key of its client, too: the record of the message is in the transaction of the effect."""
    await make_tables(owner, effects=not batched)
    message = write("orders/late", body={"n": 1}, idempotency_key=key)
    async with opened(database, owner) as queue:
        positions = await queue.append(message)
        await consume(queue)
        await queue.append(write("orders/late", "POST", {"order_id": "late"}), write("orders/late", body={"n": 2}))
        positions += await queue.append(message, write("orders/k2", body={"n": 7}))
        await consume(queue)
        assert (await queue.n("late"), await queue.n("k2")) == (2, 7)
        assert [await state(queue, each, message) for each in positions[:2]] == ["failed", "failed"]
        assert len(await queue.log.dead.list(10)) == 1
    assert batched or not await wrong_effects(owner, {"orders/late": [0, 2]})


async def test_a_message_that_failed_is_not_done_when_it_comes_again_under_a_token_of_its_client(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence lets it pass, and there is no record under the client's key: that of the message decides."""
    await make_tables(owner, source="external", effects=True)
    message = write("orders/late", body={"n": 1}, token=token(5), idempotency_key=b"key")

    async def forget(_consumer: PostgresConsumer, _received: object) -> None:
        """Say nothing, as before kill -9."""

    async with opened(database, owner) as queue:
        await queue.append(message)
        with monkeypatch.context() as patched:
            patched.setattr(PostgresConsumer, "done", forget)
            async with consumed(queue):
                await eventually(lambda: failed(queue), what="it failed")
        await owner.execute("INSERT INTO orders (order_id, last_fence_token) VALUES ('late', 4)")
        await consume(queue)
        assert await queue.states() == {"failed": 1}
        assert await queue.n("late") == 0


async def failed(queue: Queue) -> bool:
    return await queue.states() == {"failed": 1}


async def test_another_message_with_the_same_nonce_is_another_write(database: str, owner: Connection) -> None:
    await make_tables(owner, effects=True)
    first, second = (write("orders/k1", body={"n": n}) for n in (1, 2))
    async with opened(database, owner) as queue:
        positions = await queue.append(first, replace(second, headers=first.headers))
        await consume(queue)
        assert await queue.states() == {"applied": 2}
        assert [await state(queue, each, first) for each in positions] == ["applied", "applied"]
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_equal_messages_without_nonces_are_two_writes(database: str, owner: Connection) -> None:
    await make_tables(owner, effects=True)
    message = write("orders/k1", body={"n": 1})
    message = replace(message, headers=message.headers[:-1])
    assert nonce_of(message) is None
    async with opened(database, owner) as queue:
        await queue.append(message, message)
        await owner.execute("UPDATE fencepost.queued SET appended_at = now()")
        await consume(queue)
        assert await queue.states() == {"applied": 2}
    assert not await wrong_effects(owner, {"orders/k1": [1, 1]})


async def test_a_copy_that_meets_the_first_one_before_it_is_committed_waits_for_it(
    connect: Connect, database: str, owner: Connection
) -> None:
    """The first one in the hand of a consumer whose transaction is open, the second one taken by another consumer. The
    first one's effect is left out here, so that an effect would be the second one's.
    """
    await make_tables(owner, effects=True)
    message, first = write("orders/k1", body={"n": 1}), await connect()
    async with opened(database, owner) as queue:
        (position,) = await queue.append(message)
        await owner.execute("DELETE FROM fencepost.queued")
        await queue.append(message)
        uncommitted = first.transaction()
        await uncommitted.start()
        await first.execute("SELECT FROM public.orders WHERE order_id = 'k1' FOR UPDATE")
        await first.execute(
            "SELECT fencepost.idem_record('queue', $1, $2, '{}', '{}', NULL)",
            str(WriteId(DEFAULT, position, nonce_of(message))),
            content_of(message),
        )
        async with consumed(queue):
            await blocks_another_session(first, owner)
            await uncommitted.commit()
            await queue.empty()
        assert await queue.states() == {"applied": 1}
    assert await owner.fetchval("SELECT count(*) FROM public.effects") == 0


# Messages that come again when their records are old: none is forgotten that is needed, and nothing happens twice.

ASKS_SOON = Times(consuming=ConsumingTimes(committed_every=0.05, take_for=0.1))
DAY = 86_400.0
AGE = "UPDATE fencepost.idempotency SET created_at = created_at - interval '2 days'"
AGE_MESSAGES = "UPDATE fencepost.queued SET appended_at = appended_at - interval '2 days'"
KEPT = "SELECT count(*) FROM fencepost.idempotency WHERE caller = 'queue'"
COMMITTED = """SELECT count(*) FROM fencepost.queue_partitions p JOIN fencepost.queues q USING (source)
WHERE p.committed IS NOT NULL AND q.looked_at IS NOT NULL"""


async def grown_old(owner: Connection) -> int:
    """Have all records be two days old, and forget those older than one; how many of messages are left."""
    await owner.execute(AGE)
    await keyed.prune(owner, DAY)
    left: int = await owner.fetchval(KEPT)
    return left


async def committed_is_known(queue: Queue) -> None:
    """Have a consumer ask the log what it has committed."""

    async def known() -> bool:
        return bool(await queue.owner.fetchval(COMMITTED))

    async with consumed(queue, times=ASKS_SOON):
        await eventually(known, what="what is committed")


async def given_again(queue: Queue, *messages: str) -> None:
    """Put messages back into the log that it has given before: as `queued` was when this was read."""
    for each in messages:
        await queue.owner.execute(
            "INSERT INTO fencepost.queued SELECT (jsonb_populate_record(NULL::fencepost.queued, $1::text::jsonb)).*",
            each,
        )


async def queued(queue: Queue) -> list[str]:
    rows = await queue.owner.fetch("SELECT to_jsonb(q)::text AS row FROM fencepost.queued q ORDER BY position")
    return [row["row"] for row in rows]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
async def test_a_record_stays_while_its_message_may_come_again(
    database: str, owner: Connection, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tables(owner, rule=rule, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        # It knows what is committed, and that these are not.
        await both_applied_and_not_done(queue, monkeypatch, ASKS_SOON)
        assert await grown_old(owner) == 2
        async with consumed(queue):
            await queue.empty()
        assert await queue.letters() == {}
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_a_record_goes_when_the_log_has_committed_its_message(database: str, owner: Connection) -> None:
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}))
        async with consumed(queue, times=Times(consuming=ConsumingTimes(committed_every=3600))):
            await queue.empty()
        assert await grown_old(owner) == 1, "nobody has said that it is committed"
        await committed_is_known(queue)
        assert await grown_old(owner) == 0


@pytest.mark.parametrize("forgotten", ["both", "the last"])
async def test_what_comes_again_after_its_record_was_forgotten_is_no_dead_letter(
    database: str, owner: Connection, forgotten: str
) -> None:
    """To a consumer that took it a day ago, for example. The mark says it of the last, the log's word of the others."""
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        taken = await queued(queue)
        async with consumed(queue):
            await queue.empty()
        if forgotten == "both":
            await committed_is_known(queue)
            assert await grown_old(owner) == 0
        else:
            await owner.execute("DELETE FROM fencepost.idempotency WHERE key LIKE '%.1.%'")
        await given_again(queue, *taken)
        async with consumed(queue):
            await queue.empty()
        assert await queue.letters() == {}
        assert await queue.log.dead.count() == {}
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_a_position_overtaken_without_a_record_is_a_dead_letter(database: str, owner: Connection) -> None:
    """Nothing says what became of it: the log gives it once more, and was not asked what it has committed."""
    await make_tables(owner, effects=True)
    times = Times(consuming=ConsumingTimes(committed_every=3600))
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        (first, _) = await queued(queue)
        async with consumed(queue, times):
            await queue.empty()
        await owner.execute("DELETE FROM fencepost.idempotency WHERE caller = 'queue'")
        await given_again(queue, first)
        async with consumed(queue, times):
            await queue.empty()
        said = "FP001: A newer write of the resource was applied, and there is no record of this one. "
        assert (await queue.letters())["orders/k1"].reason.startswith(said)
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_an_append_that_was_under_way_when_the_log_was_asked_is_not_taken_for_decided(
    connect: Connect, database: str, owner: Connection
) -> None:
    """The log counts an offset that is drawn and not committed; its message is old when a consumer gets it."""
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k0", body={"n": 1}))
        async with consumed(queue):
            await queue.empty()
        generation = await owner.fetchval("SELECT generation FROM fencepost.source_bounds($1)", DEFAULT)
        message, appending = write("orders/k1", body={"n": 7}), await connect()
        partition = partition_of(message.key, queues.PARTITIONS)
        async with appending.transaction():
            row = queues.MessageRow(partition, message.key, message.headers, message.value)
            (offset,) = await queues.append(appending, [row])
            below = await queues.decided(owner)
            assert below[partition] == offset + 1, "this is what must do no harm"
            await queues.note_committed(owner, DEFAULT, generation, below)
        await owner.execute(AGE_MESSAGES)
        async with consumed(queue):
            await queue.empty()
        assert await queue.n("k1") == 7


async def test_an_old_message_with_a_key_of_its_client_is_applied_once(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer under the client's key was forgotten; that of the message was not."""
    await make_tables(owner, rule="epoch", source="external", effects=True)
    async with opened(database, owner) as queue:
        messages = (write("orders/k1", body={"n": n}, token=token(5), idempotency_key=b"key-%d" % n) for n in (1, 2))
        await queue.append(*messages)
        await both_applied_and_not_done(queue, monkeypatch)
        assert await grown_old(owner) == 2
        assert await owner.fetchval("SELECT count(*) FROM fencepost.idempotency WHERE caller = ''") == 0
        await owner.execute(AGE_MESSAGES)
        async with consumed(queue):
            await queue.empty()
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_what_a_restored_log_gives_again_in_a_new_generation_finds_its_record(
    database: str, owner: Connection
) -> None:
    """With a nonce and without: the id of a message without one is made of what it says, and when it was appended."""
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        plain = write("orders/k2", body={"n": 2})
        await queue.append(write("orders/k1", body={"n": 1}), replace(plain, headers=plain.headers[:-1]))
        taken = await queued(queue)
        async with consumed(queue):
            await queue.empty()
        await sources.raise_source(owner, DEFAULT, "restored, in a test")
        await given_again(queue, *taken)
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": 2}
    assert not await wrong_effects(owner, {"orders/k1": [1], "orders/k2": [2]})


# Messages of a queue in the gateway's write path: one effect and one record, however often they are applied (R16).
# A batch of them looks nothing up. The row's xmin shows whether it was written again: a transaction that was undone
# leaves none.


def of_queue(
    gateway: Gateway, verb: Verb, key: str, token: int, name: str, **values: Any
) -> Coroutine[Any, Any, Outcome]:
    """Write as the message with this id does."""
    asked = replace(keyed_write(key, token, **values), verb=verb)
    return write_row(gateway, asked, IdempotentRequest(name, b"", gateway, asked, OF_QUEUES, looked_up=False))


async def _records(race: Race) -> list[str]:
    found = await race.observer.fetch("SELECT key FROM fencepost.idempotency WHERE caller = 'queue' ORDER BY key")
    return [row["key"] for row in found]


async def _version(race: Race, key: str) -> Any:
    return await race.observer.fetchval("SELECT xmin::text FROM orders WHERE order_id = $1", key)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the records of each batch that gets as far as recording."""
    counts: list[int] = []
    genuine = idempotency.record_many

    async def counted(connection: Any, records: Sequence[Any]) -> None:
        counts.append(len(records))
        await genuine(connection, records)

    monkeypatch.setattr(idempotency, "record_many", counted)
    return counts


async def test_a_batch_of_256_messages_looks_nothing_up_and_records_all(
    connect: Connect, unmade: Unmade, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await audited_race(connect, unmade, "strict", counting=False)
    sent: list[str] = []
    genuine = Session.fetch

    async def seen(self: Session, query: str, *args: Any, **more: Any) -> Any:
        sent.append(query)
        return await genuine(self, query, *args, **more)

    monkeypatch.setattr(Session, "fetch", seen)
    keys = [f"k{n:03}" for n in range(257)]
    async with open_gateway(race.dsn) as gateway:
        writes = (of_queue(gateway, "put", key, 31, f"id-{key}", n=1) for key in keys)
        assert await together(*writes) == ["created"] * 257
    assert await _records(race) == [f"id-{key}" for key in keys]
    assert sum(batches) == 257
    assert max(batches) > MOST_IDEMPOTENT, "what gathers while the first is in flight is one batch, of up to 256"
    assert not [query for query in sent if "idem_begin" in query]


async def test_a_message_that_failed_is_not_applied_when_it_comes_again(connect: Connect, unmade: Unmade) -> None:
    """Its problem is what it came to, and no refusal of this try: a retryable one would have it tried for ever."""
    race = await audited_race(connect, unmade, "epoch", counting=False)
    await race.insert(race.a, "f", 30)
    before = await _version(race, "f")
    failed = recorded_problem(Problem(DATABASE_BUSY, "It took too long.", retry_after=1))
    assert await queues.record(race.a, "id-f", b"", "failed", failed)
    async with open_gateway(race.dsn) as gateway:
        again = await of_queue(gateway, "patch", "f", 31, "id-f", n=1)
    assert isinstance(again, Replayed)
    assert again.of_message
    assert await _version(race, "f") == before, "it was not written"
    assert await _records(race) == ["id-f"]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
async def test_a_message_that_comes_again_in_a_batch_is_refused_or_replayed_and_its_neighbours_land(
    connect: Connect, unmade: Unmade, rule: Rule
) -> None:
    race = await audited_race(connect, unmade, rule, counting=False)
    for key in "abcde":
        await race.insert(race.a, key, 30)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await of_queue(gateway, "patch", "c", 31, "id-c", n=1)) == "ok"
        before = await _version(race, "c")
        writes = (of_queue(gateway, "patch", key, 31, f"id-{key}", n=1) for key in "abcde")
        answers = await asyncio.gather(*writes)
    again = answers[2]
    if rule == "strict":
        assert result_of(again) == "FP002"
    else:
        assert isinstance(again, Replayed)
        assert again.rows == ['{"order_id":"c","status":"new","n":1}']
        assert again.of_message
    assert await _version(race, "c") == before, "it was not written again"
    assert [result_of(answer) for answer in answers if answer is not again] == ["ok"] * 4
    assert await _records(race) == [f"id-{key}" for key in "abcde"]


@pytest.mark.parametrize(
    ("rule", "counting"), [("strict", False), ("epoch", True)], ids=["strict, in batches", "epoch, alone"]
)
async def test_two_consumers_that_apply_a_message_at_once_have_one_effect_and_one_record(
    connect: Connect, unmade: Unmade, rule: Rule, counting: bool
) -> None:
    """One waits for the row. The other one, which comes while it does, is to come again, and replays then."""
    race = await audited_race(connect, unmade, rule, counting=counting)
    async with open_gateway(race.dsn) as one, open_gateway(race.dsn) as two:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        pid = await gateway_pid(one)
        first = await race.waits_at(pid, of_queue(one, "patch", "k", 31, "id-k", n=1))
        second = await asyncio.wait_for(of_queue(two, "patch", "k", 31, "id-k", n=1), PATIENCE)
        assert result_of(second) == "FP013", "in flight: it comes again"
        await holder.commit()
        assert isinstance(await first, Done)
        before = await _version(race, "k")
        again = await of_queue(two, "patch", "k", 31, "id-k", n=1)
    assert isinstance(again, Replayed) or (rule == "strict" and result_of(again) == "FP002")
    assert await _version(race, "k") == before
    assert await _records(race) == ["id-k"]
    if counting:
        assert await applied(race) == 1


async def test_a_key_of_a_client_and_the_id_of_a_message_are_two_keys(connect: Connect, unmade: Unmade) -> None:
    race = await audited_race(connect, unmade, "strict", counting=False)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, replace(keyed_write("k", 31, n=1), idempotency_key=once("same")))) == "ok"
        assert result_of(await of_queue(gateway, "patch", "k", 32, "same", n=2)) == "ok"
    found = await race.observer.fetch("SELECT caller FROM fencepost.idempotency ORDER BY caller")
    assert [row["caller"] for row in found] == ["", "queue"]
