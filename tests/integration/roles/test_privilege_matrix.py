"""Roles by routes, tables and paths: 403 exactly where PostgreSQL says that the role lacks a privilege.

Which privileges a route needs stands in docs/roles.md, and here, by column. Whether a role has them says
has_column_privilege, or has_table_privilege for DELETE. The grants are drawn at random: of the table, or of some of its
columns.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from tests.scenarios.idempotency import once
from tests.scenarios.scopes import scoped_race
from tests.support.acting import WEB, Acting, acting
from tests.support.interleave import Connect
from tests.support.racing import Race
from tests.support.use_cases import delete, keyed, listed, matching, patch, post, put, result_of

from fencepost.fencing.resource import parse_resource
from fencepost.fencing.token import Token
from fencepost.gateway.claims.claim import Claim
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.read import ReadMany, ReadOne
from fencepost.gateway.use_cases import claim, explain, read_many, read_one
from fencepost.gateway.writes.write import Write
from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements.query import Condition, Field, Query, Selected

CASES = 10
MARK = "last_fence_token"
COLUMNS = {"jobs": ("id", "account_id", "n", MARK), "items": ("id", "account_id", "n")}
VISIBLE = ("id", "account_id", "n")

Need = tuple[str, str]
"""A privilege, and the column; `*`: of the table."""


def need(privilege: str, *columns: str) -> set[Need]:
    return {(privilege, column) for column in columns}


@dataclass(frozen=True)
class Way:
    """A request, as the role sends it. `key` is a row that is there; `fresh`, one that is not."""

    needs: dict[str, set[Need]]
    send: Callable[[Gateway, str, int, int, int], Awaitable[Outcome]]


def of(rows: set[Need], scoped: set[Need]) -> dict[str, set[Need]]:
    """What it takes in a table whose rows have marks, and what where they share their scope's."""
    return {"jobs": rows, "items": scoped}


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


ONLY_N = (Selected(Field("n")),)
DELETED_N = of(need("SELECT", "n") | ROW | need("DELETE", "*"), DELETED["items"])
WAYS: dict[str, Way] = {
    "GET row": Way(of(SHOWN | ROW, SHOWN), lambda g, t, k, _f, _n: read_one(g, ReadOne(t, (str(k),)))),
    "GET list": Way(of(SHOWN, SHOWN), lambda g, t, _k, _f, _n: read_many(g, ReadMany(t, Query()))),
    "PATCH batched": Way(CHANGED, lambda g, t, k, _f, n: patch(g, keyed(str(k), n, table=t, n=1))),
    "PATCH keyed": Way(
        CHANGED, lambda g, t, k, _f, n: patch(g, replace(keyed(str(k), n, table=t, n=1), key=once(f"{n}")))
    ),
    "PATCH array": Way(CHANGED, lambda g, t, k, _f, n: patch(g, listed(n, {"id": k, "n": 1}, table=t))),
    "PATCH filter": Way(CHANGED, lambda g, t, k, _f, n: patch(g, filtered(t, k, n, n=5))),
    "PUT there": Way(REPLACED, lambda g, t, k, _f, n: put(g, keyed(str(k), n, table=t, account_id=42, n=1))),
    "PUT new": Way(MADE_BY_PUT, lambda g, t, _k, f, n: put(g, keyed(str(f), n, table=t, account_id=42, n=1))),
    "POST batched": Way(MADE, lambda g, t, _k, f, n: post(g, listed(n, {"id": f, "account_id": 42}, table=t))),
    "POST keyed": Way(
        MADE,
        lambda g, t, _k, f, n: post(g, replace(listed(n, {"id": f, "account_id": 42}, table=t), key=once(f"{n}"))),
    ),
    "POST alone": Way(
        MADE, lambda g, t, _k, f, n: post(g, listed(n, *({"id": e, "account_id": 42} for e in (f, -f)), table=t))
    ),
    "DELETE batched": Way(DELETED, lambda g, t, k, _f, n: delete(g, keyed(str(k), n, table=t))),
    "DELETE keyed": Way(
        DELETED, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), key=once(f"{n}")))
    ),
    "DELETE batched, n": Way(
        DELETED_N, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), select=ONLY_N))
    ),
    "DELETE keyed, n": Way(
        DELETED_N,
        lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), key=once(f"{n}"), select=ONLY_N)),
    ),
    "DELETE filter": Way(DELETED_MANY, lambda g, t, k, _f, n: delete(g, filtered(t, k, n))),
    "claim": Way(
        of(SHOWN | ROW | RAISED, need("write", "*")),
        lambda g, t, k, _f, n: claim(g, Claim(parse_resource(f"jobs/{k}" if t == "jobs" else "account/42"), Token(n))),
    ),
    "fences": Way(
        of(ROW, need("read", "*")),
        lambda g, t, k, _f, _n: explain(g, parse_resource(f"jobs/{k}" if t == "jobs" else "account/42")),
    ),
}
"""A scope is none of a table's columns: its claim needs some privilege to write to one of its tables, and a look at it
some privilege to read one (`write`, `read`)."""

_ASK = {"any": "has_any_column_privilege($1, $2, $3)", "*": "has_table_privilege($1, $2, $3)"}


async def has(race: Race, table: str, privilege: str, column: str) -> bool:
    """Ask PostgreSQL."""
    if privilege == "write":
        return any(
            [
                await has(race, table, "DELETE", "*"),
                await has(race, table, "INSERT", "any"),
                await has(race, table, "UPDATE", "any"),
            ]
        )
    if privilege == "read":
        return await has(race, table, "SELECT", "any")
    if column in _ASK:
        found: bool = await race.observer.fetchval(f"SELECT {_ASK[column]}", WEB, table, privilege)
        return found
    return bool(
        await race.observer.fetchval("SELECT has_column_privilege($1, $2, $3, $4)", WEB, table, column, privilege)
    )


