"""R15 for scopes (R8): the connection breaks before the answer, and the scope's mark shows whether the write can have
landed. Only for certain: a floor is no holder's mark, and a newer holder's mark is not ours.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.support.interleave import Connect
from tests.support.lost_answers import ALONE, BOTH_WAYS, cut, cut_off, swallowed, waiting_instead_of
from tests.support.postgres import CuttingProxy, Unmade
from tests.support.racing import NEW, Race, assert_applied, entered, mark, scoped_race
from tests.support.use_cases import delete, gateway_pid, keyed, listed, matching, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import IdempotencyKey

AUDIT = """
CREATE TABLE public.applied (id bigint GENERATED ALWAYS AS IDENTITY, verb text);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO public.applied (verb) VALUES (TG_OP); RETURN NULL; END';
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON public.items FOR EACH ROW EXECUTE FUNCTION public.audit();
"""


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """With the audit's trigger each write has a transaction of its own; without it they go in batches."""
    param: tuple[Rule, str] = getattr(request, "param", ALONE)
    rule, way = param
    race = await scoped_race(connect, unmade, rule)
    await race.observer.execute("ALTER TABLE public.items ADD status text NOT NULL DEFAULT 'new'")
    if way == "alone":
        await race.observer.execute(AUDIT)
    return race


def write_of(verb: str, gateway: Gateway, once: IdempotencyKey | None) -> Coroutine[Any, Any, Outcome]:
    """Write to the scope account/42 with the token 31."""
    keyed_ = replace(keyed("1", 31, "items", n=1), idempotency_key=once)
    rows = [{"id": 90, "account_id": 42}, {"id": 91, "account_id": 7}]
    match verb:
        case "patch":
            return patch(gateway, keyed_)
        case "delete":
            return delete(gateway, keyed_)
        case "put":
            return put(gateway, replace(keyed("90", 31, "items", account_id=42), idempotency_key=once))
        case "post":
            return post(gateway, replace(listed(31, *rows, table="items"), idempotency_key=once))
        case "patch many":
            return patch(gateway, replace(matching(NEW, 31, "items", n=7), idempotency_key=once))
        case "patch rows":
            changes = ({"id": 3, "n": 7}, {"id": 1, "n": 8})
            return patch(gateway, replace(listed(31, *changes, table="items"), idempotency_key=once))
        case _:
            return claim(gateway, Claim(Resource("account", ("42",)), Token(31), once))


VERBS = {"patch": 1, "delete": 1, "put": 1, "post": 2, "patch many": 3, "patch rows": 2, "claim": 0}
"""How many rows each writes."""


async def committed_without_answer(race: Race, proxy: CuttingProxy) -> None:
    """Wait until the write is committed and its answer swallowed."""

    async def landed() -> bool:
        return await mark(race) == 31

    await swallowed(proxy, landed)


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "post", "claim"])
async def test_a_keyed_write_that_landed_is_answered_from_its_record(race: Race, verb: str) -> None:
    once = IdempotencyKey("k1", b"payload")
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(write_of(verb, gateway, once))
        await committed_without_answer(race, proxy)
        # The lock has changed hands meanwhile.
        assert await entered(race, race.a, 40, "account/42") == {"account/42": None}
        cut(proxy)
        assert isinstance(await write, Replayed)
    await assert_applied(race, VERBS[verb])


@pytest.mark.parametrize("verb", ["delete", "post", "patch rows", "claim"])
async def test_the_answer_to_a_write_without_key_that_landed_has_what_is_known(race: Race, verb: str) -> None:
    answer = await lost_answer(race, verb, None)
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert (known["resource"] in ("account/42", "account/7"), known["mark"]) == (True, "31")
    assert "with this token was accepted" in known["meaning"]
    await assert_applied(race, VERBS[verb])


async def lost_answer(race: Race, verb: str, meanwhile: str | None) -> Problem:
    """Lose the answer of a write that landed; `meanwhile` is run before the gateway learns of it."""
    async with cut_off(race) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;"
        write = asyncio.create_task(write_of(verb, gateway, None))
        await committed_without_answer(race, proxy)
        if meanwhile is not None:
            await race.a.fetch(meanwhile)
        cut(proxy)
        answer = await write
    assert isinstance(answer, Problem), answer
    assert (answer.name, answer.http_status) == ("FP009", 503), "stale or spent would say that it had no effect"
    return answer


@pytest.mark.parametrize(
    "meanwhile", ["SELECT fencepost.enter('account', '{account/42}', 40)", "SELECT fencepost.prune('account', 31)"]
)
async def test_it_is_unknown_once_a_newer_holder_came_or_the_mark_was_pruned(race: Race, meanwhile: str) -> None:
    """A floor that equals the token may stand for another scope's mark."""
    answer = await lost_answer(race, "patch", meanwhile)
    known = answer.body()["known"]
    assert isinstance(known, dict)
    assert "is not known" in known["meaning"]
    await assert_applied(race, 1)


@BOTH_WAYS
@pytest.mark.parametrize("verb", ["patch", "put", "post", "patch rows"])
async def test_a_write_whose_backend_waited_for_the_mark_lands_once(race: Race, verb: str) -> None:
    async with cut_off(race) as (gateway, proxy):
        holder = await race.begin(race.a)
        await entered(race, race.a, 30, "account/42")
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, write_of(verb, gateway, None))
        proxy.cut_all()
        await waiting_instead_of(race, pid)
        assert not write.done()
        await holder.commit()
        assert result_of(await write) in ("ok", "created")
    await assert_applied(race, VERBS[verb])
    assert await mark(race) == 31


@pytest.mark.parametrize("newer", [False, True])
async def test_of_several_scopes_one_without_the_mark_proves_that_nothing_landed(race: Race, newer: bool) -> None:
    """COMMIT was sent, and waits. The write raises all of its scopes' marks or none, and account 7 has none, whatever
    became of account 42.
    """
    late = """
        CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON public.items DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.late()"""
    await race.observer.execute(late)
    async with cut_off(race) as (gateway, proxy):
        await race.a.execute("SELECT pg_advisory_lock(1)")
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, write_of("patch many", gateway, None))
        waiter = await race.waits(race.b, entered(race, race.b, 50, "account/42")) if newer else None
        proxy.refusing = True
        proxy.cut_all()
        await race.observer.execute("SELECT pg_terminate_backend($1, 10000)", pid)
        if waiter is not None:
            assert await waiter == {"account/42": None}
        await race.a.execute("SELECT pg_advisory_unlock(1)")
        proxy.refusing = False
        assert result_of(await write) == ("FP001" if newer else "ok"), "it was certain, so it was tried again"
    await assert_applied(race, (0 if newer else 3))
    assert await mark(race, "account/7") == (None if newer else 31)
