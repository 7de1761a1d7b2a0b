"""`fencepost torture` as a command: exit codes, Ctrl-C, and bad input, after which nothing is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from tests.torture.conftest import assert_ended_well

from fencepost.cli.main import main
from fencepost.testing.history import read
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.processes import PATIENCE, wait_until
from fencepost.testing.torture import Config

TABLES = "SELECT count(*) FROM pg_class WHERE relname LIKE 'torture%' AND relkind = 'r'"


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
    with psycopg.connect(database) as connection:
        assert connection.execute(TABLES).fetchone() == (0,)


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