def grants(chosen: random.Random, table: str) -> Iterator[str]:
    """Draw what the role may do: most privileges are whole, so that most routes need one that is not."""
    yield f"REVOKE ALL ON {table} FROM {WEB}"
    columns = COLUMNS[table]
    yield from (f"REVOKE ALL ({column}) ON {table} FROM {WEB}" for column in columns)
    for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE"):
        kind = chosen.choice(("table", "table", "all", "some", "none"))
        if kind == "table" or (privilege == "DELETE" and kind != "none"):
            yield f"GRANT {privilege} ON {table} TO {WEB}"
        elif kind in ("all", "some") and privilege != "DELETE":
            left = columns if kind == "all" else chosen.sample(columns, len(columns) - 1)
            yield f"GRANT {privilege} ({', '.join(left)}) ON {table} TO {WEB}"


@pytest.fixture
async def race(connect: Connect, database: str) -> Race:
    """Give items, which share scopes, and jobs, whose rows have marks."""
    race = await scoped_race(connect, database, "epoch")
    await race.observer.execute(
        "CREATE TABLE jobs (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0)"
    )
    await protect(race.observer, "jobs", rule="epoch")
    return race


@pytest.fixture
async def stage(race: Race) -> AsyncIterator[Acting]:
    """Give a gateway with few connections."""
    async with acting(race.observer, race.dsn, "SELECT", pool_size=2) as stage:
        yield stage


@pytest.mark.parametrize("seed", range(2))
async def test_a_request_is_403_exactly_where_postgresql_says_no(stage: Acting, race: Race, seed: int) -> None:
    chosen, numbers = random.Random(seed), itertools.count(1000)
    verdicts: dict[tuple[str, str], set[bool]] = {}
    for _ in range(CASES):
        for table in COLUMNS:
            statements = list(grants(chosen, table))
            await race.observer.execute("; ".join(statements))
            for name, way in WAYS.items():
                number = next(numbers)
                await race.observer.execute(f"SET fencepost.token = '{number}'")
                await race.observer.execute(f"INSERT INTO {table} (id, account_id) VALUES ($1, 42)", number)
                allowed = all([await has(race, table, *each) for each in way.needs[table]])
                answer = await way.send(stage.of(WEB), table, number, 100_000 + number, number)
                assert (result_of(answer) != "42501") == allowed, (name, table, statements[len(COLUMNS[table]) + 1 :])
                assert not allowed or result_of(answer) in ("ok", "created"), (name, table, answer)
                verdicts.setdefault((name, table), set()).add(allowed)
    await stage.assert_own_name()
    both = [each for each in verdicts.values() if len(each) == 2]
    assert len(both) > len(verdicts) * 0.6, "the draws say yes and no of most routes"


# Row level security


@pytest.mark.parametrize("table", COLUMNS)
async def test_halves_of_a_batch_have_the_same_privileges(stage: Acting, race: Race, table: str) -> None:
    """A value that PostgreSQL cannot take has its batch halved; a privilege is lacked by all, or by none."""
    await race.observer.execute("SET fencepost.token = '30'")
    numbers = range(100, 120)
    for number in numbers:
        await race.observer.execute(f"INSERT INTO {table} (id, account_id) VALUES ($1, $1)", number)
    await race.observer.execute(f"GRANT SELECT, UPDATE ON {table} TO {WEB}")
    gateway = stage.of(WEB)
    await patch(gateway, keyed("100", 31, table=table, n=1))
    writes = [patch(gateway, keyed(f"{each}", 40, table=table, n="x" if each == 107 else 1)) for each in numbers]
    answers = [result_of(each) for each in await asyncio.gather(*writes)]
    assert answers == ["22P02" if each == 107 else "ok" for each in numbers]


RULED = f"""
ALTER TABLE jobs ENABLE ROW LEVEL SECURITY; GRANT SELECT, INSERT, UPDATE, DELETE ON jobs TO {WEB};
CREATE POLICY own ON jobs USING (account_id::text = current_setting('request.jwt.claims', true)::json ->> 'account')"""
OF_OWN = {"GET row", "PATCH batched", "PATCH keyed", "PATCH array", "DELETE batched", "DELETE keyed", "claim", "fences"}


@pytest.mark.versions
async def test_a_policy_that_reads_the_claims_rules_every_route(stage: Acting, race: Race) -> None:
    await race.observer.execute(RULED)
    await stage.gateway.catalog.reload()
    numbers = itertools.count(1000)
    for name, way in WAYS.items():
        for account, own in ((42, True), (7, False)):
            number = next(numbers)
            await race.observer.execute(f"SET fencepost.token = '{number}'")
            await race.observer.execute("INSERT INTO jobs (id, account_id) VALUES ($1, 42)", number)
            gateway = stage.of(WEB, claims=f'{{"account": "{account}"}}')
            answer = await way.send(gateway, "jobs", number, 100_000 + number, number)
            if own:
                assert result_of(answer) in ("ok", "created"), name
            elif name.removesuffix(", n") in OF_OWN:
                assert result_of(answer) == "FP006", (name, answer)
            elif name in ("PUT there", "PUT new", "POST batched", "POST keyed", "POST alone"):
                assert result_of(answer) in ("42501", "FP006"), (name, answer)
            else:  # lists and filters: there is nothing that it sees
                assert result_of(answer) == "ok"
                assert not answer.rows, name  # type: ignore[union-attr]
    left = await race.observer.fetchval("SELECT count(*) FROM jobs WHERE account_id <> 42")
    assert left == 0
    await stage.assert_own_name()
