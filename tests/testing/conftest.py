"""A gateway as a process on the test's database, which has the protected table orders."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.testing.servers.gateway import GatewayServer, run_command


@pytest.fixture
def orders(database: str) -> str:
    """Make the protected table orders with the row 7. Gives the database's URL."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (order_id text PRIMARY KEY, status text)")
        connection.execute("INSERT INTO orders VALUES ('7', 'new')")
    run_command(database, "protect", "orders", "--source", "builtin")
    return database


@pytest.fixture
def gateway(orders: str, tmp_path: Path) -> Iterator[GatewayServer]:
    """Run the gateway."""
    with GatewayServer(orders, tmp_path / "gateway.log") as gateway:
        yield gateway
