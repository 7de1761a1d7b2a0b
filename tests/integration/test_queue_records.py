"""Messages of a queue in the gateway's write path: one effect and one record, however often they are applied (R16).

A batch of them looks nothing up. The row's xmin shows whether it was written again: a transaction that was undone
leaves none.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.batched_writes.sending import together
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, applied, audited_race
from tests.support.use_cases import gateway_pid, keyed, once, open_gateway, patch, rendered, result_of

from fencepost.server.fence.token import Rule
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.keyed import MOST_IDEMPOTENT
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.rounds import IdempotentRequest, Replayed
from fencepost.server.gateway.use_cases import write
from fencepost.server.gateway.write import Verb
from fencepost.server.postgres import keyed as idempotency
from fencepost.server.postgres.connection import GatewayConnection
from fencepost.server.postgres.keyed import OF_QUEUES
from fencepost.testing.servers.processes import PATIENCE


def of_queue(
    gateway: Gateway, verb: Verb, key: str, token: int, name: str, **values: Any
) -> Coroutine[Any, Any, Outcome]:
    """Write as the message with this id does."""
    message = IdempotentRequest(name, b"", rendered, OF_QUEUES, looked_up=False)
    return write(gateway, replace(keyed(key, token, **values), verb=verb), rendered, message)


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
    genuine = GatewayConnection.fetch

    async def seen(self: GatewayConnection, query: str, *args: Any, **more: Any) -> Any:
        sent.append(query)
        return await genuine(self, query, *args, **more)

    monkeypatch.setattr(GatewayConnection, "fetch", seen)
    keys = [f"k{n:03}" for n in range(257)]
    async with open_gateway(race.dsn) as gateway:
        writes = (of_queue(gateway, "put", key, 31, f"id-{key}", n=1) for key in keys)
        assert await together(*writes) == ["created"] * 257
    assert await _records(race) == [f"id-{key}" for key in keys]
    assert sum(batches) == 257
    assert max(batches) > MOST_IDEMPOTENT, "what gathers while the first is in flight is one batch, of up to 256"
    assert not [query for query in sent if "idem_begin" in query]


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
        assert again.answer is not None
        assert again.answer.body == b'{"order_id":"c","status":"new","n":1}'
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
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once("same")))) == "ok"
        assert result_of(await of_queue(gateway, "patch", "k", 32, "same", n=2)) == "ok"
    found = await race.observer.fetch("SELECT caller FROM fencepost.idempotency ORDER BY caller")
    assert [row["caller"] for row in found] == ["", "queue"]
