"""A 410 says what ended the lease, and when."""

from datetime import datetime

from tests.conformance.redis_bench import RedisBench, command
from tests.sources.conftest import Api, one_source
from tests.support.interleave import Connect

BREAK_GLASS = "SET fencepost.break_glass = 'it is gone'; SELECT fencepost.force_release"


ENDS = (
    ("builtin", f"{BREAK_GLASS}('builtin', 'ends')", "was ended in its holder's place by an operator at"),
    ("lock_service", f"{BREAK_GLASS}('lock_service', 'ends')", "was ended in its holder's place by an operator at"),
    ("lock_service", "SELECT 1", "was lost at the lock service at"),
    ("lock_service", "SELECT fencepost.source_raise('lock_service', 'a drill', 0)", "by raising the generation at"),
    ("builtin", "SELECT fencepost.raise_generation('a drill')", "was ended by raising the generation at"),
)


@one_source
async def test_a_lost_lease_says_what_ended_it(api: Api, bench: RedisBench, connect: Connect) -> None:
    owner = await connect()
    for source, ends, said in ENDS:
        granted = await api.grant("ends", source=source)
        await owner.execute(ends)
        await command(bench.ports[0], "DEL", "fencepost:lock:ends")
        lost = (await api.on(granted, "renew")).json()
        assert (lost["status"], lost["code"]) == (410, "FP012"), (source, ends)
        assert f"Lease {granted['lease_id']} of ends " in lost["detail"]
        assert said in lost["detail"]
        if ends == "SELECT 1":
            await api.grant("ends", owner="next")
            lost = (await api.on(granted, "renew")).json()
            ended, began = (datetime.fromisoformat(lost["ended_at"]), lost["superseded_by"]["granted_at"])
            assert datetime.fromisoformat(granted["granted_at"]) <= ended <= datetime.fromisoformat(began)
            await owner.execute(f"{BREAK_GLASS}('lock_service', 'ends')")
            await command(bench.ports[0], "DEL", "fencepost:lock:ends")
