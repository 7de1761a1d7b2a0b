"""`fencepost dead retry` of writes of callers with a role: which letters are believed, and for how long."""

from dataclasses import replace
from typing import Any

import pytest
from tests.http.test_queued_as_role import Stage, stage
from tests.http.test_queued_role_gone import decider
from tests.support.asking import OTHER, WEB, caller
from tests.support.consuming import write
from tests.support.servers import command

from fencepost.server.consuming.applying import Ledger, QueueNow
from fencepost.server.queues.log import DeadLetter, Message, Position, Received, partition_of
from fencepost.server.queues.message import sign
from fencepost.server.queues.registry import DEFAULT

__all__ = ["stage"]
HOUR = 3600.0


def signed(stage: Stage, resource: str, method: Any, body: Any, *, role: str = WEB, hours: int = 0) -> Message:
    """Make a message that was signed so many hours ago."""
    keys, now = stage.queue.gateway.seals.keys, stage.queue.gateway.seals.now()
    assert keys is not None
    return sign(write(resource, method, body), DEFAULT, keys, caller(role), now - hours * HOUR)


async def pruned(stage: Stage) -> int:
    """Have records be as old as messages that were signed 40 hours ago, and forget those that nobody needs."""
    queue, ledger = stage.queue, Ledger(stage.queue.gateway.database, DEFAULT)
    await queue.owner.execute("UPDATE fencepost.idempotency SET created_at = now() - interval '39 hours'")
    generation, decided = await ledger.generation(), await queue.log.decided()
    await ledger.note_committed(decided, generation)
    for minutes in (6, 4, 2):
        at = await ledger.now() - minutes * 60
        await ledger.note_look(at, decided, await queue.log.state(), generation)
    count: int = await queue.owner.fetchval("SELECT fencepost.prune_idempotency(86400, 1000)")
    return count


@pytest.mark.parametrize("waited", ["in the log", "as letters"])
async def test_letters_are_retried_however_long_they_waited_and_made_up_ones_are_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, waited: str
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    queue, owner, dead = stage.queue, stage.queue.owner, stage.queue.log.dead
    queue.settings = queue.settings.model_copy(update={"stop_resources": True})
    await owner.execute(f"REVOKE INSERT ON stamps FROM {WEB}")
    applied = signed(stage, "stamps/s", "PATCH", {"n": 1}, hours=40)
    await queue.append(
        applied,
        signed(stage, "stamps/a", "PUT", {"n": 1}, hours=40),
        signed(stage, "stamps/a", "PATCH", {"n": 2}, hours=40),  # stopped
        signed(stage, "stamps/b", "PUT", {"n": 3}, hours=40),
    )
    await stage.consume()
    if waited == "as letters":
        assert await pruned(stage) == 1, "they may be retried for as long as they are there"
    letters = {(each.message.key, each.reason[:5]): each for each in await dead.list(9)}
    assert sorted(letters) == [(b"stamps/a", "42501"), (b"stamps/a", "FP030"), (b"stamps/b", "42501")]
    other = letters[b"stamps/b", "42501"]
    await dead.drop(other.id)
    await dead.put(replace(other, message=letters[b"stamps/a", "42501"].message))
    await dead.put(DeadLetter(f"{DEFAULT}.0.9.{'0' * 16}", "42501", Position(0, 9), applied, other.at))
    await owner.execute(f"GRANT INSERT ON stamps TO {WEB}")
    retried = await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)
    assert (retried.exit_code, retried.output.count("there is no record of a write that failed")) == (1, 2)
    assert "2 of the letters cannot be retried" in retried.output
    await stage.consume()
    assert await stage.rows("SELECT id, n, who FROM stamps WHERE id IN ('a', 'b')") == [("a", 2, WEB)]
    assert len(await dead.list(9)) == 2
    await dead.put(first := letters[b"stamps/a", "42501"])
    again = await command("dead", "retry", "--no-wait", DEFAULT, first.id, database=stage.dsn)
    assert (again.exit_code, "was retried as" in again.output, "nothing was done" in again.output) == (1, True, True)
    await pruned(stage)
    kept = await stage.rows("SELECT key FROM fencepost.idempotency WHERE caller = 'queue'")
    assert kept == [(other.id,)], "the others are retried"


@pytest.mark.parametrize("first", ["the copy", "the write"])
async def test_a_copy_in_another_partition_that_is_retried_and_the_write_are_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    message = signed(stage, "stamps/s", "PATCH", {"n": 7}, role=OTHER)
    elsewhere = Position((partition_of(message.key, 8) + 1) % 8, 5)
    await decider(stage).decide(Received(elsewhere, message, 0.0), QueueNow(1, 8))
    await stage.queue.append(message)
    if first == "the write":
        await stage.consume()
    (letter,) = await stage.queue.log.dead.list(9)
    retried = await command("dead", "retry", "--no-wait", DEFAULT, letter.id, database=stage.dsn)
    assert (retried.exit_code, "copy of a write" in retried.output) == (int(first != "the copy"), first != "the copy")
    await stage.consume()
    assert await stage.queue.states() == {"failed": 1, "applied": 1}
    if first == "the copy":
        again = Received(elsewhere, message, stage.queue.gateway.seals.now())
        await decider(stage).decide(again, QueueNow(1, 8))
        assert await stage.queue.log.dead.list(9) == [], "it comes again, and was retried"
