"""Stepped against DDL: claims, triggers that appear, and unprotect."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.test_lease_claims import ask, asking, nothing_was_granted
from tests.support.interleave import Connect, Connection, blocks_another_session
from tests.support.postgres import Unmade
from tests.support.racing import NEW, Race, assert_seen, mutate, open_race, outcome, owner
from tests.support.use_cases import (
    delete,
    gateway_pid,
    grants_pid,
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

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.use_cases import claim
from fencepost.server.ops.demo import LEASES_BEGIN
from fencepost.server.ops.protect import plan_unprotect, protect, unprotect
from fencepost.server.postgres import many
from fencepost.server.postgres.connection import TOKEN
from fencepost.server.postgres.leases import Granted
from fencepost.server.postgres.marks import Appeared, Mark, claim_absent, mark_of
from fencepost.server.postgres.row_sql import MARK

# A claim of a key without a row, while its table is protected otherwise: it fences the key, or it is not answered 200.
# No trigger of the table sees such a claim. It is stepped by another transaction that is making the key's mark: the
# claim waits for it, has looked at the table before, and looks at it once more afterwards (R7).

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


@pytest.mark.parametrize(
    "change",
    [
        with_a_scope,
        with_the_other_rule,
        under_another_name,
        under_the_name_it_has_no_more,
        another_table,
        not_at_all,
        with_a_key_of_another_type,
    ],
)
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


# R14 as far as R6 stands on it, R11: the triggers apply the same rule to psql, an ORM, a cron job.

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('new')"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"


@pytest.fixture
async def trigger_race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    return race


async def test_a_malformed_token_is_refused_and_not_repaired_and_the_largest_is_one(trigger_race: Race) -> None:
    malformed = [
        "0", "-36", "+36", " 36", "36 ", "36\n", "036", "3_6", "36,37", "٣٦", "３６", "1e3", "0x24", "36.0", "x",  # noqa: RUF001
        "9223372036854775808", "99999999999999999999", "orders=", "orders=036", "orders=36=37", "orders==36",
    ]  # fmt: skip
    for token in malformed:
        for statement in (UPDATE, INSERT, DELETE):
            assert await trigger_race.direct(trigger_race.a, statement, token) == "FP400", (statement, token)
    assert await trigger_race.live_mark("k") == 30
    await protect(trigger_race.observer, "orders", max_token=2**63 - 1)
    assert await trigger_race.direct(trigger_race.a, UPDATE, 2**63 - 1) == "ok"
    assert await trigger_race.live_mark("k") == 2**63 - 1


async def test_a_users_trigger_that_changes_the_token_does_not_get_it_past_the_fence(trigger_race: Race) -> None:
    """Ours run last, by name: they judge what is really written."""
    await trigger_race.observer.execute("""
        CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN NEW.last_fence_token := 5; RETURN NEW; END $$;
        CREATE TRIGGER meddle BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION meddle()""")
    assert await outcome(trigger_race.update(trigger_race.a, "k", 31)) == "FP409"
    assert await trigger_race.live_mark("k") == 30


async def test_truncate_is_refused_also_when_it_comes_by_cascade(trigger_race: Race) -> None:
    await trigger_race.observer.execute("CREATE TABLE parent (order_id text PRIMARY KEY)")
    await trigger_race.observer.execute("INSERT INTO parent VALUES ('k')")
    await trigger_race.observer.execute("ALTER TABLE orders ADD FOREIGN KEY (order_id) REFERENCES parent")
    for statement in ("TRUNCATE public.orders", "TRUNCATE public.parent CASCADE"):
        assert await trigger_race.direct(trigger_race.a, statement, 99) == "FP428", statement


async def test_a_token_for_a_table_whose_name_begins_with_anothers_is_none_for_the_other(
    connect: Connect, unmade: Unmade
) -> None:
    """a=b=36 is for the table called "a=b", and no token for the table a."""
    connection = await owner(connect)
    race = await open_race(connect, unmade, ddl="CREATE TABLE a (id text PRIMARY KEY)", name="a")
    await connection.execute('CREATE TABLE "a=b" (id text PRIMARY KEY)')
    await protect(connection, "a=b")
    assert await race.direct(race.a, """INSERT INTO public."a=b" VALUES ('k')""", "a=b=36") == "ok"
    assert await race.direct(race.a, "INSERT INTO public.a VALUES ('k')", "a=b=36") in ("FP428", "FP400")


# `unprotect` commits, or an unprotected table takes the name, and a gateway that has not heard of it sends a write or
# a claim: it is refused (R13).
# Accepted, its mark would be in the row's column only, which is no mark any more: `unprotect` has written the older
# one down, and the row may be gone before the table is protected again. `late`: the request comes after the commit.
# `waiting`: it has come before, found the table protected, and waits for a lock that `unprotect` has.

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencepost.server.postgres.tables import ProtectedTable
Request = Callable[[Gateway], Awaitable[Any]]
When = Callable[[Race, Gateway, Request], Awaitable[Any]]


def claiming(resource: str) -> Claim:
    return Claim(parse_resource(resource), Token(100))


def row_of(key: str) -> dict[str, object]:
    return {"order_id": key, "customer": 1}


def together(use: Callable[[Gateway, Any], Awaitable[Any]], **values: int) -> Request:
    """Send three at once, which share batches; give back the answer to the first one."""

    async def send(gateway: Gateway) -> Any:
        return (await asyncio.gather(*(use(gateway, keyed(key, 100, "orders", **values)) for key in "kmn")))[0]

    return send


REQUESTS: dict[str, Request] = {
    "claim": lambda g: claim(g, claiming("orders/k")),
    "claim of a key without a row": lambda g: claim(g, claiming("orders/none")),
    "claim with an Idempotency-Key": lambda g: claim(g, replace(claiming("orders/k"), idempotency_key=once("c"))),
    "lease with a claim": lambda g: ask(g, asking("x", secret="new", claims=("orders/k",))),
    "lease with a claim of a key without a row": lambda g: ask(g, asking("x", secret="s", claims=("orders/none",))),
    "PATCH": lambda g: patch(g, keyed("k", 100, n=1)),
    "PATCH of nothing": lambda g: patch(g, keyed("k", 100)),
    "PATCH with an Idempotency-Key": lambda g: patch(g, replace(keyed("k", 100, n=1), idempotency_key=once("p"))),
    "PATCH in a batch": together(patch, n=1),
    "PATCH by a filter": lambda g: patch(g, matching(NEW, 100, n=1)),
    "PATCH with an array": lambda g: patch(g, listed(100, {"order_id": "k", "n": 1})),
    "PUT": lambda g: put(g, keyed("k", 100, n=1, customer=1)),
    "PUT in a batch": together(put, n=1, customer=1),
    "PUT of a new row": lambda g: put(g, keyed("none", 100, n=1, customer=1)),
    "POST": lambda g: post(g, listed(100, row_of("none"))),
    "POST of rows": lambda g: post(g, listed(100, row_of("none"), row_of("none2"))),
    "DELETE": lambda g: delete(g, keyed("k", 100)),
    "DELETE with an Idempotency-Key": lambda g: delete(g, replace(keyed("k", 100), idempotency_key=once("d"))),
    "DELETE in a batch": together(delete),
    "DELETE by a filter": lambda g: delete(g, matching(NEW, 100)),
}
NO_SCOPE = "claim of a scope"
"""Its name is no table's, and by then no scope's."""
OF_SCOPES: dict[str, Request] = {NO_SCOPE: lambda g: claim(g, claiming("customer/1"))}
OF_SCOPES |= {name: request for name, request in REQUESTS.items() if "claim" not in name}
ROWS = "SELECT array_agg(r::text ORDER BY order_id) FROM public.orders r"


async def a_race(connect: Connect, unmade: Unmade, rule: Rule = "strict", scope: str | None = None) -> Race:
    race = await open_race(connect, unmade, rule)
    await race.observer.execute("ALTER TABLE public.orders ADD customer int NOT NULL DEFAULT 1")
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
    for key in "kmn":
        await race.insert(race.a, key, 30)
    if scope is not None:
        await protect(race.observer, "orders", scope=scope)
    return race


@asynccontextmanager
async def unprotecting(race: Race) -> "AsyncIterator[None]":
    """Unprotect the table in the connection c; it commits at the end of the block."""
    plan = await plan_unprotect(race.observer, "orders")
    async with race.c.transaction():
        for statement in plan.statements:
            await race.c.execute(statement)
        yield


async def answer_behind(
    change: AbstractAsyncContextManager[None], race: Race, gateway: Gateway, request: Request
) -> Any:
    """Send the request while a change by the connection c is not committed, for which it waits."""
    async with change:
        asked = asyncio.ensure_future(request(gateway))
        await blocks_another_session(race.c, race.observer)
    return await asked


async def late(race: Race, gateway: Gateway, request: Request) -> Any:
    await unprotect(race.observer, "orders")
    return await request(gateway)


async def waiting(race: Race, gateway: Gateway, request: Request) -> Any:
    return await answer_behind(unprotecting(race), race, gateway, request)


@asynccontextmanager
async def replacing(race: Race) -> "AsyncIterator[None]":
    """Have a copy of the table, which nothing protects, take its name, in the connection c."""
    async with race.c.transaction():
        await race.c.execute("ALTER TABLE public.orders RENAME TO orders_before")
        await race.c.execute("CREATE TABLE public.orders (LIKE public.orders_before INCLUDING INDEXES)")
        await race.c.execute("INSERT INTO public.orders SELECT * FROM public.orders_before")
        yield


async def replaced(race: Race, gateway: Gateway, request: Request) -> Any:
    async with replacing(race):
        pass
    return await request(gateway)


async def replaced_meanwhile(race: Race, gateway: Gateway, request: Request) -> Any:
    return await answer_behind(replacing(race), race, gateway, request)


async def is_refused(race: Race, when: When, request: Request, name: str, code: str = "FP005") -> None:
    """Send the request, which is refused and leaves no trace."""
    before = await race.observer.fetchval(ROWS)
    async with open_gateway(race.dsn) as gateway:  # it listens to nothing
        answer = await when(race, gateway, request)
    assert isinstance(answer, Problem), (name, answer)
    assert answer.name == code, (name, answer)
    assert await race.observer.fetchval(ROWS) == before, name
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.idempotency") == 0, name
    assert await race.observer.fetchval("SELECT coalesce(max(last_fence_token), 30) FROM fencepost.marks") == 30, name
    assert await nothing_was_granted(race), name


WHEN = pytest.mark.parametrize("when", [late, waiting], ids=lambda each: each.__name__)


@WHEN
async def test_a_request_that_unprotect_overtakes_is_refused(when: When, connect: Connect, unmade: Unmade) -> None:
    race = await a_race(connect, unmade)
    for name, request in REQUESTS.items():
        await is_refused(race, when, request, name)
        await protect(race.observer, "orders")


@WHEN
async def test_of_scopes_too(when: When, connect: Connect, unmade: Unmade) -> None:
    race = await a_race(connect, unmade, scope=SCOPED)
    for name, request in OF_SCOPES.items():
        await is_refused(race, when, request, name, "FP007" if name == NO_SCOPE else "FP005")
        await protect(race.observer, "orders", scope=SCOPED)


@pytest.mark.parametrize("when", [replaced, replaced_meanwhile], ids=lambda each: each.__name__)
@pytest.mark.parametrize("scope", [None, SCOPED], ids=["rows", "scopes"])
async def test_an_unprotected_table_that_took_the_name_is_not_written(
    when: When, scope: str | None, connect: Connect, unmade: Unmade
) -> None:
    race = await a_race(connect, unmade, scope=scope)
    for name, request in (OF_SCOPES if scope else REQUESTS).items():
        if name != NO_SCOPE:
            await is_refused(race, when, request, name)
            await race.observer.execute("DROP TABLE public.orders")
            await race.observer.execute("ALTER TABLE public.orders_before RENAME TO orders")


async def delete_waits_for_unprotect(race: Race) -> None:
    """In a session that has called the table's function before, it is found without a look at the table."""
    await race.delete(race.a, "m", 31)
    async with unprotecting(race):
        deleting = await race.waits(race.a, outcome(race.delete(race.a, "k", 100)))
    assert await deleting == "FP005"
    assert await race.live_mark("k") == 30


