"""R15: the connection breaks before the answer: what landed, what did not, and what cannot be known; who came after."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.asking import RULED, ruled
from tests.support.interleave import Connect
from tests.support.lost_answers import (
    ALONE,
    BOTH_WAYS,
    IN_A_HURRY,
    TOKEN,
    cut,
    cut_off,
    lock_k,
    swallowed,
    waiting_instead_of,
)
from tests.support.postgres import CuttingProxy, Unmade, cutting_proxy
from tests.support.racing import NEW, Race, applied, assert_applied, audited_race, has_landed, open_race
from tests.support.use_cases import (
    delete,
    gateway_pid,
    keyed,
    listed,
    matching,
    once,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.caller import PEER, Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway import refusals
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import IdempotencyKey
from fencepost.server.observe.events import Event, HolderUnknown, Refused
from fencepost.server.observe.logs import EventLog
from fencepost.server.observe.metrics import Metrics
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import connection
from fencepost.server.postgres import connection as backends
from fencepost.server.postgres.connection import Backend, Connection
from fencepost.server.times import ConnectionTimes, RequestTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# R15: the connection breaks before the answer. What landed is answered as landed, what did not is done, and what
# cannot be known is answered as unknown, with what is known.


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    param: tuple[Rule, str] = getattr(request, "param", ALONE)
    rule, way = param
    return await audited_race(connect, unmade, rule, counting=way == "alone")


K = {"order_id": "k", "n": 7}


@BOTH_WAYS
@pytest.mark.parametrize("with_key", [True, False])
async def test_a_write_whose_backend_waits_for_a_row_lands_once(race: Race, with_key: bool) -> None:
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        request = replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None)
        write = await race.waits_at(pid, patch(gateway, request))
        proxy.cut_all()
        await waiting_instead_of(race, pid)
        assert not write.done()
        await holder.commit()
        assert result_of(await write) == "ok"
    await assert_applied(race, 1)
    assert await race.live_mark("k") == 31


async def landed_without_answer(race: Race, proxy: CuttingProxy) -> None:
    """Wait until the write is committed, and its answer swallowed; then cut."""

    async def landed() -> bool:
        return await has_landed(race)

    await swallowed(proxy, landed)
    cut(proxy)


def write_of(verb: str, gateway: Gateway, key: IdempotencyKey | None = None) -> Coroutine[Any, Any, Outcome]:
    works = {
        "patch": lambda: patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=key)),
        "put new": lambda: put(gateway, replace(keyed("z", 31, n=1), idempotency_key=key)),
        "delete": lambda: delete(gateway, replace(keyed("k", 31), idempotency_key=key)),
        "post": lambda: post(gateway, replace(listed(31, {"order_id": "z"}), idempotency_key=key)),
        "post many": lambda: post(
            gateway, replace(listed(31, {"order_id": "y"}, {"order_id": "z"}), idempotency_key=key)
        ),
        "patch many": lambda: patch(gateway, replace(matching(NEW, 31, n=7), idempotency_key=key)),
        "patch rows": lambda: patch(gateway, replace(listed(31, K), idempotency_key=key)),
        "claim": lambda: claim(gateway, Claim(Resource("orders", ("k",)), Token(31), key)),
    }
    return works[verb]()


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "put new", "delete", "post many", "patch many", "patch rows", "claim"])
async def test_a_keyed_write_that_landed_is_answered_from_its_record(race: Race, verb: str) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(write_of(verb, gateway, once()))
        await landed_without_answer(race, proxy)
        answer = await write
    assert isinstance(answer, Replayed), answer
    assert ('"order_id"' in "".join(answer.rows)) or verb == "delete"
    await assert_applied(race, (2 if verb == "post many" else 1))
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.idempotency") == 1


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "delete", "post", "patch rows", "claim"])
async def test_the_answer_to_a_write_without_key_that_may_have_landed_has_what_is_known(race: Race, verb: str) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = TOKEN
        write = asyncio.create_task(write_of(verb, gateway))
        await landed_without_answer(race, proxy)
        answer = await write
    resource = "orders/z" if verb == "post" else "orders/k"
    assert isinstance(answer, Problem), answer
    assert (answer.name, answer.http_status, answer.retry_after) == ("FP009", 503, 1)
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert (known["resource"], known["mark"]) == (resource, "31")
    assert "with this token was accepted" in known["meaning"]
    await assert_applied(race, 1)


async def test_when_a_newer_holder_came_meanwhile_it_is_unknown_and_not_stale(race: Race) -> None:
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = TOKEN
        write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))

        async def landed() -> bool:
            return await race.live_mark("k") == 31

        await swallowed(proxy, landed)
        assert await race.update(race.b, "k", 40, n=2) is not None
        cut(proxy)
        answer = await write
    assert isinstance(answer, Problem)
    assert answer.name == "FP009", "stale would say that it had no effect"
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert "newer token" in known["meaning"]


async def test_many_rows_without_key_are_unknown(race: Race) -> None:
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        request = matching(NEW, 31, n=7)
        write = await race.waits_at(pid, patch(gateway, request))
        proxy.cut_all()
        answer = await write
        await holder.rollback()
    assert isinstance(answer, Problem)
    assert (answer.name, answer.body()["known"]) == ("FP009", None)
    assert "written, or none: ask" in (answer.hint or "")
    await assert_applied(race, 0)


@BOTH_WAYS
async def test_a_database_that_stays_away_leaves_the_outcome_unknown(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, keyed("k", 31, n=1)))
        proxy.refusing = True
        proxy.cut_all()
        answer = await write
        assert isinstance(answer, Problem)
        assert (answer.name, answer.body()["known"]) == ("FP009", None)
        assert "or will" in answer.detail
        assert "claim the resource with a newer token" in (answer.hint or "")
        await assert_applied(race, 0)
        await holder.commit()

        async def landed() -> bool:
            return await has_landed(race)

        await eventually(landed, what="the old backend's write: unknown was the truth")


@BOTH_WAYS
async def test_a_transaction_that_broke_before_its_commit_was_not_written(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        proxy.refusing = True
        proxy.cut_all()
        assert result_of(await write) == "FP010", "nothing was done, and nothing will be"
        await holder.commit()

        async def idle() -> bool:
            state = await race.observer.fetchval("SELECT state FROM pg_stat_activity WHERE pid = $1", pid)
            return state in (None, "idle in transaction")

        await eventually(idle, what="the old backend, through with its statement")
        await assert_applied(race, 0)


async def test_an_earlier_commit_stays_unknown_when_its_look_up_is_not_answered(race: Race) -> None:
    async with cut_off(race, times=IN_A_HURRY) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
        proxy.muted.clear()
        proxy.mute_after = b"fencepost.gateway_idem_begin"
        proxy.cut_all()
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)  # ended the first backend, and asks for the record
        proxy.refusing = True
        proxy.cut_all()
        assert result_of(await write) == "FP009"
    await assert_applied(race, 1)


@BOTH_WAYS
async def test_a_backend_that_does_not_end_leaves_the_outcome_unknown(race: Race) -> None:
    hurried = replace(IN_A_HURRY, connections=ConnectionTimes(end_backend_within=0.2))
    async with cut_off(race, times=hurried) as (gateway, proxy):
        pid = await gateway_pid(gateway)
        assert result_of(await patch(gateway, keyed("k", 29, n=1))) == "FP001", "the statement is prepared now"
        os.kill(pid, signal.SIGSTOP)  # its statement stays unread in its socket
        try:
            proxy.mute_after = TOKEN
            write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))
            await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
            proxy.cut_all()
            answer = await write
        finally:
            os.kill(pid, signal.SIGCONT)
    assert isinstance(answer, Problem)
    assert answer.name == "FP009"

    async def gone() -> bool:
        return not await race.observer.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)

    await eventually(gone, what="the backend, awake again, ending")
    # A batch is in the socket whole, and may be done before the backend looks for signals: unknown is the truth.
    (row,) = await race.observer.fetch("SELECT n, last_fence_token FROM orders")
    assert tuple(row) in ((0, 30), (1, 31))


@BOTH_WAYS
async def test_control_without_ending_the_old_backend_a_write_that_lands_is_refused(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_it(*_: object) -> None:
        """Do not end it."""

    monkeypatch.setattr(connection, "end", leave_it)
    async with cut_off(race) as (gateway, proxy):
        holder = await lock_k(race)
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, keyed("k", 31, n=1)))
        proxy.cut_all()

        async def two_wait() -> bool:
            return bool(
                await race.observer.fetchval(
                    "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock' AND state = 'active'"
                )
            )

        await eventually(two_wait)
        await holder.commit()
        answer = await write
    if race.strict:
        assert result_of(answer) == "FP002", "the echo of its own write"
        await assert_applied(race, 1)
    else:
        assert result_of(answer) == "ok", "written twice"
        await assert_applied(race, 2)


# R15 where PostgreSQL refuses something on the way: a refusal of our own questions is none of the write.

REKEYING = """
CREATE SEQUENCE public.made;
CREATE FUNCTION public.rekey() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.order_id := {}; RETURN NEW; END $$;
CREATE TRIGGER a_rekey BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.rekey();
"""


@pytest.fixture
async def audited(connect: Connect, unmade: Unmade) -> Race:
    return await audited_race(connect, unmade, "strict")


async def landed(race: Race, proxy: CuttingProxy) -> None:
    """Return once a write is committed, and its answer swallowed."""

    async def is_there() -> bool:
        return await applied(race) > 0

    await swallowed(proxy, is_there)


@pytest.mark.parametrize(
    ("verb", "key"), [("post", "'made-' || nextval('public.made')"), ("put", "lower(NEW.order_id)")]
)
async def test_a_row_whose_key_a_trigger_made_is_not_made_again(audited: Race, verb: str, key: str) -> None:
    """The mark of the key that was sent shows nothing then."""
    await audited.observer.execute(REKEYING.format(key))
    async with cut_off(audited) as (gateway, proxy):
        warm = (
            post(gateway, listed(29, {"order_id": "WARM"})) if verb == "post" else put(gateway, keyed("WARM", 29, n=0))
        )
        assert result_of(await warm) == "created", "all is prepared: now a statement comes with its token"
        await audited.observer.execute("DELETE FROM public.applied")
        proxy.mute_after, proxy.mute_skips = TOKEN, 0 if verb == "post" else 1  # a PUT begins with an UPDATE
        write = asyncio.create_task(
            post(gateway, listed(31, {"order_id": "NEW"})) if verb == "post" else put(gateway, keyed("NEW", 31, n=1))
        )
        await landed(audited, proxy)
        cut(proxy)
        answer = await write
    assert await applied(audited) == 1
    assert isinstance(answer, Problem)
    assert answer.name == "FP009"


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_time_limit_while_the_outcome_is_asked_for_is_no_refusal(audited: Race, with_key: bool) -> None:
    async with cut_off(audited, lock_timeout=0.3, times=IN_A_HURRY) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;" if with_key else TOKEN
        write = asyncio.create_task(
            patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None))
        )
        await landed(audited, proxy)
        locked = await audited.begin(audited.b)
        table = "fencepost.idempotency" if with_key else "public.orders"
        await audited.b.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        cut(proxy)
        answer = await write
        await locked.rollback()
    assert result_of(answer) == "FP009"
    assert await applied(audited) == 1


async def test_a_duplicate_in_a_table_called_idempotency_is_a_duplicate(audited: Race) -> None:
    """Its primary key has the same name as that of the records."""
    await audited.observer.execute("ALTER INDEX public.orders_pkey RENAME TO idempotency_pkey")
    async with open_gateway(audited.dsn) as gateway:
        request = replace(listed(31, {"order_id": "k"}), idempotency_key=once())
        answer = await asyncio.wait_for(post(gateway, request), PATIENCE)
    assert result_of(answer) == "23505"


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_connection_failure_of_a_trigger_is_not_the_gateways(audited: Race, with_key: bool) -> None:
    """What a foreign data wrapper raises when its own server is away; nothing is ended or tried again."""
    await audited.observer.execute(
        "CREATE FUNCTION public.away() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'could not connect to server \"audit\"' USING ERRCODE = '08001'; END $$;"
        "CREATE TRIGGER away AFTER UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.away()"
    )
    async with open_gateway(audited.dsn) as gateway:
        pid = await gateway_pid(gateway)
        answer = await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None))
        assert await gateway_pid(gateway) == pid
    assert result_of(answer) == "08001"
    assert await audited.live_mark("k") == 30


async def test_a_row_that_a_policy_hides_shows_nothing(audited: Race) -> None:
    """Row security hides the row and its mark from the gateway's role: absent is not unwritten."""
    policies = (
        f"GRANT SELECT, INSERT, UPDATE ON public.orders TO {RULED}; GRANT INSERT ON public.applied TO {RULED};"
        " ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY sees ON public.orders FOR SELECT USING (status <> 'gone');"
        " CREATE POLICY writes ON public.orders FOR UPDATE USING (true) WITH CHECK (true);"
        " CREATE POLICY makes ON public.orders FOR INSERT WITH CHECK (true)"
    )
    async with (
        ruled(audited.observer, audited.dsn, policies) as login,
        cutting_proxy(login) as (proxy, url),
        open_gateway(url) as gateway,
    ):
        await gateway_pid(gateway)
        proxy.mute_after = TOKEN
        write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))
        await landed(audited, proxy)
        await audited.observer.execute("ALTER TABLE public.orders DISABLE TRIGGER USER")
        await audited.observer.execute("UPDATE public.orders SET status = 'gone'")
        await audited.observer.execute("ALTER TABLE public.orders ENABLE TRIGGER USER")
        cut(proxy)
        assert result_of(await write) == "FP009"


