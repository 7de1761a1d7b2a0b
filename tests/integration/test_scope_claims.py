"""Claims of scopes, alone and with a lease (R7, R8): in step, repeated, of scopes that the gateway has not loaded."""

import asyncio
from dataclasses import replace

import pytest
from tests.integration.test_lease_claims import ask as acquire
from tests.integration.test_lease_claims import lease as granted
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, entered, mark, scoped_race
from tests.support.use_cases import gateway_pid, keyed, open_gateway, patch, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource, parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.read import Explained
from fencepost.server.gateway.use_cases import claim, explain
from fencepost.server.ops.protect import plan_protect, plan_unprotect, protect
from fencepost.server.postgres.leases import Granted, LockRequest

ACCOUNT = Resource("account", ("42",))


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await scoped_race(connect, unmade, "strict", "builtin")


def asked(*claims: str, lock: str = "account/42", secret: str = "s" * 32, wait_ms: int = 0) -> LockRequest:
    return LockRequest((lock,), secret, "me", 10_000, claims=claims, wait_ms=wait_ms)


async def unannounced(connection: Connection, statements: list[str]) -> None:
    """Change how a table is protected, and notify no gateway."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog")
        for statement in statements:
            if not statement.startswith("NOTIFY"):
                await connection.execute(statement)


async def test_a_claim_waits_for_an_older_holder_and_what_is_read_then_follows_it(race: Race, gateway: Gateway) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/42")
    await race.a.execute("UPDATE items SET n = 40 WHERE id = 1")
    claiming = await race.waits_at(await gateway_pid(gateway), claim(gateway, Claim(ACCOUNT, Token(41))))
    await holder.commit()
    assert result_of(await claiming) == "ok"
    assert await race.observer.fetchval("SELECT n FROM items WHERE id = 1") == 40
    assert result_of(await patch(gateway, keyed("2", 40, "items", n=1))) == "FP001"
    assert result_of(await patch(gateway, keyed("2", 41, "items", n=1))) == "FP002", "a claim spends its token"


async def test_a_repeated_acquire_finds_its_claims_and_raises_nothing(race: Race, gateway: Gateway) -> None:
    request = asked("account/42", "account/042", "account/7")
    first = await granted(gateway, request)
    raised = [await mark(race), await mark(race, "account/7")]
    again = await granted(gateway, request)
    assert (first.verdict, again.verdict) == ("granted", "repeated")
    assert first.lease.lease_id == again.lease.lease_id
    assert [done.resource for done in first.claims] == [done.resource for done in again.claims]
    assert [done.resource for done in again.claims] == ["account/42", "account/42", "account/7"]
    assert [await mark(race), await mark(race, "account/7")] == raised
    for done in again.claims:
        assert done.mark == raised[0]
    # Another client has gone further meanwhile: the repeated answer shows it, and takes nothing back.
    assert await entered(race, race.a, first.lease.tokens[-1], "account/42") == {"account/42": None}
    assert (await granted(gateway, request)).claims[0].mark == first.lease.tokens[-1]


async def test_a_refused_scope_gives_the_whole_grant_back(race: Race, gateway: Gateway) -> None:
    answer = await acquire(gateway, asked("account/42", "account/1,2"))
    assert isinstance(answer, Problem)
    assert answer.name == "FP016"
    assert await mark(race) is None
    assert (await granted(gateway, asked("account/42", secret="t" * 32))).verdict == "granted"


@pytest.mark.parametrize("how", ["claim", "explain", "acquire"])
async def test_a_scope_that_the_gateway_has_not_loaded_is_found(race: Race, gateway: Gateway, how: str) -> None:
    await race.observer.execute("CREATE TABLE depots (id int PRIMARY KEY, region text NOT NULL)")
    plan = await plan_protect(race.observer, "depots", source="builtin", scope="region/{region}")
    await unannounced(race.observer, plan.statements)
    assert await gateway.catalog.has_changed("region", None, gateway.own_connection())
    assert not await gateway.catalog.has_changed("nowhere", None, gateway.own_connection()), (
        "a bad name must not cost a load"
    )
    await ask(gateway, how, Resource("region", ("eu",)), "region/eu")


async def ask(gateway: Gateway, how: str, resource: Resource, name: str) -> None:
    if how == "claim":
        answer = await claim(gateway, Claim(resource, Token(50)))
        assert isinstance(answer, Done), answer
        assert (answer.resource, answer.mark) == (name, 50)
    elif how == "explain":
        explained = await explain(gateway, resource)
        assert isinstance(explained, Explained), explained
        assert explained.body is not None
        assert explained.body["resource"] == name
    else:
        assert (await granted(gateway, asked(name))).claims[0].resource == name


@pytest.mark.parametrize(("how", "change"), [("claim", "unprotect"), ("explain", "leave"), ("acquire", "drop")])
async def test_a_scope_outlives_the_table_by_which_the_gateway_knew_it(
    race: Race, gateway: Gateway, how: str, change: str
) -> None:
    first = gateway.catalog.current.scopes["account"][0].name
    if change == "unprotect":
        await unannounced(race.observer, (await plan_unprotect(race.observer, first)).statements)
    elif change == "leave":
        await unannounced(race.observer, (await plan_protect(race.observer, first, scope="")).statements)
    else:
        await race.observer.execute(f"DROP TABLE {first} CASCADE")
    await ask(gateway, how, ACCOUNT, "account/42")


async def test_a_scope_of_no_table_any_more_is_unknown(race: Race, gateway: Gateway) -> None:
    for table in ("items", "notes"):
        await unannounced(race.observer, (await plan_unprotect(race.observer, table)).statements)
    for answer in (await claim(gateway, Claim(ACCOUNT, Token(50))), await explain(gateway, ACCOUNT)):
        assert isinstance(answer, Problem), answer
        assert answer.name == "FP007"


async def test_scopes_of_two_templates_and_rows_are_claimed_in_one_order(race: Race) -> None:
    """Two grants name the same things in opposite orders, again and again."""
    await race.observer.execute("CREATE TABLE depots (id int PRIMARY KEY, region text NOT NULL)")
    await protect(race.observer, "depots", scope="region/{region}", source="builtin")
    await race.observer.execute("CREATE TABLE single (id int PRIMARY KEY)")
    await protect(race.observer, "single", source="builtin")
    names = ["account/42", "single/1", "region/eu", "account/7"]
    async with open_gateway(race.dsn) as one, open_gateway(race.dsn) as two:
        for number in range(10):
            here = asked(*names, lock=f"here-{number}", secret=f"{number:032}")
            there = replace(asked(*reversed(names), lock=f"there-{number}", secret=f"{number + 100:032}"), wait_ms=5000)
            leases = await asyncio.gather(granted(one, here), granted(two, there))
            assert {done.resource for lease in leases for done in lease.claims} == set(names)
    marks = [done.mark or 0 for lease in leases for done in lease.claims if done.resource == "account/42"]
    newest = max(lease.lease.tokens[0] for lease in leases)
    assert await mark(race) == max(marks) <= newest


async def claimed(gateway: Gateway, by: str, resource: str) -> Outcome | Granted:
    if by == "claim":
        return await claim(gateway, Claim(parse_resource(resource), Token(50)))
    return await acquire(gateway, asked(resource, lock=resource, secret=f"{resource:t<32}"))


async def test_a_scope_that_no_row_can_have_is_not_claimed(race: Race, gateway: Gateway) -> None:
    """Such a claim would fence nothing: what is stored has another name, or is not stored."""
    stored = """
        CREATE DOMAIN public.even AS int CHECK (VALUE % 2 = 0);
        CREATE DOMAIN public.short AS varchar(3)"""
    await race.observer.execute(stored)
    fitting = [
        ("numeric(10,2)", "1.50", True), ("numeric(10,2)", "1.5", True), ("numeric(10,2)", "1.499", False),
        ("numeric(4,2)", "100", False), ("varchar(3)", "abc", True), ("varchar(3)", "abcdef", False),
        ("varchar(3)", "abc ", False), ("char(3)", "ab ", True), ("char(3)", "abcd", False),
        ("timestamptz(0)", "2026-01-02T03:04:05Z", True), ("timestamptz(0)", "2026-01-02T03:04:05.6Z", False),
        ("timestamp(0)", "2026-01-02T03:04:05.6", False), ("public.short", "abcd", False), ("public.even", "2", True),
        ("public.even", "3", False), ("int", "0000000042", True), ("int", "3000000000", False),
        ("smallint", "40000", False), ("bigint", "3000000000", True), ("text", "as long as you like", True),
    ]  # fmt: skip
    for number, (type_, _, _) in enumerate(fitting):
        await race.observer.execute(f"CREATE TABLE kept{number} (id int PRIMARY KEY, k {type_} NOT NULL)")
        await protect(race.observer, f"kept{number}", scope=f"ks{number}/{{k}}", source="builtin")
    await gateway.catalog.reload()
    cases = [(number, *each, "claim") for number, each in enumerate(fitting)]
    for number, type_, value, fits, by in cases + [(*case[:-1], "lease") for case in cases[:5]]:
        answer = await claimed(gateway, by, f"ks{number}/{value}")
        rows = await race.observer.fetch("DELETE FROM fencepost.marks RETURNING resource")
        if fits:
            assert not isinstance(answer, Problem), answer
            assert [row["resource"].partition("/")[0] for row in rows] == [f"ks{number}"], (type_, value, by)
        else:
            assert isinstance(answer, Problem), (type_, value, by)
            assert (answer.http_status, len(rows)) == (400, 0), (type_, value, by)
            refused = f"the scope ks{number}/{value} would be changed, or refused, when stored in kept{number}"
            assert refused in answer.detail


async def test_a_scope_is_claimed_when_one_of_its_tables_can_have_such_a_row(race: Race, gateway: Gateway) -> None:
    for name, type_ in (("a", "numeric(10,2)"), ("b", "numeric(4,1)"), ("c", "numeric(12,3)")):
        await race.observer.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, k {type_} NOT NULL)")
        await protect(race.observer, name, scope="ks/{k}", source="builtin")
    await gateway.catalog.reload()
    assert result_of(await claim(gateway, Claim(Resource("ks", ("1.499",)), Token(50)))) == "ok"
    refused = await claim(gateway, Claim(Resource("ks", ("1.4999",)), Token(50)))
    assert isinstance(refused, Problem)
    assert refused.detail.endswith("when stored in a, b, c")
    await granted(gateway, asked("ks/1.498", secret="u" * 32))
    await race.observer.execute("CREATE DOMAIN dk AS numeric; CREATE TABLE d (id int PRIMARY KEY, k dk NOT NULL)")
    await protect(race.observer, "d", scope="ks/{k}", source="builtin")
    await gateway.catalog.reload()
    assert result_of(await claim(gateway, Claim(Resource("ks", ("1.4999",)), Token(50)))) == "ok"
    await race.observer.execute("SET session_replication_role = replica; DROP DOMAIN dk CASCADE")  # unheard
    unheard = await acquire(gateway, asked("ks/1.49999", lock="unheard"))
    assert getattr(unheard, "detail", "").endswith("when stored in a, b, c"), unheard
