"""A claim of a key without a row, while its table is protected otherwise: it fences the key, or it is not answered 200.

No trigger of the table sees such a claim. It is stepped by another transaction that is making the key's mark: the claim
waits for it, has looked at the table before, and looks at it once more afterwards (R7).
"""

from collections.abc import Awaitable, Callable

import pytest
from tests.integration.test_lease_claims import ask, asking, nothing_was_granted
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.use_cases import gateway_pid, grants_pid, keyed, open_gateway, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.leases import Granted
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.use_cases import claim
from fencepost.server.ops.demo import LEASES_BEGIN
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.postgres.marks import Appeared, claim_absent

SCOPED = "customer/{customer}"


async def with_a_scope(db: Connection) -> None:
    await protect(db, "orders", scope=SCOPED)


async def with_the_other_rule(db: Connection) -> None:
    await protect(db, "orders", rule="strict")


async def under_another_name(db: Connection) -> None:
    await db.execute("ALTER TABLE public.orders RENAME TO bookings")
    await protect(db, "bookings")
    await db.execute("CREATE TABLE public.orders (LIKE public.bookings INCLUDING ALL)")


async def another_table(db: Connection) -> None:
    await under_another_name(db)
    await protect(db, "orders", rule="epoch")


async def under_the_name_it_has_no_more(db: Connection) -> None:
    await db.execute("ALTER TABLE public.orders RENAME TO bookings")
    await protect(db, "bookings")
    await db.execute("ALTER TABLE public.bookings RENAME TO orders")


async def with_a_key_of_another_type(db: Connection) -> None:
    await unprotect(db, "orders")
    await db.execute("ALTER TABLE public.orders ALTER order_id TYPE char(9)")
    await protect(db, "orders", rule="epoch")


async def not_at_all(db: Connection) -> None:
    await unprotect(db, "orders")


CHANGES = (
    with_a_scope,
    with_the_other_rule,
    under_another_name,
    under_the_name_it_has_no_more,
    another_table,
    not_at_all,
    with_a_key_of_another_type,
)
Change = Callable[[Connection], Awaitable[None]]


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await with_customers(connect, unmade)


async def with_customers(connect: Connect, unmade: Unmade) -> Race:
    """Make the table `orders`, under epoch, with a column that a scope may be made of."""
    race = await open_race(connect, unmade, "epoch")
    await race.observer.execute("ALTER TABLE public.orders ADD customer int NOT NULL DEFAULT 1")
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
    return race


async def claimed(race: Race, token: int) -> int | Appeared | None:
    return await claim_absent(race.a, race.table, ("k",), Token(token), "orders/k")


@pytest.mark.parametrize("change", CHANGES)
async def test_the_last_look_sees_that_the_table_is_protected_otherwise(race: Race, change: Change) -> None:
    making = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.raise_mark('orders/k', 1, 'strict', true)")
    claiming = await race.waits(race.a, outcome(claimed(race, 100)))
    await change(race.observer)
    await making.rollback()
    assert await claiming == "FP000"
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 0, "the mark is given back"


async def test_what_changes_nothing_of_its_names_does_not_matter(race: Race) -> None:
    making = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.raise_mark('orders/k', 1, 'strict', true)")
    claiming = await race.waits(race.a, outcome(claimed(race, 100)))
    await protect(race.observer, "orders", source="builtin", requires_key=True)
    await making.rollback()
    assert await claiming is None


async def test_a_claim_runs_again_on_the_table_as_it_is(race: Race) -> None:
    """Protected with a scope by then: the claim is refused, and holders older than its token have not been fenced."""
    async with open_gateway(race.dsn) as gateway:
        pid = await gateway_pid(gateway)
        making = await race.begin(race.b)
        await race.b.execute("SELECT fencepost.raise_mark('orders/k', 1, 'strict', true)")
        claiming = await race.waits_at(pid, claim(gateway, Claim(parse_resource("orders/k"), Token(100))))
        await protect(race.observer, "orders", scope=SCOPED)
        await making.rollback()
        refused = await claiming
        assert isinstance(refused, Problem)
        assert (refused.type.code, "claim its scope" in refused.detail) == ("FP016", True), refused
        assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 0


async def test_a_claim_under_a_rule_that_changed_is_judged_by_the_new_one(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        pid = await gateway_pid(gateway)
        assert isinstance(await claim(gateway, Claim(parse_resource("orders/k"), Token(100))), Done)
        holding = await race.begin(race.b)
        await race.b.execute("SELECT FROM fencepost.marks WHERE resource = 'orders/k' FOR UPDATE")
        claiming = await race.waits_at(pid, claim(gateway, Claim(parse_resource("orders/k"), Token(100))))
        await protect(race.observer, "orders", rule="strict")
        await holding.rollback()
        assert result_of(await claiming) == "FP002"


async def test_a_lease_is_not_granted_with_a_claim_that_fences_nothing(race: Race) -> None:
    """A grant's first statement on the table keeps its lock: what a grant may have missed is what came before."""
    async with open_gateway(race.dsn) as gateway:
        await protect(race.observer, "orders", scope=SCOPED)  # this gateway is not notified
        refused = await ask(gateway, asking("x", secret="new", claims=("orders/k",)))
        assert isinstance(refused, Problem)
        assert (refused.type.code, "claim its scope" in refused.detail) == ("FP016", True), refused
        assert await nothing_was_granted(race)
        assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 0


async def test_a_lease_claims_the_key_of_the_table_that_has_the_name_now(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await another_table(race.observer)
        granted = await ask(gateway, asking("x", secret="new", claims=("orders/k",)))
        assert isinstance(granted, Granted), granted
        mark = granted.claims[0].mark
        assert mark is not None
        assert result_of(await put(gateway, keyed("k", mark - 1, status="late"))) == "FP001"


async def test_protect_waits_for_a_grant_that_has_claimed(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        pid = await grants_pid(gateway)
        making = await race.begin(race.b)
        await race.b.execute("SELECT fencepost.raise_mark('orders/k', 1, 'strict', true)")
        granting = await race.waits_at(pid, ask(gateway, asking("x", secret="new", claims=("orders/k",))))
        locking = await race.waits(
            race.c, race.c.execute("BEGIN; LOCK TABLE public.orders IN ACCESS EXCLUSIVE MODE; COMMIT")
        )
        await making.rollback()
        assert isinstance(await granting, Granted)
        await locking
