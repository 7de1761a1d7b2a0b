"""The pytest plugin in projects of their own: gateways, directories and the cache."""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent

import psycopg
import pytest

from fencepost.testing.fixtures.gateway import GivenGateway, GivenGatewayError
from fencepost.testing.fixtures.tables import FencedTables, fenced_tables
from fencepost.testing.servers import processes
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.processes import (
    PATIENCE,
    mentioning,
    new_directory,
    owned_directory,
    remove_directory,
    server_directory,
    wait_until,
)
from fencepost.testing.servers.server import ServerError, made_once

# The pytest plugin, in projects of their own: pytest runs as a process in each, with real servers.

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
    file = directory / f"test_{name}.py"
    file.write_text((PROJECTS / f"{name}.py").read_text())
    return file


def passed(output: str) -> int:
    """Return how many tests passed, and fail if any did not."""
    found = re.search(r"^(\d+) passed in ", output, re.MULTILINE)
    assert found, output
    return int(found[1])


@pytest.mark.parametrize(
    ("names", "tests"), [(("with_asyncio", "with_anyio"), 2), pytest.param(("models", "gateway_faults"), 7, marks=LONG)]
)
def test_projects_pass_and_leave_no_process(tmp_path: Path, names: tuple[str, ...], tests: int) -> None:
    """The other project, with threads: test_examples.py."""
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


# What a machine makes once is made by the first who asks; others wait, and find nothing that is unfinished.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is not there yet."""
    monkeypatch.setenv("FENCEPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/thing"


def waits_for(lock: Path) -> bool:
    """Whether a thread or process waits for the lock on this file: the kernel lists it below the holder's."""
    return any(
        f":{lock.stat().st_ino} " in line for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    )


@pytest.mark.usefixtures("place")
def test_it_is_made_by_one_and_others_wait(place: Path) -> None:
    begun, made = threading.Event(), []

    def make(new: Path) -> None:
        made.append(new)
        begun.set()
        wait_until(lambda: len(made) > 1 or waits_for(place.with_name("thing.lock")), what="another who asks")
        assert not place.exists()
        new.write_text("whole")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made_once, "thing", make)
        assert begun.wait(PATIENCE)
        second = pool.submit(made_once, "thing", make)
        assert (first.result(), second.result()) == (place, place)
    assert len(made) == 1
    assert made_once("thing", make).read_text() == "whole"
    assert sorted(each.name for each in place.parent.iterdir()) == ["thing", "thing.lock"]


