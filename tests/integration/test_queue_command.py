"""`fencepost queue` on queues, also where a row stays locked; and what a consumer leaves behind in memory."""

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import asyncpg
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tests.support.consuming import Queue, consumed, make_tables, opened, settings_of, write
from tests.support.interleave import Connect
from tests.support.postgres import renamed

from fencepost.cli.main import main
from fencepost.server.gateway.write import Write
from fencepost.server.health import describe_queues, look_at_queues, measure_queues
from fencepost.server.observe.metrics import Metrics
from fencepost.server.parts import consumer_of, consuming, read_queues
from fencepost.server.postgres import queues
from fencepost.server.postgres.queues import MessageRow, PartitionProgress
from fencepost.server.queues.log import DeadLetter, Position, partition_of
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import ConsumingTimes, Times
from fencepost.server.wiring import consumer_gateway
from fencepost.testing.servers.gateway import run_command
from fencepost.testing.servers.processes import eventually, free_port

KAFKA = "kafka:orders"
SOON = Times(consuming=ConsumingTimes(blocked_after=0.1, note_every=0.05))


@pytest.fixture
async def owner(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await queues.register(connection, KAFKA)
    again = await queues.check(connection, KAFKA, "x", [9, 4], [None, None])
    await queues.check(connection, KAFKA, "x", [9, 4], [None, None], before=again.recorded)
    noted = [PartitionProgress(0, 7, 1.0, applied=5, refused=1), PartitionProgress(1, 4, None, failed=2, redelivered=3)]
    await queues.note(connection, KAFKA, 0, noted)
    await queues.note(connection, KAFKA, 0, [PartitionProgress(0, 6, 1.0, applied=1)])
    return connection


@pytest.mark.usefixtures("owner")
async def test_each_queue_is_listed_with_how_far_it_is(database: str) -> None:
    lines = run_command(database, "queue").splitlines()
    header, of_kafka, of_postgres = (line.split() for line in lines)
    assert header[:3] == ["QUEUE", "PARTITIONS", "LAG"]
    assert of_kafka[:3] == [KAFKA, "2", "2"], "what was decided does not become less"
    assert of_kafka[5:] == ["6", "1", "2", "3", "-", "generation", "0"]
    assert of_postgres == ["postgres:default", "8", "0", "-", *"0000", "0", "generation", "0"]


async def test_a_queue_that_is_quarantined_ends_the_command_with_1_and_says_how_to_mend_it(
    owner: asyncpg.Connection, database: str
) -> None:
    await queues.quarantine(owner, KAFKA, "it forgot messages", 0)
    done = await asyncio.to_thread(CliRunner().invoke, main, ["queue", "--database-url", database])
    assert (done.exit_code, "quarantined: it forgot messages" in done.stdout) == (1, True), done.output
    assert "when its log can be vouched for: fencepost source raise kafka:orders --reason …" in done.output


async def test_the_log_of_the_database_is_asked(owner: asyncpg.Connection, database: str) -> None:
    await queues.append(owner, [MessageRow(3, b"orders/1", (), None), MessageRow(3, b"orders/2", (), None)])
    shown = {each["name"]: each for each in map(json.loads, run_command(database, "queue", "--json").splitlines())}
    assert shown["postgres:default"]["lags"] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert shown[KAFKA]["partitions"][0]["end"] == 9


async def test_who_looks_writes_nothing_and_hears_which_logs_were_not_asked(
    owner: asyncpg.Connection, database: str
) -> None:
    await queues.append(owner, [MessageRow(3, b"orders/1", (), None)])
    before = await owner.fetch("SELECT source FROM fencepost.queues")
    for urls, trouble in (
        (f"redis://127.0.0.1:{free_port()}/items", "redis:items: its log was"),
        ("bogus", "the logs"),
    ):
        told = json.loads(await asyncio.to_thread(run_command, database, "status", "--queues", urls, "--json"))
        assert [each.startswith(trouble) for each in told["queue_trouble"]] == [True]
        assert {each["name"]: each["lags"] for each in told["queues"]} == {
            KAFKA: [2, 0], DEFAULT: [0, 0, 0, 1, 0, 0, 0, 0],
        }  # fmt: skip
    assert await asyncio.to_thread(run_command, database, "dead", "list", DEFAULT) == ""
    assert await owner.fetch("SELECT source FROM fencepost.queues") == before


async def measured(queue: Queue, metrics: Metrics | None = None) -> dict[tuple[str, str | None, str | None], float]:
    """Give what /metrics has: by metric, queue and partition."""
    metrics, shown = metrics or Metrics(), {}
    await measure_queues(queue.gateway, {}, metrics)
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for each in family.samples:
            shown[each.name, each.labels.get("queue"), each.labels.get("partition")] = each.value
    return shown


async def test_what_became_of_messages_is_shown_everywhere(connect: Connect, database: str) -> None:
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}), write("orders/k1", body={"status": "bad"}))
        async with consumed(queue):
            await queue.empty()
        await queue.append(write("orders/k1", body={"n": 2}))
        await owner.execute("UPDATE fencepost.queued SET appended_at = appended_at - interval '1 h'")
        described, shown = (await describe_queues(queue.gateway, {}))[DEFAULT], await measured(queue)
        status = await asyncio.to_thread(run_command, database, "status")
    line = (
        r"generation 0; lag 1; oldest 36\d\d s; applied 1; refused 0; failed 1; redelivered 0;"
        r" dead letters 1 \(fencepost dead list postgres:default\)"
    )
    assert re.fullmatch(line, described)
    assert re.search(f"^queue {DEFAULT}: {line}$", status, re.MULTILINE)
    partition = str(partition_of(b"orders/k1", 8))
    names = ("lag", "applied_total", "failed_total", "refused_total", "dead")
    assert [shown[f"fencepost_queue_{name}", DEFAULT, partition] for name in names] == [1, 1, 1, 0, 1]
    assert sum(value for (name, *_), value in shown.items() if name == "fencepost_queue_dead") == 1
    assert shown["fencepost_queue_paused", DEFAULT, None] == 0


