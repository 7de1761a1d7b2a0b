"""Queued writes of callers with a role: signed by the gateway, applied as their caller, and shown to nobody else."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.test_identity import serving_roles
from tests.support.asking import LOGIN, OTHER, READER, WEB, acting, caller, code, queueing
from tests.support.consuming import Queue, consumed, opened, write
from tests.support.interleave import Connect
from tests.support.servers import command
from tests.support.shops import Shop

from fencepost.server.consuming.applying import Applier, Later, Ledger, QueueNow
from fencepost.server.consuming.deciding import Decider, Settled
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.seal import parse_keys
from fencepost.server.gateway.results import whose
from fencepost.server.gateway.submit import find, wait
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import queues
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import Result
from fencepost.server.queues.log import Message, Position, Received, partition_of
from fencepost.server.queues.message import MessageName, WriteId, id_at, new_nonce, parse_write_id, sign
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import TIMES
from fencepost.testing.servers.processes import PATIENCE, eventually

TABLES = """
CREATE TABLE public.parcels (id text PRIMARY KEY, tenant text NOT NULL, n integer NOT NULL DEFAULT 0);
CREATE TABLE public.stamps (id text PRIMARY KEY, n integer NOT NULL DEFAULT 0, who text DEFAULT CURRENT_USER);
INSERT INTO public.parcels VALUES ('a', 'ann'), ('b', 'bob'); INSERT INTO public.stamps VALUES ('s'), ('t')"""
GRANTED = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON parcels, stamps TO {WEB}, {OTHER}; GRANT SELECT ON stamps TO {READER};
ALTER TABLE parcels ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON parcels USING (tenant = current_setting('request.jwt.claims', true)::json ->> 'tenant')"""
KEY = base64.b64encode(b"k" * 32).decode()


@dataclass
class Stage:
    """A gateway over HTTP that has keys and no consumer, and the queue."""

    client: httpx.AsyncClient
    queue: Queue
    dsn: str
    keys: str

    async def submit(self, role: str, method: str, path: str, body: Any, **headers: str) -> str:
        """Queue a write, and give its id."""
        answer = await self.client.request(method, f"/v1/data/{path}", json=body, headers=_as(role, **headers))
        assert answer.status_code == 202, answer.text
        write_id: str = answer.json()["id"]
        return write_id

    async def consume(self) -> None:
        async with consumed(self.queue):
            await self.queue.empty()

    async def page(self, write_id: str, role: str, **headers: str) -> httpx.Response:
        return await self.client.get(f"/v1/writes/{write_id}", headers=_as(role, **headers))

    async def state(self, write_id: str, role: str, **headers: str) -> tuple[str, int, str]:
        """Say how a write stands: the state, the status of its answer, its code."""
        found = (await self.page(write_id, role, **headers)).json()
        answer = found["answer"]
        return found["state"], answer["status"], "" if found["state"] == "applied" else answer["body"]["code"]

    def signed(self, resource: str, method: Any, body: Any, *, role: str = WEB, hours: int = 0) -> Message:
        """Make a message that was signed so many hours ago."""
        keys, now = self.queue.gateway.seals.keys, self.queue.gateway.seals.now()
        assert keys is not None
        return sign(write(resource, method, body), DEFAULT, keys, caller(role), now - hours * 3600)

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await self.queue.owner.fetch(sql)]

    async def message(self, write_id: str) -> Message:
        waiting = await self.queue.log.waiting(parse_write_id(write_id).position)
        assert waiting is not None
        return waiting[0].message


def _as(role: str, **headers: str) -> dict[str, str]:
    return {"X-Test-Role": role, **{f"X-Test-{name}": value for name, value in headers.items()}}


