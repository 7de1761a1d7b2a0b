"""Writes and reads as a role of PostgreSQL: which roles are taken, what they may do, and what they leave behind."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import asyncpg
import pytest
from tests.integration.test_lease_claims import ask, asking
from tests.support.asking import LOGIN, NOTHING, OTHER, READER, WEB, Acting, acting, asked_by
from tests.support.interleave import Connect, connection_to
from tests.support.lost_answers import IN_A_HURRY
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import ITEMS, Race, mark, mutate, open_race, outcome, scoped_race
from tests.support.use_cases import delete, keyed, listed, matching, once, open_gateway, patch, post, put, result_of

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.seal import parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.gateway import attempt, group_commit, use_cases
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.attempt import WriteQueues
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import DEFAULT_QUEUE, Gateway, Seals
from fencepost.server.gateway.group_commit import BatchQueue, GroupCommit
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.read import Explained, ReadMany, ReadOne
from fencepost.server.gateway.use_cases import claim, explain, read_many, read_one
from fencepost.server.gateway.write import Verb, Write
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import database, scopes
from fencepost.server.postgres import database as allowed_roles
from fencepost.server.postgres.connection import Limits, Session
from fencepost.server.postgres.database import NO_LIST, AllowedRoles, Database
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.leases import Granted
from fencepost.server.postgres.query import Condition, Field, Query, Selected
from fencepost.server.postgres.tables import KnownPrivileges, ProtectedTable
from fencepost.server.queues.message import WriteMessage
from fencepost.server.queues.postgres import PostgresLog
from fencepost.server.times import TIMES, BatchTimes, QueueTimes, Times
from fencepost.testing.servers.processes import PATIENCE

# A table of orders that fp_web and fp_other may write to, fp_reader may read, and fp_nothing may not see.

GRANTED = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {WEB}, {OTHER}; GRANT SELECT ON orders TO {READER}"""
STAMPED = """
CREATE SCHEMA of_the_owner; CREATE DOMAIN of_the_owner.state AS text;
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status of_the_owner.state NOT NULL DEFAULT 'new', n integer NOT NULL DEFAULT 0,
  who text DEFAULT CURRENT_USER)"""


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Give a table whose rows say who made them. One column's type lies in a schema that the roles may not use."""
    return await open_race(connect, unmade, "strict", ddl=STAMPED)


@pytest.fixture
async def stage(race: Race) -> AsyncIterator[Acting]:
    """Give a gateway with one connection for requests, and one for batches."""
    async with acting(race.observer, race.dsn, GRANTED) as stage:
        yield stage


# What each route needs, by column, as docs/roles.md says it; the matrix compares it with what PostgreSQL says.

SEALS = Seals(parse_keys(f"k1:{base64.b64encode(b'k' * 32).decode()}"))
MARK = "last_fence_token"
VISIBLE = ("id", "account_id", "n")
COLUMNS = {"jobs": (*VISIBLE, MARK), "parts": (*VISIBLE, MARK), "items": VISIBLE, "plain": VISIBLE, "seen": VISIBLE}

Need = tuple[str, str]
"""A privilege, and the column; `*`: of the table."""


def need(privilege: str, *columns: str) -> set[Need]:
    return {(privilege, column) for column in columns}


@dataclass(frozen=True)
class Way:
    """A request, as the role sends it. `key` is a row that is there; `fresh`, one that is not."""

    needs: dict[str, set[Need]]
    send: Callable[[Gateway, str, int, int, int], Awaitable[Outcome]]


def of(rows: set[Need], scoped: set[Need], *unprotected: str) -> dict[str, set[Need]]:
    """What it takes in a table whose rows have marks, and what where they share their scope's; `unprotected`: what has
    no marks, and can be read all the same.
    """
    return {"jobs": rows, "parts": rows, "items": scoped} | dict.fromkeys(unprotected, SHOWN)


ROW = need("SELECT", "id", MARK)
SHOWN = need("SELECT", *VISIBLE)
RAISED = need("UPDATE", MARK)
CHANGED = of(SHOWN | ROW | RAISED | need("UPDATE", "n"), SHOWN | need("UPDATE", "n"))
REPLACED = of(SHOWN | ROW | RAISED | need("UPDATE", "account_id", "n"), SHOWN | need("UPDATE", "account_id", "n"))
MADE = of(SHOWN | ROW | need("INSERT", "id", "account_id", MARK), SHOWN | need("INSERT", "id", "account_id"))
MADE_BY_PUT = of(
    REPLACED["jobs"] | need("INSERT", "id", "account_id", "n", MARK),
    REPLACED["items"] | need("INSERT", "id", "account_id", "n"),
)
# A statement that locks rows to delete them needs UPDATE of any column.
DELETED = of(SHOWN | ROW | need("DELETE", "*"), SHOWN | need("DELETE", "*") | need("UPDATE", "any"))
DELETED_MANY = of(DELETED["jobs"] | need("UPDATE", "any"), DELETED["items"])


def filtered(table: str, key: int, token: int, **values: int) -> Write:
    return matching((Condition(Field("id"), "eq", str(key)),), token, table, **values)


async def whole(gateway: Gateway, *parts: Callable[[Gateway], Awaitable[Outcome]]) -> Outcome:
    """Send a batch that lands as a whole."""

    async def use(part: Gateway) -> Outcome:
        for each in parts:
            if isinstance(answer := await each(part), Problem):
                raise Undone(answer)
        return answer

    return await atomically(gateway, use)


async def claimed_by_lease(gateway: Gateway, table: str, key: int) -> Outcome:
    # a scope of its own: tokens of leases are above all others here
    name = f"account/{key}" if table == "items" else f"{table}/{key}"
    got = await ask(gateway, asking(name, secret=f"{key:032}", claims=(name,)))
    return got.claims[0] if isinstance(got, Granted) else got


async def queued(gateway: Gateway, verb: Verb, write: Write, **values: object) -> Outcome:
    """Submit a write. Nothing is known of the role before."""
    log = PostgresLog(gateway.database, "")  # nobody listens
    submitting = replace(gateway, seals=SEALS, queues={DEFAULT_QUEUE: log}, privileges=KnownPrivileges())
    given = replace(write.body, values=values)
    preferred = replace(write, verb=verb, body=given, preferences=replace(write.preferences, queued=True))
    return await use_cases.write(submitting, preferred, as_message=lambda: WriteMessage("", "PATCH", b"{}"))


