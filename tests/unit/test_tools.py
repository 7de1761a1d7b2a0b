"""Tools of the repository: the shape of the code, its wings, the audit, compose, alerts, benchmarks, test servers."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from subprocess import PIPE
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from benchmarks import queue_report, source_report
from benchmarks.cells import CELLS
from benchmarks.cpu import Cpu
from benchmarks.layers import report
from benchmarks.layers.oracle import Effects, judge
from benchmarks.queue_report import RATIOS, WORKERS, drain_name, usual_name
from benchmarks.queue_services import KAFKA, POSTGRES
from benchmarks.source_clients import BUILTIN
from benchmarks.source_services import KINDS
from benchmarks.usual_consumer import COMMITS
from ruamel.yaml import YAML
from tests.support import selection
from tests.unit.test_docs import ROOT
from tools import audit, lost_lines, shape
from tools.shape import Shape

from fencepost.cli.main import COMMANDS
from fencepost.server.locks.source import KINDS as REGISTERED
from fencepost.server.locks.source import kind_of
from fencepost.server.observe.metrics import Metrics
from fencepost.server.parts import read_queues, read_source
from fencepost.server.settings import Settings

# Bounds of how the code is cut (CONTRIBUTING.md, "How the code is laid out"): chapters do not fall apart again.
# A bound is what the tree had when it was last made better. Who makes it better still lowers the bound; who cannot
# keep one says why in the commit that raises it.


@pytest.mark.parametrize(
    ("found", "files", "lines", "pages", "in_tests"),
    [(shape.app(), 212, 67_870, 0, 0.0), (shape.tests(), 217, 71_510, 2, 0.459)],
    ids=["app", "tests"],
)
def test_it_is_cut_into_no_more_files_lines_and_pages(
    found: Shape, files: int, lines: int, pages: int, in_tests: float
) -> None:
    assert found.files <= files
    assert found.lines <= lines
    assert len(found.pages) <= pages, found.pages
    assert found.share("tests") >= in_tests


def test_a_class_name_means_one_thing() -> None:
    assert len(shape.app().shared_names) <= 9, shape.app().shared_names


# What an install without extras can do: the client, and the commands that need no more. What is missing is named.
# The libraries are installed here, and so are hidden from a new process.

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OF_THE_SERVER = [re.split(r"[^\w-]", each)[0].replace("-", "_") for each in PROJECT["optional-dependencies"]["server"]]
ALONE = {"batch", "elect", "lock", "mint", "work"}
HIDE = f"import sys; sys.modules.update(dict.fromkeys({[*OF_THE_SERVER, 'pydantic', 'pytest']!r}))\n"
COMMAND = "from fencepost.cli.main import main; main({!r}, prog_name='fencepost')"


def run(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_client_and_its_commands_need_no_library_of_the_server() -> None:
    assert run(f"{HIDE}from fencepost import Client, SyncClient; import fencepost.client") == (0, "")
    for name in sorted(ALONE):
        code, said = run(HIDE + COMMAND.format([name, "--help"]))
        assert code == 0, said
    code, said = run(HIDE + COMMAND.format(["--help"]))
    assert code == 0, said
    assert said.count("needs the extra") == len(COMMANDS) - len(ALONE) - 1, said  # torture says so when it runs


@pytest.mark.parametrize("name", ["serve", "protect", "check", "torture"])
def test_a_command_whose_libraries_are_missing_names_the_extra(name: str) -> None:
    code, said = run(HIDE + COMMAND.format([name, "orders"] if name in {"protect", "check"} else [name]))
    extra = "testing" if name in {"check", "torture"} else "server"
    assert code == 2, said
    assert f"pip install '.[{extra}]'" in said
    assert "Traceback" not in said


def test_a_system_that_cannot_wait_for_a_commands_processes_says_so() -> None:
    """A mock of Windows: what its Python has not is taken away. Nobody has run Fencepost there."""
    client = "from fencepost.client.lease import default_owner; assert '@' in default_owner()\n"
    windows = dedent("""
        import asyncio, click, getpass, httpx, os, signal, subprocess, sys
        for name in "waitid getuid geteuid killpg tcsetpgrp".split():
            delattr(os, name)
        for name in "pthread_sigmask SIGCHLD SIGHUP SIGTSTP SIGQUIT".split():
            delattr(signal, name)
        sys.modules.update(dict.fromkeys(("pwd", "fcntl", "termios", "resource")))
        sys.platform = "win32"
    """)
    code, said = run(windows + client + COMMAND.format(["lock", "x", "--", "true"]))
    assert (code, "this system cannot" in said) == (2, True), said
    for arguments in (["mint", "--help"], ["batch", "--help"], ["--help"]):
        code, said = run(windows + COMMAND.format(arguments))
        assert code == 0, said


# What `make check` makes of pip-audit's report: a vulnerability fails it, and so does half an audit.

CLEAN: dict[str, Any] = {"name": "orjson", "version": "3.11", "vulns": []}
BAD: dict[str, Any] = {**CLEAN, "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.12"]}]}
SKIPPED: dict[str, Any] = {"name": "orjson", "skip_reason": "no advisories here"}

NOT_DONE = "not done: "
NOT_COMPARED = "the dependencies were not compared with known vulnerabilities: pypi.org's list cannot be had here"
NO_NETWORK = "requests.exceptions.ProxyError: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded"


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([CLEAN, CLEAN], 0, "no advisory is known for any of 2 packages"),
        ([CLEAN, BAD], 1, "orjson 3.11: PYSEC-1 (fixed in 3.12)"),
        ([SKIPPED, BAD], 1, "PYSEC-1"),
        ([CLEAN, SKIPPED], 1, "1 packages could not be audited: no advisories here"),
        ([SKIPPED], 0, f"{NOT_DONE}{NOT_COMPARED} (no advisories here)"),
        (None, 0, f"{NOT_DONE}{NOT_COMPARED} ({NO_NETWORK})"),
        ([], 1, "no report"),
    ],
)
def test_what_is_known_fails_and_what_is_not_is_named(
    found: list[dict[str, Any]] | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file, lines = tmp_path / "not-audited", list[str]()
    monkeypatch.setattr(audit, "NOT_AUDITED", file)
    monkeypatch.setattr(selection, "NOT_AUDITED", file)
    file.write_text("of an earlier audit")
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    errors = f"Traceback\n{NO_NETWORK}\n" if found is None else ""
    assert audit.say(found, errors) == code
    assert said in capsys.readouterr().out
    reporter: Any = SimpleNamespace(stats={}, section=lines.append, line=lines.append)
    config: Any = SimpleNamespace(stash={selection.LEFT: {}}, option=SimpleNamespace(all=True))
    selection.pytest_terminal_summary(reporter, config)
    ended = [f"the audit of dependencies: {said.removeprefix(NOT_DONE)}"] if said.startswith(NOT_DONE) else []
    assert lines[1:] == ended, "what did not run is named at the end of make test-all"
    monkeypatch.setenv("FENCEPOST_NO_SKIPS", "1")
    assert audit.say(found, errors) == (0 if said.startswith("no advisory") else 1), "nothing may be skipped"


@pytest.mark.parametrize("errors", ["ERROR:pip_audit._cli:invalid requirements input: x", ""])
def test_where_pypi_can_be_reached_an_audit_that_was_not_made_fails(
    errors: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit, "NOT_AUDITED", tmp_path / "not-audited")
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    assert audit.say(None, errors) == 1


# docker-compose.yml: each profile has a gateway that can read its source's or queue's URL, and servers that forget
# nothing.

COMPOSE: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = {"redis": 1, "redlock": 5, "etcd": 3, "zookeeper": 3}


def of(profile: str) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in SERVICES.items() if service.get("profiles") == [profile]}


def test_there_is_a_profile_for_each_service_that_compose_can_run() -> None:
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert profiles == {*NODES, "kafka"}, "a new profile of a lock service gets a line in NODES and in PORTS"


def test_the_profile_of_a_queue_has_a_topic_a_gateway_that_submits_and_a_consumer() -> None:
    services = of("kafka")
    assert services.keys() == {"kafka", "kafka-topic", "gateway-kafka", "consumer-kafka"}
    for name in ("gateway-kafka", "consumer-kafka"):
        service = services[name]
        (queue,) = read_queues(Settings(queues=service["environment"]["FENCEPOST_QUEUES"]))
        assert queue.name == "kafka:orders"
        assert {each: how["condition"] for each, how in service["depends_on"].items()} == {
            "postgres": "service_healthy",
            "migrate": "service_completed_successfully",
            "kafka": "service_healthy",
            "kafka-topic": "service_completed_successfully",
        }
    assert services["consumer-kafka"]["command"][:2] == ["consume", "kafka:orders"]
    assert services["consumer-kafka"]["healthcheck"] == {"disable": True}, "it has no /readyz"
    assert "--topic orders --partitions 8" in services["kafka-topic"]["command"]
    broker = services["kafka"]["environment"]
    assert (broker["KAFKA_PROCESS_ROLES"], broker["KAFKA_LOG_FLUSH_INTERVAL_MESSAGES"]) == ("broker,controller", "1")


@pytest.mark.parametrize("profile", NODES)
def test_the_gateway_of_a_profile_names_all_nodes_and_waits_for_them(profile: str) -> None:
    services = of(profile)
    gateway = services.pop(f"gateway-{profile}")
    assert len(services) == NODES[profile]
    text = gateway["environment"]["FENCEPOST_SOURCES"]
    assert read_source(text, "").kind == profile
    hosts = urlsplit(text.partition("=")[2]).netloc.split(",")
    assert {host.partition(":")[0] for host in hosts} == set(services)
    ports = {"redis": 6379, "redlock": 6379, "etcd": 2379, "zookeeper": 2181}
    assert {int(host.partition(":")[2] or ports[profile]) for host in hosts} == {ports[profile]}
    waits_for = gateway["depends_on"]
    assert {name for name, how in waits_for.items() if how["condition"] == "service_healthy"} == {*services, "postgres"}
    assert waits_for["migrate"]["condition"] == "service_completed_successfully"


def test_gateways_know_their_callers_by_a_secret_that_is_the_users_own() -> None:
    gateways = {name: service for name, service in SERVICES.items() if "--allow-remote" in service.get("command", [])}
    assert gateways.keys() == {"gateway", "gateway-kafka", *(f"gateway-{profile}" for profile in NODES)}
    for service in gateways.values():
        assert service["environment"]["FENCEPOST_JWT_SECRET"].startswith("${FENCEPOST_JWT_SECRET:?"), "no default"
        assert service["environment"]["FENCEPOST_DATABASE_URL"]
    assert "FENCEPOST_JWT_SECRET" not in SERVICES["migrate"]["environment"]


def test_every_redis_keeps_what_it_acknowledged() -> None:
    for name, service in (of("redis") | of("redlock")).items():
        if not name.startswith("gateway"):
            command = " ".join(service["command"])
            assert "--appendonly yes --appendfsync always" in command, name
            assert "--maxmemory-policy noeviction" in command, name


# The alerts and the dashboard of deploy/: on metrics that exist, with rules that promtool has tried.

DEPLOY, RUNBOOK = ROOT / "deploy", ROOT / "docs" / "runbook.md"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"


@pytest.mark.parametrize("file", [ALERTS, DEPLOY / "grafana" / "fencepost.json"], ids=lambda file: file.name)
def test_each_metric_exists(file: Path) -> None:
    text = file.read_text("utf-8")
    named = set(re.findall(r"\bfencepost_[a-z_]+", text))
    assert len(named) > 8
    # Give the names that `/metrics` has, with those of the parts of histograms.
    described = Metrics().exposition().decode()
    types = re.findall(r"^# TYPE (\S+) (\S+)$", described, re.MULTILINE)
    parts = {name + part for name, kind in types if kind == "histogram" for part in ("_bucket", "_count", "_sum")}
    assert named <= ({name for name, _ in types} | parts)
    if file.suffix == ".json":
        assert len(json.loads(text)["panels"]) > 8


def test_each_alert_leads_to_a_part_of_the_runbook() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    parts = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    alerts = ALERTS.read_text("utf-8")
    named = re.findall(r"runbook: docs/runbook.md#(\S+)", alerts)
    assert len(named) == alerts.count("- alert: ")
    assert set(named) <= parts


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_the_rules_fire_where_they_should_and_nowhere_else() -> None:
    tests = ALERTS.with_name("alerts_test.yml")
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# What the benchmarks report, and that pages of docs/ have the figures of their last runs.


def test_every_ratio_is_of_cells_that_are_measured() -> None:
    drains = {drain_name(queue, workers) for queue in (POSTGRES, KAFKA) for workers in WORKERS}
    measured = {cell.name for cell in CELLS} | drains | {usual_name(commit) for commit in COMMITS}
    assert {name for ratio in RATIOS for name in (ratio.of, ratio.by)} <= measured


def test_the_page_shows_the_figures_that_are_kept() -> None:
    page = queue_report.PAGE.read_text("utf-8")
    assert queue_report.inserted(page, queue_report.kept()) == page, "python -m benchmarks.queue_report"


def test_what_a_process_of_ours_has_of_a_core_is_counted() -> None:
    burn = dedent("""
        import sys, time
        print(flush=True)
        sys.stdin.readline()
        begin = time.process_time()
        while time.process_time() < begin + 0.2: pass
        print(flush=True)
        sys.stdin.readline()
    """)
    with subprocess.Popen([sys.executable, "-c", burn], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as child:
        if child.stdin is None or child.stdout is None:
            raise AssertionError("they are pipes")
        child.stdout.readline()
        cpu = Cpu()
        child.stdin.write("\n")
        child.stdout.readline()
        spent = cpu.per(1000)
        child.stdin.close()
    assert spent["fencepost_us"] > 150  # 0.2 s by a thousand, less two of the kernel's ticks
    assert cpu.per(1000)["load_us"] > 150  # once it has ended


def test_every_registered_source_is_measured() -> None:
    measured = {kind.name.replace("_", "-") for kind in KINDS}
    registered = {kind_of(f"{scheme}://x") for scheme in REGISTERED}
    assert measured == registered | {BUILTIN}, "benchmarks/source_services.py: KINDS has each source"


def test_the_page_of_sources_shows_the_figures_that_are_kept() -> None:
    kept = json.loads(source_report.KEPT.read_text())
    page = source_report.PAGE.read_text("utf-8")
    assert source_report.inserted(page, source_report.markdown(kept)) == page, "python -m benchmarks.source_report"


@pytest.mark.parametrize(
    ("effects", "found"),
    [
        ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], Effects(4, 0, 0, 0)),
        ([("a", 2), ("a", 1), ("b", 2)], Effects(3, 0, 1, 1)),
        ([("a", 1), ("a", 2), ("a", 1), ("b", 2)], Effects(4, 1, 1, 1)),
        ([("a", 2)], Effects(1, 0, 0, 1)),
    ],
)
def test_the_oracle_counts_what_is_there_twice_late_or_missing(effects: list[tuple[str, int]], found: Effects) -> None:
    assert judge(effects, 2, 2) == found


def test_the_table_of_the_page_is_that_of_the_figures() -> None:
    page = report.PAGE.read_text("utf-8")
    written = page.partition(report.BEGIN)[2].partition(report.END)[0].strip()
    rows = json.loads(report.FIGURES.read_text("utf-8"))["rows"]
    assert written == report.table({"rows": rows})


# `make test-servers` installs what tests name when they skip for want of it; in CI a skipped test fails the run.

ASKED_FOR = re.compile(r"apt-get install ([a-z0-9 .+-]+)")
OF_A_PROGRAM = re.compile(r'program_of\("[a-z-]+", "([a-z0-9.+-]+)"\)')
IN_A_TABLE = re.compile(r'"[a-z-]+"[:,] "([a-z0-9.+-]+)"')
ALWAYS_THERE = {"util-linux", "default-jre-headless"}
"""The latter comes with default-jdk-headless, which .ci/test-servers installs."""


def asked_for() -> set[str]:
    found = set[str]()
    for file in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "app/fencepost/testing/servers").rglob("*.py")]:
        text = file.read_text("utf-8")
        found |= set(OF_A_PROGRAM.findall(text))
        found |= {package for names in ASKED_FOR.findall(text) for package in names.split()}
        for line in re.findall(r"for program, package in .*", text):
            found |= set(IN_A_TABLE.findall(line))
    return found - ALWAYS_THERE


def test_every_package_that_a_test_asks_for_is_installed() -> None:
    assert {"redis-server", "etcd-client", "openssl"} <= asked_for(), "they are found"
    listed = re.search(r"packages=\((.*?)\n\)", (ROOT / ".ci" / "test-servers").read_text(), re.DOTALL)
    assert listed is not None
    installed = set(re.sub(r"#.*", "", listed[1]).split())
    assert asked_for() <= installed, "add to .ci/test-servers what a test says to install"


# Which lines count as lost: those that ran before, wherever they stood, and do not now.


def checkout(root: Path, file: str, text: str, executed: list[int], missing: list[int]) -> Path:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(text)
    report = {"files": {file: {"executed_lines": executed, "missing_lines": missing}}}
    (root / lost_lines.REPORT).write_text(json.dumps(report))
    return root


def test_a_line_that_moved_and_is_not_run_any_more_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = checkout(tmp_path / "before", "app/old/a.py", "one()\ntwo()\nthree()\n", [1, 2], [3])
    after = checkout(tmp_path / "after", "app/new/a.py", "one()\n\nif x:\n    two()\n    three()\n", [1], [4, 5])
    assert lost_lines.main(before, after) == 1
    assert capsys.readouterr().out == "app/new/a.py:4: two()\n"
    assert lost_lines.main(before, before) == 0
