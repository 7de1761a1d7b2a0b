"""Sealed tokens over HTTP, in queued writes, of roles and in the client: a seal for one resource writes no other."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from tests.http.conftest import Start
from tests.http.sealed_ways import (
    MINIMAL,
    REFUSED,
    SEALED,
    WAYS,
    SealedShop,
    Way,
    key_line,
    lease,
    refused_elsewhere,
    release,
    sealed_shop,
)
from tests.support.asking import SECRET, Api, bearer, code, token
from tests.support.interleave import Connect, connection_to
from tests.support.postgres import ReadyMade

from fencepost import Client, FenceToken, SealRefused, SyncClient
from fencepost.cli.main import main
from fencepost.client import TokenRequired
from fencepost.server.fence.seal import Binding, parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.gateway import alone, operations, use_cases
from fencepost.server.gateway.attempt import in_a_batch
from fencepost.server.gateway.gateway import SealKeysFile, Seals
from fencepost.server.gateway.plan import Plan
from fencepost.server.observe.events import Event, SealKeysRead, SealKeysUnreadable
from fencepost.server.ops.protect import protect
from fencepost.server.parts import read_seal_keys
from fencepost.server.postgres import queues
from fencepost.server.postgres.queues import PARTITIONS, MessageRow
from fencepost.server.queues.log import partition_of
from fencepost.server.queues.message import WriteMessage, message_of
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError
from fencepost.testing.servers.processes import eventually


@pytest.fixture(scope="module")
def shop(databases: ReadyMade, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedShop]:
    """Give a gateway with keys for seals; each test finds the rows as they were made."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("one"))
    with sealed_shop(databases, keys) as shop:
        yield shop


@pytest.fixture
async def api(shop: SealedShop) -> AsyncIterator[Api]:
    await shop.reset()
    async with Api.open(shop.url) as api:
        yield api


# Every way to write: a seal for one resource writes no other; and what it is bound to, it writes.


async def test_a_seal_for_one_resource_writes_no_other(shop: SealedShop, api: Api) -> None:
    # 403, "FP041"
    for way in WAYS:
        await shop.reset()
        await refused_elsewhere(shop, api, way)
        held, before = await lease(api, f"job-{way.name}", writes=[way.covering]), await shop.state()
        if "without seals" not in way.name:
            bare = await way.go(api, held["token"])
            assert code(bare) == (428, "FP003"), way.name
            assert "has no seal" in bare.json()["detail"], way.name
            assert "sealed_token" in bare.json()["hint"], way.name
            assert await shop.state() == before, way.name
        answer = await way.go(api, held["sealed_token"])
        assert answer.is_success, (way.name, answer.text)
        assert await shop.state() != before, way.name


async def test_a_delete_takes_other_rows_of_its_scope_and_none_of_another(shop: SealedShop, api: Api) -> None:
    """A seal for a scope is enough for what a foreign key deletes in it: the scope's own trigger refuses the rest."""
    parts = "INSERT INTO public.transfers VALUES (5, 41, 0, 1), (6, 42, 0, 2), (7, 41, 0, 6)"
    await shop.run(f"SET session_replication_role = replica; {parts}")
    seals = (await lease(api, "parts", writes=["account/41", "account/42"]))["sealed_tokens"]
    for number, row in enumerate(("/2", "?id=eq.2")):
        assert code(await api.ask("DELETE", f"data/transfers{row}", token=seals[number])) == (409, "FP428"), row
    for number, row in enumerate(("/1", "?id=eq.7", "?id=eq.2"), 2):
        assert (await api.ask("DELETE", f"data/transfers{row}", token=seals[number])).is_success, row
    assert not await shop.sql("SELECT FROM public.transfers")


async def test_tokens_that_are_minted_are_bound_like_those_of_the_grant(api: Api) -> None:
    """A claim binds by the name of the row, and so does a lock that is called like it: orders/a%20b."""
    held = await lease(api, "orders/a%20b", claim=["numbered/0007", "account/041"], writes=["plain/b"])
    minted = await api.http.post(
        f"/v1/leases/{held['lease_id']}/tokens", json={"count": 5}, headers={"X-Lease-Secret": held["secret"]}
    )
    body = minted.json()
    assert [text.partition(".")[0] for text in body["sealed_tokens"]] == body["tokens"]
    assert body["sealed_token"] == body["sealed_tokens"][0]
    seals = iter(body["sealed_tokens"])
    for path, change in (
        ("orders/a%20b", {"status": "m"}), ("numbered/7", {"label": "m"}), ("transfers/1", {"amount": 5}),
        ("plain/b", {"label": "m"}),
    ):  # fmt: skip
        written = await api.ask("PATCH", f"data/{path}", change, token=next(seals))
        assert written.status_code == 200, (path, written.text)
    assert code(await api.ask("POST", "data/orders", {"order_id": "zz"}, token=next(seals))) == REFUSED


