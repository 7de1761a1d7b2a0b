"""A holder that gets paused: a process of its own, which a test stops with SIGSTOP between its read and its write.

    python lease_paused_holder.py GATEWAY_URL DATABASE_URL

For each line of stdin it acquires the lock with a claim, remembers what the claim and the table without a fence say,
and prints the id of its lease. For the next line it writes what it makes of that, here and there, and prints what
became of it, as JSON.
"""

import asyncio
import json
import sys

import asyncpg
import httpx

from fencepost.testing.servers.waiting import PATIENCE

LOCK = "orders/order-123"
TTL_MS = 600_000


async def main() -> None:
    plain = await asyncpg.connect(sys.argv[2])
    async with httpx.AsyncClient(base_url=sys.argv[1], trust_env=False, timeout=PATIENCE) as client:
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            body = {"lock": LOCK, "owner": "paused", "ttl_ms": TTL_MS, "wait_ms": 10_000, "tokens": 2, "claim": [LOCK]}
            lease = (await client.post("/v1/leases", json=body)).raise_for_status().json()
            note = lease["claims"][0]["row"]["note"]
            unfenced = await plain.fetchval("SELECT note FROM public.unfenced WHERE order_id = 'order-123'")
            say(lease["lease_id"])
            await loop.run_in_executor(None, sys.stdin.readline)
            answered = await write(client, lease, note)
            await plain.execute(
                "UPDATE public.unfenced SET note = $1 WHERE order_id = 'order-123'", f"{unfenced}, and the paused one's"
            )
            say(json.dumps(answered))
    await plain.close()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def write(client: httpx.AsyncClient, lease: dict[str, str], note: str) -> dict[str, str]:
    """Write, claim, mint and renew as if nothing had happened; returns the answers' codes, "" for a success."""
    path = f"/v1/leases/{lease['lease_id']}"
    secret = {"X-Lease-Secret": lease["secret"]}
    token = {"X-Fence-Token": lease["tokens"][0]}
    answers = {
        "write": await client.patch(f"/v1/data/{LOCK}", json={"note": f"{note}, and the paused one's"}, headers=token),
        "claim": await client.post(
            "/v1/claims", json={"resource": LOCK}, headers={"X-Fence-Token": lease["tokens"][1]}
        ),
        "mint": await client.post(f"{path}/tokens", headers=secret),
        "renew": await client.post(f"{path}/renew", headers=secret),
        "release": await client.delete(path, headers=secret),
    }
    return {verb: "" if answer.is_success else answer.json()["code"] for verb, answer in answers.items()}


if __name__ == "__main__":
    asyncio.run(main())
