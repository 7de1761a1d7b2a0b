"""Marks rise only for who may write there: claims of rows, absent keys and scopes, by themselves and with a lease."""

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from tests.integration.test_lease_claims import ask, asking
from tests.support.asking import LOGIN, NOTHING, OTHER, READER, WEB, Acting, acting
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, mark, mutate, outcome, scoped_race
from tests.support.use_cases import keyed, listed, patch, post, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import Granted
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.read import Explained
from fencepost.server.gateway.use_cases import claim, explain
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import scopes

SCOPED = f"GRANT SELECT, INSERT, UPDATE, DELETE ON items TO {WEB}; GRANT SELECT ON items, notes TO {READER}"
RULED = f"""
GRANT UPDATE ON notes TO {OTHER}; GRANT SELECT ON notes TO {OTHER}; GRANT SELECT, UPDATE ON items TO {OTHER};
ALTER TABLE items ENABLE ROW LEVEL SECURITY; ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON items USING (account_id::text = current_setting('request.jwt.claims', true)::json ->> 'account');
CREATE POLICY own ON notes USING (account_id::text = current_setting('request.jwt.claims', true)::json ->> 'account')"""


def claiming(resource: str, token: int) -> Claim:
    return Claim(parse_resource(resource), Token(token))


async def marks(race: Race) -> dict[str, int]:
    rows = await race.observer.fetch("SELECT resource, last_fence_token FROM fencepost.marks")
    return {row["resource"]: row["last_fence_token"] for row in rows}


# Rows


async def test_a_key_without_a_row_is_claimed_only_by_who_may_write_to_its_table(stage: Acting, race: Race) -> None:
    for role in (READER, NOTHING):
        assert result_of(await claim(stage.of(role), claiming("orders/absent", 50))) == "42501", role
        assert await marks(race) == {}, role
        await stage.assert_own_name()
    assert result_of(await claim(stage.of(WEB), claiming("orders/absent", 50))) == "ok"
    assert await marks(race) == {"orders/absent": 50}
    await stage.assert_own_name()


async def test_a_lease_claims_as_its_caller_or_is_not_granted(stage: Acting, race: Race) -> None:
    await race.observer.execute("SELECT fencepost.issue_beyond(100)")
    await race.insert(race.a, "k", 30)
    before = await marks(race)
    for key in ("k", "absent"):
        wanted = asking("l", secret="s" * 32, claims=(f"orders/{key}",))
        for role in (READER, NOTHING):
            refused = await ask(stage.of(role), wanted)
            assert isinstance(refused, Problem), (role, key)
            assert refused.name == "42501", (role, key)
            assert await race.observer.fetchval("SELECT count(*) FROM fencepost.leases") == 0, (role, key)
            assert (await marks(race), await race.live_mark("k")) == (before, 30), (role, key)
            await stage.assert_own_name()
    for key in ("k", "absent"):
        granted = await ask(stage.of(WEB), asking(key, secret=key * 32, claims=(f"orders/{key}",)))
        assert isinstance(granted, Granted), key
        assert granted.claims[0].mark == granted.lease.claim_token, key
        await stage.assert_own_name()


async def test_a_lease_reads_the_row_as_its_caller(stage: Acting, race: Race) -> None:
    await race.observer.execute("SELECT fencepost.issue_beyond(100)")
    await race.insert(race.a, "k", 30)
    await race.observer.execute(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY own ON orders USING (order_id = current_setting('request.jwt.claims', true)::json ->> 'order')"
    )
    await stage.gateway.catalog.reload()
    wanted = asking("l", secret="s" * 32, claims=("orders/k",))
    hidden = await ask(stage.of(WEB, claims='{"order": "other"}'), wanted)
    assert isinstance(hidden, Problem)
    assert hidden.name == "FP006"
    for _ in range(2):  # the second is the same request, repeated
        got = await ask(stage.of(WEB, claims='{"order": "k"}'), wanted)
        assert isinstance(got, Granted), got
        assert '"order_id":"k"' in got.claims[0].rows[0].replace(" ", "")
    await stage.assert_own_name()


