"""Messages of callers that come when their record is forgotten."""

from dataclasses import replace

import pytest
from tests.http.test_queued_as_role import Stage, stage
from tests.http.test_queued_retries import HOUR, pruned, signed
from tests.http.test_queued_role_gone import decider
from tests.support.asking import LOGIN, WEB
from tests.support.servers import command

from fencepost.server.consuming.applying import Ledger, QueueNow
from fencepost.server.consuming.deciding import Settled
from fencepost.server.postgres import sources
from fencepost.server.queues.log import Position, Received, partition_of
from fencepost.server.queues.registry import DEFAULT

__all__ = ["stage"]
ROW = "SELECT n, xmin::text FROM stamps WHERE id = 's'"


@pytest.mark.parametrize("then", ["nothing changes", "the source is raised", "records are kept for longer"])
async def test_a_copy_whose_record_is_forgotten_has_no_second_effect(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    queue, dead = stage.queue, stage.queue.log.dead
    message = signed(stage, "stamps/s", "PATCH", {"n": 7}, hours=40)
    await queue.append(message)
    await stage.consume()
    assert await pruned(stage) == 1
    before = await stage.rows(ROW)
    if then == "the source is raised":
        await sources.raise_source(queue.owner, DEFAULT, "for a test")
    if then == "records are kept for longer":
        queue.settings = queue.settings.model_copy(update={"idempotency_retention": 50 * HOUR})
    await queue.append(message)
    await stage.consume()
    assert (await stage.rows(ROW), len(await dead.list(9))) == (before, 1)
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    monkeypatch.setenv("FENCEPOST_IDEMPOTENCY_RETENTION", "999999")
    retried = await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)
    assert (retried.exit_code, len(await dead.list(9))) == (1, 1), retried.output


async def test_a_message_that_a_paused_consumer_had_taken_is_no_dead_letter(stage: Stage) -> None:
    queue, ledger = stage.queue, Ledger(stage.queue.gateway.database, DEFAULT)
    message = signed(stage, "stamps/s", "PATCH", {"n": 7}, hours=40)
    await queue.append(message)
    (taken,) = await queue.log.waiting(Position(partition_of(message.key, 8), 0)) or ()
    await stage.consume()
    assert await pruned(stage) == 1
    settled = await decider(stage).decide(taken, QueueNow(await ledger.generation(), 8))
    assert (settled, await queue.log.dead.list(9)) == (Settled("applied", before=True), [])


async def test_a_retry_of_which_nothing_was_done_does_not_take_the_writes_effect(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    dead, message = stage.queue.log.dead, signed(stage, "stamps/s", "PATCH", {"n": 7})
    elsewhere = Position((partition_of(message.key, 8) + 1) % 8, 5)
    await decider(stage).decide(Received(elsewhere, message, 0.0), QueueNow(1, 8))
    (copy,) = await dead.list(9)
    await dead.put(replace(copy, id=f"{DEFAULT}.7.9.{'0' * 16}"))  # made up
    await stage.queue.append(message)
    ids = [each.id for each in await dead.list(9)]
    refused = await command("dead", "retry", "--no-wait", DEFAULT, *ids, database=stage.dsn)
    assert (refused.exit_code, "nothing was done" in refused.output) == (1, True), refused.output
    await stage.consume()
    assert await stage.rows("SELECT n FROM stamps WHERE id = 's'") == [(7,)]


async def test_a_letter_whose_caller_was_taken_away_is_refused(stage: Stage) -> None:
    dead = stage.queue.log.dead
    await stage.queue.owner.execute(f"REVOKE UPDATE ON stamps FROM {WEB}; GRANT SELECT, UPDATE ON stamps TO {LOGIN}")
    await stage.queue.append(signed(stage, "stamps/s", "PATCH", {"n": 7}))
    await stage.consume()
    (letter,) = await dead.list(9)
    await dead.drop(letter.id)
    await dead.put(
        replace(letter, message=replace(letter.message, value=b'{"n": 8}', headers=letter.message.headers[1:]))
    )
    refused = await command("dead", "retry", "--no-wait", DEFAULT, letter.id, database=stage.dsn)
    assert (refused.exit_code, "was that of a caller" in refused.output) == (1, True), refused.output
