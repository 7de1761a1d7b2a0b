"""Examples and packages: orders, the producer, docs/testing.md, Porcupine's history, the wheel."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.support.asking import queueing
from tests.support.consuming import settings_of
from tests.support.histories import RIGHT, wrong
from tests.support.interleave import Connect
from tests.support.servers import or_skipped
from tests.testing.test_plugin import passed, project, run_pytest

from fencepost.server.ops.protect import protect
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.queues.log import Message, partition_of
from fencepost.server.queues.message import nonce_of, parse_write_id
from fencepost.testing.checker import NothingToCheckError, check
from fencepost.testing.history import Event, History
from fencepost.testing.history.history import export
from fencepost.testing.servers.kafka import Kafka, jars
from fencepost.testing.servers.processes import PATIENCE
from fencepost.testing.servers.server import made_once

# examples/orders: its test finds the bug each time, and passes with the fix.

ORDERS = Path(__file__).parents[2] / "examples" / "orders"
TIMES = 2
AGAIN = f"""

def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.fixturenames.append("again")
    metafunc.parametrize("again", range({TIMES}))
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Copy the example, with each test several times."""
    copy = tmp_path / "orders"
    shutil.copytree(ORDERS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "conftest.py").open("a") as conftest:
        conftest.write(AGAIN)
    return copy


@pytest.mark.long("planted bugs")
def test_the_bug_is_found_each_time(orders: Path) -> None:
    output = run_pytest(orders)
    assert len(re.findall(r"^E .*assert \['paid'\] == \['cancelled'\]$", output, re.MULTILINE)) == TIMES, output
    assert re.search(rf"^{TIMES} failed in ", output, re.MULTILINE), output


@pytest.mark.long("projects that use the plugin")
def test_with_the_fix_the_same_test_passes_each_time(orders: Path) -> None:
    subprocess.run(["git", "apply", "-p0", "fix.diff"], cwd=orders, check=True)
    output = run_pytest(orders)
    assert re.search(rf"^{TIMES} passed in ", output, re.MULTILINE), output


# examples/producer on a real broker: producers that know nothing of Fencepost but docs/queue-messages.md.

PRODUCERS = Path(__file__).parents[2] / "examples" / "producer"
PARTITIONS = 5


def in_python() -> list[str]:
    return [sys.executable, str(PRODUCERS / "producer.py")]


def in_java() -> list[str]:
    return ["java", "-Xshare:auto", "-cp", f"{jars()}/*", str(PRODUCERS / "Producer.java")]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("confluent_kafka", reason="no confluent-kafka: pip install '.[kafka]'")
    with or_skipped():
        kafka = Kafka(tmp_path_factory.mktemp("kafka"))
    with kafka:
        yield kafka.bootstrap


@pytest.fixture
def topic(brokers: str, request: pytest.FixtureRequest) -> str:
    admin = pytest.importorskip("confluent_kafka.admin")
    name = f"orders-{request.node.callspec.id}"
    client = admin.AdminClient({"bootstrap.servers": brokers})
    client.create_topics([admin.NewTopic(name, PARTITIONS)])[name].result(60)
    return name


def run(command: list[str], lines: str) -> str:
    """Give lines to a producer, and return what it prints."""
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.long("tests with kafka")
@pytest.mark.parametrize("command", [in_python, in_java])
async def test_what_the_producer_of_the_example_writes_is_in_the_right_partition_and_is_applied(
    brokers: str, topic: str, command: Callable[[], list[str]], database: str, connect: Connect
) -> None:
    sent = [f"order-{n}" for n in range(40)] + ["a/b", "50%", "x,y;z", "größe"]
    lines = "".join(json.dumps({"order_id": order, "n": n}) + "\n" for n, order in enumerate(sent, 1))
    output = await asyncio.to_thread(run, [*command(), brokers, topic], lines)
    received = taken(brokers, topic, len(sent))
    printed = [line.rsplit(" ", 1) for line in output.splitlines()]
    ids = {name: parse_write_id(write_id) for name, write_id in printed}
    for message, partition in received:
        named = ids.pop(message.key.decode())
        assert (named.queue, named.position.partition, named.nonce) == (f"kafka:{topic}", partition, nonce_of(message))
        assert partition == partition_of(message.key, PARTITIONS), message.key
    assert not ids
    owner = await connect()
    await owner.execute("SET search_path = public; CREATE TABLE orders (order_id text PRIMARY KEY, n int)")
    await owner.execute("INSERT INTO orders SELECT unnest($1::text[]), 0", sent)
    await protect(owner, "orders", queue=f"kafka:{topic}")
    settings = settings_of(database, queues=f"kafka://{brokers}/{topic}")
    async with queueing(database, queues=f"kafka://{brokers}/{topic}") as gateway:
        consumer = consumer_of(gateway.gateway, f"kafka:{topic}", settings, "a")
        async with consuming(gateway.gateway, {f"kafka:{topic}": consumer}, settings):
            for name, write_id in printed:
                page = (await gateway.api.ask("GET", f"writes/{write_id}?wait=30")).json()
                assert (page["state"], page["answer"]["status"]) == ("applied", 200), (name, page)
    rows = await owner.fetch("SELECT order_id, n FROM orders")
    assert {row["order_id"]: row["n"] for row in rows} == {order: n for n, order in enumerate(sent, 1)}


def taken(brokers: str, topic: str, count: int) -> list[tuple[Message, int]]:
    """Take so many messages, each with its partition."""
    import confluent_kafka  # noqa: PLC0415 - an extra, which `brokers` has looked for

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    found: list[tuple[Message, int]] = []
    while len(found) < count:
        (message,) = consumer.consume(1, timeout=2 * PATIENCE)
        assert message.error() is None
        key, value, partition, headers = message.key(), message.value(), message.partition(), message.headers()
        assert key is not None
        assert partition is not None
        found.append((Message(key, value, tuple(cast("list[tuple[str, bytes]]", headers))), partition))
    consumer.close()
    return found


# Each block of docs/testing.md runs, or is the text of a file of examples/orders.

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text("utf-8")
COPIED = re.compile(r"<!-- from: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@pytest.mark.long("projects that use the plugin")
def test_each_example_runs(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", COPIED.sub("", PAGE), re.DOTALL)
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    output = run_pytest(tmp_path)
    assert "failed" not in output, output
    if "skipped" not in output:
        assert (
            passed(output) == sum(example.count("def test_") for example in examples) + 1
        )  # one has two lock services


def test_what_is_from_the_example_service_is_as_it_is_there() -> None:
    copied = COPIED.findall(PAGE)
    assert [name for name, _ in copied] == ["orders.py", "test_orders.py", "fix.diff"]
    for name, text in copied:
        assert text in (ROOT / "examples" / "orders" / name).read_text("utf-8")


# The checker and Porcupine come to the same verdict (tests/porcupine has the program and its models).
# Porcupine is a checker by other people, in Go, which knows a register only by a function of one step. The program is
# built once, into a cache, by the first test that needs it.

SOURCES = Path(__file__).parents[1] / "porcupine"


@pytest.fixture(scope="session")
def porcupine() -> Path:
    """The program; skips where there is no Go to build it with."""
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("no Go, which builds Porcupine: install golang-go, or put another one on the PATH")
    parts = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))

    def build(program: Path) -> None:
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-mod=readonly", "-o", program, "."], cwd=SOURCES, check=True, env=environment)

    return made_once(f"porcupine-{hashlib.sha256(parts).hexdigest()[:12]}", build)


def history(events: list[Event]) -> History:
    return History({}, lambda: events)


def valid(events: list[Event]) -> bool:
    """Ask the checker; Porcupine calls a history with nothing to check valid."""
    try:
        return check(history(events)).valid
    except NothingToCheckError:
        return True


def verdicts(program: Path, directory: Path, histories: list[list[Event]]) -> list[bool]:
    """Ask Porcupine about each history."""
    paths = [directory / f"{number}.jsonl" for number in range(len(histories))]
    for path, events in zip(paths, histories, strict=True):
        export(history(events), path)
    found = subprocess.run([program, *paths], check=True, capture_output=True, text=True, timeout=10 * PATIENCE)
    return [line.endswith(" valid") for line in found.stdout.splitlines()]


@pytest.mark.long("comparisons with Porcupine")
@pytest.mark.parametrize("kind", RIGHT)
def test_they_agree_on_right_histories_and_on_wrong_ones(kind: str, porcupine: Path, tmp_path: Path) -> None:
    histories = [RIGHT[kind](seed) for seed in range(150)]
    planted = [wrong(seed, events) for seed, events in enumerate(histories)]
    ours = [valid(events) for events in (*histories, *planted)]
    assert all(ours[: len(histories)])
    assert not all(ours)
    assert ours == verdicts(porcupine, tmp_path, [*histories, *planted])


# The plugin in a project of its own, which has installed Fencepost's wheel in a fresh environment.


@pytest.mark.long("installations of the wheel")
def test_a_project_that_installed_the_wheel(tmp_path: Path) -> None:
    def run(*command: object) -> None:
        subprocess.run([*map(str, command)], check=True, cwd=tmp_path)

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("fencepost-*.whl")
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # Versions are those of this run; hashes of the constraints would ask for one of the wheel itself.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(_versions(ROOT / "requirements.txt", ROOT / "requirements-dev.txt")))
    run(uv, "pip", "install", "--quiet", "--python", python, "-c", constraints, f"{wheel}[testing]", "pytest-asyncio")
    (tmp_path / "project").mkdir()
    files = [project(tmp_path / "project", name) for name in ("threads", "with_asyncio", "with_anyio")]
    assert passed(run_pytest(tmp_path / "project", *files, python=python)) == 6


def _versions(*locks: Path) -> set[str]:
    """Read which versions lock files name, without hashes."""
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum() and "==" in line}