async def test_the_same_secret_gets_the_same_tokens_sealed_and_other_writes_are_another_request(api: Api) -> None:
    headers = {"X-Lease-Secret": "s" * 40}
    wanted = {"lock": "again", "writes": ["orders/*", "numbered/007"], "ttl_ms": 60_000}
    first = (await api.http.post("/v1/leases", json=wanted, headers=headers)).json()
    again = await api.http.post("/v1/leases", json={**wanted, "writes": ["numbered/7", "orders/*"]}, headers=headers)
    assert (again.status_code, again.json()["tokens"]) == (200, first["tokens"])
    assert again.json()["sealed_token"].startswith(f"{first['token']}.one.")
    other = await api.http.post("/v1/leases", json={**wanted, "writes": ["orders/*"]}, headers=headers)
    assert code(other) == (400, "FP016")
    state = (await api.http.get(f"/v1/leases/{first['lease_id']}")).json()
    assert state["writes"] == ["numbered/7", "orders/*"]


async def test_what_writes_cannot_have_is_400_by_name(api: Api) -> None:
    for writes, said in (
        ("orders/*", "array"), (["orders/*", "orders/*"], "twice"), (["*"], "stand before the *"),
        (["orders"], "named table/key"), ([1], "strings"), (["orders/\n*"], "strings"),
        (["orders/%zz"], "hexadecimal"), (["orders/%z*"], "hexadecimal"),
        (["numbered/1,2"], "the key of numbered has 1 value"), (["transfers/1"], "account/{account}"),
        (["transfers/*"], "account/{account}"), (["orders/" + "x" * 1100 + "*"], "1024 bytes"),
        (["priced/1e2000"], "1024 bytes as the database spells them"),
        ([f"orders/{n}" for n in range(33)], "at most 32"),
    ):  # fmt: skip
        answer = await api.http.post("/v1/leases", json={"lock": "w", "writes": writes})
        assert code(answer) == (400, "FP016"), (writes, said)
        assert said in answer.json()["detail"], (writes, said)
        assert "writes" in answer.json()["detail"], (writes, said)
    no_number = await api.http.post("/v1/leases", json={"lock": "w", "writes": ["numbered/x"]})
    assert code(no_number) == (400, "22P02")


async def test_writes_of_tables_that_are_not_there_or_not_protected_are_refused(shop: SealedShop, api: Api) -> None:
    assert code(await api.http.post("/v1/leases", json={"lock": "w", "writes": ["no/*"]})) == (404, "FP007")
    await shop.sql("CREATE TABLE IF NOT EXISTS public.diary (id int PRIMARY KEY)")
    assert code(await api.http.post("/v1/leases", json={"lock": "w", "writes": ["diary/*"]})) == (403, "FP005")
    assert (await api.http.get("/v1/locks", params={"name": "w"})).json() == []


async def test_a_repeated_write_is_answered_again_under_the_next_holders_seal(api: Api) -> None:
    key = {"Idempotency-Key": "handed-over"}
    first = await lease(api, "first", writes=["orders/a"])
    done = await api.ask("PATCH", "data/orders/a", {"status": "once"}, token=first["sealed_token"], headers=key)
    second = await lease(api, "second", writes=["orders/*"])
    again = await api.ask("PATCH", "data/orders/a", {"status": "once"}, token=second["sealed_token"], headers=key)
    assert (again.status_code, again.json()) == (200, done.json())
    assert again.headers["idempotent-replayed"] == "true"


