"""A real PostgREST client (`postgrest`, of Supabase's Python SDK) against the gateway."""

from typing import Any

import pytest
from postgrest import APIError, AsyncPostgrestClient, CountMethod


def client(url: str, token: int | None = None) -> AsyncPostgrestClient:
    headers = {} if token is None else {"X-Fence-Token": str(token)}
    return AsyncPostgrestClient(f"{url}/v1/data", headers=headers)


async def rows(query: Any) -> Any:
    return (await query.execute()).data


async def test_it_reads_with_filters_order_and_count(gateway_url: str) -> None:
    async with client(gateway_url) as reader:
        orders = reader.from_("orders")
        new = await rows(orders.select("order_id").eq("status", "new").order("order_id", desc=True).limit(1))
        assert new == [{"order_id": "order-125"}]
        either = reader.from_("orders").select("order_id").or_("status.eq.paid,amount.gt.40").order("order_id")
        assert await rows(either) == [{"order_id": "order-123"}, {"order_id": "order-124"}]
        counted = await reader.from_("orders").select("*", count=CountMethod.exact, head=True).execute()
        assert counted.count == 3


async def test_it_writes_under_a_token_and_is_refused_under_a_stale_one(gateway_url: str) -> None:
    async with client(gateway_url, 40) as holder:
        inserted = await rows(holder.from_("orders").insert([{"order_id": "b", "status": "new"}]))
        assert [row["order_id"] for row in inserted] == ["b"]
        updated = await rows(holder.from_("orders").update({"status": "paid"}).eq("order_id", "order-123"))
        assert [row["status"] for row in updated] == ["paid"]
    async with client(gateway_url, 39) as paused:
        with pytest.raises(APIError) as refused:
            await paused.from_("orders").update({"status": "new"}).eq("order_id", "order-123").execute()
        assert refused.value.code == "FP001"
        assert refused.value.hint is not None
    async with client(gateway_url, 41) as holder:
        deleted = await rows(holder.from_("orders").delete().eq("order_id", "b"))
        assert [row["order_id"] for row in deleted] == ["b"]