async def test_why_a_consumer_elsewhere_is_paused_is_shown_until_it_goes_on(connect: Connect, database: str) -> None:
    owner, name = await connect(), "redis:orders"
    await make_tables(owner)
    settings = settings_of(database, shutdown_timeout=120, queues=f"redis://127.0.0.1:{free_port()}/orders")
    async with opened(database, owner) as queue:

        async def seen() -> list[bool]:
            described, shown = (await describe_queues(queue.gateway, {}))[name], await measured(queue)
            told = await asyncio.to_thread(run_command, database, "queue")
            return [
                "paused: eu-1: " in described,
                shown["fencepost_queue_paused", name, None] == 1,
                "paused: eu-1: " in told,
            ]

        async def everywhere() -> bool:
            return all(await seen())

        times = Times(consuming=replace(SOON.consuming, end_within=60.0))  # it has to say that it is over
        async with consumer_gateway(settings, read_queues(settings), times) as gateway:
            consumer = consumer_of(gateway, name, settings, "eu-1")
            async with consuming(gateway, {name: consumer}, settings):
                await eventually(everywhere, what="the pause to be shown")
        assert not any(await seen())


async def test_where_no_consumer_runs_the_log_says_how_old_the_oldest_message_is(
    owner: asyncpg.Connection, database: str
) -> None:
    rows = [MessageRow(3, b"orders/1", (), None), MessageRow(3, b"orders/2", (), None)]
    await queues.append(owner, rows)
    await owner.execute("UPDATE fencepost.queued SET appended_at = appended_at - interval '1 h' WHERE position = 0")
    await queues.note(owner, KAFKA, 0, [PartitionProgress(0, 8, None)])
    async with opened(database, owner) as queue:
        shown = await measured(queue)
    assert shown["fencepost_queue_lag", DEFAULT, "3"] == 2
    assert 3600 <= shown["fencepost_queue_oldest_seconds", DEFAULT, "3"] < 7200
    assert shown["fencepost_queue_oldest_seconds", DEFAULT, "0"] == 0
    assert shown["fencepost_queue_lag", KAFKA, "0"] == 1
    assert ("fencepost_queue_oldest_seconds", KAFKA, "0") not in shown, "not configured, not noted: not known"
    of_postgres = run_command(database, "queue").splitlines()[2].split()
    assert 3600 <= float(of_postgres[3]) < 7200


