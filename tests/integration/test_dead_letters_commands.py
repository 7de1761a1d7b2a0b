"""`fencepost dead`: list, show, retry, drop; and what `fencepost status` shows of a queue."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.asking import queueing
from tests.support.consuming import Queue, consumed, make_tables, opened, token, write
from tests.support.interleave import Connect, Connection

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import sources
from fencepost.server.queues.log import LogUnavailableError
from fencepost.server.queues.postgres import PostgresDeadLetters
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import eventually

Run = Callable[..., Any]


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a process would, on the test's database."""
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments])

    return run


@pytest.fixture
async def queue(database: str, connect: Connect) -> AsyncIterator[Queue]:
    """Give a queue whose resource k1 has stopped at a dead letter, with a later one; k2 has one, too."""
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner, stop_resources=True) as queue:
        await queue.append(
            write("orders/k1", body={"n": 1, "status": "bad"}),
            write("orders/k1", body={"n": 2}),
            write("orders/k2", body={"colour": "red"}),
        )
        async with consumed(queue):
            await queue.empty()
        yield queue


async def _ids(queue: Queue, resource: str) -> list[str]:
    letters = [each for each in await queue.log.dead.list(10) if each.message.key.decode() == resource]
    return [each.id for each in sorted(letters, key=lambda each: each.position.offset)]


async def test_list_and_show_say_what_is_wrong(queue: Queue, run: Run) -> None:
    listed = await run("dead", "list")
    assert (listed.exit_code, listed.output.count("\n")) == (0, 6)
    several = await run("dead", "list", "--queues", "redis://127.0.0.1:1/orders")
    assert (several.exit_code, f"There are {DEFAULT}, redis:orders." in several.output) == (2, True)
    assert "orders/k2" in listed.output
    assert "FP016: body: colour" in listed.output
    of_one = await run("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")
    lines = [json.loads(line) for line in of_one.output.splitlines()]
    assert [line["resource"] for line in lines] == ["orders/k1"] * 2
    (letter,) = await _ids(queue, "orders/k2")
    shown = json.loads((await run("dead", "show", DEFAULT, letter)).output)
    assert (shown["id"], shown["body"], shown["resource"]) == (letter, '{"colour": "red"}', "orders/k2")
    assert ["method", "PATCH"] in shown["headers"]
    looked = await run("doctor")
    assert looked.exit_code == 0
    found = f"WARNING  queue {DEFAULT}: dead letters: 3, writes that were acknowledged and are not applied."
    assert f"{found} `fencepost dead list {DEFAULT}`\n" in looked.output
    (line,) = [line for line in (await run("status")).output.splitlines() if line.startswith(f"queue {DEFAULT}")]
    assert ("failed 3" in line, "2 resources stopped" in line) == (True, True), line


async def test_a_letter_that_is_dropped_or_retried_stays_so_when_its_message_comes_again(
    queue: Queue, run: Run
) -> None:
    """The consumer was killed after it had put the letter, and before it said that the message is done."""
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    dropped, retried = (await _ids(queue, "orders/k1"))[0], (await _ids(queue, "orders/k2"))[0]
    messages = await queue.owner.fetch(
        "SELECT id, partition, position, key, header_names, header_values, value FROM fencepost.queue_dead"
        " WHERE id = ANY ($1)",
        [dropped, retried],
    )
    assert (await run("dead", "drop", DEFAULT, dropped)).exit_code == 0
    named_twice = await run("dead", "retry", DEFAULT, "--no-wait", retried, retried)
    assert (named_twice.exit_code, named_twice.output.count("appended again")) == (0, 1)
    for each in messages:
        await queue.owner.execute(
            "INSERT INTO fencepost.queued (partition, position, key, header_names, header_values, value)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            *list(each.values())[1:],
        )
    async with consumed(queue):
        await queue.empty()
    left = {each.id for each in await queue.log.dead.list(10)}
    assert not left & {dropped, retried}
    assert await queue.owner.fetchval("SELECT count(*) FROM fencepost.queue_stopped WHERE resource = 'orders/k1'") == 0


