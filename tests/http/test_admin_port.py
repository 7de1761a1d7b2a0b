"""The admin port: figures and details are there, and nowhere else; nothing else is there."""

import asyncio
import re
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.support.asking import SECRET, token
from tests.support.gateways import Gateway, serving_process

from fencepost.cli.main import main
from fencepost.testing.servers.processes import eventually

ADMIN = ("--admin-port", "0")
EVENTS = (
    f"GET /v1/elections/events?name=x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token()}\r\n\r\n".encode()
)


def admin_url(gateway: Gateway) -> str:
    found = re.search(r"^  admin (http://\S+)$", gateway.greeting, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("workers", [pytest.param("1"), pytest.param("2", marks=pytest.mark.long("several workers"))])
async def test_what_is_on_which_port(demo_database: str, short_dir: Path, workers: str) -> None:
    given = ("--database-url", demo_database, *ADMIN, "--workers", workers, "--cors-origins", "https://shop.example")
    async with (
        serving_process(short_dir, *given) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False) as gate,
        httpx.AsyncClient(base_url=admin_url(gateway), trust_env=False) as admin,
    ):
        for each in (gate, admin):
            assert (await each.get("/healthz")).json() == {"status": "ok"}
        assert (await gate.get("/readyz")).json() == {"status": "ready"}
        assert (await admin.get("/readyz")).json().keys() > {"status", "database", "origin", "catalog"}
        assert ((await gate.get("/metrics")).status_code, (await gate.head("/metrics")).status_code) == (404, 404)
        assert "/metrics" not in (await gate.get("/openapi.json")).json()["paths"]
        for path in ("/", "/docs", "/openapi.json", "/v1/data/orders", "/problems"):
            answer = await admin.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "FP019"), path
        written = await admin.patch("/v1/data/orders/order-123", headers={"X-Fence-Token": "99"}, json={"note": "x"})
        assert written.status_code == 404
        assert (await admin.post("/metrics")).json()["code"] == "FP020"
        # A client cannot choose the port by what it says.
        named = {"Host": admin_url(gateway).removeprefix("http://")}
        assert (await gate.get("/metrics", headers=named)).status_code == 404
        assert (await gate.get(f"{admin_url(gateway)}/metrics")).status_code == 200, "it is the address that counts"

        async def counted() -> bool:
            figures = (await admin.get("/metrics")).text
            return 'fencepost_http_request_seconds_count{method="GET",route="/readyz",status="200"} 2.0' in figures

        await eventually(counted, what="that what all workers did is counted")
        # Names, addresses and pages.
        for host, status in (("10.1.2.3:9000", 200), ("[fd00::1]:9000", 200), ("10.1.2.3.rebound.example", 421)):
            assert (await admin.get("/metrics", headers={"Host": host})).status_code == status, host
        page = await admin.get("/metrics", headers={"Origin": "https://shop.example"})
        assert "access-control-allow-origin" not in page.headers
        assert (await gate.get("/healthz", headers={"Host": "10.1.2.3"})).status_code == 421


async def test_clients_that_have_all_connections_or_no_key_keep_no_operator_out(
    demo_database: str, short_dir: Path
) -> None:
    on = ("--database-url", demo_database, *ADMIN)
    given = ("--max-connections", "3", "--jwt-secret", SECRET, "--jwt-role-claim-key", "")
    async with serving_process(short_dir, *on, *given) as gateway, AsyncExitStack() as stack:
        port = int(gateway.url.rpartition(":")[2])
        for _ in range(3):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            held.sendall(EVENTS)
            assert (await asyncio.to_thread(held.recv, 9)) == b"HTTP/1.1 ", "a stream that goes on: it gives no way"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{gateway.url}/healthz")).json()["code"] == "FP035"
            for _ in range(6):
                assert (await client.get(f"{admin_url(gateway)}/metrics")).status_code == 200, "it wants no key"


def test_what_cannot_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for arguments, message in (
            (("--port", "1234", "--admin-port", "1234"), "--port and --admin-port are both 1234"),
            (
                ("--port", "0", "--admin-port", "0", "--admin-host", "0.0.0.0"),
                "0.0.0.0 can be reached from other machines",
            ),
            (
                ("--port", "0", "--admin-port", "0", "--admin-host", "no.such.invalid"),
                "(--admin-host, FENCEPOST_ADMIN_HOST)",
            ),
            (("--port", "0", "--admin-port", port), "--admin-port or FENCEPOST_ADMIN_PORT"),
        ):
            # In this process: it fails before it starts anything.
            result = CliRunner().invoke(main, ["serve", *arguments, "--data-dir", str(tmp_path / "data")])
            assert (result.exit_code, message in result.stderr, result.stderr.count("\n")) == (1, True, 1), (
                result.output
            )
            assert not (tmp_path / "data").exists(), arguments
