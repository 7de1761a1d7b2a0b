"""What the test needs: the table, processes of the service, and a payment provider that waits for the test."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import pytest

from fencepost.testing.fixtures.tables import FencedTable, FencedTables
from fencepost.testing.servers.processes import free_port, listens
from fencepost.testing.servers.server import Server

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL)"


@pytest.fixture
def orders(fenced_table: FencedTables) -> FencedTable:
    """Make the table, with one order."""
    return fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}], protect=False)


class Service(Server):
    """A process of the order service."""

    def __init__(self, name: str, orders: FencedTable, payments: str, directory: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        here = str(Path(__file__).parent)
        command = [sys.executable, "-m", "uvicorn", "orders:app", "--app-dir", here, "--port", str(port)]
        settings = {
            "DATABASE_URL": orders.database.replace("postgresql://", "postgresql+psycopg://"),
            "FENCEPOST_URL": orders.url,
            "PAYMENTS_URL": payments,
        }
        super().__init__(command, directory / f"{name}.log", lambda: listens(port), {**os.environ, **settings})


StartService: TypeAlias = Callable[[str], Service]


@pytest.fixture
def start(orders: FencedTable, payments: "Payments", tmp_path: Path) -> Iterator[StartService]:
    """Give a function that starts the service. All that it started ends with the test."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Service(name, orders, payments.url, tmp_path))


class Payments:
    """A payment provider."""

    def __init__(self) -> None:
        self._asked, self._accepted = threading.Event(), threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider._asked.set()
                provider._accepted.wait(60)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait_for_charge(self) -> None:
        """Return once the service wants a payment."""
        if not self._asked.wait(60):
            raise TimeoutError("the service asked for no payment")

    def accept(self) -> None:
        """Answer that it is paid."""
        self._accepted.set()


@pytest.fixture
def payments() -> Iterator[Payments]:
    """Run the payment provider."""
    payments = Payments()
    thread = threading.Thread(target=payments.server.serve_forever)
    thread.start()
    yield payments
    payments.accept()
    payments.server.shutdown()
    thread.join()
    payments.server.server_close()