ONLY_N = (Selected(Field("n")),)
DELETED_N = of(need("SELECT", "n") | ROW | need("DELETE", "*"), DELETED["items"])
WAYS: dict[str, Way] = {
    "GET row": Way(of(SHOWN | ROW, SHOWN, "plain"), lambda g, t, k, _f, _n: read_one(g, ReadOne(t, (str(k),)))),
    "GET list": Way(of(SHOWN, SHOWN, "plain", "seen"), lambda g, t, _k, _f, _n: read_many(g, ReadMany(t, Query()))),
    "PATCH batched": Way(CHANGED, lambda g, t, k, _f, n: patch(g, keyed(str(k), n, table=t, n=1))),
    "PATCH keyed": Way(
        CHANGED, lambda g, t, k, _f, n: patch(g, replace(keyed(str(k), n, table=t, n=1), idempotency_key=once(f"{n}")))
    ),
    "PATCH array": Way(CHANGED, lambda g, t, k, _f, n: patch(g, listed(n, {"id": k, "n": 1}, table=t))),
    "PATCH filter": Way(CHANGED, lambda g, t, k, _f, n: patch(g, filtered(t, k, n, n=5))),
    "PUT there": Way(REPLACED, lambda g, t, k, _f, n: put(g, keyed(str(k), n, table=t, account_id=42, n=1))),
    "PUT new": Way(MADE_BY_PUT, lambda g, t, _k, f, n: put(g, keyed(str(f), n, table=t, account_id=42, n=1))),
    "POST batched": Way(MADE, lambda g, t, _k, f, n: post(g, listed(n, {"id": f, "account_id": 42}, table=t))),
    "POST keyed": Way(
        MADE,
        lambda g, t, _k, f, n: post(
            g, replace(listed(n, {"id": f, "account_id": 42}, table=t), idempotency_key=once(f"{n}"))
        ),
    ),
    "POST alone": Way(
        MADE, lambda g, t, _k, f, n: post(g, listed(n, *({"id": e, "account_id": 42} for e in (f, -f)), table=t))
    ),
    "DELETE batched": Way(DELETED, lambda g, t, k, _f, n: delete(g, keyed(str(k), n, table=t))),
    "DELETE keyed": Way(
        DELETED, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), idempotency_key=once(f"{n}")))
    ),
    "DELETE batched, n": Way(
        DELETED_N, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), select=ONLY_N))
    ),
    "DELETE keyed, n": Way(
        DELETED_N,
        lambda g, t, k, _f, n: delete(
            g, replace(keyed(str(k), n, table=t), idempotency_key=once(f"{n}"), select=ONLY_N)
        ),
    ),
    "DELETE filter": Way(DELETED_MANY, lambda g, t, k, _f, n: delete(g, filtered(t, k, n))),
    "claim": Way(
        of(SHOWN | ROW | RAISED, need("write", "*")),
        lambda g, t, k, _f, n: claim(g, Claim(parse_resource("account/42" if t == "items" else f"{t}/{k}"), Token(n))),
    ),
    "claim of a lease": Way(
        of(SHOWN | ROW | RAISED, need("write", "*")), lambda g, t, k, _f, _n: claimed_by_lease(g, t, k)
    ),
    "line batched": Way(CHANGED, lambda g, t, k, _f, n: patch(g.for_batch(), keyed(str(k), n, table=t, n=1))),
    "line alone": Way(CHANGED, lambda g, t, k, _f, n: patch(g.for_batch(), filtered(t, k, n, n=5))),
    "whole": Way(
        of(CHANGED["jobs"] | DELETED["jobs"], CHANGED["items"] | DELETED["items"]),
        lambda g, t, k, _f, n: whole(
            g,
            lambda part: patch(part, keyed(str(k), n, table=t, n=1)),
            lambda part: delete(part, keyed(str(k), n + 1, table=t)),
        ),
    ),
    "PATCH queued": Way(CHANGED, lambda g, t, k, _f, n: queued(g, "patch", keyed(str(k), n, table=t, n=1))),
    "PUT queued": Way(REPLACED, lambda g, t, k, _f, n: queued(g, "put", keyed(str(k), n, table=t, account_id=42, n=1))),
    "POST queued": Way(
        MADE, lambda g, t, _k, f, n: queued(g, "post", listed(n, {"id": f, "account_id": 42}, table=t), id=f)
    ),
    "DELETE queued": Way(DELETED, lambda g, t, k, _f, n: queued(g, "delete", keyed(str(k), n, table=t))),
    "DELETE queued, n": Way(
        DELETED_N, lambda g, t, k, _f, n: queued(g, "delete", replace(keyed(str(k), n, table=t), select=ONLY_N))
    ),
    "fences": Way(
        of(ROW, need("read", "*")),
        lambda g, t, k, _f, _n: explain(g, parse_resource("account/42" if t == "items" else f"{t}/{k}")),
    ),
}
"""A scope is none of a table's columns: its claim needs some privilege to write to one of its tables, and a look at it
some privilege to read one (`write`, `read`)."""


# As which roles the gateway acts: never one that is more than a caller.

ALLOWED_MADE = f"""
{GRANTED};
CREATE ROLE t_super SUPERUSER; CREATE ROLE t_bypass BYPASSRLS; CREATE ROLE t_plain; CREATE ROLE t_keeper;
CREATE ROLE t_login_member; CREATE ROLE t_keeper_member; CREATE ROLE "t ""odd"" näme";
GRANT t_super, t_bypass, t_keeper, t_keeper_member, "t ""odd"" näme", pg_read_all_data TO {LOGIN};
GRANT SELECT, UPDATE ON orders TO "t ""odd"" näme";
GRANT USAGE ON SCHEMA public TO "t ""odd"" näme"
"""
MADE_ROLES = ("t_super", "t_bypass", "t_plain", "t_keeper", "t_login_member", "t_keeper_member", 't "odd" näme')