@pytest.fixture
async def stage(connect: Connect, database: str, tmp_path: Path) -> AsyncIterator[Stage]:
    keys = tmp_path / "keys"
    keys.write_text(f"k1:{KEY}")
    owner = await connect()
    await owner.execute(TABLES)
    await queues.register(owner, DEFAULT)
    for table in ("parcels", "stamps"):
        await protect(owner, table, queue=DEFAULT)
    async with (
        acting(owner, database, GRANTED) as stage,
        serving_roles(stage.dsn, seal_keys_file=keys, consume_here=False) as client,
        opened(stage.dsn, owner, seal_keys_file=keys) as queue,
    ):
        yield Stage(client, queue, stage.dsn, str(keys))


async def test_policies_decide_by_the_callers_claims_and_its_page_is_its_own(stage: Stage) -> None:
    ann = {"name": "ann", "claims": '{"tenant": "ann"}'}
    own = await stage.submit(WEB, "PATCH", "parcels/a", {"n": 1}, **ann)
    hidden = await stage.submit(WEB, "PATCH", "parcels/b", {"n": 1}, **ann)

    async def seen_by_others() -> None:
        """Another caller of the role, another role of the name and one without a role see what is not there."""
        for write_id in (own, hidden):
            made_up = f"{write_id[:-16]}{new_nonce()}"
            for asker in ({"X-Test-Role": WEB, "X-Test-Name": "bob"}, {"X-Test-Role": OTHER, "X-Test-Name": "ann"}, {}):
                found = await stage.client.get(f"/v1/writes/{write_id}?wait=1", headers=asker)
                absent = await stage.client.get(f"/v1/writes/{made_up}?wait=1", headers=asker)
                assert code(found) == code(absent) == (404, "FP029")
                assert found.text.replace(write_id, "ID") == absent.text.replace(made_up, "ID")

    assert (await stage.page(own, WEB, **ann)).json()["state"] == "queued"
    await seen_by_others()
    await stage.consume()
    assert await stage.state(own, WEB, **ann) == ("applied", 200, "")
    assert "fencepost-caller" not in (await stage.page(own, WEB, **ann)).text
    assert await stage.state(hidden, WEB, **ann) == ("failed", 404, "FP006")
    await seen_by_others()
    assert await stage.rows("SELECT id, n FROM parcels ORDER BY id") == [("a", 1), ("b", 0)]


async def test_a_made_up_caller_and_a_header_of_another_message_are_dead_letters(stage: Stage) -> None:
    own = await stage.submit(WEB, "PATCH", "stamps/s", {"n": 1})
    signed = await stage.message(own)
    moved = write("stamps/t", body={"n": 2})
    wrong = parse_keys(f"k1:{base64.b64encode(b'w' * 32).decode()}")
    made_up = sign(write("stamps/t", body={"n": 3}), DEFAULT, wrong, caller(WEB), 0)
    await stage.queue.append(replace(moved, headers=(signed.headers[0], *moved.headers)), made_up)
    await stage.queue.append(signed)  # a copy: no second effect, and no letter
    await stage.consume()
    assert await stage.state(own, WEB) == ("applied", 200, "")
    letters = await stage.queue.log.dead.list(9)
    assert ["no gateway with the key k1 has signed it" in each.reason for each in letters] == [True, True]
    for letter in letters:  # of whom it says it is of, whoever that is
        assert await stage.state(letter.id, WEB) == ("failed", 400, "FP016")
        assert (await stage.client.get(f"/v1/writes/{letter.id}")).status_code == 404
    assert await stage.rows("SELECT id, n FROM stamps ORDER BY id") == [("s", 1), ("t", 0)]