async def test_lists_refusals_and_the_log_show_numbers_and_no_seals(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    held = await lease(api, "orders/a", claim=["orders/a"])
    stale = await lease(api, "stale", writes=["orders/a"])
    newer = await lease(api, "newer", writes=["orders/a"])
    assert (await api.ask("PATCH", "data/orders/a", {"status": "n"}, token=newer["sealed_token"])).status_code == 200
    refused = await api.ask("PATCH", "data/orders/a", {"status": "n"}, token=stale["sealed_token"])
    assert code(refused) == (409, "FP001")
    elsewhere = await api.ask("PATCH", "data/orders/b", {"status": "n"}, token=newer["sealed_token"])
    assert code(elsewhere) == REFUSED
    shown = [
        refused.text, elsewhere.text, (await api.http.get("/v1/locks")).text,
        (await api.http.get(f"/v1/leases/{held['lease_id']}")).text,
        (await api.ask("GET", "fences?resource=orders/a")).text,
        (await api.ask("PATCH", "data/orders/a", {"status": "n"}, token="34.one.x")).text,
    ]  # fmt: skip

    async def logged() -> bool:  # of very many refusals the rest follows after a second, by their codes
        return "FP001" in caplog.text and "FP041" in caplog.text

    await eventually(logged, what="the log")
    assert all(".one." not in text for text in (*shown, caplog.text))
    assert (await api.ask("GET", "fences?resource=orders/a")).json()["sealed"] is True
    assert (await api.ask("GET", "fences?resource=plain/a")).json()["sealed"] is False
    assert refused.json()["presented_token"] == stale["token"]


async def test_a_refused_seal_is_recorded_without_authentication_too(shop: SealedShop, api: Api) -> None:
    held = await lease(api, "elsewhere", writes=["orders/b"])
    assert code(await api.ask("PATCH", "data/orders/a", {"status": "x"}, token=held["sealed_token"])) == REFUSED

    async def recorded() -> str | None:
        async with connection_to(shop.dsn) as connection:
            found: str | None = await connection.fetchval("SELECT caller FROM fencepost.refusals WHERE code = 'FP041'")
            return found

    assert await eventually(recorded, what="an entry") == "anybody"


async def test_sql_takes_the_bare_number_of_a_token_that_was_issued(shop: SealedShop, api: Api) -> None:
    """docs/direct-sql.md: PostgreSQL has no keys. What guards the number there is that it must have been issued."""
    held = await lease(api, "by-sql")
    write = "SET LOCAL fencepost.token = '{}'; UPDATE public.orders SET status = 'by sql' WHERE order_id = 'a'"
    with pytest.raises(asyncpg.PostgresError, match="was never issued"):
        await shop.run(write.format(int(held["token"]) + 1_000_000))
    await shop.run(write.format(held["token"]))
    assert (await api.ask("GET", "data/orders/a")).json()["status"] == "by sql"


async def test_a_gateway_without_keys_names_what_it_lacks(shop: SealedShop, api: Api, start_gateway: Start) -> None:
    held = await lease(api, "keyless", writes=["orders/*", "plain/*"])
    async with Api.open(await start_gateway(shop.dsn)) as keyless:
        for token in (held["token"], held["sealed_token"]):
            answer = await keyless.ask("PATCH", "data/orders/a", {"status": "x"}, token=token)
            assert code(answer) == (503, "FP042")
            assert "FENCEPOST_SEAL_KEYS_FILE" in answer.json()["hint"]
        plain = await keyless.ask("PATCH", "data/plain/a", {"label": "x"}, token=held["sealed_token"])
        assert (code(plain), plain.json()["reason"]) == (REFUSED, "unknown-key")
        assert (await keyless.ask("PATCH", "data/plain/a", {"label": "x"}, token=held["token"])).status_code == 200
        writes = await keyless.http.post("/v1/leases", json={"lock": "kl", "writes": ["plain/*"]})
        assert code(writes) == (400, "FP016")
        assert "sealed_token" not in (await keyless.http.post("/v1/leases", json={"lock": "kl"})).json()


# Mutants of what keeps a seal for one resource from writing another: each must be seen by a way to write.


def nothing_is_compared_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write by key in a batch, whatever the seal is for."""
    monkeypatch.setattr(use_cases, "elsewhere", lambda *_: None)


def nothing_is_compared_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit what was written, whatever the seal is for."""
    monkeypatch.setattr(alone, "elsewhere", lambda *_: None)


def the_path_names_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the text of the path, and not the name of the row: 08 is the row 8."""

    async def name(_gateway: object, table: object, key: tuple[str, ...]) -> str:
        return f"{getattr(table, 'name', '')}/{','.join(key)}"

    monkeypatch.setattr(use_cases, "name_of_key", name)


def rows_of_scopes_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the scope entered, and the row written, before it is known which scope it is."""

    async def mutant(gateway: object, _queues: object, write: object) -> object:
        plans = [plan for table in gateway.catalog.current.tables.values() for plan in table.plans.values()]  # type: ignore[attr-defined]
        queues = next(p.queues for p in reversed(plans) if isinstance(p, Plan) and p.table.fence.scope is not None)
        return await in_a_batch(gateway, queues, write)  # type: ignore[arg-type]

    monkeypatch.setattr(use_cases, "in_a_batch", mutant)


def a_put_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe that a row is stored under the key that was sent."""
    monkeypatch.setattr(operations.OfRow, "written", lambda self, _done: (self.name,))


def a_post_is_named_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations.NewRows, "written", lambda _self, _done: ())


def rows_that_match_are_named_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations.RowsMatching, "written", lambda _self, done: done.resources[:1])


def cascades_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a DELETE of a row for one of that row only."""
    monkeypatch.setattr(use_cases, "require_reach", lambda *_: None)


def no_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe what a payload says."""
    monkeypatch.setattr(Binding, "covers", lambda _self, _resource: True)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (nothing_is_compared_before, "patch"), (nothing_is_compared_after, "post of one"),
        (nothing_is_compared_after, "patch by filter"), (nothing_is_compared_after, "claim of a scope"),
        (the_path_names_the_resource, "patch by the text in the lock"),
        (rows_of_scopes_go_in_batches, "patch in a scope"), (a_put_is_named_by_its_path, "put that a trigger moves"),
        (a_post_is_named_by_nothing, "post that a trigger moves"),
        (rows_that_match_are_named_by_the_first, "patch by filter"),
        (cascades_are_not_looked_at, "delete that takes other rows"),
        (cascades_are_not_looked_at, "delete that takes rows of a partition"), (no_key_is_needed, "patch"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)  # fmt: skip
async def test_a_way_to_write_sees_it(
    shop: SealedShop, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    await shop.reset()
    (way,) = [way for way in WAYS if way.name == name]
    async with Api.open(shop.url) as api:
        await refused_elsewhere(shop, api, way)
        mutant(monkeypatch)
        with pytest.raises(AssertionError):
            await refused_elsewhere(shop, api, way)


# Queued writes: judged when they come in, and again when they are applied, but for their end.

ASYNC = "respond-async"


async def result(api: Api, location: str) -> dict[str, object]:
    answer = await api.http.get(f"{location}?wait=20")
    body: dict[str, object] = answer.json()
    return body


async def test_a_seal_for_another_resource_is_refused_before_the_write_is_queued(shop: SealedShop, api: Api) -> None:
    for method, path, body in (
        ("PATCH", "data/numbered/08", {"label": "x"}),
        ("POST", "data/orders", {"order_id": "new"}),
        ("DELETE", "data/orders/b", None),
    ):
        await shop.reset()
        held = await lease(api, f"queued-{next(shop.names)}", writes=["orders/a", "numbered/7"])
        answer = await api.ask(method, path, body, token=held["sealed_token"], prefer=ASYNC)
        assert code(answer) == REFUSED, (method, path)
        bare = await api.ask(method, path, body, token=held["token"], prefer=ASYNC)
        assert code(bare) == (428, "FP003"), (method, path)
        assert await shop.sql("SELECT FROM fencepost.queued") == [], (method, path)
        right = await lease(api, f"queued-{next(shop.names)}", writes=["orders/*", "numbered/8"])
        taken = await api.ask(method, path, body, token=right["sealed_token"], prefer=ASYNC)
        assert taken.status_code == 202, (method, path)
        assert (await result(api, taken.headers["location"]))["state"] == "applied", (method, path)


async def test_the_scope_of_a_queued_write_is_compared_when_it_is_applied(shop: SealedShop, api: Api) -> None:
    held = await lease(api, "scoped", writes=["account/41"])
    states = {}
    for row in ("1", "2"):
        answer = await api.ask(
            "PATCH", f"data/transfers/{row}", {"amount": 9}, token=held["sealed_tokens"][int(row)], prefer=ASYNC
        )
        assert answer.status_code == 202
        states[row] = await result(api, answer.headers["location"])
    assert (states["1"]["state"], states["2"]["state"]) == ("applied", "failed")
    assert "account/42" in str(states["2"]["reason"])
    assert ".one." not in str(states)
    rows = await shop.sql("SELECT id, amount FROM public.transfers ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 9), (2, 0)]


async def append(shop: SealedShop, token: object, resource: str = "orders/a") -> None:
    """Put a write into the log as a program does that reaches the log, and asks no gateway."""
    message = message_of(WriteMessage(resource, "PATCH", b'{"status": "direct"}'))
    headers = (*message.headers, ("fence-token", str(token).encode()))
    row = MessageRow(partition_of(message.key, PARTITIONS), message.key, headers, message.value)
    async with connection_to(shop.dsn) as connection:
        await queues.append(connection, [row])
        await connection.execute(f"NOTIFY {queues.CHANNEL}")


async def reasons(shop: SealedShop) -> list[str]:
    """Wait until nothing is queued, and give why writes became dead letters."""
    await eventually(lambda: shop.sql("SELECT WHERE NOT EXISTS (SELECT FROM fencepost.queued)"))
    return [row["reason"] for row in await shop.sql("SELECT reason FROM fencepost.queue_dead ORDER BY at")]


async def test_what_is_put_into_the_log_past_the_gateway_needs_a_seal_as_well(shop: SealedShop, api: Api) -> None:
    held = await lease(api, "direct", writes=["orders/b"])
    forged = parse_keys(key_line("one", 9)).seal(
        [Token(int(held["token"]))], Binding("builtin", held["lease_id"], prefixes=("orders/",)), 2**40
    )[0]
    for presented in (held["tokens"][0], forged, held["sealed_tokens"][1]):
        await append(shop, presented)
    bare, made_up, elsewhere = (await reasons(shop))[-3:]
    assert "has no seal" in bare
    assert "not one that this gateway" in made_up
    assert "not for orders/a" in elsewhere
    assert await shop.sql("SELECT FROM public.orders WHERE status = 'direct'") == []


async def test_a_seal_that_ends_while_its_write_waits_is_good_and_one_that_comes_late_is_not(
    shop: SealedShop, api: Api
) -> None:
    held = await lease(api, "waits", writes=["orders/a"])
    ended = parse_keys(key_line("one")).seal(
        [Token(int(held["token"]))], Binding("builtin", held["lease_id"], frozenset({"orders/a"})), 1
    )[0]
    late = await api.ask("PATCH", "data/orders/a", {"status": "x"}, token=ended, prefer=ASYNC)
    assert (code(late), late.json()["reason"]) == (REFUSED, "ended")
    before = len(await reasons(shop))
    await append(shop, ended)  # as it is in the log when it was good at its submission
    assert len(await reasons(shop)) == before
    assert [row[0] for row in await shop.sql("SELECT order_id FROM public.orders WHERE status = 'direct'")] == ["a"]


# Keys that seal tokens: changed without a restart and without a refused write; and what a file of keys cannot be.


@pytest.fixture
async def sealed_database(database: str, connect: Connect) -> str:
    owner = await connect()
    await owner.execute(
        "CREATE TABLE public.orders (id text PRIMARY KEY, n int); INSERT INTO public.orders VALUES ('a')"
    )
    await protect(owner, "orders", source="builtin", sealed=True)
    return database


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(key_line("one"))
    return file


@pytest.fixture
async def keyed_api(sealed_database: str, keys: Path, start_gateway: Start) -> AsyncIterator[Api]:
    async with Api.open(await start_gateway(sealed_database, seal_keys_file=str(keys))) as api:
        yield api


def replace(file: Path, text: str) -> None:
    """Change a file as an operator should: at once."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


async def seals_with(api: Api, key: str) -> None:
    async def does() -> bool:
        held = await lease(api, f"probe-{time.monotonic_ns()}")
        return bool(held["sealed_token"].split(".")[1] == key)

    await eventually(does)


async def write(api: Api, token: str) -> httpx.Response:
    return await api.ask("PATCH", "data/orders/a", {"n": 1}, token=token)


async def test_keys_are_changed_in_three_steps_and_no_write_is_refused(keyed_api: Api, keys: Path) -> None:
    held = await lease(keyed_api, "orders/a")
    old = iter(held["sealed_tokens"])
    replace(keys, key_line("one") + key_line("two", 2))  # 1: everywhere known
    assert (await write(keyed_api, next(old))).status_code == 200
    replace(keys, key_line("two", 2) + key_line("one"))  # 2: it seals
    await seals_with(keyed_api, "two")
    assert (await write(keyed_api, next(old))).status_code == 200
    minted = await keyed_api.http.post(
        f"/v1/leases/{held['lease_id']}/tokens", json={"count": 2}, headers={"X-Lease-Secret": held["secret"]}
    )
    new = iter(minted.json()["sealed_tokens"])
    assert (await write(keyed_api, next(new))).status_code == 200
    replace(keys, key_line("two", 2))  # 3: the old one is taken away
    last = next(new)

    async def refused() -> bool:
        answer = await keyed_api.ask("PATCH", "data/orders/a", {"n": 1}, token=held["sealed_tokens"][-1])
        return code(answer) == REFUSED and answer.json()["reason"] == "unknown-key"

    await eventually(refused)
    assert (await write(keyed_api, last)).status_code == 200


async def test_a_seal_of_another_source_or_time_or_with_another_key_is_refused(keyed_api: Api) -> None:
    held = await lease(keyed_api, "elsewhere")
    token, names = Token(int(held["token"])), frozenset({"orders/a"})
    right = parse_keys(key_line("one"))
    of_lease = Binding("builtin", held["lease_id"], names)
    for text, reason in (
        (right.seal([token], of_lease, int(time.time()) - 1)[0], "ended"),  # noqa: TID251 - what a gateway compares with
        (right.seal([token], Binding("etcd", "etcd-1", names), 2**40)[0], "other-source"),
        (parse_keys(key_line("one", 9)).seal([token], Binding("builtin", "1", names), 2**40)[0], "wrong-seal"),
        (parse_keys(key_line("nine")).seal([token], Binding("builtin", "1", names), 2**40)[0], "unknown-key"),
    ):
        answer = await write(keyed_api, text)
        assert (code(answer), answer.json()["reason"]) == (REFUSED, reason)
    never = right.seal([Token(10**9)], Binding("builtin", "1", names), 2**40)[0]
    assert code(await write(keyed_api, never)) == (409, "FP018")  # the fence decides, whatever the seal says
    assert (await write(keyed_api, right.seal([token], Binding("builtin", "1", names), 2**40)[0])).status_code == 200


def test_a_file_that_cannot_be_read_leaves_the_last_good_keys(keys: Path) -> None:
    seen: list[Event] = []
    seals = Seals(read_seal_keys(Settings(seal_keys_file=keys)))
    file = SealKeysFile(keys, seals, seen.append)
    file.look()
    assert seen == []
    replace(keys, "one:short\n")
    for _ in range(3):
        file.look()
    assert [type(event) for event in seen] == [SealKeysUnreadable]
    assert "line 1: the key one" in str(seen[0])
    assert seals.keys == parse_keys(key_line("one"))
    keys.unlink()
    file.look()
    assert [type(event) for event in seen] == [SealKeysUnreadable, SealKeysUnreadable]
    keys.write_text(key_line("one"))
    file.look()
    before = keys.stat()
    keys.write_text(key_line("two"))
    os.utime(keys, ns=(before.st_atime_ns, before.st_mtime_ns))
    file.look()
    assert seals.keys == parse_keys(key_line("one")), "a file may change twice within the resolution of its time"
    file.read()
    assert seals.keys == parse_keys(key_line("two")), "SIGHUP reads it in any case"
    keys.write_text(key_line("one"))
    file.read()
    keys.write_text(key_line("two"))
    file.look()
    assert seen[-1] == SealKeysRead(("two",))
    assert seals.keys == parse_keys(key_line("two"))


def test_a_gateway_does_not_start_with_keys_that_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for text, said in ((b"#", "there is no key in it"), (b"a:b\n", "the key a"), (b"#" * 70_000, "65536 bytes")):
        file.write_bytes(text)
        with pytest.raises(StartupError) as raised:
            read_seal_keys(Settings(seal_keys_file=file))
        assert "FENCEPOST_SEAL_KEYS_FILE" in str(raised.value), text
        assert said in str(raised.value), text
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="it is no text"):
        Settings(seal_keys_file=file)


