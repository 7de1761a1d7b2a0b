"""`fencepost torture` as a command: exit codes, Ctrl-C, and bad input, after which nothing is left behind."""

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from tests.torture.conftest import assert_ended_well

from fencepost.cli.main import main
from fencepost.testing.history import Fault, read
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.waiting import wait_until
from fencepost.torture.running import workshop_for

TABLES = "SELECT count(*) FROM pg_class WHERE relname LIKE 'torture%' AND relkind = 'r'"


def torture(*arguments: str, out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["torture", "--out", str(out), *arguments])
    return done.exit_code, done.output


@contextmanager
def another_server(body: bytes) -> Iterator[str]:
    """Run an HTTP server that is not Fencepost."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://127.0.0.1:1", "--gateways", "2"], "--gateways does nothing with --url"),
        (["--workload", "idempotent", "--resources", "2"], "--resources does nothing for the workload idempotent"),
        (["--faults", "meteor"], "there is no fault 'meteor'. Known are: pause-holder"),
        (["--workload", "nonsense"], "there is no workload 'nonsense'. Known are: register"),
        (["--source", "consul"], "there is no source 'consul' to start"),
        (["--minutes", "0"], "--minutes and --ops must be numbers above 0"),
        (["--minutes", "nan"], "--minutes and --ops must be numbers above 0"),
        (["--minutes", "inf"], "--minutes and --ops must be numbers above 0"),
        (["--database-url", "dbname=x"], "--database-url must be written postgresql://"),
        (["--database-url", "postgresql://h:port/x"], "--database-url must be written postgresql://"),
        (["--url", "ftp://127.0.0.1:1"], "it is written http://HOST:PORT"),
        (["--url", "http://127.0.0.1:99999"], "is not a URL of a gateway"),
        (["--url", "http://127.0.0.1:1", "--faults", "kill-gateway"], "the fault kill-gateway is not possible here"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, output = torture(*arguments, out=tmp_path / "out")
    assert (code, message in output) == (2, True), output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output = torture(out=tmp_path / "file" / "out")
    assert code == 2
    assert "nothing can be written to" in output


def test_files_that_are_not_whole_are_on_the_file_system_of_the_directory(tmp_path: Path) -> None:
    with workshop_for(tmp_path) as workshop:
        assert workshop.parent == tmp_path
    with workshop_for(tmp_path / "not" / "there") as workshop:
        assert workshop.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("torture.running.run_in_words", ZeroDivisionError("a mistake"), "ZeroDivisionError: a mistake"),
        ("torture.running.run_in_words", KeyboardInterrupt(), "there is no report"),
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


def test_a_gateway_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, output = torture("--url", url, out=tmp_path / "out")
    assert code == 2
    assert f"no gateway can be reached at {url}" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("body", [b"hello", b"{}", b"[1]"])
def test_a_server_that_is_not_fencepost_is_recognised(body: bytes, tmp_path: Path) -> None:
    with another_server(body) as url:
        code, output = torture("--url", url, "--workload", "mutex", out=tmp_path / "out")
    assert code == 2
    assert f"what answers at {url} is not Fencepost" in output
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_that_runs_needs_its_database_for_tables(database: str, tmp_path: Path) -> None:
    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        code, output = torture("--url", gateway.url, out=tmp_path / "out")
    assert code == 2
    assert "--database-url" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.long("torture")
def test_a_gateway_that_runs_is_left_without_tables(database: str, tmp_path: Path) -> None:
    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        url = ["--url", gateway.url, "--database-url", database]
        code, output = torture(*url, "--seed", "4", "--ops", "200", out=tmp_path / "out")
    assert_ended_well(code, output)
    assert "Seed 4" in output
    with psycopg.connect(database) as connection:
        assert connection.execute(TABLES).fetchone() == (0,)


@pytest.mark.long("torture")
def test_the_control_ends_with_the_exit_code_of_a_violation(database: str, tmp_path: Path) -> None:
    arguments = ["--workload", "unfenced-set", "--faults", "none", "--ops", "400", "--resources", "2"]
    code, output = torture("--database-url", database, *arguments, out=tmp_path / "out")
    assert code == 1, output


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
        wait_until(lambda: any(_size(path) > 5000 for path in tmp_path.glob(".torture-*/part*")), within=150)
        os.killpg(process.pid, signal.SIGINT)
        assert_ended_well(process.wait(120), (tmp_path / "log").read_text())
    finally:
        process.kill()
        process.wait()
    assert "  Ended when it was interrupted\n" in (tmp_path / "log").read_text()
    assert {path.name for path in out.iterdir()} == {"history.jsonl", "report.html"}
    assert list(tmp_path.glob(".torture-*")) == []
    assert sum(1 for _ in read(out / "history.jsonl")) > 10


def _size(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.long("torture")
def test_the_same_seed_injects_the_same_faults(database: str, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        options = ["--seed", "9", "--ops", "500", "--faults", "delay-client,delay-database,cut-after-commit"]
        code, output = torture("--database-url", database, *options, out=tmp_path / name)
        assert_ended_well(code, output)
        events = read(tmp_path / name / "history.jsonl")
        found.append([(event.kind, event.target) for event in events if isinstance(event, Fault)])
    shorter = min(len(faults) for faults in found)
    assert shorter > 0
    assert found[0][:shorter] == found[1][:shorter]