@pytest.fixture
async def allowed_stage(connect: Connect, unmade: Unmade) -> AsyncIterator[Acting]:
    """Give a gateway, and roles of all kinds."""
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    try:
        async with acting(race.observer, race.dsn, ALLOWED_MADE) as stage:
            keeper = await race.observer.fetchval(
                "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'fencepost'"
            )
            await race.observer.execute("ALTER SCHEMA fencepost OWNER TO t_keeper; GRANT t_keeper TO t_keeper_member")
            yield stage
            await race.observer.execute(f"ALTER SCHEMA fencepost OWNER TO {keeper}")
    finally:
        for role in MADE_ROLES:
            quoted = role.replace('"', '""')
            await race.observer.execute(f'DROP OWNED BY "{quoted}"; DROP ROLE "{quoted}"')


async def refused(gateway: Gateway, token: int = 40) -> str:
    answer = await patch(gateway, keyed("k", token, n=1))
    if not isinstance(answer, Problem):
        return ""
    assert answer.name == "FP043", answer
    return answer.detail


REFUSED = (
    ("t_super", "superuser"), ("t_bypass", "BYPASSRLS"), ("pg_read_all_data", "PostgreSQL's own"),
    (LOGIN, "may act as the login"), ("t_login_member", "may act as the login"), ("t_keeper", "owner of the schema"),
    ("t_keeper_member", "owner of the schema"), ("t_plain", "GRANT t_plain TO fp_login"), ("nobody", "no such role"),
    ("none", "no such role"), ("", "no such role"), (WEB.upper(), "no such role"),
    (f"{WEB}; RESET ROLE", "no such role"), (f'"{WEB}"', "no such role"),
)  # fmt: skip


@pytest.mark.versions
async def test_a_role_that_is_more_than_a_caller_or_is_none_is_refused_by_name(allowed_stage: Acting) -> None:
    await allowed_stage.owner.execute(f"GRANT {LOGIN} TO t_login_member")
    for role, reason in REFUSED:
        assert reason in await refused(allowed_stage.of(role)), role
        for roles in ([role], [WEB]):
            gateway = replace(allowed_stage.of(role), roles=AllowedRoles(roles))
            assert (reason if roles == [role] else "lists") in await refused(gateway), role
        await allowed_stage.assert_own_name()
    assert await refused(allowed_stage.of('t "odd" näme')) == "", "any name will do"


@pytest.mark.versions
async def test_without_set_a_membership_is_not_enough(allowed_stage: Acting) -> None:
    grant = f"GRANT t_plain TO {LOGIN} WITH SET FALSE"
    if allowed_stage.owner.get_server_version() < (16,):
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await allowed_stage.owner.execute(grant)
        return
    await allowed_stage.owner.execute(grant)
    assert "may not act as it" in await refused(allowed_stage.of("t_plain"))


async def test_a_role_that_is_revoked_is_refused_by_postgresql_before_the_answer_is_old(allowed_stage: Acting) -> None:
    assert await refused(allowed_stage.of(WEB)) == ""
    await allowed_stage.assert_own_name()  # a busy lane has its role for as long as the answer is believed
    await allowed_stage.owner.execute(f"REVOKE {WEB} FROM {LOGIN}")
    assert f'permission denied to set role "{WEB}"' in await refused(allowed_stage.of(WEB), 41), "asked a moment ago"
    assert "may not act as it" in await refused(allowed_stage.of(WEB), 41)
    await allowed_stage.owner.execute(f"GRANT {WEB} TO {LOGIN}")
    allowed_stage.gateway.roles.forget()  # as a reload of the catalog does
    assert await refused(allowed_stage.of(WEB), 42) == ""
    await allowed_stage.assert_own_name()


async def test_an_answer_is_asked_for_anew_after_a_while(allowed_stage: Acting) -> None:
    assert await refused(allowed_stage.of("t_plain"))
    await allowed_stage.owner.execute(f"GRANT t_plain TO {LOGIN}")
    assert await refused(allowed_stage.of("t_plain")), "known"
    clock = ManualClock()
    roles = AllowedRoles(times=Times(clock=clock))
    assert await roles.why_not(allowed_stage.gateway.database, "t_plain") is None
    await allowed_stage.owner.execute(f"REVOKE t_plain FROM {LOGIN}")
    await clock.advance(TIMES.connections.roles_known_for - 1)
    assert await roles.why_not(allowed_stage.gateway.database, "t_plain") is None, "known"
    await clock.advance(2)
    assert await roles.why_not(allowed_stage.gateway.database, "t_plain") is not None


async def test_a_leases_claims_are_refused_too_and_a_lock_by_itself_is_none_of_the_databases(
    allowed_stage: Acting,
) -> None:
    gateway = allowed_stage.of("t_plain")
    with_claim = await ask(gateway, asking("a", secret="s" * 32, claims=("orders/k",)))
    assert isinstance(with_claim, Problem)
    assert with_claim.name == "FP043"
    assert not isinstance(await ask(gateway, asking("a", secret="t" * 32)), Problem)


async def test_a_superuser_acts_as_roles_only_with_a_list(allowed_stage: Acting, database: str) -> None:
    """Nor does it start where all callers have roles. API keys have roles, too; a gateway starts with keys of none."""
    async with open_gateway(database) as gateway:
        superuser = gateway.database
        assert await AllowedRoles([]).why_not_start(superuser) == NO_LIST
        assert await AllowedRoles([NOTHING]).why_not_start(superuser) is None
        assert "the operator lists none" in (await AllowedRoles([]).why_not(superuser, WEB) or "")
        assert await AllowedRoles([WEB]).why_not(superuser, WEB) is None
    assert await AllowedRoles(()).why_not_start(allowed_stage.gateway.database) is None
    assert await allowed_stage.gateway.roles.why_not(allowed_stage.gateway.database, WEB) is None, (
        "a login of its own needs none"
    )