# Callers that have a role: the seal is compared in the middle of statements that the role runs.

WEB, NARROW, NOBODY = "sealed_web", "sealed_narrow", "sealed_nobody"
GRANTS = f"""
SELECT pg_advisory_xact_lock(3306);
DO $$ DECLARE name text; BEGIN
  FOREACH name IN ARRAY ARRAY['{WEB}', '{NARROW}'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON {", ".join((*SEALED, "transfers", "plain"))} TO {WEB};
GRANT SELECT (order_id, last_fence_token), INSERT (order_id, status, last_fence_token),
      UPDATE (status, last_fence_token) ON orders TO {NARROW};
"""


@pytest.fixture(scope="module")
def role_shop(databases: ReadyMade, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedShop]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("one"))
    with sealed_shop(databases, keys, jwt_secret=SECRET, roles=f"{WEB},{NARROW},{NOBODY}") as shop:
        asyncio.run(shop.run(GRANTS))
        yield shop


@pytest.fixture
async def web_api(role_shop: SealedShop) -> AsyncIterator[Api]:
    """Give what asks as a caller with the role that may write to all tables."""
    await role_shop.reset()
    async with Api.open(role_shop.url) as api:
        api.http.headers.update(bearer(token(sub="ann", role=WEB)))
        yield api


