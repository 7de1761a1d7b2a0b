"""What a lock service refuses is answered with its reason, and grants nothing."""

from tests.support.in_process import in_process


async def test_a_lock_service_that_will_not_do_it_is_502(database: str) -> None:
    async with in_process(database, sources="rows=postgres-advisory:?keys=number") as client:
        refused = await client.post("/v1/leases", json={"lock": "orders/1", "source": "rows", "ttl_ms": 5000})
        assert (refused.status_code, refused.json()["code"]) == (502, "FP025")
        assert "the lock orders/1 is no number" in refused.json()["detail"]
        assert refused.json()["retryable"] is False
        granted = await client.post("/v1/leases", json={"lock": "17", "source": "rows", "ttl_ms": 5000})
        assert granted.status_code == 201
