"""The rule (R1, R2) and the bounds of tokens (R12, R19) stand in several places, which judge a table of cases alike."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, cast

import asyncpg
from tests.races.openings import Opening, opened
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, protected_table
from tests.support.violations import assert_none

from fencepost.server.fence.token import BeyondCeiling, MissingRow, Rule, Spent, Stale, Token, Unissued
from fencepost.server.gateway.attempt import judge
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.marks import Appeared, KeyState

Verdict = Literal["accepted", "stale", "spent", "too high", "void"]
"""void: of an earlier generation. too high: never issued, or above the ceiling."""

GENERATION: Final = 1 << 48
HIGHEST: Final = 2**62 - 1


@dataclass(frozen=True)
class Bounds:
    """What bounds the tokens of the tables."""

    source: str = "external"
    max_token: int | None = None
    max_jump: int | None = None
    oldest: int = 1
    issued: int | None = None

    async def of_both(self, race: Race) -> None:
        """Make `items`, and give both tables these bounds."""
        observer = race.observer
        await observer.execute("CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL)")
        if self.source == "svc":
            await observer.execute("SELECT fencepost.source_register('svc', 'test', 'source', false)")
        protecting = partial(protect, observer, rule=race.rule, source=self.source)
        for table, scope in (("orders", None), ("items", "account/{account_id}")):
            await protecting(table, scope=scope, max_token=self.max_token, max_jump=self.max_jump)
        if self.issued is not None:
            sequence = "tokens" if self.source == "builtin" else "tokens_svc"
            await observer.execute(
                f"ALTER SEQUENCE fencepost.{sequence} MINVALUE {self.oldest} START {self.oldest} RESTART;"
                f"SELECT setval('fencepost.{sequence}', {self.issued})"
            )
        race.table = await protected_table(observer, "orders")


BOUNDS: Final = {
    "default": Bounds(),
    "ceiling": Bounds(max_token=50),
    "jump": Bounds(max_jump=10),
    "issued": Bounds("builtin", issued=50),
    "generation": Bounds("builtin", oldest=GENERATION, issued=GENERATION + 50),
    "service": Bounds("svc", issued=50),
    "service's generation": Bounds("svc", oldest=GENERATION, issued=GENERATION + 50),
}


@dataclass(frozen=True)
class Case:
    """`mark` None: there is none, and so no row. 0: a row that was never written through a fence."""

    mark: int | None
    floor: int
    token: int
    strict: Verdict
    epoch: Verdict


def case(mark: int | None, floor: int, token: int, strict: Verdict, epoch: Verdict | None = None) -> Case:
    return Case(mark, floor, token, strict, epoch or strict)


CASES: Final = {
    "default": (
        case(40, 0, 39, "stale"), case(40, 0, 40, "spent", "accepted"), case(40, 0, 41, "accepted"),
        case(0, 0, 1, "accepted"), case(None, 0, 1, "accepted"), case(None, 40, 39, "stale"),
        case(None, 40, 40, "spent", "accepted"), case(None, 40, 41, "accepted"), case(40, 0, HIGHEST, "accepted"),
        case(40, 0, HIGHEST + 1, "too high"), case(None, 0, HIGHEST, "accepted"),
        case(None, 0, HIGHEST + 1, "too high"),
    ),
    "ceiling": (
        case(40, 0, 39, "stale"), case(40, 0, 40, "spent", "accepted"), case(40, 0, 50, "accepted"),
        case(40, 0, 51, "too high"), case(None, 0, 50, "accepted"), case(None, 0, 51, "too high"),
        # marks that were there before: a token that raises nothing is the mark's affair
        case(60, 0, 55, "stale"), case(60, 0, 60, "spent", "accepted"), case(60, 0, 61, "too high"),
    ),
    "jump": (
        case(40, 0, 39, "stale"), case(40, 0, 40, "spent", "accepted"), case(40, 0, 50, "accepted"),
        case(40, 0, 51, "too high"), case(None, 0, 10, "accepted"), case(None, 0, 11, "too high"),
        # from the floor, where that is higher
        case(40, 45, 55, "accepted"), case(40, 45, 56, "too high"), case(None, 45, 55, "accepted"),
        case(None, 45, 56, "too high"),
    ),
    "issued": (
        case(40, 0, 39, "stale"), case(40, 0, 40, "spent", "accepted"), case(40, 0, 50, "accepted"),
        case(40, 0, 51, "too high"), case(None, 0, 50, "accepted"), case(None, 0, 51, "too high"),
    ),
    "generation": (
        case(40, 0, 39, "stale"), case(40, 0, 40, "spent", "void"), case(40, 0, 41, "void"),
        case(40, 0, GENERATION - 1, "void"), case(40, 0, GENERATION, "accepted"),
        case(40, 0, GENERATION + 50, "accepted"), case(40, 0, GENERATION + 51, "too high"),
        case(None, 0, GENERATION - 1, "void"), case(None, 0, GENERATION, "accepted"),
        case(None, 0, GENERATION + 51, "too high"), case(GENERATION + 9, 0, GENERATION + 8, "stale"),
        case(GENERATION + 9, 0, GENERATION + 9, "spent", "accepted"),
        case(GENERATION + 9, 0, GENERATION + 10, "accepted"),
    ),
}  # fmt: skip
CASES["service"], CASES["service's generation"] = CASES["issued"], CASES["generation"]


@dataclass
class World:
    """Two tables under one rule: `orders`, whose rows have marks, and `items`, whose scopes have them."""

    race: Race
    bounds: Bounds
    cases: tuple[Case, ...]

    async def prepare(self, case: Case) -> None:
        """Make marks and floors those of the case, past all triggers."""
        observer = self.race.observer
        async with observer.transaction():
            await observer.execute(
                "SET LOCAL session_replication_role = replica;"
                "DELETE FROM public.orders; DELETE FROM public.items; DELETE FROM fencepost.marks"
            )
            await observer.execute("UPDATE fencepost.floors SET floor = $1", case.floor)
            if case.mark is not None:
                await observer.execute("INSERT INTO orders (order_id, last_fence_token) VALUES ('live', $1)", case.mark)
            if case.mark:
                await observer.execute(
                    "INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)"
                    " SELECT r, $1, pg_current_xact_id(), true FROM unnest('{orders/gone,account/7}'::text[]) r",
                    case.mark,
                )


def under(rule: Rule, name: str = "default") -> Opening:
    """Two tables under this rule, with bounds of this name."""

    async def made(connect: Connect, unmade: Unmade) -> World:
        bounds = BOUNDS[name]
        return World(await open_race(connect, unmade, rule, then=bounds.of_both), bounds, CASES[name])

    return Opening(f"{name}-{rule}", made)


Way = Callable[[World, Case], Awaitable[str]]


def by_mark(token: int, refused_by: int | None) -> Verdict:
    if refused_by is None:
        return "accepted"
    return "spent" if refused_by == token else "stale"


def raised(error: asyncpg.PostgresError) -> str:
    """Read the refusal of a function."""
    if error.sqlstate == "FP018":
        return "too high"
    if error.sqlstate == "FP409":
        return "void" if "earlier generation" in str(error) else str(error).partition(" ")[0]
    return f"{error.sqlstate}: {error}"


async def undone(connection: Connection, work: Awaitable[object]) -> object:
    """Return what it gives, or the refusal, and take back what it did."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        return await work
    except asyncpg.PostgresError as error:
        return raised(error)
    finally:
        await transaction.rollback()