async def refused_and_written(shop: SealedShop, api: Api, way: Way) -> None:
    """Write under a seal for another resource, which changes nothing, and under one that covers what is written."""
    await refused_elsewhere(shop, api, way)
    held, before = await lease(api, f"job-{way.name}", writes=[way.covering]), await shop.state()
    try:
        answer = await way.go(api, held["sealed_token"])
        assert answer.is_success, (way.name, answer.text)
        assert await shop.state() != before, way.name
    finally:
        await release(api, held)


async def test_a_caller_with_a_role_writes_what_its_seal_is_for(role_shop: SealedShop, web_api: Api) -> None:
    # A way for each statement that the role runs.
    of_a_role = [way for way in WAYS if way.name in (
        "patch of a numeric", "put of a new row", "post of several", "patch by filter", "patch of an array",
        "claim of a scope", "patch in a scope", "delete", "delete by filter", "delete that takes other rows",
    )]  # fmt: skip
    for way in of_a_role:
        await role_shop.reset()
        await refused_and_written(role_shop, web_api, way)


async def test_a_seal_needs_no_privilege_that_the_write_does_not(role_shop: SealedShop, web_api: Api) -> None:
    web_api.http.headers.update(bearer(token(sub="bob", role=NARROW)))
    few = {"status": "x"}
    two = [{"order_id": "n1"}, {"order_id": "n2"}]
    narrow_ways = (
        Way("patch", "PATCH", "data/orders/b", few, "orders/a", "orders/b", MINIMAL),
        Way("put of a row", "PUT", "data/orders/b", few, "orders/a", "orders/b", MINIMAL),
        Way("put of a new row", "PUT", "data/orders/new", few, "orders/a", "orders/n*", MINIMAL),
        Way("post of several", "POST", "data/orders", two, "orders/n1", "orders/*", MINIMAL),
        Way("patch by filter", "PATCH", "data/orders?order_id=in.(a,b)", few, "orders/a", "orders/*", MINIMAL),
        Way("patch of an array", "PATCH", "data/orders", [{"order_id": "b", **few}], "orders/a", "orders/*", MINIMAL),
    )  # fmt: skip
    for way in narrow_ways:
        await role_shop.reset()
        await refused_and_written(role_shop, web_api, way)