async def test_a_letter_that_is_retried_twice_has_one_effect(
    queue: Queue, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first retry was cut off between its append and its drop."""
    await queue.owner.execute("ALTER TABLE orders ADD COLUMN colour text")
    (letter,) = await _ids(queue, "orders/k2")
    mark = "SELECT last_fence_token FROM orders WHERE order_id = 'k2'"

    async def fail(_letters: PostgresDeadLetters, _id: str) -> bool:
        raise LogUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresDeadLetters, "drop", fail)
        assert (await run("dead", "retry", DEFAULT, "--no-wait", letter)).exit_code == 1
    async with consumed(queue):
        await queue.empty()
        once = await queue.owner.fetchval(mark)
        assert (await run("dead", "retry", DEFAULT, letter)).exit_code == 0
        await queue.empty()
    assert once is not None
    assert await queue.owner.fetchval(mark) == once


async def test_a_letter_of_another_partition_is_retried_by_name_only(queue: Queue, run: Run) -> None:
    """Partitions were added, and its row has later writes in its new one: this one would undo them."""
    (moved,) = await _ids(queue, "orders/k2")
    await queue.owner.execute("ALTER TABLE orders ADD COLUMN colour text")
    await queue.owner.execute("UPDATE fencepost.queue_dead SET partition = partition + 1 WHERE id = $1", moved)
    retried = await run("dead", "retry", DEFAULT, "--no-wait", "--all")
    assert (retried.exit_code, retried.output.count("appended again")) == (1, 2), retried.output
    assert f"{moved} orders/k2: its message was in another partition" in retried.output
    assert await _ids(queue, "orders/k2") == [moved]
    assert (await run("dead", "retry", DEFAULT, "--no-wait", moved)).exit_code == 0


async def test_a_letter_that_is_dropped_lets_its_resource_go_on(queue: Queue, run: Run) -> None:
    first, second = await _ids(queue, "orders/k1")
    assert (await run("dead", "drop", DEFAULT, first)).exit_code == 0
    await queue.append(write("orders/k1", body={"n": 3}))
    async with consumed(queue):
        await queue.empty()
    assert await queue.n("k1") == 3
    assert await _ids(queue, "orders/k1") == [second]
    assert (await run("dead", "drop", DEFAULT, "--all")).exit_code == 0
    assert (await run("dead", "list", DEFAULT)).output == ""
    assert (await run("dead", "drop", DEFAULT, "--all")).output == "no dead letters\n"


async def test_stops_whose_letters_are_gone_are_listed_and_cleared(queue: Queue, run: Run) -> None:
    """As after a log was emptied, with its dead letters."""
    first, second = await _ids(queue, "orders/k1")
    await queue.owner.execute("DELETE FROM fencepost.queue_dead WHERE id = $1", first)
    listed = await run("dead", "list", DEFAULT, "--resource", "orders/k1")
    assert f"gone: `fencepost dead drop {DEFAULT} {first}` lets it go on" in listed.output
    shown = (await run("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")).output.splitlines()
    assert [each["id"] for each in map(json.loads, shown) if each.get("gone")] == [first]
    retried = await run("dead", "retry", DEFAULT, "--no-wait", "--all")
    assert f"{first} orders/k1: the resource is stopped by this write, and its dead letter is gone" in retried.output
    dropped = await run("dead", "drop", DEFAULT, "--resource", "orders/k1")
    assert f"{first} orders/k1: the letter was gone; the resource goes on\n" in dropped.output
    assert second not in dropped.output, "it was appended again before"
    assert await queue.owner.fetchval("SELECT count(*) FROM fencepost.queue_stopped WHERE resource = 'orders/k1'") == 0


@pytest.mark.usefixtures("queue")
async def test_what_is_asked_wrongly_is_one_line(run: Run) -> None:
    for arguments, code, said in (
        (("show", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "has no dead letter"),
        (("retry", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "nothing was done"),
        (("retry", DEFAULT), 2, "name the letters by ID, or by --resource, or --all"),
        (("retry", DEFAULT, "--all", "--wait", "1", "--no-wait"), 2, "--wait and --no-wait exclude each other."),
        (("drop", DEFAULT, "x", "--all"), 2, "name the letters by ID, or by --resource, or --all"),
        (("list", "kafka:none"), 1, "kafka:none is not configured here"),
    ):
        result = await run("dead", *arguments)
        assert (result.exit_code, said in result.output) == (code, True), (arguments, result.output)


async def test_the_page_of_a_write_says_what_became_of_its_letter(queue: Queue, run: Run, database: str) -> None:
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    first, second = await _ids(queue, "orders/k1")
    (third,) = await _ids(queue, "orders/k2")

    async with queueing(database) as gateway:

        async def page(write_id: str) -> tuple[bool, bool, str | None]:
            shown = (await gateway.api.ask("GET", f"writes/{write_id}")).json()
            assert shown["state"] == "failed"
            assert not {"fencepost-letter", "fencepost-state"} & shown["answer"]["headers"].keys()
            return shown["dead_letter"], shown["dropped"], shown["retried_as"]

        behind = (await gateway.api.ask("GET", f"writes/{second}")).json()["answer"]
        assert (behind["status"], behind["body"]["code"]) == (409, "FP030"), "it was behind the first"
        assert await page(first) == (True, False, None)
        await run("dead", "drop", DEFAULT, first)
        assert await page(first) == (False, True, None)
        output = (await run("dead", "retry", DEFAULT, "--no-wait", third)).output
        again = output.rpartition("whether it is applied is not known yet: GET /v1/writes/")[2].strip()
        assert await page(third) == (False, False, again)
        async with consumed(queue):
            await queue.empty()
        shown = (await gateway.api.ask("GET", f"writes/{again}")).json()
        assert (shown["state"], shown["answer"]["body"]["colour"], shown["retried_as"]) == ("applied", "red", None)


async def test_a_write_that_waits_while_its_table_changes_from_a_lock_to_a_queue_or_back_is_a_dead_letter(
    database: str, connect: Connect, run: Run
) -> None:
    """So the page says to wait until the lag is 0; and which letters can be retried, and where."""
    owner = await connect()
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}, token=token(34)))
        await protect(owner, "orders", queue=DEFAULT)
        await queue.append(write("orders/k2", body={"n": 2}))
        async with consumed(queue):
            await queue.empty()
            assert list(await queue.letters()) == ["orders/k1"]
            await run("dead", "retry", DEFAULT, "--all")
            await queue.empty()
            assert "orders takes the positions of its queue" in (await queue.letters())["orders/k1"].reason
        await queue.append(write("orders/k3", body={"n": 3}))
        await protect(owner, "orders", source="external")
        async with consumed(queue):
            await queue.empty()
            assert (await queue.letters())["orders/k3"].reason.startswith("FP003: ")
            await sources.raise_source(owner, DEFAULT, "for a test", 34)
            await protect(owner, "orders", queue=DEFAULT)
            await run("dead", "retry", DEFAULT, "--resource", "orders/k3")
            await queue.empty()
        assert list(await queue.letters()) == ["orders/k1"]
        assert [await queue.n(key) for key in ("k1", "k2", "k3")] == [0, 2, 3]


async def test_a_retry_waits_for_the_decision_and_keeps_what_the_fence_refuses(
    database: str, connect: Connect, run: Run
) -> None:
    """k1 is applied, k2 fails again, k3's row has a later write before the retry, k4's after its append."""
    owner = await connect()
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        await queue.append(
            *(write(f"orders/k{n}", body={"colour": "red", "n": n}, token=token(34)) for n in (1, 2, 3, 4))
        )
        async with consumed(queue):
            await queue.empty()
        before = {each.message.key.decode(): each.id for each in await queue.log.dead.list(10)}
        await owner.execute("ALTER TABLE orders ADD colour text CHECK (order_id <> 'k2' OR colour <> 'red')")

        async def overtake(key: str) -> None:
            async with owner.transaction():
                await owner.execute("SET LOCAL fencepost.token = '36'")
                await owner.execute("UPDATE orders SET colour = 'blue' WHERE order_id = $1", key)

        await overtake("k3")
        stale = await run("dead", "retry", DEFAULT, before["orders/k3"])
        assert (stale.exit_code, stale.output.count("\n")) == (1, 1)
        assert "the fence would refuse its token 34, since the mark of orders/k3 is 36 by now" in stale.output
        waiting = asyncio.create_task(run("dead", "retry", DEFAULT, "--all", "--wait", "600"))
        await eventually(lambda: appended(owner, 3), what="what can be retried is appended")
        await overtake("k4")
        async with consumed(queue):
            retried = await waiting
        after = {each.message.key.decode(): each.id for each in await queue.log.dead.list(10)}
    for key, said in (
        ("k1", "applied"),
        ("k2", f"failed again, and its letter is {after['orders/k2']} now: 23514: "),
        ("k3", "the fence would refuse its token 34"),
        ("k4", "refused, and the letter stays: FP001: "),
    ):
        assert f"{before[f'orders/{key}']} orders/{key}: {said}" in retried.output, retried.output
    assert retried.exit_code == 1
    assert after == {key: before[key] for key in ("orders/k3", "orders/k4")} | {"orders/k2": after["orders/k2"]}
    coloured = "SELECT array_agg(colour ORDER BY order_id) FROM orders WHERE colour IS NOT NULL"
    assert await owner.fetchval(coloured) == ["red", "blue", "blue"]


async def appended(owner: Connection, count: int) -> bool:
    found: int = await owner.fetchval("SELECT count(*) FROM fencepost.queued")
    return found == count


async def test_a_retry_that_nobody_decides_keeps_its_letter(queue: Queue, run: Run) -> None:
    (letter,) = await _ids(queue, "orders/k2")
    retried = await run("dead", "retry", DEFAULT, letter, "--wait", "0.01")
    assert retried.exit_code == 1
    assert "is not decided yet, and the letter stays\nnothing was decided for 0.01 s" in retried.output
    assert await _ids(queue, "orders/k2") == [letter]
