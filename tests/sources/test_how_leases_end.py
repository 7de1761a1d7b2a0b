"""A 410 says what ended the lease, and when."""

from datetime import datetime

import pytest
from tests.conformance.redis_bench import RedisBench, command
from tests.sources.conftest import Api
from tests.support.interleave import Connect

BREAK_GLASS = "SET fencepost.break_glass = 'it is gone'; SELECT fencepost.force_release"


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
@pytest.mark.parametrize(
    ("source", "ends", "told"),
    [
        ("builtin", "SELECT fencepost.raise_generation('a drill')", "was ended by raising the generation at"),
        ("builtin", f"{BREAK_GLASS}('builtin', 'ends')", "was ended in its holder's place by an operator at"),
        ("lock_service", "SELECT fencepost.source_raise('lock_service', 'a drill', 0)", "by raising the generation at"),
        ("lock_service", f"{BREAK_GLASS}('lock_service', 'ends')", "was ended in its holder's place by an operator at"),
        ("lock_service", "SELECT 1", "was lost at the lock service at"),
    ],
)
async def test_what_ended_a_lease_is_told(
    api: Api, bench: RedisBench, connect: Connect, source: str, ends: str, told: str
) -> None:
    granted = await api.grant("ends", source=source)
    await (await connect()).execute(ends)
    await command(bench.ports[0], "DEL", "fencepost:lock:ends")
    lost = await api.on(granted, "renew")
    assert (lost.status_code, lost.json()["code"]) == (410, "FP012")
    assert f"Lease {granted['lease_id']} of ends " in lost.json()["detail"]
    assert told in lost.json()["detail"]


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
async def test_a_lease_that_was_lost_ended_before_the_next_one_began(api: Api, bench: RedisBench) -> None:
    granted = await api.grant("ends")
    await command(bench.ports[0], "DEL", "fencepost:lock:ends")
    await api.grant("ends", owner="next")
    lost = (await api.on(granted, "renew")).json()
    ended, began = lost["ended_at"], lost["superseded_by"]["granted_at"]
    assert (
        datetime.fromisoformat(granted["granted_at"]) <= datetime.fromisoformat(ended) <= datetime.fromisoformat(began)
    )