async def test_a_seal_gives_no_privilege(role_shop: SealedShop, web_api: Api) -> None:
    web_api.http.headers.update(bearer(token(sub="bob", role=NARROW)))
    held = await lease(web_api, "all", writes=["numbered/*", "orders/*"])
    before = await role_shop.state()
    for method, path, body in (
        ("PATCH", "data/numbered/7", {"label": "x"}),
        ("DELETE", "data/orders/a", None),
        ("POST", "claims", {"resource": "numbered/7"}),
    ):
        answer = await web_api.ask(method, path, body, token=held["sealed_token"])
        assert code(answer) == (403, "42501"), answer.text
    assert await role_shop.state() == before
    await release(web_api, held)


async def test_tokens_that_a_caller_claims_with_and_mints_are_bound_by_the_names_of_rows(web_api: Api) -> None:
    """`priced/2.50` is read as the key's type, which PostgreSQL does, as the caller."""
    held = await lease(web_api, "claiming", claim=["priced/2.50", "account/041"])
    headers = {"X-Lease-Secret": held["secret"]}
    minted = await web_api.http.post(f"/v1/leases/{held['lease_id']}/tokens", json={"count": 3}, headers=headers)
    for seals in (held["sealed_tokens"], minted.json()["sealed_tokens"]):
        paths = (("data/priced/2.5", {"label": "x"}), ("data/transfers/1", {"amount": 5}))
        for sealed, (path, body) in zip(seals, paths, strict=False):
            answer = await web_api.ask("PATCH", path, body, token=sealed)
            assert answer.status_code == 200, answer.text
        assert code(await web_api.ask("PATCH", "data/priced/1.5", {"label": "x"}, token=seals[-1])) == REFUSED
    await release(web_api, held)


