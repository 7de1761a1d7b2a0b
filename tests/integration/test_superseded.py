"""Who is behind a 409 (R18), where the question goes wrong: the verdict is answered all the same."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway import refusals
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.observe.events import Event, HolderUnknown, Refused
from fencepost.server.observe.logs import EventLog
from fencepost.server.observe.metrics import Metrics
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.connection import Connection
from fencepost.server.quota import PEER
from fencepost.server.times import RequestTimes, Times
from fencepost.testing.servers.processes import PATIENCE

LEASE = """
INSERT INTO fencepost.leases
  (lease_id, first_token, names, owner, claims, ttl_ms, last_token, granted_at, expires_at, ended_at)
VALUES (7, 35, '{the lock}', 'worker-b', '{}', 1000, 35, '2026-11-20T02:00:00Z', '2026-11-20T02:00:01Z', now());
INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at) VALUES (35, '{35}', 7, '2026-11-20T02:00:00Z')"""


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Give a table of the built-in source; the mark of k is token 35, which was worker-b's."""
    race = await open_race(connect, unmade, source="builtin")
    await race.observer.execute(LEASE)
    await race.insert(race.a, "k", 35)
    return race


async def refused(gateway: Gateway, race: Race) -> tuple[Problem, list[Event]]:
    """Write with a stale token; gives the answer and what happened meanwhile."""
    events: list[Event] = []
    answer = await patch(replace(gateway, emit=events.append), keyed("k", 34, status="x"))
    assert isinstance(answer, Problem)
    assert (answer.name, answer.current_token, await race.live_mark("k")) == ("FP001", 35, 35)
    return answer, events


async def test_the_holder_is_named_in_a_sentence_and_in_the_log(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answer, events = await refused(gateway, race)
    assert answer.detail == (
        "Token 34 is stale for orders/k: token 35 has been accepted since. The newer token was issued to worker-b, who"
        " was granted the lock the lock at 2026-11-20T02:00:00+00:00."
    )
    assert answer.extra["superseded_by"] == {
        "holder": "worker-b",
        "lease_id": "7",
        "locks": ["the lock"],
        "granted_at": "2026-11-20T02:00:00+00:00",
        "issued_at": "2026-11-20T02:00:00+00:00",
        "source": "builtin",
    }
    assert [(type(each), getattr(each, "detail", "")) for each in events] == [(Refused, answer.detail)]


async def test_who_was_refused_is_named_to_those_who_may_see_the_lock(race: Race) -> None:
    """In the log, too, with the peer and the caller."""
    earlier = (
        LEASE.replace("35", "34").replace("(7,", "(6,").replace("}', 7,", "}', 6,").replace("worker-b", "worker-a")
    )
    await race.observer.execute(earlier)
    async with open_gateway(race.dsn) as gateway:
        PEER.set("10.0.0.7")
        answer, (event,) = await refused(gateway, race)
        theirs, _ = await refused(gateway.of(Caller("other", locks=("orders/*",))), race)
    assert answer.detail == (
        "Token 34 is stale for orders/k: token 35 has been accepted since. Token 34 was issued to worker-a, who was"
        " granted the lock the lock at 2026-11-20T02:00:00+00:00. The newer token was issued to worker-b, who was"
        " granted the lock the lock at 2026-11-20T02:00:00+00:00."
    )
    presented, newer = answer.extra["presented_by"], answer.extra["superseded_by"]
    assert isinstance(presented, dict)
    assert (presented["lease_id"], presented["holder"]) == ("6", "worker-a")
    assert {**presented, "lease_id": "7", "holder": "worker-b"} == newer
    assert not {"presented_by", "superseded_by"} & theirs.extra.keys()
    assert isinstance(event, Refused)
    assert (event.peer, event.caller) == ("10.0.0.7", None)


async def test_of_tokens_of_any_source_the_answer_says_what_would_name_the_holders(race: Race) -> None:
    await protect(race.observer, "orders", source="external")
    async with open_gateway(race.dsn) as gateway:
        answer, _ = await refused(gateway, race)
    assert "`fencepost protect orders --source NAME` binds it to one that Fencepost knows" in (answer.hint or "")
    assert not {"presented_by", "superseded_by"} & answer.extra.keys()


async def test_a_lookup_that_fails_leaves_the_verdict_as_it_is(race: Race) -> None:
    await race.observer.execute("ALTER FUNCTION fencepost.issued_to(bigint) RENAME TO gone")
    async with open_gateway(race.dsn) as gateway:
        answer, events = await refused(gateway, race)
    assert answer.detail == "Token 34 is stale for orders/k: token 35 has been accepted since."
    assert "superseded_by" not in answer.extra
    unknown, refusal = events
    assert isinstance(unknown, HolderUnknown)
    assert (unknown.table, "does not exist" in unknown.reason) == ("orders", True)
    assert isinstance(refusal, Refused)
    EventLog().on_event(unknown)
    Metrics().on_event(unknown)


async def test_a_lookup_that_hangs_does_not_hold_the_answer(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_connection: Connection, _token: int, _source: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(refusals, "issued_to", never)
    hurried = Times(requests=RequestTimes(explain_within=0.01))
    async with open_gateway(race.dsn, times=hurried) as gateway:
        answer, events = await asyncio.wait_for(refused(gateway, race), PATIENCE)
        assert "superseded_by" not in answer.extra
        assert [getattr(each, "reason", "") for each in events] == ["no answer within 0.01 s", ""]
        connections, idle = gateway.database.sizes()
        assert connections == idle, "its connection was given back"


async def test_another_tables_mark_is_not_taken_for_a_token_of_ours(race: Race) -> None:
    """A trigger of the table writes to one that takes an external source's tokens, and is refused there."""
    await race.observer.execute("CREATE TABLE audit (id text PRIMARY KEY, n int)")
    await protect(race.observer, "audit")
    await race.observer.execute("INSERT INTO audit VALUES ('a', 1, 35)")
    await race.observer.execute("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN UPDATE public.audit SET last_fence_token = 20; RETURN NEW; END $$;
        CREATE TRIGGER note AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()""")
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, keyed("k", 36, status="x"))
        assert isinstance(answer, Problem)
        assert (result_of(answer), answer.resource, answer.current_token) == ("FP001", "audit/a", 35)
        assert "superseded_by" not in answer.extra