@pytest.mark.usefixtures("place")
def test_what_could_not_be_made_leaves_nothing(place: Path) -> None:
    def fail(new: Path) -> None:
        new.mkdir()
        (new / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once("thing", fail)
    assert [each.name for each in place.parent.iterdir()] == ["thing.lock"]
    place.with_name("thing.unfinished").mkdir()  # as one that was killed leaves it
    assert made_once("thing", Path.mkdir).is_dir()
    assert sorted(each.name for each in place.parent.iterdir()) == ["thing", "thing.lock"]


@pytest.mark.usefixtures("place")
def test_a_cache_that_cannot_be_written_is_named(place: Path) -> None:
    place.parent.write_text("a file")
    with pytest.raises(ServerError, match=r"nothing can be kept in .*/cache: .* FENCEPOST_CACHE names another"):
        made_once("thing", Path.mkdir)


# What a killed run leaves in /tmp and /dev/shm, the next one removes; what belongs to a run that lives stays.


@contextmanager
def another_run(program: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that makes a directory, and wait until it has. Afterwards it was killed."""
    command = [sys.executable, "-c", f"{program}; print(flush=True); input()"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(directory)}
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_directory_stays_for_as_long_as_its_owner_lives(tmp_path: Path) -> None:
    owned = "from fencepost.testing.servers.processes import owned_directory; from pathlib import Path"
    with another_run(f"{owned}; Path(owned_directory('a-', Path({str(tmp_path)!r})), 'x').touch()", tmp_path):
        (theirs,) = tmp_path.iterdir()
        mine = owned_directory("a-", tmp_path)
        assert set(tmp_path.iterdir()) == {theirs, mine}
    other = owned_directory("a-", tmp_path)
    assert set(tmp_path.iterdir()) == {mine, other}
    for each in (mine, other):
        remove_directory(each)
    assert list(tmp_path.iterdir()) == []


def test_room_is_made_before_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    left = memory / "fencepost-servers-left"
    left.mkdir()
    monkeypatch.setattr(processes, "_MEMORY", memory)
    monkeypatch.setattr(processes, "_MEMORY_NEEDED", float("inf"))
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with server_directory() as directory:
        assert directory.parent == disk
        assert list(memory.iterdir()) == []
    monkeypatch.setattr(processes, "_MEMORY_NEEDED", 0)
    directory = new_directory()
    assert directory.parent == memory
    remove_directory(directory)


# --fencepost-url: a gateway that runs elsewhere; and what is no gateway.

TABLES = """
def test_a_table_is_made_and_used(fenced_table, fencepost_client):
    parcels = fenced_table("CREATE TABLE parcels (parcel_id text PRIMARY KEY, status text)", source="builtin")
    with fencepost_client.lock("parcels/1", claim=True) as lease:
        fencepost_client.post("parcels", {"parcel_id": "1", "status": "new"}, lease=lease)
    assert [row["status"] for row in parcels.rows()] == ["new"]

def test_once_more(fenced_table):
    assert fenced_table("CREATE TABLE parcels (parcel_id text PRIMARY KEY)", protect=False).rows() == []
"""
CLIENT = "def test_it(fencepost_client): assert fencepost_client.locks() == []\n"


@LONG
def test_tables_are_made_there_and_dropped_and_one_that_was_there_stays(gateway: GatewayServer, tmp_path: Path) -> None:
    (tmp_path / "test_tables.py").write_text(TABLES)
    (tmp_path / "test_there.py").write_text(
        "import sqlalchemy as sa\n"
        "ORDERS = sa.Table('orders', sa.MetaData(), sa.Column('order_id', sa.Text, primary_key=True))\n"
        "def test_it(fenced_table): fenced_table(ORDERS)\n"
    )
    output = run_pytest(tmp_path, "--fencepost-url", gateway.url, "--fencepost-database", gateway.database)
    assert "the table orders was there before: fenced_table protects only what it has made" in output
    assert re.search(r"^1 failed, 2 passed in ", output, re.MULTILINE), output
    with psycopg.connect(gateway.database) as connection:
        assert connection.execute("SELECT to_regclass('parcels')").fetchone() == (None,)
        assert connection.execute("SELECT count(*) FROM fencepost.protected").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)


class Shared(GivenGateway):
    """A gateway whose database others use too: they make tables of theirs while one of ours is protected."""

    def command(self, *arguments: str) -> str:
        with psycopg.connect(self.database) as theirs:
            theirs.execute(f"CREATE TABLE IF NOT EXISTS customers_of_{arguments[0]} (id int)".encode())
        return super().command(*arguments)


@LONG
def test_what_others_make_meanwhile_or_had_before_is_not_dropped(gateway: GatewayServer) -> None:
    ours = """
        CREATE TABLE places (place_id text PRIMARY KEY) PARTITION BY LIST (place_id);
        CREATE TABLE east PARTITION OF places DEFAULT;
        CREATE TABLE parcels (parcel_id text PRIMARY KEY, place_id text REFERENCES places);
        CREATE VIEW parcels_seen AS SELECT * FROM parcels;
        DO $$ BEGIN CREATE TABLE notes (n int); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
        ALTER TABLE orders SET (fillfactor = 90)"""
    with psycopg.connect(gateway.database, autocommit=True) as theirs:
        names = (
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')"
        )
        before = set(theirs.execute(names.encode()).fetchall())
        with fenced_tables(Shared(gateway.url, gateway.database)) as make:
            assert make(ours, source="builtin").name == "places"
        customers = {("customers_of_protect",), ("customers_of_unprotect",)}
        assert set(theirs.execute(names.encode()).fetchall()) - before == customers
        assert theirs.execute("SELECT name FROM fencepost.protected").fetchall() == [("orders",)]


@LONG
def test_what_depends_on_a_table_and_is_another_s_stays_and_ddl_that_commits_is_refused(gateway: GatewayServer) -> None:
    make = FencedTables(GivenGateway(gateway.url, gateway.database))
    with pytest.raises(ValueError, match="ends its transaction"):
        make("CREATE TABLE lasting (id int); COMMIT")
    make("CREATE TABLE packets (packet_id text PRIMARY KEY)")
    with psycopg.connect(gateway.database, autocommit=True) as theirs:
        theirs.execute("CREATE VIEW theirs AS SELECT * FROM packets")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="view theirs"):
            make.drop()
        assert theirs.execute("SELECT count(*) FROM theirs").fetchone() == (0,)


@LONG
def test_a_gateway_that_wants_keys_gets_one(gateway: GatewayServer, tmp_path: Path) -> None:
    with psycopg.connect(gateway.database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO fencepost.api_keys (id, secret_hash, access) VALUES ('a', sha256('b'), '{lock}')"
        )
    (tmp_path / "test_it.py").write_text(CLIENT)
    (tmp_path / "key").write_text("fp_a_b\n")
    with GatewayServer(gateway.database, tmp_path / "log", settings={"FENCEPOST_API_KEYS": "on"}) as wants:
        assert "Unauthenticated" in run_pytest(tmp_path, "--fencepost-url", wants.url)
        given = ("--fencepost-url", wants.url, "--fencepost-api-token-file", "key")
        assert passed(run_pytest(tmp_path, *given)) == 1


@LONG
def test_a_client_needs_no_database_and_a_table_does(gateway: GatewayServer, tmp_path: Path) -> None:
    fault = dedent("""
        import pytest
        from fencepost.testing import paused
        def test_it(fencepost_gateway):
            with paused(fencepost_gateway):
                pass
    """)
    for name, text in (("client", CLIENT), ("tables", TABLES), ("fault", fault)):
        (tmp_path / f"test_{name}.py").write_text(text)
    output = run_pytest(tmp_path, "--fencepost-url", gateway.url)
    assert re.search(r"\b1 passed\b", output), output
    assert "give its URL as well, --fencepost-database postgresql://USER" in output
    assert "runs elsewhere" in output


def test_a_url_where_nothing_answers_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CLIENT)
    output = run_pytest(tmp_path, "--fencepost-url", "http://127.0.0.1:9")
    assert "no gateway answers at http://127.0.0.1:9" in output
    assert "start it (fencepost serve)" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fencepost-url", "127.0.0.1:port"], "--fencepost-url must be like http://127.0.0.1:8080"),
        pytest.param(["--fencepost-database", "postgresql://x/y"], "give its --fencepost-url too", marks=LONG),
        pytest.param(["--fencepost-api-token-file", "key"], "give that too", marks=LONG),
    ],
)
def test_options_that_make_no_sense_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "test_it.py").write_text(CLIENT)
    assert message in run_pytest(tmp_path, *arguments)


@LONG
def test_another_database_is_named(gateway: GatewayServer, database: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TABLES)
    other = gateway.database.rpartition("/")[0] + "/postgres"
    output = run_pytest(tmp_path, "--fencepost-url", gateway.url, "--fencepost-database", other)
    assert "--fencepost-database has no schema fencepost" in output
    with (
        fenced_tables(GivenGateway(gateway.url, database)) as make,
        pytest.raises(GivenGatewayError, match="does not serve the table parcels, which was just made in the database"),
    ):
        make("CREATE TABLE parcels (parcel_id text PRIMARY KEY)")


@pytest.fixture
def other_server() -> Iterator[str]:
    """Run an HTTP server that is not Fencepost."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "15")
            self.end_headers()
            self.wfile.write(b'{"status":"ok"}')

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long("projects that use the plugin")
def test_a_server_that_is_not_fencepost_is_named(other_server: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CLIENT)
    output = run_pytest(tmp_path, "--fencepost-url", other_server)
    assert f"the server at {other_server} is not Fencepost" in output