async def test_without_its_line_such_a_role_would_act(allowed_stage: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = allowed_roles._WHY_NOT.splitlines()  # noqa: SLF001
    for role, dropped in (("t_super", "r.rolsuper"), ("t_bypass", "rolbypassrls"), ("t_keeper", "nspowner")):
        # A superuser is a member of every role.
        also = "pg_has_role(r.oid" if role == "t_super" else dropped
        kept = [line for line in lines if dropped not in line and also not in line]
        monkeypatch.setattr(allowed_roles, "_WHY_NOT", "\n".join(kept))
        assert await AllowedRoles().why_not(allowed_stage.gateway.database, role) is None, role


# Marks rise only for who may write there: claims of rows, absent keys and scopes, by themselves and with a lease.

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
        assert granted.claims[0].mark == granted.claim_token, key
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
    other = stage.of(WEB, claims='{"order": "other"}')
    for policy in ("SELECT", "CREATE POLICY seen ON orders FOR SELECT USING (true)"):  # seen, and not to be claimed
        await race.observer.execute(policy)
        for no_row in (await ask(other, wanted), await claim(other, Claim(parse_resource("orders/k"), Token(40)))):
            assert isinstance(no_row, Problem)
            assert (no_row.name, "PUT it under the token" in (no_row.hint or "")) == ("FP006", True)
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
    require = "who = 'none' OR EXISTS"
    await mutate(scoped, "fencepost.require_writer(text)", require, f"true OR {require}")
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


async def test_where_policies_rule_a_scope_is_claimed_by_who_may_write_a_row(accounts: Acting, scoped: Race) -> None:
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
    "gateway_is_taken": "('orders/1')",
    "gateway_idem_begin": "('', 'k', 'h')",
    "gateway_idem_begin_each": "('', '{k}', '{h}')",
    "gateway_idem_record": "('', 'k', 'h', '{}', 'a', NULL)",
    "gateway_idem_record_each": "('{a}', '{k}', '{h}', ARRAY['{}'::json], '{a}', '{NULL}')",
}


async def a_web_role_that_logs_in_gets_nothing(stage: Acting, race: Race) -> None:
    allowed = {row[0].partition("(")[0].removeprefix("fencepost.") for row in await race.observer.fetch(DENIED, WEB)}
    assert allowed == set(CALLS), "the rest is denied, and these look at who logged in"
    await race.observer.execute(f"ALTER ROLE {WEB} LOGIN PASSWORD 'x'")
    async with connection_to(stage.dsn.replace(LOGIN, WEB)) as theirs:
        for name, arguments in CALLS.items():
            refused = await outcome(theirs.execute(f"SELECT * FROM fencepost.{name}{arguments}"))
            assert refused == "42501", name
        await theirs.execute("SET fencepost.caller = 'x'; SET request.jwt.claims = '{}'")
        assert await marks(race) == {}


@pytest.mark.versions
async def test_a_web_role_that_logs_in_itself_raises_no_mark_and_sees_none(stage: Acting, race: Race) -> None:
    await a_web_role_that_logs_in_gets_nothing(stage, race)


async def test_without_the_look_at_the_login_it_would(stage: Acting, race: Race) -> None:
    line = "IF NOT has_function_privilege(session_user, p_function, 'EXECUTE') THEN"
    await mutate(race, "fencepost.require_gateway(text)", line, line.replace("NOT", "false AND NOT"))
    with pytest.raises(AssertionError):
        await a_web_role_that_logs_in_gets_nothing(stage, race)


# A role never outlives its request on a connection, whatever is cancelled or broken.

Moment = Literal["before", "in flight", "after"]
STATEMENTS = ("execute", "fetch", "fetchval", "fetchrow", "fetchmany")
OF_K = (Condition(Field("order_id"), "eq", "k"),)


async def several(gateway: Gateway) -> None:
    for key in ("k", "j"):
        await patch(gateway, keyed(key, 40, n=1))
    await claim(gateway, Claim(parse_resource("account/42"), Token(40)))


WAYS_BACK: dict[str, Callable[[Gateway], Awaitable[object]]] = {
    "batched": lambda gateway: patch(gateway, keyed("k", 40, n=1)),
    "keyed": lambda gateway: patch(gateway, replace(keyed("k", 40, n=1), idempotency_key=once())),
    "put": lambda gateway: put(gateway, keyed("new", 40, n=1)),
    "alone": lambda gateway: post(gateway, listed(40, {"order_id": "a"}, {"order_id": "b"})),
    "refused": lambda gateway: patch(gateway, keyed("k", 20, n=1)),
    "read": lambda gateway: read_one(gateway, ReadOne("orders", ("k",))),
    "explain": lambda gateway: explain(gateway, parse_resource("orders/k")),
    "lease": lambda gateway: ask(gateway, asking("l", secret="s" * 32, claims=("orders/k",))),
    "array": lambda gateway: patch(gateway, listed(40, {"order_id": "k", "n": 1}, {"order_id": "j", "n": 1})),
    "PATCH by filter": lambda gateway: patch(gateway, matching(OF_K, 40, n=1)),
    "DELETE by filter": lambda gateway: delete(gateway, matching(OF_K, 40)),
    "scope": lambda gateway: claim(gateway, Claim(parse_resource("account/42"), Token(40))),
    "atomic": lambda gateway: atomically(gateway, several),
}


