"""`fencepost dead`: list, show, retry, drop; and what `fencepost status` shows of a queue."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.consuming import Queue, consumed, make_tables, opened, write
from tests.support.interleave import Connect
from tests.support.queued import queueing

from fencepost.cli.main import main
from fencepost.queues.log import LogUnavailableError, Message, Position
from fencepost.queues.postgres.dead_letters import PostgresDeadLetters
from fencepost.queues.postgres.log import PostgresLog
from fencepost.queues.registry import DEFAULT

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


async def test_list_and_show_tell_what_is_wrong(queue: Queue, run: Run) -> None:
    listed = await run("dead", "list", DEFAULT)
    assert (listed.exit_code, listed.output.count("\n")) == (0, 6)
    assert "orders/k2" in listed.output
    assert "FP016: body: colour" in listed.output
    of_one = await run("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")
    lines = [json.loads(line) for line in of_one.output.splitlines()]
    assert [line["resource"] for line in lines] == ["orders/k1"] * 2
    (letter,) = await _ids(queue, "orders/k2")
    shown = json.loads((await run("dead", "show", DEFAULT, letter)).output)
    assert (shown["id"], shown["body"], shown["resource"]) == (letter, '{"colour": "red"}', "orders/k2")
    assert ["method", "PATCH"] in shown["headers"]


@pytest.mark.parametrize("nonce", [True, False])
async def test_the_letter_of_a_message_that_is_in_the_log_twice_is_found_by_both_ids(
    queue: Queue, run: Run, *, nonce: bool
) -> None:
    """As the page of either place gives it; without the nonce an id names the first place only."""
    message = write("orders/k3", body={"colour": "red"})
    first, second = await queue.append(message, message)
    async with consumed(queue):
        await queue.empty()
    (letter,) = await _ids(queue, "orders/k3")
    of_second = letter.replace(f".{first.offset}.", f".{second.offset}.")
    asked = of_second if nonce else letter.rpartition(".")[0]
    assert json.loads((await run("dead", "show", DEFAULT, asked)).output)["id"] == letter
    dropped = await run("dead", "drop", DEFAULT, asked)
    assert (dropped.exit_code, dropped.output) == (0, f"{letter} orders/k3: dropped\n")
    assert await _ids(queue, "orders/k3") == []


async def test_a_letter_that_is_retried_is_applied_when_what_was_wrong_is_mended(queue: Queue, run: Run) -> None:
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    (letter,) = await _ids(queue, "orders/k2")
    retried = await run("dead", "retry", DEFAULT, letter)
    assert retried.exit_code == 0
    assert retried.output.startswith(f"{letter} orders/k2: appended again as {DEFAULT}.")
    async with consumed(queue):
        await queue.empty()
    assert await queue.owner.fetchval("SELECT colour FROM orders WHERE order_id = 'k2'") == "red"
    assert await _ids(queue, "orders/k2") == []


async def test_a_resource_that_stopped_goes_on_in_order_when_all_of_it_is_retried(queue: Queue, run: Run) -> None:
    await queue.owner.execute("ALTER TABLE orders DROP CONSTRAINT orders_status_check")
    assert (await run("dead", "retry", DEFAULT, "--resource", "orders/k1")).exit_code == 0
    async with consumed(queue):
        await queue.empty()
    assert await queue.n("k1") == 2
    assert await queue.owner.fetchval("SELECT status FROM orders WHERE order_id = 'k1'") == "bad"
    assert await queue.owner.fetchval("SELECT count(*) FROM fencepost.queue_stopped WHERE resource = 'orders/k1'") == 0


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
    assert (await run("dead", "retry", DEFAULT, retried)).exit_code == 0
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


async def test_the_page_of_a_write_says_what_became_of_its_letter(queue: Queue, run: Run, database: str) -> None:
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    first, second = await _ids(queue, "orders/k1")
    (third,) = await _ids(queue, "orders/k2")

    async with queueing(database) as gateway:

        async def page(write_id: str) -> tuple[bool, bool, str | None]:
            told = (await gateway.api.ask("GET", f"writes/{write_id}")).json()
            assert told["state"] == "failed"
            assert not {"fencepost-letter", "fencepost-state"} & told["answer"]["headers"].keys()
            return told["dead_letter"], told["dropped"], told["retried_as"]

        behind = (await gateway.api.ask("GET", f"writes/{second}")).json()["answer"]
        assert (behind["status"], behind["body"]["code"]) == (409, "FP030"), "it was behind the first"
        assert await page(first) == (True, False, None)
        await run("dead", "drop", DEFAULT, first)
        assert await page(first) == (False, True, None)
        output = (await run("dead", "retry", DEFAULT, third)).output
        again = output.rpartition(" ")[2].strip()
        assert await page(third) == (False, False, again)
        async with consumed(queue):
            await queue.empty()
        told = (await gateway.api.ask("GET", f"writes/{again}")).json()
        assert (told["state"], told["answer"]["body"]["colour"], told["retried_as"]) == ("applied", "red", None)


async def test_a_retry_that_was_cut_off_before_its_append_leaves_the_letter(
    queue: Queue, run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (letter,) = await _ids(queue, "orders/k2")

    async def fail(_log: PostgresLog, _message: Message) -> Position:
        raise LogUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresLog, "append", fail)
        assert (await run("dead", "retry", DEFAULT, letter)).exit_code == 1
    async with queueing(database) as gateway:
        told = (await gateway.api.ask("GET", f"writes/{letter}")).json()
    assert (told["dead_letter"], told["retried_as"]) == (True, None)
    assert await _ids(queue, "orders/k2") == [letter]


async def test_a_stop_whose_letter_is_gone_is_listed_and_cleared(queue: Queue, run: Run) -> None:
    """As after a log was emptied, with its dead letters."""
    first, second = await _ids(queue, "orders/k1")
    await queue.owner.execute("DELETE FROM fencepost.queue_dead WHERE id IN ($1, $2)", first, second)
    listed = await run("dead", "list", DEFAULT, "--resource", "orders/k1")
    assert f"{first}  orders/k1  " in listed.output
    assert f"gone: `fencepost dead drop {DEFAULT} {first}` lets it go on" in listed.output
    (line,) = (await run("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")).output.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["gone"]) == (first, True)
    retried = await run("dead", "retry", DEFAULT, first)
    assert (retried.exit_code, f"there is no dead letter {first}" in retried.output) == (1, True)
    dropped = await run("dead", "drop", DEFAULT, first)
    assert (dropped.exit_code, dropped.output) == (
        0,
        f"{first} orders/k1: the letter was gone; the resource goes on\n",
    )
    assert (await run("dead", "drop", DEFAULT, first)).exit_code == 1
    await queue.append(write("orders/k1", body={"n": 3}))
    async with consumed(queue):
        await queue.empty()
    assert await queue.n("k1") == 3


@pytest.mark.parametrize("chosen", [("--resource", "orders/k1"), ("--all",)])
async def test_stops_whose_letters_are_gone_are_dropped_with_the_letters(
    queue: Queue, run: Run, chosen: tuple[str, ...]
) -> None:
    first, second = await _ids(queue, "orders/k1")
    await queue.owner.execute("DELETE FROM fencepost.queue_dead WHERE id = $1", first)
    retried = await run("dead", "retry", DEFAULT, *chosen)
    assert f"{first} orders/k1: the resource is stopped by this write, and its dead letter is gone" in retried.output
    dropped = await run("dead", "drop", DEFAULT, *chosen)
    assert f"{first} orders/k1: the letter was gone; the resource goes on\n" in dropped.output
    assert second not in dropped.output, "it was appended again before"
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
        assert (await run("dead", "retry", DEFAULT, letter)).exit_code == 1
    async with consumed(queue):
        await queue.empty()
        once = await queue.owner.fetchval(mark)
        assert (await run("dead", "retry", DEFAULT, letter)).exit_code == 0
        await queue.empty()
    assert once is not None
    assert await queue.owner.fetchval(mark) == once


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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "has no dead letter"),
        (("retry", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "nothing was done"),
        (("retry", DEFAULT), 2, "name the letters by ID, or by --resource, or --all"),
        (("drop", DEFAULT, "x", "--all"), 2, "name the letters by ID, or by --resource, or --all"),
        (("list", "kafka:none"), 1, "kafka:none is not configured here"),
    ],
)
@pytest.mark.usefixtures("queue")
async def test_what_is_asked_wrongly_is_one_line(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = await run("dead", *arguments)
    assert result.exit_code == code
    assert said in result.output


async def test_status_shows_the_queue(queue: Queue, run: Run) -> None:
    await queue.append(write("orders/k9", body={"n": 1}))
    line = next(line for line in (await run("status")).output.splitlines() if line.startswith(f"queue {DEFAULT}"))
    assert "failed 3" in line
    assert "2 resources stopped" in line