# What judges a row that is there.


async def _statement(world: World, case: Case, work: Awaitable[object]) -> str:
    """The gateway's."""
    found = await undone(world.race.a, work)
    if isinstance(found, str):
        return found if found in ("void", "too high") else f"refused by the trigger: {found}"
    return "accepted" if found is not None else await world.race.verdict("live", case.token)


async def the_statement_that_updates(world: World, case: Case) -> str:
    return await _statement(world, case, world.race.update(world.race.a, "live", case.token, status="x"))


async def the_statement_that_deletes(world: World, case: Case) -> str:
    return await _statement(world, case, world.race.delete(world.race.a, "live", case.token))


async def _direct(world: World, token: int, sql: str) -> str:
    async def work() -> None:
        await world.race.b.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
        await world.race.b.execute(sql)

    return cast("str", await undone(world.race.b, work()) or "accepted")


async def the_trigger_of_updates(world: World, case: Case) -> str:
    return await _direct(world, case.token, "UPDATE public.orders SET status = 'x'")


async def the_plain_case_of_updates(world: World, case: Case) -> str:
    """A token in the column: one that equals the mark would be an echo."""
    if case.token == case.mark:
        return await the_trigger_of_updates(world, case)
    work = world.race.b.execute("UPDATE public.orders SET last_fence_token = $1", case.token)
    return cast("str", outcome if (outcome := await undone(world.race.b, work)) != "UPDATE 1" else "accepted")


