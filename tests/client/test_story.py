"""The client on a real gateway and a real PostgreSQL: locks, leases, writes."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Client, LockHeld, RowNotFound, StaleToken

ORDER = "orders/order-123"


async def test_every_kind_of_write_spends_tokens_by_itself(client: Client) -> None:
    async with client.lock(ORDER, tokens=1, ttl=30, wait=5, claim=True) as lease:
        assert lease.row is not None
        assert (lease.trusted, lease.row["status"]) == (True, "new")
        assert (await client.patch("orders", "order-123", {"status": "paid"}, lease=lease))["status"] == "paid"
        assert (await client.put("orders", "order-123", {"status": "shipped"}, lease=lease))["status"] == "shipped"
        made = await client.post("orders", {"order_id": "x,/ö", "status": "new"}, lease=lease)
        assert made["order_id"] == "x,/ö"
        two = await client.post("orders", [{"order_id": name, "status": "new"} for name in ("y", "z")], lease=lease)
        assert [row["order_id"] for row in two] == ["y", "z"]
        assert (await client.get("orders", "x,/ö", select="status")) == {"status": "new"}
        changed = await client.patch_where("orders", {"order_id": "in.(y,z)"}, {"status": "cancelled"}, lease=lease)
        assert {row["order_id"] for row in changed} == {"y", "z"}
        rows = [{"order_id": "z", "amount": 2}, {"order_id": "y", "amount": 1}]
        changed = await client.patch_rows("orders", rows, lease=lease)
        assert [(row["order_id"], row["amount"], row["status"]) for row in changed] == [
            ("z", 2, "cancelled"), ("y", 1, "cancelled"),
        ]  # fmt: skip
        with pytest.raises(RowNotFound):
            await client.patch_rows("orders", [*rows, {"order_id": "nobody", "amount": 3}], lease=lease)
        gone = await client.delete_where("orders", [("status", "eq.cancelled"), ("order_id", "eq.y")], lease=lease)
        assert [row["order_id"] for row in gone] == ["y"]
        await client.delete("orders", "x,/ö", lease=lease)
        with pytest.raises(RowNotFound):
            await client.get("orders", "x,/ö")
        assert await lease.claim("orders/x%2C%2F%C3%B6") is None
        row = await lease.claim("orders/z")
        assert row is not None
        assert row["status"] == "cancelled"
    found = await client.select("orders", {"status": "eq.cancelled"}, select="order_id", order="order_id.desc", limit=5)
    assert found == [{"order_id": "z"}]
    assert await client.select("orders", offset=100) == []


async def test_a_held_lock_names_who_has_it_and_a_wait_ends(client: Client) -> None:
    async with client.lock("job", owner="first", ttl=10):
        with pytest.raises(LockHeld) as held:
            await client.lock("job").__aenter__()
        error = held.value
        assert (error.lock, error.holder, error.code, error.status) == ("job", "first", "FP011", 423)
        assert error.held_since is not None
        assert error.held_until is not None
        assert timedelta(seconds=9) < error.held_until - error.held_since <= timedelta(seconds=10)
        assert error.retry_after is not None
        assert error.waiting == 0
        with pytest.raises(LockHeld):
            await client.lock("job", wait=0.05).__aenter__()
    async with client.lock("job") as lease:
        assert lease.lock == "job"


async def test_several_locks_are_taken_together_and_claimed(client: Client) -> None:
    names = ["orders/order-124", "orders/order-123"]
    async with client.lock(names, claim=True) as lease:
        assert sorted(lease.locks) == sorted(names)
        assert lease.lock is None
        assert {claimed.resource for claimed in lease.claims} == set(names)
        with pytest.raises(LookupError, match="2 claims"):
            _ = lease.row
        with pytest.raises(LockHeld):
            await client.lock("orders/order-123").__aenter__()
    async with client.lock("a", claim="orders/order-125") as lease:
        assert lease.row is not None
        assert lease.row["order_id"] == "order-125"


async def test_a_claim_fences_the_older_holder_before_the_newer_one_has_written(client: Client) -> None:
    async with client.lock("a") as old, client.lock("b", claim=ORDER, owner="newer") as new:
        with pytest.raises(StaleToken) as stale:
            await client.patch("orders", "order-123", {"status": "paid"}, lease=old)
        error = stale.value
        assert error.resource == ORDER
        assert error.presented_token is not None
        assert error.current_token is not None
        assert error.presented_token < error.current_token
        assert not error.retryable
        await client.patch("orders", "order-123", {"status": "new"}, lease=new)


async def test_concurrent_writes_to_one_row_do_not_make_each_other_stale(client: Client) -> None:
    async with client.lock(ORDER, tokens=1) as lease:
        rows = await asyncio.gather(
            *(client.patch("orders", "order-123", {"amount": number}, lease=lease) for number in range(50)),
            *(client.patch("orders", "order-124", {"amount": number}, lease=lease) for number in range(50)),
            client.patch_where("orders", {"order_id": "like.order*"}, {"status": "shipped"}, lease=lease),
            client.claim("orders/order-123", lease=lease),
            lease.claim("orders/order-124"),
        )
    assert len(rows) == 103
    assert (await client.get("orders", "order-123"))["amount"] == 49


async def test_a_lock_is_entered_once_and_with_timings_that_make_sense(client: Client) -> None:
    lock = client.lock("x")
    async with lock:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await lock.__aenter__()
    wrong: list[dict[str, Any]] = [{"ttl": 0}, {"margin": 25.0}, {"wait": float("nan")}, {"tokens": 0}, {"name": []}]
    for arguments in wrong:
        with pytest.raises(ValueError, match=next(iter(arguments)).replace("name", "lock")):
            client.lock(**{"name": "x", **arguments})