async def test_what_is_not_known_has_no_sample(connect: Connect, database: str) -> None:
    """The age of a message whose time is to come; and everything, where the log does not answer any more."""
    owner = await connect()
    await queues.append(owner, [MessageRow(3, b"orders/1", (), None)])
    await owner.execute("UPDATE fencepost.queued SET appended_at = appended_at + interval '1 h'")
    async with opened(database, owner) as queue:
        metrics = Metrics()
        shown = await measured(queue, metrics)
        assert shown["fencepost_queue_lag", DEFAULT, "3"] == 1
        assert ("fencepost_queue_oldest_seconds", DEFAULT, "3") not in shown
        assert shown["fencepost_queue_oldest_seconds", DEFAULT, "0"] == 0
        async with renamed(database, "FUNCTION fencepost.queue_decided"):
            shown = await measured(queue, metrics)
    assert not [name for name, *_ in shown if name in {"fencepost_queue_lag", "fencepost_queue_oldest_seconds"}]


async def test_what_servers_say_is_a_line_in_which_nothing_is_for_a_terminal(connect: Connect, database: str) -> None:
    owner = await connect()
    await queues.register(owner, DEFAULT)
    await queues.note_pause(owner, DEFAULT, "eu-1", "c\rd")
    await owner.execute("""
        CREATE OR REPLACE FUNCTION fencepost.queue_state(OUT incarnation text, OUT ends bigint[]) LANGUAGE plpgsql AS
          $$ BEGIN RAISE '%', E'a\nb\x1b[2J' USING ERRCODE = 'P0001'; END $$""")
    async with opened(database, owner) as queue:
        (status,) = await look_at_queues(queue.gateway)
    assert status.faults() == [r"paused: eu-1: c\x0dd", r"its log: PostgreSQL refused: a\x0ab\x1b[2J"]


async def test_letters_that_are_of_no_partition_have_their_number_only(connect: Connect, database: str) -> None:
    async with opened(database, await connect()) as queue:
        await queue.log.dead.put(DeadLetter("x", "", Position(-1, 0), write("orders/k1"), 0.0))
        shown = await measured(queue)
    assert {name: value for (name, _, partition), value in shown.items() if partition == "-1"} == {
        "fencepost_queue_dead": 1.0
    }


async def test_what_an_earlier_generation_knew_is_forgotten_and_its_counts_stay(owner: asyncpg.Connection) -> None:
    await owner.execute("SELECT fencepost.source_raise($1, 'test', 0)", KAFKA)
    await queues.note(owner, KAFKA, 0, [PartitionProgress(0, 8, 1.0, applied=1)])
    [queue] = await queues.known(owner)
    assert (queue.generation, queue.incarnation) == (1, None)
    assert [(each.decided, each.end, each.oldest_s) for each in queue.partitions] == [(None, None, None)] * 2
    assert queue.partitions[0].applied == 7


async def test_a_row_that_stays_locked_is_named(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)
    owner, other = await connect(), await connect()
    await make_tables(owner)

    async def run(*arguments: str) -> str:
        return (await asyncio.to_thread(CliRunner().invoke, main, ["queue", *arguments])).output

    async with opened(database, owner, lock_timeout=0.2) as queue, consumed(queue, times=SOON):
        async with other.transaction():
            await other.execute("SELECT FROM orders WHERE order_id = 'k1' FOR UPDATE")
            await queue.append(*(write(f"orders/{key}", body={"n": 1}) for key in ("k1", "k1", "k2")))

            async def described() -> bool:
                return "orders/k1 waits for" in (await describe_queues(queue.gateway, {}))[DEFAULT]

            await eventually(described, what="it to be in the detail of /readyz")
            assert "orders/k1 waits for" in await run()
            known = json.loads((await run("--json")).splitlines()[0])
            (blocked,) = [each["blocked"] for each in known["partitions"] if each["blocked"]]
            assert (blocked["resource"], "lock" in blocked["because"]) == ("orders/k1", True)
            assert await queue.n("k2") == 1, "others go on"
        await queue.empty()

        async def cleared() -> bool:
            return not await described()

        await eventually(cleared, what="it to be gone from there")


MESSAGES = 20


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Keep what only a search finds, from now on; `gc.collect` puts it into this list."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_message_that_was_applied_is_gone(connect: Connect, database: str, garbage: list[object]) -> None:
    """What a consumer makes for a message goes with it: none of it is left in circles, which Python looks for only now
    and then, among all that is in hand. That search took a quarter of a consumer's time.
    """
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(*(write(f"orders/k{n}", body={"n": n}) for n in range(MESSAGES)))
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": MESSAGES}
        gc.collect()
        left = [type(each).__name__ for each in garbage if isinstance(each, Write)]
    assert left == []