class Interrupter:
    """Cancels the request when the n-th statement is run on a session that acts as a caller, or is about to. A batch,
    which is a task of its own, goes on then.
    """

    request: asyncio.Future[object]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.moment, self.seen = -1, "before", 0
        for name in STATEMENTS:
            real = getattr(asyncpg.Connection, name)
            monkeypatch.setattr(asyncpg.Connection, name, self._interrupting(real))

    def _interrupting(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(connection: "asyncpg.Connection[asyncpg.Record]", *args: Any, **options: Any) -> Any:
            if not getattr(connection, "acting", False):
                return await real(connection, *args, **options)
            mine = self.seen == self.at
            self.seen += 1
            if mine and self.moment == "before":
                self.request.cancel()
            if mine and self.moment == "in flight":
                asyncio.get_running_loop().call_soon(self.request.cancel)
            answer = await real(connection, *args, **options)
            if mine and self.moment == "after":
                self.request.cancel()
            return answer

        return run


@pytest.mark.parametrize("way", WAYS_BACK)
async def test_a_role_ends_with_its_request_whichever_statement_is_cancelled(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for key in ("k", "j"):
        await race.insert(race.a, key, 30)
    await race.observer.execute(f"{ITEMS}; GRANT SELECT, UPDATE ON items TO {WEB}")
    await protect(race.observer, "items", scope="account/{account_id}")
    await stage.gateway.catalog.reload()
    moments: tuple[Moment, ...] = ("before", "in flight", "after")
    for moment in moments:
        interrupter, at, reached = Interrupter(monkeypatch), 0, True
        interrupter.moment = moment
        while reached:
            interrupter.at, interrupter.seen = at, 0
            interrupter.request = asyncio.ensure_future(WAYS_BACK[way](stage.of(WEB, claims='{"sub": "ann"}')))
            await asyncio.wait([interrupter.request])
            reached = interrupter.seen > at
            interrupter.at = -1
            await stage.assert_own_name()
            at += 1
        assert at >= 3, "a role was taken, and something done with it"


async def test_a_connection_that_cannot_give_its_role_back_is_closed_and_the_answer_stays(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    await race.insert(race.a, "k", 30)
    real = database.give_back
    ended = []
    one_by_one = asyncio.Lock()  # a lane gives its role back a moment later, beside the next request

    async def broken(connection: Session, within: float = 5) -> str | None:
        ended.append(connection.backend.pid)
        async with one_by_one:
            await race.observer.execute("SELECT pg_terminate_backend($1, 5000)", connection.backend.pid)
        return await real(connection, within)

    monkeypatch.setattr(database, "give_back", broken)
    for way in ("batched", "alone", "read"):
        answer = await WAYS_BACK[way](stage.of(WEB))
        assert result_of(answer) in ("ok", "created"), answer  # type: ignore[arg-type]
        await stage.assert_own_name()
    assert len(set(ended)) == 3


async def test_a_connection_whose_backend_ended_right_after_an_answer_changes_none(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library may still wait for the end of that answer, and has an error of its own for it."""
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetch

    async def unfinished(connection: Session, query: str, *args: Any, **options: Any) -> Any:
        if query == database._GIVE_BACK:  # noqa: SLF001 - it is the one statement that meets this
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return await real(connection, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", unfinished)
    for way in ("batched", "alone", "read"):
        answer = await WAYS_BACK[way](stage.of(WEB))
        assert result_of(answer) in ("ok", "created"), answer  # type: ignore[arg-type]
        await stage.assert_own_name()


@pytest.mark.parametrize("token", [40, 20])
async def test_a_trigger_that_takes_a_role_for_the_session_leaves_none_behind(
    stage: Acting, race: Race, token: int
) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute("""
        CREATE FUNCTION strange() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          PERFORM set_config('role', 'fp_other', false), set_config('request.jwt.claims', 'theirs', false);
          RETURN NEW; END $$;
        CREATE TRIGGER strange BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION strange()""")
    await stage.gateway.catalog.reload()
    for way in ("batched", "keyed", "lease"):
        await WAYS_BACK[way](stage.of(WEB))
        await stage.assert_own_name()
    assert result_of(await patch(stage.of(WEB), keyed("k", token, n=1))) in ("ok", "FP001", "FP002")
    await stage.assert_own_name()


@pytest.mark.parametrize("token", [40, 30])
async def test_a_batch_whose_connection_breaks_leaves_no_role_behind(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    """Its backend is ended as the gateway, and the mark asked for as the caller."""
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetchmany
    broken: list[int] = []

    async def break_once(connection: Session, *args: Any, **options: Any) -> Any:
        if not broken:
            broken.append(connection.backend.pid)
            connection.terminate()
        return await real(connection, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", break_once)
    answer = await patch(stage.of(WEB), keyed("k", token, n=7))
    assert broken
    assert result_of(answer) == ("ok" if token == 40 else "FP009")
    await stage.assert_own_name()


async def test_a_role_that_may_not_be_taken_any_more_is_no_answer_to_a_write_that_may_have_landed(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetchmany

    async def cut(connection: Session, *args: Any, **options: Any) -> Any:
        await real(connection, *args, **options)
        await race.observer.execute(f"REVOKE {WEB} FROM {LOGIN}")
        connection.terminate()
        raise asyncpg.InterfaceError("cut off")

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", cut)
    answer = await patch(replace(stage.of(WEB), times=IN_A_HURRY), keyed("k", 40, n=7))
    assert await race.live_mark("k") == 40, "it landed"
    assert result_of(answer) == "FP009"


async def test_no_grant_keeps_the_callers_role_for_the_gateways_own_statements(stage: Acting, race: Race) -> None:
    stage.gateway.locks.queue.times = Times(queue=QueueTimes(late_share=-1))  # begin_now follows the claims
    await race.insert(race.a, "k", 30)
    await race.observer.execute("SELECT fencepost.issue_beyond(100)")
    answer = await WAYS_BACK["lease"](stage.of(WEB))
    assert isinstance(answer, Granted), answer
    await stage.assert_own_name()


# Mutants


async def test_without_giving_back_the_pool_would_lend_none_of_them(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines hold the rule: without the first one, the pool closes the connection."""

    async def nothing(_connection: object, _within: float = 5) -> None:
        return None

    await race.insert(race.a, "k", 30)
    monkeypatch.setattr(database, "give_back", nothing)
    await WAYS_BACK["read"](stage.of(WEB))
    await stage.assert_own_name()


async def test_without_both_lines_a_role_would_be_lent_to_the_next(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pretend(connection: Session, _within: float = 5) -> None:
        connection.acting = False

    await race.insert(race.a, "k", 30)
    monkeypatch.setattr(database, "give_back", pretend)
    await WAYS_BACK["read"](stage.of(WEB))
    with pytest.raises(AssertionError):
        await stage.assert_own_name()
    for pool in (stage.gateway.database._pool, stage.gateway.database._batch_pool):  # noqa: SLF001
        pool.expire()


POLICY = f"""
CREATE FUNCTION noisy() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('app.tenant', '42', false), set_config('TimeZone', 'Asia/Tokyo', false); RETURN true; END $$;
CREATE TABLE members (m text); INSERT INTO members VALUES ('x');
CREATE VIEW seen AS SELECT m FROM members WHERE noisy();
GRANT SELECT ON seen, members TO {WEB}; INSERT INTO orders (order_id, last_fence_token) VALUES ('k', 30);
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON orders USING (EXISTS (SELECT FROM seen WHERE m = 'x'))"""


@pytest.mark.parametrize("way", ["read", "keyed", "batched", "PATCH by filter", "explain", "lease", "atomic"])
async def test_what_a_policy_sets_ends_with_the_request(stage: Acting, race: Race, way: str) -> None:
    """A view stands between the policy and the function."""
    await race.observer.execute(POLICY)
    await stage.gateway.catalog.reload()
    await WAYS_BACK[way](stage.of(WEB))
    for lend in (stage.gateway.database.connection, stage.gateway.database.for_leases):
        async with lend() as connection:
            found = "SELECT current_setting('TimeZone') || coalesce(current_setting('app.tenant', true), '')"
            assert await connection.fetchval(found) == "UTC"


# What is known of a role's privileges while PostgreSQL is away: a log may be there, which is what it is for.


async def test_the_last_answer_counts_while_postgresql_is_away_and_before_the_first_one_nothing(stage: Acting) -> None:
    clock, table = ManualClock(), stage.gateway.catalog.current.find("orders")
    assert isinstance(table, ProtectedTable)
    known = KnownPrivileges(replace(Times(), clock=clock))
    may = await known.of(stage.gateway.database, READER, table)
    assert may is not None
    assert may.denial(table, "patch", ["status"], []) == "permission denied for table orders"
    away = await Database.open(stage.dsn, Limits(1))
    await away.close()
    await clock.advance(60)
    assert await known.of(away, READER, table) == may
    assert await known.of(away, WEB, table) is None


# Batches of writes of several roles: a batch has one role, and no caller in it sees another one's.

CLAIMED = """
CREATE TABLE claimed (id text PRIMARY KEY, n int, who text DEFAULT CURRENT_USER,
  sub text DEFAULT current_setting('request.jwt.claims', true),
  name text DEFAULT current_setting('fencepost.caller', true))"""


async def rows_are_stamped_by_who_wrote_them(stage: Acting, race: Race) -> None:
    """Hundreds of writes of two roles at a time, with one connection for batches and one for all others."""
    chosen = random.Random(7)
    expected: dict[str, str] = {}
    requests: list[Awaitable[Outcome]] = []
    for number in range(400):
        role, key = chosen.choice((WEB, OTHER)), f"{number % 300}"
        gateway, expected[key] = stage.of(role, claims='{"sub": "x"}'), role
        write = replace(
            keyed(key, 1000 + number, status="s"), idempotency_key=once(f"k{number}") if number % 3 == 0 else None
        )
        if number < 300:
            new = [{"order_id": key}, {"order_id": f"{key}b"}] if number % 5 == 0 else [{"order_id": key}]
            requests.append(post(gateway, listed(1000 + number, *new)) if number % 2 else put(gateway, write))
        else:
            requests.append(put(gateway, write))  # `who` is left out: it gets its default
    for begin in (0, 300):
        answers = await asyncio.gather(*requests[begin : begin + 300])
        assert {result_of(answer) for answer in answers} <= {"ok", "created"}
    rows = await race.observer.fetch("SELECT order_id, who, xmin::text AS xmin FROM orders")
    assert {row["order_id"]: row["who"] for row in rows if row["order_id"] in expected} == expected
    together: dict[str, set[str]] = {}
    for row in rows:
        together.setdefault(row["xmin"], set()).add(row["who"])
    assert all(len(roles) == 1 for roles in together.values()), "two roles shared a transaction"
    await stage.assert_own_name()


async def test_two_roles_race_on_one_connection_and_are_never_crossed(stage: Acting, race: Race) -> None:
    await rows_are_stamped_by_who_wrote_them(stage, race)


async def test_with_one_lane_for_all_they_would_be(stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    real = WriteQueues.of
    monkeypatch.setattr(WriteQueues, "of", lambda queues, caller: real(queues, replace_role(caller)))
    with pytest.raises(AssertionError):
        await rows_are_stamped_by_who_wrote_them(stage, race)


def replace_role(caller: Caller) -> Caller:
    return replace(caller, role=WEB) if caller.role else caller


async def defaults_see_their_own_caller(stage: Acting, race: Race) -> None:
    names = [f"caller-{number}" for number in range(60)]

    async def write(name: str) -> Outcome:
        gateway = stage.of(WEB if len(name) % 2 else OTHER, name, name)
        return await post(gateway, listed(40, {"id": name}, table="claimed"))

    answers = await asyncio.gather(*map(write, names))
    assert {result_of(answer) for answer in answers} == {"created"}
    rows = await race.observer.fetch("SELECT id, who, sub, name FROM claimed")
    assert len(rows) == 60
    assert all(row["sub"] == row["name"] == row["id"] for row in rows)


@pytest.fixture
async def claimed(stage: Acting, race: Race) -> Acting:
    """Give a table whose defaults read who calls."""
    await race.observer.execute(f"{CLAIMED}; GRANT ALL ON claimed TO {WEB}, {OTHER}")
    await protect(race.observer, "claimed")
    await stage.gateway.catalog.reload()
    return stage


async def test_a_default_that_reads_the_claims_sees_those_of_its_own_request(claimed: Acting, race: Race) -> None:
    await defaults_see_their_own_caller(claimed, race)


async def test_in_a_batch_it_would_see_none(claimed: Acting, race: Race) -> None:
    table = claimed.gateway.catalog.current.tables["claimed"]
    assert table.shares_transactions, "nothing else keeps them apart"
    object.__setattr__(table, "shows_caller", False)
    with pytest.raises(AssertionError):
        await defaults_see_their_own_caller(claimed, race)


SEES = {
    "column DEFAULT": ("x text DEFAULT current_setting('a.b', true)", True),
    "now": ("x timestamptz DEFAULT now()", False),
    "current_user": ("x text DEFAULT CURRENT_USER", False),
    "uuid": ("x uuid DEFAULT gen_random_uuid()", False),
    "check": ("x text CHECK (x <> current_setting('a.b', true))", True),
    "immutable": ("x text DEFAULT public.fixed()", False),
    "stable": ("x text DEFAULT public.who()", True),
    "operator": ("x int CHECK (x OPERATOR(public.===) 1)", True),
    "domain": ("x public.seen", True),
    "array of domain": ("x public.seen[]", True),
    "composite": ("x public.pair", True),
    "default of domain": ("x public.given", True),
    "generated": ("x int, y int GENERATED ALWAYS AS (x + 1) STORED", False),
}


@pytest.mark.versions
async def test_what_a_table_runs_says_whether_it_can_see_the_caller(stage: Acting, race: Race) -> None:
    made_of = """
        CREATE FUNCTION public.fixed() RETURNS text LANGUAGE sql IMMUTABLE RETURN 'x';
        CREATE FUNCTION public.who() RETURNS text LANGUAGE sql STABLE RETURN current_setting('a.b', true);
        CREATE FUNCTION public.same(int, int) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT $1 = $2';
        CREATE OPERATOR public.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = public.same);
        CREATE DOMAIN public.seen AS text CHECK (VALUE <> current_setting('a.b', true));
        CREATE DOMAIN public.given AS text DEFAULT current_setting('a.b', true);
        CREATE TYPE public.pair AS (a int, b public.seen)"""
    await race.observer.execute(made_of)
    for number, (columns, _) in enumerate(SEES.values()):
        await race.observer.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, {columns})")
    await race.observer.execute(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id);"
        "CREATE TABLE part PARTITION OF parted (CHECK (current_setting('a.b', true) <> 'x')) FOR VALUES IN (1)"
    )
    await stage.gateway.catalog.reload()
    tables = stage.gateway.catalog.current.tables
    found = {name: tables[f"t{number}"].shows_caller for number, name in enumerate(SEES)}
    assert found == {name: sees for name, (_, sees) in SEES.items()}
    assert tables["parted"].shows_caller
    assert not tables["orders"].shows_caller


# Under row security the callers of a role share a transaction too, and each writes with its own claims and name.


TENANTS = """
ALTER TABLE orders ADD COLUMN tenant text DEFAULT current_setting('fencepost.caller', true), ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON orders USING (tenant = current_setting('request.jwt.claims', true)::json ->> 'tenant')"""


@pytest.fixture
async def tenants(stage: Acting, race: Race) -> list[Gateway]:
    """Give callers of one role, who see no row but their own."""
    await race.observer.execute(TENANTS)
    await stage.gateway.catalog.reload()
    return [stage.of(WEB, f"t{number}", f'{{"tenant": "t{number}"}}') for number in range(20)]


async def tenants_keep_to_their_rows(tenants: list[Gateway], race: Race) -> None:
    """Rows of their own are made and changed, those of others are not there; some hang up."""
    chosen = random.Random(7)
    makes = [post(g, listed(40, {"order_id": f"{n}-{g.caller.name}"})) for n in range(5) for g in tenants]
    assert {result_of(answer) for answer in await asyncio.gather(*makes)} == {"created"}

    async def write(number: int) -> None:
        gateway, other = tenants[number % 20], chosen.choice(tenants)
        mine = chosen.random() < 0.5
        key = f"{number % 5}-{(gateway if mine else other).caller.name}"
        asked = keyed(key, 50 + number, who=gateway.caller.name)
        answer = await patch(gateway, replace(asked, idempotency_key=once(f"k{number}") if number % 3 == 0 else None))
        assert result_of(answer) in (("ok", "FP001") if mine or other is gateway else ("FP006",))

    writes = [asyncio.create_task(write(number)) for number in range(400)]
    await asyncio.sleep(0)
    for hangs_up in chosen.sample(writes, 40):
        hangs_up.cancel()
    for ended in await asyncio.gather(*writes, return_exceptions=True):
        assert ended is None or isinstance(ended, asyncio.CancelledError), ended
    rows = await race.observer.fetch("SELECT order_id, tenant, who, xmin::text AS xmin FROM orders")
    assert all(row["order_id"].endswith(f"-{row['tenant']}") for row in rows)
    assert all(row["who"] in (WEB, row["tenant"]) for row in rows), "another tenant wrote to it"
    together: dict[str, set[str]] = {}
    for row in rows:
        together.setdefault(row["xmin"], set()).add(row["tenant"])
    assert max(map(len, together.values())) > 1, "no two tenants shared a transaction"


async def test_callers_who_share_a_transaction_keep_to_their_rows(tenants: list[Gateway], race: Race) -> None:
    await tenants_keep_to_their_rows(tenants, race)


async def test_with_the_claims_of_one_they_would_not(
    tenants: list[Gateway], race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act_for_one(session: Session, _: Caller) -> None:
        await database.act_for(session, tenants[0].caller)

    monkeypatch.setattr(attempt, "act_for", act_for_one)
    with pytest.raises(AssertionError):
        await tenants_keep_to_their_rows(tenants, race)


async def test_a_batch_that_is_undone_leaves_nobodys_claims_behind(
    stage: Acting, tenants: list[Gateway], race: Race
) -> None:
    """The role may change rows, and make none: that undoes a batch of PUTs, whose connection goes on."""
    await race.observer.execute(f"REVOKE INSERT ON orders FROM {WEB}")
    await race.observer.execute(
        "INSERT INTO orders (order_id, tenant, last_fence_token) VALUES ('anns', 't0', 30), ('cids', 't2', 30)"
    )
    in_batches(stage, linger=4 * PATIENCE)
    ann, bob, cid = (replace(each, group=stage.gateway.group) for each in tenants[:3])
    try:
        assert result_of(await put(ann, keyed("anns", 40, n=1))) == "ok"
        undone = await asyncio.gather(put(bob, keyed("new", 40, n=1)), put(cid, keyed("cids", 40, n=1)))
        assert [result_of(answer) for answer in undone] == ["42501", "ok"]
        assert result_of(await put(bob, keyed("anns", 50, n=9))) == "42501", "whose claims were set last, and undone"
        assert await race.live_mark("anns") == 40
    finally:
        await patch(stage.gateway, keyed("anns", 60, n=1))  # the login's own, for which the lane gives its connection


def in_batches(stage: Acting, **times: float) -> None:
    """Let the stage's gateway have these times for its batches."""
    group = GroupCommit(stage.gateway.database, times=Times(batches=BatchTimes(**times)))
    stage.gateway = replace(stage.gateway, group=group)


async def test_a_lane_that_waits_for_its_next_write_gives_its_connection_to_one_that_wants_it(
    stage: Acting, race: Race
) -> None:
    in_batches(stage, linger=3600)
    await race.insert(race.a, "k", 30)
    for number in range(8):
        role = (WEB, OTHER, WEB, WEB)[number % 4]
        write = patch(stage.of(role), keyed("k", 40 + number, n=number))
        assert result_of(await asyncio.wait_for(write, PATIENCE)) == "ok"
    write = patch(stage.gateway, keyed("k", 60, n=1))
    assert result_of(await asyncio.wait_for(write, PATIENCE)) == "42501", "the login may do nothing by itself"
    await stage.assert_own_name()


async def test_a_lane_that_waits_for_its_next_write_gives_its_place_to_its_callers_other_lanes(
    stage: Acting, race: Race
) -> None:
    in_batches(stage, linger=4 * PATIENCE)
    await race.insert(race.a, "k", 30)
    shapes: list[dict[str, int | str]] = [{"n": 1}, {"status": "s"}, {"n": 1, "status": "s"}]
    for token in range(40, 46):
        write = patch(stage.of((WEB, OTHER)[token % 2]), keyed("k", token, "orders", **shapes[token % 3]))
        assert result_of(await asyncio.wait_for(asked_by("ann", write), PATIENCE)) == "ok"
    by_login = asked_by("ann", patch(stage.gateway, keyed("k", 60, n=1)))
    assert result_of(await asyncio.wait_for(by_login, PATIENCE)) == "42501", "the login may do nothing by itself"


# What a role lacks concerns the whole lane


class Counting:
    """Counts batches, parts of batches, and reports to the operator."""

    def __init__(self, stage: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
        self.halves = self.batches = 0
        self.reports: list[str] = []
        part, run = BatchQueue.part, group_commit._run_batch  # noqa: SLF001

        def counted_part(queue: BatchQueue[object, object], *args: object) -> BatchQueue[object, object]:
            self.halves += 1
            return part(queue, *args)  # type: ignore[arg-type]

        async def counted_run(queue: BatchQueue[object, object], *args: object) -> None:
            self.batches += 1
            await run(queue, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(BatchQueue, "part", counted_part)
        monkeypatch.setattr(group_commit, "_run_batch", counted_run)
        stage.gateway.group._on_setup_error = self.reports.append  # noqa: SLF001


async def patches(stage: Acting, role: str, *, with_key: bool) -> list[str]:
    gateway = stage.of(role)

    async def write(number: int) -> str:
        request = keyed(str(number), 40, status="s")
        return result_of(
            await patch(gateway, replace(request, idempotency_key=once(f"{number}")) if with_key else request)
        )

    return list(await asyncio.gather(*map(write, range(50))))


@pytest.mark.parametrize("with_key", [False, True])
async def test_a_privilege_that_a_role_lacks_is_answered_to_the_whole_batch_at_once(
    stage: Acting, monkeypatch: pytest.MonkeyPatch, *, with_key: bool
) -> None:
    in_batches(stage, slow=3600)  # on a busy machine a batch takes longer, and others go beside it
    # What PostgreSQL says of the role is known then: the writes do not wait for it one after the other.
    assert await stage.gateway.roles.why_not(stage.gateway.database, READER) is None
    counted = Counting(stage, monkeypatch)
    assert set(await patches(stage, READER, with_key=with_key)) == {"42501"}
    assert (counted.halves, counted.reports) == (0, [])
    assert counted.batches <= 3
    await stage.assert_own_name()


async def test_without_that_line_batches_would_be_halved(stage: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefusedError, "lacks_privilege", property(lambda _: False))
    counted = Counting(stage, monkeypatch)
    await patches(stage, READER, with_key=False)
    assert counted.halves > 0


async def test_what_the_gateways_own_login_lacks_is_reported_to_the_operator(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    await race.observer.execute(
        "REVOKE EXECUTE ON FUNCTION fencepost.idem_begin_each(text, text[], bytea[]) FROM fp_login"
    )
    counted = Counting(stage, monkeypatch)
    await patches(stage, WEB, with_key=True)
    assert "fencepost.idem_begin_each" in counted.reports[0]
    assert "fp_login" in counted.reports[0]


async def test_a_value_that_names_what_the_role_may_not_see_fails_alone(stage: Acting, race: Race) -> None:
    await race.observer.execute("ALTER TABLE orders ADD named regclass; CREATE TABLE of_the_owner.hidden ()")
    await stage.gateway.catalog.reload()
    for key in "abcd":
        await race.insert(race.a, key, 30)
    writes = (
        patch(stage.of(WEB), keyed(key, 40, named="of_the_owner.hidden" if key == "c" else "orders")) for key in "abcd"
    )
    assert [result_of(answer) for answer in await asyncio.gather(*writes)] == ["ok", "ok", "42501", "ok"]


async def test_a_put_that_only_needs_update_does_not_fail_for_its_neighbours_insert(stage: Acting, race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute(f"REVOKE INSERT ON orders FROM {WEB}")
    gateway = stage.of(WEB)
    await patch(gateway, keyed("k", 31, n=1))
    answers = await asyncio.gather(*(put(gateway, keyed(key, 40, n=1)) for key in ("a", "k", "z")))
    assert [result_of(answer) for answer in answers] == ["42501", "ok", "42501"]


# An Idempotency-Key brings nobody an answer that its own request would not get (decision 0040).

KEYED_WAYS: dict[str, Callable[[Gateway], Awaitable[Outcome]]] = {
    "write": lambda g: patch(g, replace(keyed("k", 40, n=1), idempotency_key=once())),
    "claim": lambda g: claim(g, Claim(parse_resource("orders/k"), Token(40), once())),
}


@pytest.mark.parametrize("way", KEYED_WAYS)
async def test_a_key_of_another_role_is_another_key(stage: Acting, race: Race, way: str) -> None:
    await race.insert(race.a, "k", 30)
    assert result_of(await KEYED_WAYS[way](stage.of(WEB, "ann"))) in ("ok", "created")
    assert isinstance(await KEYED_WAYS[way](stage.of(WEB, "bob")), Replayed), "a role's callers share theirs"
    assert result_of(await KEYED_WAYS[way](stage.of(NOTHING, "ann"))) == "42501"


@pytest.mark.parametrize("way", KEYED_WAYS)
async def test_under_row_security_a_key_of_another_caller_is_another_key(stage: Acting, race: Race, way: str) -> None:
    await race.insert(race.a, "k", 30)
    keyed_ruled = """
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON orders USING (current_setting('request.jwt.claims', true)::json ->> 'sub' = 'ann')"""
    await race.observer.execute(keyed_ruled)
    await stage.gateway.catalog.reload()
    ann, bob = (stage.of(WEB, name, claims=f'{{"sub": "{name}"}}') for name in ("ann", "bob"))
    assert result_of(await KEYED_WAYS[way](ann)) in ("ok", "created")
    assert isinstance(await KEYED_WAYS[way](ann), Replayed)
    theirs = await KEYED_WAYS[way](bob)
    assert not isinstance(theirs, Replayed)
    assert not getattr(theirs, "rows", ()), "the policy hides it"