@pytest.mark.versions
async def test_a_delete_looks_once_it_has_the_tables_lock(connect: Connect, unmade: Unmade) -> None:
    await delete_waits_for_unprotect(await a_race(connect, unmade))


async def no_accepted_claim_is_forgotten(race: Race) -> None:
    """Whatever the owner does to the row while nothing protects it."""
    async with open_gateway(race.dsn) as gateway:
        await unprotect(race.observer, "orders")
        claimed = await claim(gateway, claiming("orders/k"))
        await race.observer.execute("DELETE FROM public.orders WHERE order_id = 'k'")
        await protect(race.observer, "orders")
        await gateway.catalog.reload()
        older = await put(gateway, keyed("k", 50, status="late"))
        assert (isinstance(claimed, Done), result_of(older)) in {(False, "created"), (True, "FP001")}


async def test_no_claim_that_was_accepted_is_forgotten(connect: Connect, unmade: Unmade) -> None:
    await no_accepted_claim_is_forgotten(await a_race(connect, unmade))


# Mutants


def the_token_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a table's check lets pass, whether or not a trigger has judged it."""

    def mutant(table: "ProtectedTable", given: Collection[str] = (), *, deletes: bool = False) -> Mark:
        return mark_of(table, given, deletes=deletes)._replace(stored=((MARK, str(TOKEN)),))

    monkeypatch.setattr("fencepost.server.postgres.keyed.mark_of", mutant)
    monkeypatch.setattr("fencepost.server.postgres.many.mark_of", mutant)


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("name", ["claim", "lease with a claim", "PATCH in a batch", "PATCH by a filter"])
async def test_a_token_that_is_stored_as_it_is_would_be_accepted(
    name: str, connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await a_race(connect, unmade)
    the_token_is_stored_as_it_is(monkeypatch)
    with pytest.raises(AssertionError):
        await is_refused(race, late, REQUESTS[name], name)


@pytest.mark.long("mutants of the product")
async def test_and_then_a_claim_would_be_forgotten(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await a_race(connect, unmade)
    the_token_is_stored_as_it_is(monkeypatch)
    await assert_seen(no_accepted_claim_is_forgotten, race)


@pytest.mark.long("mutants of the product")
async def test_a_delete_by_filter_that_does_not_look_would_leave_no_mark(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await a_race(connect, unmade)
    monkeypatch.setattr(many, "or_unfenced", lambda *_, **_options: "true")
    with pytest.raises(AssertionError):
        await is_refused(race, waiting, REQUESTS["DELETE by a filter"], "DELETE by a filter")


@pytest.mark.long("mutants of the product")
async def test_a_delete_that_looks_before_it_has_the_lock_would_leave_no_mark(connect: Connect, unmade: Unmade) -> None:
    race = await a_race(connect, unmade)
    stem = await race.observer.fetchval("SELECT functions FROM fencepost.protected WHERE name = 'orders'")
    function = f'fencepost."{stem}_delete"(text, bigint, text[])'
    await mutate(race, function, "(fencepost.fires_as_planned(", "(true OR fencepost.fires_as_planned(")
    await assert_seen(delete_waits_for_unprotect, race)