async def test_another_clients_backend_that_has_the_old_ones_pid_is_left_alone(audited: Race) -> None:
    async with open_gateway(audited.dsn) as gateway, gateway.database.for_writing() as connection:
        ours = await audited.a.fetchrow("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert ours is not None
        await backends.end(connection, Backend(ours["pid"], ours["backend_start"] - timedelta(microseconds=1)))
        assert await audited.a.fetchval("SELECT 1") == 1
        await backends.end(connection, Backend(ours["pid"], ours["backend_start"]))
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await audited.a.fetchval("SELECT 1")


# Who is behind a 409 (R18), where the question goes wrong: the verdict is answered all the same.

LEASE = """
INSERT INTO fencepost.leases
  (lease_id, first_token, names, owner, claims, ttl_ms, last_token, granted_at, expires_at, ended_at)
VALUES (7, 35, '{the lock}', 'worker-b', '{}', 1000, 35, '2026-11-20T02:00:00Z', '2026-11-20T02:00:01Z', now());
INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at) VALUES (35, '{35}', 7, '2026-11-20T02:00:00Z')"""


@pytest.fixture
async def leased_race(connect: Connect, unmade: Unmade) -> Race:
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


async def test_the_holder_is_named_in_a_sentence_and_in_the_log(leased_race: Race) -> None:
    async with open_gateway(leased_race.dsn) as gateway:
        answer, events = await refused(gateway, leased_race)
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


async def test_who_was_refused_is_named_to_those_who_may_see_the_lock(leased_race: Race) -> None:
    """In the log, too, with the peer and the caller."""
    earlier = (
        LEASE.replace("35", "34").replace("(7,", "(6,").replace("}', 7,", "}', 6,").replace("worker-b", "worker-a")
    )
    await leased_race.observer.execute(earlier)
    async with open_gateway(leased_race.dsn) as gateway:
        PEER.set("10.0.0.7")
        answer, (event,) = await refused(gateway, leased_race)
        theirs, _ = await refused(gateway.of(Caller("other", locks=("orders/*",))), leased_race)
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


async def test_of_tokens_of_any_source_the_answer_says_what_would_name_the_holders(leased_race: Race) -> None:
    await protect(leased_race.observer, "orders", source="external")
    async with open_gateway(leased_race.dsn) as gateway:
        answer, _ = await refused(gateway, leased_race)
    assert "`fencepost protect orders --source NAME` binds it to one that Fencepost knows" in (answer.hint or "")
    assert not {"presented_by", "superseded_by"} & answer.extra.keys()


async def test_a_lookup_that_fails_leaves_the_verdict_as_it_is(leased_race: Race) -> None:
    await leased_race.observer.execute("ALTER FUNCTION fencepost.issued_to(bigint) RENAME TO gone")
    async with open_gateway(leased_race.dsn) as gateway:
        answer, events = await refused(gateway, leased_race)
    assert answer.detail == "Token 34 is stale for orders/k: token 35 has been accepted since."
    assert "superseded_by" not in answer.extra
    unknown, refusal = events
    assert isinstance(unknown, HolderUnknown)
    assert (unknown.table, "does not exist" in unknown.reason) == ("orders", True)
    assert isinstance(refusal, Refused)
    EventLog().on_event(unknown)
    Metrics().on_event(unknown)


async def test_a_lookup_that_hangs_does_not_hold_the_answer(leased_race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_connection: Connection, _token: int, _source: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(refusals, "issued_to", never)
    hurried = Times(requests=RequestTimes(explain_within=0.01))
    async with open_gateway(leased_race.dsn, times=hurried) as gateway:
        answer, events = await asyncio.wait_for(refused(gateway, leased_race), PATIENCE)
        assert "superseded_by" not in answer.extra
        assert [getattr(each, "reason", "") for each in events] == ["no answer within 0.01 s", ""]
        connections, idle = gateway.database.sizes()
        assert connections == idle, "its connection was given back"


async def test_another_tables_mark_is_not_taken_for_a_token_of_ours(leased_race: Race) -> None:
    """A trigger of the table writes to one that takes an external source's tokens, and is refused there."""
    await leased_race.observer.execute("CREATE TABLE audit (id text PRIMARY KEY, n int)")
    await protect(leased_race.observer, "audit")
    await leased_race.observer.execute("INSERT INTO audit VALUES ('a', 1, 35)")
    await leased_race.observer.execute("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN UPDATE public.audit SET last_fence_token = 20; RETURN NEW; END $$;
        CREATE TRIGGER note AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()""")
    async with open_gateway(leased_race.dsn) as gateway:
        answer = await patch(gateway, keyed("k", 36, status="x"))
        assert isinstance(answer, Problem)
        assert (result_of(answer), answer.resource, answer.current_token) == ("FP001", "audit/a", 35)
        assert "superseded_by" not in answer.extra