async def test_messages_of_two_roles_and_of_none_each_have_their_own_privileges(stage: Stage) -> None:
    ids = []
    await stage.queue.owner.execute(f"GRANT INSERT ON stamps TO {READER}")
    for roles in ((WEB, OTHER), (READER,)):
        ids += [
            (each, await stage.submit(each, "POST", "stamps", {"id": f"{each}{n}"})) for n in range(3) for each in roles
        ]
        if READER in roles:
            await stage.queue.append(write("stamps/login", "POST", {"id": "login"}))
            await stage.queue.owner.execute(f"REVOKE INSERT ON stamps FROM {READER}")
        await stage.consume()
    rows = await stage.rows("SELECT id, who FROM stamps WHERE length(id) > 1 ORDER BY id")
    assert rows == [(f"{role}{number}", role) for role in sorted((WEB, OTHER)) for number in range(3)]
    states = {(role, await stage.state(write_id, role)) for role, write_id in ids}
    created, denied = ("applied", 201, ""), ("failed", 403, "42501")
    assert states == {(WEB, created), (OTHER, created), (READER, denied)}
    denials = [each for each in await stage.queue.log.dead.list(9) if each.reason.startswith("42501")]
    assert {each.message.key for each in denials} == {f"stamps/{READER}{n}".encode() for n in range(3)} | {
        b"stamps/login"
    }


async def test_a_write_that_its_role_may_not_make_is_refused_as_at_once_and_is_not_queued(stage: Stage) -> None:
    """It would be a dead letter, body and all, of anybody who can send a request."""
    await stage.queue.owner.execute(
        "CREATE TABLE public.notes (id text PRIMARY KEY, n int, i int GENERATED ALWAYS AS IDENTITY); CREATE SCHEMA own;"
        f" GRANT SELECT ON notes TO {READER};"
        f" CREATE TABLE own.notes (id text PRIMARY KEY, n int); GRANT ALL ON own.notes TO {READER}"
    )
    for table in ("notes", "own.notes"):
        await protect(stage.queue.owner, table)
        for method, path, body in (
            ("PATCH", f"{table}/a", {"n": 1}), ("PUT", f"{table}/a", {"n": 1}), ("POST", table, {"id": "a"}),
            ("DELETE", f"{table}/a", None),
        ):  # fmt: skip
            headers = {**_as(READER), "X-Fence-Token": "5"}
            at_once = await stage.client.request(method, f"/v1/data/{path}", json=body, headers=headers)
            headers["Prefer"] = "respond-async"
            queued = await stage.client.request(method, f"/v1/data/{path}", json=body, headers=headers)
            assert code(queued) == (403, "42501")
            assert queued.json() == at_once.json()
    line = json.dumps({"method": "PATCH", "path": "stamps/s", "body": {"n": 1}})
    headers = {**_as(READER), "Content-Type": "application/x-ndjson"}
    verdicts = await stage.client.post("/v1/batch", content=line, headers=headers)
    assert (verdicts.json()["status"], verdicts.json()["body"]["code"]) == (403, "42501")
    assert await stage.rows("SELECT count(*) FROM fencepost.queued") == [(0,)]


async def test_who_has_too_many_dead_letters_queues_no_more_writes_until_an_operator_has_dealt_with_them(
    stage: Stage,
) -> None:
    """Others do, until the letters of all are too many. What was acknowledged is a letter all the same, as it was."""
    owner, long = stage.queue.owner, "x" * 3_000
    await owner.execute("ALTER TABLE parcels DISABLE ROW LEVEL SECURITY")

    async def submit(name: str) -> httpx.Response:
        """Send what becomes a dead letter: the row is there."""
        body = {"id": "a", "tenant": long}
        return await client.post("/v1/data/parcels", json=body, headers=_as(WEB, name=name))

    at_once = replace(TIMES, requests=replace(TIMES.requests, letters_known_for=0))
    given = {"seal_keys_file": stage.keys, "consume_here": False, "max_letter_bytes": 20_000}
    async with serving_roles(stage.dsn, at_once, **given) as client:
        for name in ("ann", "bob", "cy", "dan"):
            assert (await submit(name)).status_code == 202, name
            await stage.consume()
            assert code(await submit(name)) == (503, "FP048")
        refused = await submit("eve")
        assert (code(refused), "of 20000 that they" in refused.json()["detail"]) == ((503, "FP048"), True)
        letters = await stage.queue.log.dead.list(9)
        assert [len(each.message.value or b"") > len(long) for each in letters] == [True] * 4
        dropped = await command("dead", "drop", DEFAULT, letters[0].id, database=stage.dsn)
        assert dropped.exit_code == 0, dropped.output
        assert (await submit("ann")).status_code == 202


