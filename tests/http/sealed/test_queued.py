"""Sealed tokens of queued writes: judged when they come in, and again when they are applied, but for their end."""

import asyncpg
from tests.http.sealed_ways import REFUSED, SealedShop, key_line, lease
from tests.support.asking import Api, code

from fencepost.server.fence.seal import Binding, parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.postgres import queues
from fencepost.server.postgres.queues import PARTITIONS, MessageRow
from fencepost.server.queues.log import partition_of
from fencepost.server.queues.message import WriteMessage, message_of
from fencepost.testing.servers.processes import eventually

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
    connection = await asyncpg.connect(shop.dsn)
    try:
        await queues.append(connection, [row])
        await connection.execute(f"NOTIFY {queues.CHANNEL}")
    finally:
        await connection.close()


async def reasons(shop: SealedShop) -> list[str]:
    """Wait until nothing is queued, and give why writes became dead letters."""

    async def decided() -> bool:
        return not await shop.sql("SELECT FROM fencepost.queued")

    await eventually(decided)
    return [row["reason"] for row in await shop.sql("SELECT reason FROM fencepost.queue_dead ORDER BY at")]


async def test_what_is_put_into_the_log_past_the_gateway_needs_a_seal_as_well(shop: SealedShop, api: Api) -> None:
    held = await lease(api, "direct", writes=["orders/b"])
    forged = parse_keys(key_line("one", 9)).seal(
        [Token(int(held["token"]))], Binding("builtin", held["lease_id"], prefixes=("orders/",)), 2**40
    )[0]
    for token in (held["tokens"][0], forged, held["sealed_tokens"][1]):
        await append(shop, token)
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
