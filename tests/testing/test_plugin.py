"""The pytest plugin, in projects of their own: pytest runs as a process in each, with real servers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.testing.servers.processes import mentioning

LONG = pytest.mark.long("projects that use the plugin")
PROJECTS = Path(__file__).parent / "projects"


def run_pytest(directory: Path, *arguments: str | Path, python: str | Path = sys.executable) -> str:
    """Run pytest in a directory; returns what it prints."""
    ours = ("PYTEST_", "FENCEPOST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def project(directory: Path, name: str) -> Path:
    """Copy a project to a directory of its own."""
    file = directory / f"test_{name}.py"
    file.write_text((PROJECTS / f"{name}.py").read_text())
    return file


def passed(output: str) -> int:
    """Return how many tests passed, and fail if any did not."""
    found = re.search(r"^(\d+) passed in ", output, re.MULTILINE)
    assert found, output
    return int(found[1])


@pytest.mark.parametrize(
    ("names", "tests"),
    [(("with_asyncio", "with_anyio"), 2), pytest.param(("models", "gateway_faults"), 7, marks=LONG)],
)
def test_projects_pass_and_leave_no_process(tmp_path: Path, names: tuple[str, ...], tests: int) -> None:
    """The other project, with threads: test_wheel.py."""
    files = [project(tmp_path, name) for name in names]
    output = run_pytest(tmp_path, *files, f"--basetemp={tmp_path / 'base'}")
    assert passed(output) == tests
    assert not mentioning(str(tmp_path))


@LONG
def test_lock_services_run_or_say_what_to_install(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, project(tmp_path, "services"))
    assert "failed" not in output, output
    for reason in re.findall(r"^SKIPPED .*", output, re.MULTILINE):
        assert re.search(r"no \S+: apt-get install|pip install", reason)
    assert re.search(r"^(\d\d|[4-9]) passed", output, re.MULTILINE), output


@LONG
def test_each_worker_of_xdist_has_a_gateway_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "test_workers.py"
    file.write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_worker(n, fenced_table, fencepost_gateway, fencepost_client, worker_id, tmp_path_factory):\n"
        "    fenced_table('CREATE TABLE orders (order_id text PRIMARY KEY)')\n"
        "    assert fencepost_client.select('orders') == []\n"
        f"    with open({str(tmp_path / 'urls')!r}, 'a') as urls:\n"
        "        urls.write(f'{worker_id} {fencepost_gateway.url}\\n')\n"
    )
    assert passed(run_pytest(tmp_path, file, "-n", "2", "--dist", "each")) == 4
    urls = dict.fromkeys((tmp_path / "urls").read_text().splitlines())
    assert len(urls) == len({each.split()[1] for each in urls}) == 2


def test_a_run_without_fixtures_starts_and_imports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "test_other.py"
    file.write_text(
        "import sys\n"
        "def test_other():\n"
        "    heavy = {'httpx', 'psycopg', 'asyncpg', 'sqlalchemy', 'fencepost.client', 'fencepost.server'}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert 'fencepost.testing.plugin' in sys.modules\n"
    )
    assert passed(run_pytest(tmp_path, file)) == 1
