"""A gateway as a process on the test's database, which has the protected table orders."""

from collections.abc import Iterator

import psycopg
import pytest

from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Databases


@pytest.fixture(scope="module")
def own_gateway(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    database = databases.make()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (order_id text PRIMARY KEY, status text)")
    run_command(database, "protect", "orders", "--source", "builtin")
    with GatewayServer(database, tmp_path_factory.mktemp("gateway") / "gateway.log") as gateway:
        yield gateway
    databases.drop(database)


@pytest.fixture
def gateway(own_gateway: GatewayServer) -> GatewayServer:
    """Give that gateway, with the row 7 as it was made, and nothing held."""
    with psycopg.connect(own_gateway.database) as connection:
        connection.execute("SET session_replication_role = replica")  # no trigger judges this
        for table in ("public.orders", "fencepost.marks", "fencepost.locks", "fencepost.leases"):
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("INSERT INTO orders VALUES ('7', 'new')")
    return own_gateway