async def the_trigger_of_deletes(world: World, case: Case) -> str:
    return await _direct(world, case.token, "DELETE FROM public.orders")


async def python_on_a_row(world: World, case: Case) -> str:
    return in_python(world, case, KeyState("orders/live", case.mark, case.floor or None))


# What judges a key that has no row, or a scope.


async def the_trigger_of_inserts(world: World, case: Case) -> str:
    return await _direct(world, case.token, "INSERT INTO public.orders (order_id) VALUES ('gone')")


async def the_claim_of_a_key(world: World, case: Case) -> str:
    refused_by = await undone(world.race.a, world.race.claim_absent(world.race.a, "gone", case.token))
    assert not isinstance(refused_by, Appeared)
    if refused_by == "void" and case.mark is not None and case.token <= case.mark and case.strict != "void":
        # It asks for the generation where the mark has refused, too, and that answer comes first: FP409, either way.
        return case.strict if world.race.strict or case.token < case.mark else "void"
    return refused_by if isinstance(refused_by, str) else by_mark(case.token, cast("int | None", refused_by))


async def _enter(world: World, case: Case) -> str:
    work = world.race.a.fetchrow("SELECT * FROM fencepost.enter('account', '{account/7}', $1)", case.token)
    row: Any = await undone(world.race.a, work)
    return row if isinstance(row, str) else by_mark(case.token, row["refused_by"])


async def the_entry_of_a_scope(world: World, case: Case) -> str:
    return await _enter(world, case)


async def the_entry_of_scopes_in_a_batch(world: World, case: Case) -> str:
    """What it leaves unclear is asked of the function that enters one."""
    work = world.race.a.fetchrow(
        "SELECT * FROM fencepost.enter_each('account', '{account/7}', ARRAY[$1::bigint],"
        " 'public.items'::regclass, 'account/{account_id}')",
        case.token,
    )
    row: Any = await undone(world.race.a, work)
    if isinstance(row, str):
        return row
    match row["verdict"]:
        case "entered":
            return "accepted"
        case "refused":
            return by_mark(case.token, row["refused_by"])
        case _:
            return await _enter(world, case)


async def the_trigger_of_a_scope(world: World, case: Case) -> str:
    return await _direct(world, case.token, "INSERT INTO public.items VALUES (1, 7)")


async def python_on_a_key(world: World, case: Case) -> str:
    without_row = max(case.mark or 0, case.floor) or None
    return in_python(world, case, KeyState("orders/gone", None, without_row))


def in_python(world: World, case: Case, found: KeyState) -> str:
    highest = world.race.fence.ceiling.max_token if world.race.fence.ceiling else world.bounds.issued
    standing = KeyState(found.resource, found.live, found.without_row, highest, world.bounds.max_jump)
    verdict: str
    match judge(standing, world.race.fence, Token(case.token)):
        case Stale():
            verdict = "stale"
        case Spent():
            verdict = "spent"
        case Unissued() | BeyondCeiling():
            verdict = "too high"
        case None | MissingRow():
            verdict = "accepted"
    # Of generations the database alone knows: what the statement does not refuse its trigger will.
    return "void" if verdict == "accepted" and case.token < world.bounds.oldest else verdict


ON_ROWS: Final[tuple[Way, ...]] = (
    python_on_a_row, the_statement_that_updates, the_statement_that_deletes, the_trigger_of_updates,
    the_plain_case_of_updates, the_trigger_of_deletes,
)  # fmt: skip
ON_KEYS: Final[tuple[Way, ...]] = (
    python_on_a_key, the_trigger_of_inserts, the_claim_of_a_key, the_entry_of_a_scope, the_entry_of_scopes_in_a_batch,
    the_trigger_of_a_scope,
)  # fmt: skip


@opened(*(under(rule, name) for name in CASES for rule in ("strict", "epoch")))
async def test_every_place_judges_alike(race: World) -> None:
    assert_none([each async for each in differences(race)])


async def differences(world: World) -> AsyncGenerator[str, None]:
    """Judge each case in each way, and give what is not as the table has it."""
    for each in world.cases:
        await world.prepare(each)
        expected = each.strict if world.race.strict else each.epoch
        ways = (*(() if each.mark is None else ON_ROWS), *(() if each.mark == 0 else ON_KEYS))
        for way in ways:
            answer = await way(world, each)
            if answer != expected:
                yield f"{way.__name__} says {answer}, and not {expected}: {each}"
