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


async def test_it_reads_one_object_or_none(gateway_url: str) -> None:
    async with client(gateway_url) as reader:
        one = reader.from_("orders").select("status").eq("order_id", "order-123").single()
        assert await rows(one) == {"status": "new"}
        assert await reader.from_("orders").select("*").eq("order_id", "nope").maybe_single().execute() is None
        with pytest.raises(APIError):
            await reader.from_("orders").select("*").single().execute()


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


async def test_its_limits_and_counts_are_kept_and_upserts_refused_by_name(gateway_url: str) -> None:
    async with client(gateway_url, 40) as holder:
        too_many = holder.from_("orders").delete().neq("order_id", "nobody").max_affected(1)
        with pytest.raises(APIError, match="max-affected=1"):
            await too_many.execute()
        counted = await reader_count(gateway_url)
        assert counted == 3
        update = holder.from_("orders").update({"note": "x"}, count=CountMethod.exact).eq("status", "new")
        done = await update.max_affected(2).execute()
        assert (done.count, len(done.data)) == (2, 2)
        rows_with_all = [{"order_id": "c", "status": "new"}, {"order_id": "d", "status": "new"}]
        inserted = await holder.from_("orders").insert(rows_with_all, default_to_null=False).execute()
        assert len(inserted.data) == 2
        with pytest.raises(APIError, match="resolution=merge-duplicates"):
            await holder.from_("orders").upsert({"order_id": "c", "status": "paid"}).execute()
        with pytest.raises(APIError, match="text/csv"):
            await holder.from_("orders").select("*").csv().execute()
        with pytest.raises(APIError, match="nulls=stripped"):
            await holder.from_("orders").select("*").strip_nulls().execute()


async def reader_count(url: str) -> int | None:
    """Count with a client that sends its token with reads, too."""
    async with client(url, 40) as reader:
        found: int | None = (
            await reader.from_("orders").select("*", count=CountMethod.exact, head=True).execute()
        ).count
        return found


async def test_a_schema_is_chosen_by_both_profiles(gateway_url: str) -> None:
    headers = {"X-Fence-Token": "40"}
    async with AsyncPostgrestClient(f"{gateway_url}/v1/data", schema="nowhere", headers=headers) as holder:
        with pytest.raises(APIError) as refused:
            await holder.from_("orders").delete().eq("order_id", "order-123").execute()
        assert refused.value.code == "FP007"
