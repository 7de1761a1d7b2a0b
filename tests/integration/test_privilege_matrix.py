"""Roles by routes, tables and paths: 403 exactly where PostgreSQL says that the role lacks a privilege.

Which privileges a route needs stands in docs/roles.md, and in test_roles.py, by column. Whether a role has them says
has_column_privilege, or has_table_privilege for DELETE. The grants are drawn at random: of the table, or of some of its
columns.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.integration.test_roles import COLUMNS, WAYS
from tests.support.asking import WEB, Acting, acting
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, scoped_race
from tests.support.use_cases import keyed, patch, result_of

from fencepost.server.ops.protect import protect

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
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Give items, which share scopes, and jobs and the partitioned parts, whose rows have marks."""
    race = await scoped_race(connect, unmade, "epoch")
    await race.observer.execute(
        "CREATE TABLE jobs (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0)"
    )
    await race.observer.execute(
        "CREATE TABLE parts (LIKE jobs INCLUDING DEFAULTS, PRIMARY KEY (id)) PARTITION BY HASH (id);"
        "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)"
    )
    await protect(race.observer, "jobs", rule="epoch")
    await protect(race.observer, "parts", rule="epoch")
    await race.observer.execute("CREATE TABLE plain (id int PRIMARY KEY, account_id int, n int)")
    await race.observer.execute("CREATE VIEW seen AS SELECT id, account_id, n FROM jobs")
    await race.observer.execute("SELECT fencepost.issue_beyond(1000000)")
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
    cases = 10
    for _ in range(cases):
        for table in COLUMNS:
            statements = list(grants(chosen, table))
            await race.observer.execute("; ".join(statements))
            for name, way in [(name, way) for name, way in WAYS.items() if table in way.needs]:
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


@pytest.mark.parametrize("table", ["jobs", "items"])
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


@pytest.mark.versions
@pytest.mark.parametrize("table", ["jobs", "parts", "items"])
async def test_a_policy_that_reads_the_claims_rules_every_route(stage: Acting, race: Race, table: str) -> None:
    await race.observer.execute(RULED.replace("jobs", table))
    await stage.gateway.catalog.reload()
    numbers = itertools.count(1000)
    of_own = {
        "GET row", "PATCH batched", "PATCH keyed", "PATCH array", "DELETE batched", "DELETE keyed", "claim", "fences",
        "claim of a lease", "line batched", "whole",
    }  # fmt: skip
    for name, way in WAYS.items():
        for own in (True, False):
            number = next(numbers)
            account = number if (table, name) == ("items", "claim of a lease") else 42  # that scope is the row's own
            await race.observer.execute(f"SET fencepost.token = '{number}'")
            await race.observer.execute(f"INSERT INTO {table} (id, account_id) VALUES ($1, $2)", number, account)
            gateway = stage.of(WEB, claims=f'{{"account": "{account if own else 8}"}}')
            answer = await way.send(gateway, table, number, 100_000 + number, number)
            if own:
                assert result_of(answer) in ("ok", "created"), name
            elif name.removesuffix(", n") in of_own:
                assert result_of(answer) == "FP006", (name, answer)
            elif name in ("PUT there", "PUT new", "POST batched", "POST keyed", "POST alone"):
                assert result_of(answer) in ("42501", "FP006"), (name, answer)
            else:  # lists and filters: there is nothing that it sees
                assert result_of(answer) == "ok"
                assert not answer.rows, name  # type: ignore[union-attr]
    left = await race.observer.fetchval(f"SELECT count(*) FROM {table} WHERE account_id NOT IN (7, 42, id)")
    assert left == 0
    await stage.assert_own_name()