async def test_what_a_role_may_not_write_is_refused_when_it_is_submitted(stage: Stage) -> None:
    """As it is without a queue: no letter is left of it, which anyone without a credential could have made."""
    owner = stage.queue.owner
    await owner.execute(
        "CREATE TABLE public.parts (id text PRIMARY KEY, a int, b int, c int); INSERT INTO parts VALUES ('p', 1, 1, 1)"
    )
    await protect(owner, "parts")
    await owner.execute(
        f"GRANT SELECT (id, a, last_fence_token), UPDATE (a, last_fence_token), INSERT (id, a, last_fence_token)"
        f" ON parts TO {READER}; GRANT DELETE ON parts TO {OTHER}; NOTIFY fencepost, 'reload'"
    )
    minimal, shown = {"Prefer": "return=minimal"}, {"Prefer": "return=representation"}

    async def ask(role: str, method: str, path: str, body: Any, number: int, queued: str) -> tuple[int, str]:
        prefer = {"Prefer": f"{queued}{(shown if 'select' in path else minimal)['Prefer']}"}
        headers = _as(role) | prefer | {"X-Fence-Token": str(number)}
        answer = await stage.client.request(method, f"/v1/data/{path}", json=body, headers=headers)
        return answer.status_code, code(answer)[1] if answer.is_error else ""

    cases = [
        ("PATCH", "parts/p", {"a": 2}), ("PATCH", "parts/p", {"b": 2}), ("PATCH", "parts/p?select=a", {"a": 3}),
        ("PATCH", "parts/p?select=b", {"a": 3}), ("PUT", "parts/p", {"a": 4}), ("POST", "parts", {"id": "q", "a": 1}),
        ("POST", "parts", {"id": "r", "b": 1}), ("DELETE", "parts/q", None),
    ]  # fmt: skip
    for role in (READER, OTHER):
        for number, (method, path, body) in enumerate(cases, 2):
            at_once = await ask(role, method, path, body, 2 * number, "")
            queued = await ask(role, method, path, body, 2 * number + 1, "respond-async, ")
            if at_once[1] == "42501":
                assert queued == at_once, (role, method, path)
            else:
                assert queued[0] == 202, (role, method, path, at_once, queued)
    await stage.consume()
    letters = await stage.queue.log.dead.list(99)
    assert [each.reason for each in letters if each.reason.startswith("42501")] == []


async def test_what_a_role_may_counts_when_it_is_applied_and_a_retry_keeps_the_caller(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = await stage.submit(WEB, "POST", "stamps", {"id": "web"})
    other = await stage.submit(OTHER, "POST", "stamps", {"id": "other"})
    owner = stage.queue.owner
    await owner.execute(f"REVOKE INSERT ON stamps FROM {WEB}; REVOKE {OTHER} FROM {LOGIN}")
    await stage.consume()
    assert await stage.state(web, WEB) == ("failed", 403, "42501")
    assert await stage.state(other, OTHER) == ("failed", 403, "FP043")
    await owner.execute(f"GRANT INSERT ON stamps TO {WEB}; GRANT {OTHER} TO {LOGIN}")
    refused = await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)
    assert (refused.exit_code, "--seal-keys-file" in refused.output) == (1, True)
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    assert await stage.rows("SELECT count(*) FROM fencepost.queue_letters") == [(2,)]
    assert (await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)).exit_code == 0
    await stage.consume()
    assert await stage.rows("SELECT count(*) FROM fencepost.queue_letters") == [(0,)]
    assert await stage.rows("SELECT id, who FROM stamps WHERE length(id) > 1 ORDER BY id") == [
        ("other", OTHER), ("web", WEB),
    ]  # fmt: skip
    assert (await stage.page(web, WEB)).json()["retried_as"]


