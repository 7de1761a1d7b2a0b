"""R4: the answer follows the commit, deadlocks and serialization failures are retried inside, commits are durable."""

from tests.support.interleave import Connect
from tests.support.racing import NEW, Race, outcome, owner
from tests.support.use_cases import (
    delete,
    gateway_pid,
    keyed,
    listed,
    matching,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.use_cases import claim
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database

DEFERRED = """
CREATE TABLE depth (n integer PRIMARY KEY);
INSERT INTO depth VALUES (0);
ALTER TABLE orders ADD CONSTRAINT orders_n_fkey FOREIGN KEY (n) REFERENCES depth DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE kept (order_id text REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
"""


async def test_a_constraint_checked_at_commit_refuses_every_verb(race: Race) -> None:
    await race.observer.execute(DEFERRED)
    await race.insert(race.a, "k", 30)
    await race.observer.execute("INSERT INTO kept VALUES ('k')")
    many = matching(NEW, 31)
    async with open_gateway(race.dsn) as gateway:
        answers = {
            "patch": await patch(gateway, keyed("k", 31, n=7)),
            "put": await put(gateway, keyed("k", 31, n=7)),
            "put new": await put(gateway, keyed("z", 31, n=7)),
            "post": await post(gateway, listed(31, {"order_id": "z", "n": 7})),
            "delete": await delete(gateway, keyed("k", 31)),
            "patch many": await patch(gateway, matching(NEW, 31, n=7)),
            "delete many": await delete(gateway, many),
        }
    for verb, answer in answers.items():
        assert isinstance(answer, Problem), f"{verb} was answered with {answer}"
        assert (answer.name, answer.http_status) == ("23503", 409), (verb, answer)
    assert await race.live_mark("k") == 30
    assert await race.recorded("k") == (30, False)
    assert await race.row("z") is None
    assert await race.recorded("z") is None


async def test_a_deadlock_is_retried_and_ends_with_a_verdict(race: Race) -> None:
    """The gateway holds row a and waits for b; the other holds b and then wants a. The gateway is the victim."""
    await race.insert_rows(race.a, [{"order_id": "a"}, {"order_id": "b"}], 30)
    async with open_gateway(race.dsn) as gateway:
        async with gateway.database.connection() as connection:
            # Who checks first is the victim, and it checks once: late enough that the other waits by then.
            await connection.execute("SET deadlock_timeout = '2s'")
        await race.a.execute("SET deadlock_timeout = '1min'")
        holder = await race.begin(race.a)
        await race.update(race.a, "b", 45)
        request = matching(NEW, 40, status="x")
        waiter = await race.waits_at(await gateway_pid(gateway), patch(gateway, request))
        assert await race.update(race.a, "a", 45)  # passes once the gateway gave way
        await holder.commit()
        answer = await waiter
    assert isinstance(answer, Problem)
    assert (answer.name, answer.current_token) == ("FP001", 45)  # judged anew, after the retry
    assert [await race.live_mark(key) for key in "ab"] == [45, 45]


async def test_a_serialization_failure_is_retried_and_never_reported_as_stale(race: Race) -> None:
    """A trigger of the user's raises 40001 for the first three tries."""
    await race.observer.execute("""
        CREATE SEQUENCE tries;
        CREATE FUNCTION moody() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF nextval('public.tries') % 4 <> 0 THEN RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'not now'; END IF;
          RETURN coalesce(NEW, OLD);
        END $$;
        CREATE TRIGGER moody BEFORE INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION moody()""")
    async with open_gateway(race.dsn) as gateway:
        new = matching(NEW, 36, n=1)
        answers = [
            result_of(await put(gateway, keyed("k", 31))),
            result_of(await patch(gateway, keyed("k", 32))),
            result_of(await claim(gateway, Claim(Resource("orders", ("k",)), Token(33)))),
            result_of(await delete(gateway, keyed("k", 34))),
            result_of(await post(gateway, listed(35, {"order_id": "k"}))),
            result_of(await patch(gateway, new)),
            result_of(await delete(gateway, matching(NEW, 37))),
        ]
    assert answers == ["created", "ok", "ok", "ok", "created", "ok", "ok"]
    assert await race.observer.fetchval("SELECT last_value FROM tries") == 28
    assert await race.recorded("k") == (37, True)


async def test_a_serialization_failure_without_end_is_a_busy_database(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute("""
        CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01', MESSAGE = 'never'; END $$;
        CREATE TRIGGER never BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION never()""")
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, keyed("k", 31))
    assert isinstance(answer, Problem)
    assert (answer.http_status, answer.name, answer.type.retryable) == (503, "40P01", True)


async def test_an_old_snapshot_fails_and_is_not_called_stale(race: Race) -> None:
    """Direct SQL in REPEATABLE READ: 40001 for UPDATE, DELETE and INSERT."""
    await race.insert(race.a, "k", 30)
    for work in ("update", "delete", "insert"):
        old = race.b.transaction(isolation="repeatable_read")
        await old.start()
        await race.b.fetch("SELECT FROM orders")
        if work == "insert":
            await race.delete(race.a, "k", 40)
            answer = await outcome(race.insert(race.b, "k", 39))
        else:
            await race.update(race.a, "k", 31 if work == "update" else 32)
            answer = await outcome(getattr(race, work)(race.b, "k", 50))
        await old.rollback()
        assert answer == "40001", work


async def test_a_commit_waits_at_least_for_on(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    for set_to, kept in (("remote_apply", "remote_apply"), ("remote_write", "on"), ("local", "on")):
        await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {set_to}")
        opened = await Database.open(database, Limits())
        try:
            async with opened.connection() as gateway:
                assert await gateway.fetchval("SHOW synchronous_commit") == kept
        finally:
            await opened.close()
