"""Clients of others: of PostgREST (`postgrest`, of Supabase's Python SDK), and curl, which offers HTTP/2."""

import asyncio
import subprocess
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


async def test_curl_that_would_rather_speak_http_2(gateway_url: str) -> None:
    url, large = f"{gateway_url}/v1/data/orders/from-curl", '{"status": "new", "note": "' + 300_000 * "x" + '"}'
    command = ["curl", "--http2", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"]
    body = ["-H", "Content-Type: application/json", "-d", "@-"]
    for token, (verb, status) in enumerate((("PUT", 201), ("PATCH", 200), ("DELETE", 204), ("POST", 201)), 1400):
        to = url.removesuffix("/from-curl") if verb == "POST" else url
        more = [to, "-X", verb, "-H", f"X-Fence-Token: {token}", *(body if verb != "DELETE" else [])]
        sent = large.replace("{", '{"order_id": "of-curl", ', 1) if verb == "POST" else large
        assert await run([*command, *more], sent) == f"{status} 1.1", verb
    assert await run([*command, f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"
    assert await run([*command, "--head", f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"


async def run(command: list[str], sent: str = "") -> str:
    done = await asyncio.to_thread(subprocess.run, command, input=sent, capture_output=True, text=True, check=True)
    return done.stdout
