"""--fencepost-url: a gateway that runs elsewhere; and what is no gateway."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest
from tests.testing.test_plugin import LONG, passed, run_pytest

from fencepost.testing.fixtures.gateway import GivenGateway, GivenGatewayError
from fencepost.testing.fixtures.tables import FencedTables, fenced_tables
from fencepost.testing.servers.gateway import GatewayServer

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
FAULT = """
import pytest
from fencepost.testing import paused
def test_it(fencepost_gateway):
    with paused(fencepost_gateway):
        pass
"""


@LONG
def test_tables_are_made_there_and_dropped_and_one_that_was_there_is_left_alone(
    gateway: GatewayServer, tmp_path: Path
) -> None:
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


OURS = """
CREATE TABLE places (place_id text PRIMARY KEY) PARTITION BY LIST (place_id);
CREATE TABLE east PARTITION OF places DEFAULT;
CREATE TABLE parcels (parcel_id text PRIMARY KEY, place_id text REFERENCES places);
CREATE VIEW parcels_seen AS SELECT * FROM parcels;
DO $$ BEGIN CREATE TABLE notes (n int); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
ALTER TABLE orders SET (fillfactor = 90)"""


@LONG
def test_what_others_make_meanwhile_or_had_before_is_not_dropped(gateway: GatewayServer) -> None:
    with psycopg.connect(gateway.database, autocommit=True) as theirs:
        names = (
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')"
        )
        before = set(theirs.execute(names.encode()).fetchall())
        with fenced_tables(Shared(gateway.url, gateway.database)) as make:
            assert make(OURS, source="builtin").name == "places"
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
    for name, text in (("client", CLIENT), ("tables", TABLES), ("fault", FAULT)):
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