async def test_a_mark_is_shown_to_who_may_read_the_row(stage: Acting, race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await claim(stage.of(WEB), claiming("orders/absent", 50))
    for name, number in (("k", "30"), ("absent", "50")):
        assert result_of(await explain(stage.of(NOTHING), parse_resource(f"orders/{name}"))) == "42501"
        found = await explain(stage.of(READER), parse_resource(f"orders/{name}"))
        assert isinstance(found, Explained), name
        assert found.body is not None, name
        assert found.body["mark"] == number


async def test_a_mark_of_a_row_that_a_policy_hides_is_not_shown(stage: Acting, race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    await stage.gateway.catalog.reload()
    assert result_of(await explain(stage.of(READER), parse_resource("orders/k"))) == "FP006"
    assert result_of(await claim(stage.of(WEB), claiming("orders/absent", 50))) == "FP006"
    assert "orders/absent" not in await marks(race)


# Scopes


async def test_a_mark_is_shown_with_whose_token_it_is(stage: Acting, race: Race) -> None:
    """The record of tokens is the gateway's to read, and the row the caller's."""
    await race.observer.execute(f"CREATE TABLE held (id int PRIMARY KEY); GRANT ALL ON held TO {WEB}")
    await protect(race.observer, "held", source="builtin")
    await stage.gateway.catalog.reload()
    granted = await ask(stage.of(WEB), asking("l", secret="s" * 32))
    assert isinstance(granted, Granted)
    await post(stage.of(WEB), listed(granted.lease.tokens[0], {"id": 1}, table="held"))
    found = await explain(stage.of(WEB), parse_resource("held/1"))
    assert isinstance(found, Explained), found
    assert found.body is not None
    assert "'holder'" in str(found.body["story"])
    await stage.assert_own_name()


@pytest.fixture
async def scoped(connect: Connect, unmade: Unmade) -> Race:
    """Give the tables items and notes, which share the scopes account/{id}."""
    return await scoped_race(connect, unmade, "strict")


@pytest.fixture
async def accounts(scoped: Race) -> AsyncIterator[Acting]:
    """Give a gateway on these tables: fp_web may write to items, fp_reader reads both."""
    async with acting(scoped.observer, scoped.dsn, SCOPED) as stage:
        yield stage


REQUIRE = "who = 'none' OR EXISTS"


WRITES: dict[str, Callable[[Gateway, int], Awaitable[Outcome]]] = {
    "patched": lambda gateway, token: patch(gateway, keyed("1", token, table="items", n=5)),
    "posted": lambda gateway, token: post(gateway, listed(token, {"id": token, "account_id": 42}, table="items")),
    "named": lambda gateway, token: patch(gateway, keyed("77", token, table="items", account_id=42)),
    "alone": lambda gateway, token: post(
        gateway, listed(token, *({"id": each, "account_id": 42} for each in (token, -token)), table="items")
    ),
}


async def a_scoped_write_of_who_may_not_write_learns_nothing(stage: Acting, race: Race, role: str) -> None:
    await claim(stage.of(WEB), claiming("account/42", 50))
    for token in (60, 40):
        for way, write in WRITES.items():
            assert result_of(await write(stage.of(role), token)) == "42501", way
            assert await mark(race) == 50


async def test_a_scoped_write_of_who_may_not_write_raises_nothing_and_learns_no_mark(
    accounts: Acting, scoped: Race
) -> None:
    for role in (READER, NOTHING):
        await a_scoped_write_of_who_may_not_write_learns_nothing(accounts, scoped, role)
        await accounts.assert_own_name()


async def test_without_the_look_at_privileges_a_reader_would_learn_it(accounts: Acting, scoped: Race) -> None:
    await mutate(scoped, "fencepost.require_writer(text)", REQUIRE, f"true OR {REQUIRE}")
    with pytest.raises(AssertionError):
        await a_scoped_write_of_who_may_not_write_learns_nothing(accounts, scoped, READER)


async def a_scope_is_for_those_whom_policies_let_to_a_row_of_it(stage: Acting, race: Race) -> None:
    await race.observer.execute(RULED)
    await stage.gateway.catalog.reload()
    await race.observer.execute("SELECT fencepost.issue_beyond(100)")
    theirs, none = (stage.of(OTHER, claims=f'{{"account": "{account}"}}') for account in (42, 9))
    stranger = stage.of(OTHER, claims='{"account": "7"}')
    for gateway in (none, stranger):
        assert result_of(await claim(gateway, claiming("account/42", 50))) == "FP006"
        assert result_of(await explain(gateway, parse_resource("account/42"))) == "FP006"
        got = await ask(gateway, asking("l", secret="s" * 32, claims=("account/42",)))
        assert isinstance(got, Problem)
        assert got.name == "FP006"
        assert await mark(race) is None
    assert result_of(await claim(theirs, claiming("account/42", 50))) == "ok"
    assert result_of(await explain(theirs, parse_resource("account/42"))) == "ok"
    assert result_of(await claim(none, claiming("account/9", 50))) == "FP006", "it has no row"
    assert await mark(race) == 50


async def test_where_policies_rule_a_scope_is_claimed_by_who_may_change_a_row_of_it(
    accounts: Acting, scoped: Race
) -> None:
    await a_scope_is_for_those_whom_policies_let_to_a_row_of_it(accounts, scoped)
    await accounts.assert_own_name()


async def test_without_the_look_at_rows_any_writer_could(
    accounts: Acting, scoped: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object, **__: object) -> bool:
        return True

    monkeypatch.setattr(scopes, "has_row", found)
    with pytest.raises(AssertionError):
        await a_scope_is_for_those_whom_policies_let_to_a_row_of_it(accounts, scoped)


# What is denied to web roles

DENIED = """
SELECT f.oid::regprocedure::text FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace AND f.prosecdef
   AND has_function_privilege($1, f.oid, 'EXECUTE')
   AND (f.proname LIKE 'gateway\\_%' OR f.proname IN ('raise_mark', 'enter', 'enter_each', 'mark_record', 'floor_of',
        'mark_without_row', 'meet_ceiling', 'idem_begin', 'idem_record', 'idem_begin_each', 'idem_record_each'))"""
CALLS = {
    "gateway_mark_without_row": "('orders', 'orders/k')",
    "gateway_mark_record": "('orders/k')",
    "gateway_floor_of": "('orders')",
    "gateway_raise_mark": "('orders/k', 500, 'strict', true)",
    "gateway_meet_ceiling": "('orders', 'orders/k', 500, 1000, NULL)",
    "gateway_enter": "('account', '{account/42}', 500, NULL, NULL)",
    "gateway_enter_each": "('account', '{account/42}', '{500}', NULL, NULL)",
    "gateway_idem_begin": "('', 'k', 'h')",
    "gateway_idem_begin_each": "('', '{k}', '{h}')",
    "gateway_idem_record": "('', 'k', 'h', 200, '{}', 'a')",
    "gateway_idem_record_each": "('{a}', '{k}', '{h}', '{200}', '{x}', '{a}')",
}


async def a_web_role_that_logs_in_gets_nothing(stage: Acting, race: Race) -> None:
    allowed = {row[0].partition("(")[0].removeprefix("fencepost.") for row in await race.observer.fetch(DENIED, WEB)}
    assert allowed == set(CALLS), "the rest is denied, and these look at who logged in"
    await race.observer.execute(f"ALTER ROLE {WEB} LOGIN PASSWORD 'x'")
    theirs = await asyncpg.connect(stage.dsn.replace(LOGIN, WEB))
    try:
        for name, arguments in CALLS.items():
            refused = await outcome(theirs.execute(f"SELECT * FROM fencepost.{name}{arguments}"))
            assert refused == "42501", name
        await theirs.execute("SET fencepost.caller = 'x'; SET request.jwt.claims = '{}'")
        assert await marks(race) == {}
    finally:
        await theirs.close()


@pytest.mark.versions
async def test_a_web_role_that_logs_in_itself_raises_no_mark_and_sees_none(stage: Acting, race: Race) -> None:
    await a_web_role_that_logs_in_gets_nothing(stage, race)


async def test_without_the_look_at_the_login_it_would(stage: Acting, race: Race) -> None:
    line = "IF NOT has_function_privilege(session_user, p_function, 'EXECUTE') THEN"
    await mutate(race, "fencepost.require_gateway(text)", line, line.replace("NOT", "false AND NOT"))
    with pytest.raises(AssertionError):
        await a_web_role_that_logs_in_gets_nothing(stage, race)