async def test_a_role_that_is_not_allowed_gets_no_lease_that_names_what_it_writes(web_api: Api) -> None:
    """The role is listed, and is not there. Reading the name as a key's type would be done as it; a lock needs none."""
    web_api.http.headers.update(bearer(token(sub="eve", role=NOBODY)))
    wanted = {"lock": "job", "ttl_ms": 20_000, "writes": ["priced/2.50"]}
    refused = await web_api.http.post("/v1/leases", json=wanted)
    assert code(refused) == (403, "FP043"), refused.text
    await release(web_api, await lease(web_api, "job"))


# The Python client and the commands: what they send and show, and that numbers stay numbers.


@pytest.fixture
async def client(shop: SealedShop) -> AsyncIterator[Client]:
    await shop.reset()
    async with Client(shop.url) as client:
        yield client


async def test_a_lease_writes_what_it_is_bound_to_by_every_method(client: Client) -> None:
    async with client.lock("job", writes=["orders/*", "account/42"], claim="numbered/007") as lease:
        await client.patch("orders", "a", {"status": "1"}, lease=lease)
        await client.put("orders", "c", {"status": "1"}, lease=lease)
        await client.post("orders", [{"order_id": "d"}, {"order_id": "e"}], lease=lease)
        await client.patch_where("orders", {"order_id": "in.(a,c)"}, {"status": "2"}, lease=lease)
        await client.patch_rows("orders", [{"order_id": "a", "status": "3"}], lease=lease)
        await client.delete_where("orders", {"order_id": "eq.e"}, lease=lease)
        await client.delete("orders", "d", lease=lease)
        await client.patch("numbered", 7, {"label": "x"}, lease=lease)
        await client.patch("transfers", 2, {"amount": 1}, lease=lease)
        await lease.claim("orders/a")
        queued = await client.submit.patch("orders", "c", {"status": "q"}, lease=lease)
        assert (await queued.result())["status"] == "q"
        with pytest.raises(SealRefused, match="account/41") as refused:
            await client.patch("transfers", 1, {"amount": 1}, lease=lease)
        error = refused.value
        assert (error.reason, error.resource, error.status) == ("other-resource", "account/41", 403)


