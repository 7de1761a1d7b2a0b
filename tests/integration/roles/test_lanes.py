"""Batches of writes of several roles: a batch has one role, and no caller in it sees another one's."""

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.asking import OTHER, READER, WEB, Acting, asked_by
from tests.support.racing import Race
from tests.support.use_cases import keyed, listed, once, patch, post, put, result_of

from fencepost.server.fence.caller import Caller
from fencepost.server.gateway.keyed import WriteQueues
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import group_commit
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.group_commit import BatchQueue, GroupCommit
from fencepost.server.times import BatchTimes, Times
from fencepost.testing.servers.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable

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
    monkeypatch.setattr(WriteQueues, "of", lambda lanes, caller: real(lanes, replace_role(caller)))
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
MADE_OF = """
CREATE FUNCTION public.fixed() RETURNS text LANGUAGE sql IMMUTABLE RETURN 'x';
CREATE FUNCTION public.who() RETURNS text LANGUAGE sql STABLE RETURN current_setting('a.b', true);
CREATE FUNCTION public.same(int, int) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT $1 = $2';
CREATE OPERATOR public.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = public.same);
CREATE DOMAIN public.seen AS text CHECK (VALUE <> current_setting('a.b', true));
CREATE DOMAIN public.given AS text DEFAULT current_setting('a.b', true);
CREATE TYPE public.pair AS (a int, b public.seen)"""


@pytest.mark.versions
async def test_what_a_table_runs_says_whether_it_can_see_the_caller(stage: Acting, race: Race) -> None:
    await race.observer.execute(MADE_OF)
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


async def test_a_put_that_only_needs_update_does_not_fail_for_its_neighbours_insert(stage: Acting, race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute(f"REVOKE INSERT ON orders FROM {WEB}")
    gateway = stage.of(WEB)
    await patch(gateway, keyed("k", 31, n=1))
    answers = await asyncio.gather(*(put(gateway, keyed(key, 40, n=1)) for key in ("a", "k", "z")))
    assert [result_of(answer) for answer in answers] == ["42501", "ok", "42501"]