async def test_a_consumer_without_keys_leaves_the_message_to_one_that_has_them(stage: Stage) -> None:
    write_id = parse_write_id(await stage.submit(WEB, "PATCH", "stamps/s", {"n": 1}))
    waiting = await stage.queue.log.waiting(write_id.position)
    assert waiting is not None
    stage.queue.gateway.seals.keys = None
    applier = Applier(stage.queue.gateway, DEFAULT, 10_000)
    result = await applier.apply(waiting[0], QueueNow(1, 8), MessageName(str(write_id), b""))
    assert isinstance(result, Later)
    assert result.by_others
    assert "FENCEPOST_SEAL_KEYS_FILE" in result.reason


async def test_who_waits_for_anothers_write_sees_what_one_sees_who_waits_for_none(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Kafka, the log says of no place what is there."""

    async def says_nothing(_position: Position) -> None: ...

    async with queueing(shop.dsn) as queued:
        monkeypatch.setattr(queued.log, "waiting", says_nothing)
        position = await queued.log.append(write("orders/a"))
        write_id = WriteId(DEFAULT, position, new_nonce())
        ann, bob = (queued.gateway.of(caller(WEB, name)) for name in ("ann", "bob"))
        waits = [asyncio.create_task(wait(each, write_id, PATIENCE, "")) for each in (bob, ann)]
        answer, owner = Recorded('{"verb":"delete"}'), whose(ann.caller)
        async with queued.gateway.database.for_writing() as connection:
            # Who reads the log and appends to it knows the nonce, and whom to name.
            forged = id_at(DEFAULT, replace(position, offset=position.offset + 1), write_id.nonce)
            await queues.record(connection, forged, b"forged", "applied", answer, ("", owner))
            assert await find(ann, write_id) is None
            await queues.record(connection, str(write_id), b"genuine", "applied", answer, (owner, ""))
        genuine = await waits[1]
        assert isinstance(genuine, Result)
        assert (genuine.id, genuine.came_to) == (str(write_id), answer)
        await asyncio.sleep(0)
        assert not waits[0].done()
        waits[0].cancel()
        assert await find(bob, write_id) is None
        await queued.empty()
        assert isinstance(await find(bob, write_id), Problem)
        assert await find(ann, write_id) == genuine


async def test_one_callers_writes_that_wait_leave_a_consumer_room_for_others(stage: Stage) -> None:
    """A trigger of the users' has each of the writes wait until the other caller's is done: there are more of them than
    the consumer has connections.
    """
    await stage.queue.owner.execute("""
        CREATE FUNCTION wait_for_it() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NEW.id LIKE 'w%' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN NEW; END $$;
        CREATE TRIGGER wait_for_it BEFORE INSERT ON stamps FOR EACH ROW EXECUTE FUNCTION wait_for_it();
        SELECT pg_advisory_lock(7)""")
    waiting = [await stage.submit(WEB, "POST", "stamps", {"id": f"w{n}"}, name="ann") for n in range(1, 13)]
    others = await stage.submit(WEB, "POST", "stamps", {"id": "mine"}, name="bob")
    for_ever = stage.queue.settings.model_copy(update={"statement_timeout": 600, "lock_timeout": 600})
    async with consumed(replace(stage.queue, settings=for_ever)):

        async def applied() -> bool:
            return await stage.rows("SELECT id FROM stamps WHERE id = 'mine'") == [("mine",)]

        await eventually(applied, what="the other caller's write is applied")
        assert (await stage.page(waiting[0], WEB, name="ann")).json()["state"] == "queued"
        await stage.queue.owner.execute("SELECT pg_advisory_unlock(7)")
        await stage.queue.empty()
    assert await stage.state(others, WEB, name="bob") == ("applied", 201, "")
    assert {(await stage.page(each, WEB, name="ann")).json()["state"] for each in waiting} == {"applied"}


# Queued writes of callers with a role: what comes before their statements, the name of the row and the place.

__all__ = ["stage"]


def decider(stage: Stage) -> Decider:
    gateway = stage.queue.gateway
    ledger = Ledger(gateway.database, DEFAULT)
    return Decider(
        DEFAULT, Applier(gateway, DEFAULT, 10_000).apply, ledger, stage.queue.log.dead, now=gateway.seals.now
    )


async def test_a_role_that_is_gone_is_a_dead_letter_where_the_key_is_a_date(stage: Stage) -> None:
    """PostgreSQL has to name the row, as the role."""
    owner = stage.queue.owner
    await owner.execute(f"CREATE TABLE public.days (d date PRIMARY KEY, n int); GRANT ALL ON days TO {OTHER}")
    await protect(owner, "days", queue=DEFAULT)
    await stage.queue.gateway.catalog.reload()
    await owner.execute(f"REVOKE {OTHER} FROM {LOGIN}")
    message = stage.signed("days/2026-01-01", "PATCH", {"n": 1}, role=OTHER)
    received = Received(Position(partition_of(message.key, 8), 0), message, stage.queue.gateway.seals.now())
    settled = await decider(stage).decide(received, QueueNow(1, 8))
    assert isinstance(settled, Settled), settled
    assert settled.reason.startswith("FP043"), settled


async def test_a_copy_in_another_partition_does_not_take_the_writes_effect(stage: Stage) -> None:
    """The copy has the write's content and nonce; its partition may be ahead."""
    message = stage.signed("stamps/s", "PATCH", {"n": 7}, role=OTHER)
    meant, now = partition_of(message.key, 8), stage.queue.gateway.seals.now()
    copied = await decider(stage).decide(Received(Position((meant + 1) % 8, 5), message, now), QueueNow(1, 8))
    assert isinstance(copied, Settled)
    assert copied.state == "failed"
    await stage.queue.append(message)
    await stage.consume()
    assert await stage.rows("SELECT n FROM stamps WHERE id = 's'") == [(7,)]


async def test_a_copy_that_waits_in_the_log_until_the_record_is_old_has_no_second_effect(stage: Stage) -> None:
    """It came in time. One that comes when the record is forgotten is late, whatever time the log gives it."""
    queue, ledger, now = (stage.queue, Ledger(stage.queue.gateway.database, DEFAULT), stage.queue.gateway.seals.now())

    async def looked(before: int) -> int:
        """Look at the log as a consumer did two hours before that, and after; how many records are forgotten then."""
        generation = await ledger.generation()
        await ledger.note_committed(await queue.log.decided(), generation)
        for each in (before + 2, before + 1, before):
            at, decided = now - each * 3600, await queue.log.decided()
            await ledger.note_look(at, decided, await queue.log.state(), generation)
        pruned: int = await queue.owner.fetchval("SELECT fencepost.prune_idempotency(86400, 1000)")
        return pruned

    message = stage.signed("stamps/s", "PATCH", {"n": 7}, role=OTHER, hours=40)
    await queue.append(message)
    await stage.consume()
    await queue.owner.execute("UPDATE fencepost.idempotency SET created_at = created_at - interval '39 hours'")
    await queue.append(message)
    assert await looked(7) == 0
    before = await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'")
    await stage.consume()
    assert await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'") == before
    assert (await queue.log.dead.list(9), await looked(3), before[0][0]) == ([], 1, 7)
    await queue.append(message)
    await queue.owner.execute("UPDATE fencepost.queued SET appended_at = appended_at - interval '39 hours'")
    await stage.consume()
    assert await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'") == before
    assert ["after it was signed" in each.reason for each in await queue.log.dead.list(9)] == [True]