async def test_a_token_is_a_number_and_its_text_is_what_is_presented(client: Client) -> None:
    async with client.lock("numbers", writes="orders/*") as lease:
        first, second = await lease.next_token(), await lease.next_token()
        assert first < second
        assert f"{first}" == str(int(first))
        assert first.text.startswith(f"{first}.one.")
        await client.patch("orders", "a", {"status": "x"}, token=FenceToken.read(first.text))
        with pytest.raises(TokenRequired):
            await client.patch("orders", "a", {"status": "x"}, token=int(second))
    with pytest.raises(ValueError, match="begins with its number"):
        FenceToken.read("x.one")


async def test_seals_that_have_ended_are_replaced_once_unseen(client: Client) -> None:
    async with client.lock("long", writes="orders/*") as lease:
        drawn = [await lease.next_token() for _ in range(2)]
        # As they are after a day: of a key that was taken away meanwhile.
        for token in lease._pool._tokens:  # noqa: SLF001 - what is at hand
            assert token.sealed is not None
            token.sealed = token.sealed.replace(".one.", ".gone.")
        row = await client.patch("orders", "a", {"status": "y"}, lease=lease)
        assert row["status"] == "y"
        newer = await lease.next_token()
        assert newer > drawn[-1]
        assert ".one." in newer.text
        await lease.claim("orders/b")


def test_the_synchronous_client_sends_seals_as_well(shop: SealedShop) -> None:
    with SyncClient(shop.url) as client, client.lock("sync", writes="orders/*") as lease:
        client.patch("orders", "a", {"status": "s"}, lease=lease)
        with lease.operation("orders/a") as token:
            assert isinstance(token, FenceToken)
            assert token.sealed is not None


async def run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_the_command_gets_number_and_seal_and_mint_prints_either(shop: SealedShop) -> None:
    await shop.reset()
    script = (
        f'echo "$FENCE_TOKEN"; echo "$FENCE_SEALED_TOKEN"; {sys.executable} -m fencepost mint;'
        f" {sys.executable} -m fencepost mint --sealed"
    )
    code, out = await run("lock", "--url", shop.url, "--writes", "orders/*", "shell", "--", "sh", "-c", script)
    number, sealed, minted, minted_sealed = out.split()
    assert code == 0
    assert sealed.startswith(f"{number}.one.")
    assert minted.isdigit()
    assert minted_sealed.count(".") == 3
    async with httpx.AsyncClient(base_url=shop.url, trust_env=False) as http:
        for token, status in ((minted, 428), (minted_sealed, 200)):
            answer = await http.patch("/v1/data/orders/a", json={"status": "sh"}, headers={"X-Fence-Token": token})
            assert answer.status_code == status


async def test_doctor_and_status_show_seals(shop: SealedShop) -> None:
    def invoke(*arguments: str) -> str:
        return CliRunner().invoke(main, [*arguments, "--database-url", shop.dsn]).output

    shown = await asyncio.to_thread(invoke, "status")
    assert "builtin (sealed)" in shown
    assert '"sealed": true' in await asyncio.to_thread(invoke, "status", "--json")
    without = await asyncio.to_thread(invoke, "doctor")
    assert "ERROR    seals:" in without
    assert "orders" in without.partition("seals: ")[2].splitlines()[0]
    with_keys = await asyncio.to_thread(invoke, "doctor", "--seal-keys-file", str(shop.keys))
    assert "ok       seals: one seals, one verify" in with_keys
    bad = shop.keys.with_name("bad")
    bad.write_text("x")
    assert "line 1: it has no colon" in await asyncio.to_thread(invoke, "doctor", "--seal-keys-file", str(bad))
