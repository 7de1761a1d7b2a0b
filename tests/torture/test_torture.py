"""`fencepost torture`: the command, its workloads, sources, and a primary that it fails over."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from tests.torture.conftest import PREFIX, SourceStage, assert_ended_well, assert_valid

from fencepost.cli.main import main
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.checker import Verdict, check
from fencepost.testing.history import End, History, Invoke, Recorder, read
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.postgres import Databases
from fencepost.testing.servers.processes import PATIENCE, server_directory, wait_until
from fencepost.testing.torture import Config, run, workloads
from fencepost.testing.torture.assignment import Assignment, Tally
from fencepost.testing.torture.holders import Actor, HeldLease, HolderDatabase, acquire, release
from fencepost.testing.torture.merging import read_all
from fencepost.testing.torture.stages import OwnPrimary
from fencepost.testing.torture.workloads import WORKLOADS

# `fencepost torture` as a command: exit codes, Ctrl-C, and bad input, after which nothing is left behind.


def torture(*arguments: str, out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["torture", "--out", str(out), *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://127.0.0.1:1", "--gateways", "2"], "--gateways does nothing with --url"),
        (["--faults", "meteor"], "there is no fault 'meteor'. Known are: pause-holder"),
        (["--source", "consul"], "there is no source 'consul' to start"),
        (["--minutes", "nan"], "--minutes and --ops must be numbers above 0"),
        (["--database-url", "dbname=x"], "--database-url must be written postgresql://"),
        (["--url", "http://127.0.0.1:99999"], "is not a URL of a gateway"),
        (["--url", "http://127.0.0.1:1/v1"], "it is written http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], "no gateway can be reached at http://127.0.0.1:1"),
        (["--workload", "jobs", "--source", "etcd"], "--source does nothing for the workload jobs"),
        (["--workload", "idempotent", "--resources", "2"], "--resources does nothing for the workload idempotent"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, output = torture(*arguments, out=tmp_path / "out")
    assert (code, message in output) == (2, True), output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["history.jsonl", "report.html", "unjudged.jsonl"])
def test_another_runs_files_are_not_written_over(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    again = Config(Path("torture-3"), seed=3).command
    assert again.endswith("--out torture-3-again")
    for directory in ("torture-3", "torture-3-again"):
        Path(directory).mkdir()
        Path(directory, name).write_text("a violation")
        code, output = torture(
            "--faults", "none", "--database-url", "postgresql://127.0.0.1:1/none", out=Path(directory)
        )
        assert (code, f"{directory} has the {name} of another run" in output) == (2, True), output
        assert Path(directory, name).read_text() == "a violation"
    Path("torture-4-again").mkdir()
    assert Config(Path("torture-4"), seed=3).command.endswith("--out torture-4-again-again")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("testing.torture.running.run_in_words", ZeroDivisionError("a mistake"), "ZeroDivisionError: a mistake"),
        ("testing.torture.running.run_in_words", KeyboardInterrupt(), "there is no report"),
        ("cli.torture._run", KeyboardInterrupt(), "there is no report"),
    ],
)
def test_a_run_that_breaks_has_not_the_exit_code_of_a_violation(
    name: str, error: BaseException, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"fencepost.{name}", breaks)
    code, output = torture(out=tmp_path / "out")
    assert code == 2
    assert message in output


def test_a_gateway_that_cannot_take_the_run_is_refused_by_what_it_lacks(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(gateway: str, *arguments: str) -> str:
        code, output = torture("--url", gateway, *arguments, out=tmp_path / "out")
        assert code == 2, output
        assert not (tmp_path / "out").exists()
        return output

    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        assert "has no source etcd. It has: builtin" in refused(gateway.url, "--source", "etcd")
        assert "made past the gateway: give the gateway's database" in refused(gateway.url, "--workload", "fenced-set")
        none = ("--database-url", "postgresql://127.0.0.1:1/none")
        assert "cannot be made in the database of --database-url" in refused(gateway.url, *none)
    secret = {"FENCEPOST_JWT_SECRET": "a secret of more than 32 bytes, for a test", "FENCEPOST_ROLES": "nobody_yet"}
    with GatewayServer(database, tmp_path / "guarded.log", settings=secret) as gateway:
        assert "does not let the run in: " in (output := refused(gateway.url, "--workload", "mutex"))
        assert "Give a token: --api-token-file." in output
        monkeypatch.setenv("FENCEPOST_API_TOKEN", "none")
        assert "does not accept the token: " in refused(gateway.url, "--workload", "mutex")


@pytest.mark.long("torture")
def test_a_gateway_that_runs_is_left_without_tables(database: str, tmp_path: Path) -> None:
    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        url = ["--url", gateway.url, "--database-url", database]
        code, output = torture(*url, "--seed", "4", "--ops", "200", out=tmp_path / "out")
    assert_ended_well(code, output)
    assert "Seed 4" in output
    assert "starting servers" not in output
    tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'torture%' AND relkind = 'r'"
    with psycopg.connect(database) as connection:
        assert connection.execute(tables).fetchone() == (0,)


def test_what_there_is_can_be_listed(tmp_path: Path) -> None:
    code, output = torture("--list", out=tmp_path / "out")
    assert code == 0
    assert "kill-gateway" in output
    assert "fenced-set" in output


@pytest.mark.long("torture")
def test_ctrl_c_leaves_a_report_of_what_ran(database: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--database-url", database, "--minutes", "30", "--gateways", "1", "--out", str(out)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", "torture", *arguments], stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until(lambda: any(_size(path) > 5000 for path in tmp_path.glob(".torture-*/part*")), within=5 * PATIENCE)
        os.killpg(process.pid, signal.SIGINT)
        assert_ended_well(process.wait(4 * PATIENCE), (tmp_path / "log").read_text())
    finally:
        process.kill()
        process.wait()
    assert "  Ended when it was interrupted\n" in (tmp_path / "log").read_text()
    assert {path.name for path in out.iterdir()} == {"history.jsonl", "report.html"}
    assert list(tmp_path.glob(".torture-*")) == []
    assert sum(1 for _ in read(out / "history.jsonl")) > 10


def _size(path: Path) -> int:
    return path.stat().st_size


# A run in a database that others use touches none of their leases, sources and tables.


@pytest.fixture
def another_database(databases: Databases) -> Iterator[str]:
    """Give a migrated database that no gateway serves."""
    name = databases.make()
    yield name
    databases.drop(name)


@pytest.mark.parametrize(("lock", "over"), [("orders/7", False), ("torture_1/mutex/0", True)])
async def test_a_holder_ends_leases_of_its_own_run_only(lock: str, over: bool, database: str) -> None:
    lease = """
        INSERT INTO fencepost.leases
        VALUES (7, 7, 'x', ARRAY[%s], 'another program', '{}', 60000, 7, now(), now() + interval '1 min')
    """
    is_over = "SELECT expires_at < now() FROM fencepost.leases WHERE lease_id = 7"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(lease, (lock,))
        ours = HolderDatabase(database, "torture_1")
        await ours.expire("7")
        await ours.close()
        assert connection.execute(is_over).fetchone() == (over,)


def test_the_database_must_be_the_gateways_also_without_tables(
    database: str, another_database: str, tmp_path: Path
) -> None:
    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        given = ["--url", gateway.url, "--database-url", another_database, "--workload", "mutex", "--ops", "50"]
        code, output = torture(*given, out=tmp_path / "out")
    assert code == 2, output
    assert "is that the gateway's database" in output
    foreign_tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'torture%%' AND relkind = 'r'"
    with psycopg.connect(another_database) as connection:
        assert connection.execute(foreign_tables).fetchone() == (0,)


@pytest.mark.long("torture")
def test_a_source_of_another_program_is_left_alone(database: str, tmp_path: Path) -> None:
    settings = {"FENCEPOST_SOURCES": "postgres_advisory=postgres-advisory:"}
    with GatewayServer(database, tmp_path / "gateway.log", settings=settings):
        pass  # the source is registered
    state = "SELECT last_value, is_called FROM fencepost.tokens_postgres_advisory"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT setval('fencepost.tokens_postgres_advisory', 100000)")
        given = ["--source", "postgres-advisory", "--gateways", "1", "--ops", "50", "--faults", "none"]
        code, output = torture("--database-url", database, *given, out=tmp_path / "out")
        assert_ended_well(code, output)
        assert connection.execute(state).fetchone() == (100000, True)


# What a PostgreSQL of a run leaves behind when it is killed.


def test_a_primary_keeps_its_shared_memory_in_the_data_directory_which_is_removed() -> None:
    with server_directory() as directory:
        primary = OwnPrimary(embedded_bin_dir(), directory, standby=False)
        try:
            primary.start()
            with psycopg.connect(primary.url) as connection:
                assert connection.execute("SHOW dynamic_shared_memory_type").fetchone() == ("mmap",)
        finally:
            primary.stop()


# Each workload, bounded: seconds, with the faults that need no process to start again.

FAULTS = "pause-holder,kill-holder,cut-after-commit,cut-before-commit,partition-client,delay-database"


OPERATIONS = {"register": 1500, "blocks": 10_000, "mutex": 1500, "idempotent": 1500, "jobs": 5000}
"""Of the quick workloads: as many as keep them busy for some seconds. The others do 300."""


def bounded(database: str, out: Path, workload: str) -> Config:
    return Config(
        out=out,
        seed=1,
        workload=workload,
        database_url=database,
        faults=FAULTS if WORKLOADS[workload].trusts else f"{FAULTS},expire-leases",
        minutes=1.0,
        operations=OPERATIONS.get(workload, 300),
        gateways=1,
        loaders=1,
        holders=1,
        resources=3,
    )


def quick_or_long(name: str) -> Any:
    """Leave all but one workload to `make test-all`."""
    return name if name == "register" else pytest.param(name, marks=pytest.mark.long("torture"))


@pytest.mark.parametrize("workload", [quick_or_long(name) for name, each in WORKLOADS.items() if not each.loses])
def test_a_run_finds_nothing(workload: str, database: str, tmp_path: Path) -> None:
    verdict = run(bounded(database, tmp_path / "out", workload))
    assert_valid(verdict, seed=1)
    assert verdict.accepted > 100
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"history.jsonl", "report.html"}


@pytest.mark.long("torture")
@pytest.mark.parametrize(("workload", "models"), [("unfenced-set", {"set"}), ("jobs-unfenced", {"set", "once"})])
def test_the_control_without_a_fence_loses_what_it_has_acknowledged(
    workload: str, models: set[str], database: str, tmp_path: Path
) -> None:
    """Whether a fault meets a holder that goes on to write is chance: one of some runs loses a member."""
    lost: set[str] = set()
    for seed in range(1, 6):
        config = replace(bounded(database, tmp_path / f"{seed}", workload), seed=seed)
        if lost := {violation.model for violation in run(config).violations}:
            break
    assert lost == models


# The lock by itself, on each token source's real server: what it promises, and what no lease can promise.
# A holder that is paused beyond its lease believes that it holds the lock, while another one does. So mutual
# exclusion, as the plain mutex model has it, does not hold by itself; that the next holder's token is higher does.

WITHIN = 2 * PATIENCE  # seconds: the lease of the slowest source, on a busy machine


async def handed_on(on: SourceStage, tally: Path) -> History:
    """Let one holder take the lock and do nothing until the next one has it; then both give it back."""
    recorder = Recorder()
    made = Assignment(
        *(1, 0, 2, on.stage.urls, "mutex", PREFIX, "", ""), source=on.stage.source, ttl_ms=on.config.ttl_ms
    )
    paused, following = (Actor(number, made, recorder, Tally.create(tally)) for number in (0, 1))
    try:
        async with asyncio.timeout(WITHIN):
            first = await acquire(paused, "mutex")
            assert first is not None
            while (second := await acquire(following, "mutex")) is None:
                pass  # a request waits by itself until the lock is free, or for some time
            await release(paused, first)
            await release(following, second)
    finally:
        paused.close()
        following.close()
    return recorder.history


@pytest.mark.long("torture")
def test_two_believe_that_they_hold_the_lock_and_the_later_one_has_the_higher_token(
    source_stage: SourceStage, tmp_path: Path
) -> None:
    history = asyncio.run(handed_on(source_stage, tmp_path / "tally"))
    assert_valid(check(history, ["mutex"]))
    assert [found.model for found in check(history, ["plain_mutex"]).violations] == ["plain_mutex"]
    events = list(history)
    asked = {each.id for each in events if isinstance(each, Invoke) and each.op == "acquire"}
    first, second = (each.token for each in events if isinstance(each, End) and each.id in asked and each.token)
    assert first < second


# The workloads by which Jepsen showed etcd's locks to be unsafe, on each token source's real server.
# A holder is stopped between its reading and its writing until its lease has passed on and the next holder has
# written: step by step, and so in every run. With a fence nothing is lost. Under the lock alone, which is the control,
# the member of the next holder is.

PAUSED, NEXT = 0, 1


class Steps:
    """The paused holder waits between reading and writing until the next one has added a member."""

    def __init__(self) -> None:
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def lapse(self, actor: Actor, _lease: HeldLease, _database: HolderDatabase | None) -> bool:
        """Stand in for a lapse by dice."""
        if actor.name == f"w0.{PAUSED}":
            self.has_read.set()
            await self.goes_on.wait()
        return False


async def played(on: SourceStage, workload: str, tally: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """Let one holder add a member, be paused, lose its lease to the next one, and write; then read the set."""
    steps, recorder, stage, chosen = Steps(), Recorder(), on.stage, WORKLOADS[workload]
    monkeypatch.setattr(workloads, "lapse", steps.lapse)
    made = Assignment(
        *(1, 0, 2, stage.urls, workload, PREFIX, "", ""),
        source=on.stage.source, resources=1, ttl_ms=on.config.ttl_ms, database_url=stage.database_url,
    )  # fmt: skip
    database = HolderDatabase(stage.database_url or "", PREFIX)
    actors = [Actor(number, made, recorder, Tally.create(tally)) for number in (PAUSED, NEXT)]
    paused, following = (chosen.play(actor, database) for actor in actors)
    try:
        async with asyncio.timeout(WITHIN):
            one = asyncio.create_task(paused.turn())
            await steps.has_read.wait()
            while not added(recorder.history, NEXT):
                await following.turn()
            steps.goes_on.set()
            await one
    finally:
        await database.close()
        for actor in actors:
            actor.close()
    await read_all(stage.urls, PREFIX, chosen, recorder, (), database_url=stage.database_url)
    return recorder.history


def ended(history: History, process: int) -> list[End]:
    """Give how the adds of a holder ended."""
    events = list(history)
    asked = {
        each.id for each in events if isinstance(each, Invoke) and (each.op, each.process) == ("add", f"w0.{process}")
    }
    return [each for each in events if isinstance(each, End) and each.id in asked]


def added(history: History, process: int) -> bool:
    return any(end.event == "ok" for end in ended(history, process))


def judged(on: SourceStage, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, History]:
    history = asyncio.run(played(on, workload, tmp_path / "tally", monkeypatch))
    return check(history), history


@pytest.mark.long("torture")
def test_with_a_fence_the_paused_holder_is_refused_and_nothing_is_lost(
    source_stage: SourceStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, history = judged(source_stage, "fenced-set", tmp_path, monkeypatch)
    assert_valid(verdict)
    assert [end.reason for end in ended(history, PAUSED)] == ["stale"]


@pytest.mark.long("torture")
def test_without_a_fence_the_paused_holder_overwrites_what_the_next_one_added(
    source_stage: SourceStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, history = judged(source_stage, "unfenced-set", tmp_path, monkeypatch)
    assert added(history, PAUSED)
    assert [violation.model for violation in verdict.violations] == ["set"]
    assert "misses 1 that were certainly in the set before: 'w0.1-" in verdict.violations[0].words
