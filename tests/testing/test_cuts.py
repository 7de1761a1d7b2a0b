"""Connections that are cut before and after a commit: on the gateway's side and on the database's."""

import contextlib
import dataclasses
import socket
from collections.abc import Sequence

import httpx
import psycopg
import pytest

from fencepost.testing.faults import Link, cut
from fencepost.testing.faults.connection import HttpConversation
from fencepost.testing.servers.gateway import GatewayServer

UPDATE = "UPDATE plain SET status = %s WHERE order_id = '7'"


@pytest.fixture
def plain(database: str) -> str:
    """Make a table without a fence. Gives the database's URL."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE plain (order_id text PRIMARY KEY, status text)")
        connection.execute("INSERT INTO plain VALUES ('7', 'new')")
    return database


def status(url: str, table: str = "plain") -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT status FROM {table} WHERE order_id = '7'".encode()).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    ("when", "stored", "autocommit"), [("before-commit", "new", True), ("after-commit", "paid", False)]
)
def test_the_answer_is_lost_and_the_commit_is_done_or_not(
    plain: str, when: str, stored: str, *, autocommit: bool
) -> None:
    with Link.to(plain) as link, psycopg.connect(link.url, autocommit=autocommit) as connection:
        connection.execute("SELECT 1")
        with cut(link, when=when) as done, pytest.raises(psycopg.OperationalError):  # type: ignore[arg-type]
            pay(connection)
        assert done.times == 1
    assert status(plain) == stored


def pay(connection: psycopg.Connection) -> None:
    connection.execute(UPDATE, ["paid"])
    connection.commit()


def test_reads_failed_commits_and_such_as_do_not_match_are_not_meant(plain: str) -> None:
    with Link.to(plain) as link, cut(link, when="after-commit", matching="'paid'") as done:
        with psycopg.connect(link.url, autocommit=True) as connection:
            connection.execute("SELECT * FROM plain")
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute("UPDATE plain SET nothing = 1")
            connection.execute("UPDATE plain SET status = 'usual'")
            assert done.times == 0
            with contextlib.suppress(psycopg.OperationalError):
                connection.execute("UPDATE plain SET status = 'paid'")
        assert (done.times, status(plain)) == (1, "paid")


@pytest.mark.parametrize(("when", "stored"), [("before-commit", "new"), ("after-commit", "paid")])
def test_a_request_whose_answer_is_lost_was_done_or_not(gateway: GatewayServer, when: str, stored: str) -> None:
    lease = httpx.post(f"{gateway.url}/v1/leases", json={"lock": "orders/7"}, trust_env=False).json()
    with Link.to(gateway.url) as link, cut(link, when=when) as done, pytest.raises(httpx.TransportError):  # type: ignore[arg-type]
        httpx.patch(
            f"{link.url}/v1/data/orders/7",
            json={"status": "paid"},
            headers={"X-Fence-Token": lease["token"]},
            trust_env=False,
        )
    assert done.times == 1
    assert status(gateway.database, "orders") == stored


HEAD = b"PATCH /v1/data/orders/7 HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 1\r\nContent-Type: application/json\r\n"
LENGTH = (HEAD + b"Content-Length: 17\r\n\r\n", b'{"status":"pa', b'id"}')
CHUNKED = (HEAD + b"Transfer-Encoding: chunked\r\n\r", b'\nd\r\n{"status":"pa\r\n4\r\ni', b'd"}\r\n0\r\n', b"\r\n")
GET = (b"GET /v1/data/orders?status=eq.paid HTTP/1.1\r\nHost: localhost\r\n\r\n",)


@pytest.mark.parametrize("packets", [LENGTH, CHUNKED, [bytes([each]) for each in b"".join(CHUNKED)]])
def test_a_request_is_read_whole_whatever_its_packets(packets: Sequence[bytes]) -> None:
    conversation = HttpConversation()
    *before, last = [piece for packet in (*packets, *packets) for piece in conversation.from_client(packet)]
    assert b"".join(piece.data for piece in (*before, last)) == b"".join(packets) * 2
    assert last.commits[0].endswith('{"status":"paid"}')
    assert [piece for piece in before if piece.commits] == [dataclasses.replace(last, data=packets[-1])]


@pytest.mark.parametrize("status", [200, 409])
def test_an_answer_is_read_whatever_comes_before_it_and_in_whatever_packets(status: int) -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 %d It\r\n\r\n" % status
    )
    for packets in ([answer], [bytes([each]) for each in answer], [answer[:25], answer[25:]]):
        conversation = HttpConversation()
        for packet in LENGTH:
            list(conversation.from_client(packet))
        pieces = [piece for packet in packets for piece in conversation.from_server(packet)]
        assert b"".join(piece.data for piece in pieces) == answer
        assert sum(piece.concludes for piece in pieces) == (status < 300)


@pytest.mark.parametrize("packets", [LENGTH, GET])
def test_a_request_of_any_method_is_matched(gateway: GatewayServer, packets: Sequence[bytes]) -> None:
    with Link.to(gateway.url) as link, socket.create_connection((link.host, link.port)) as client:
        with cut(link, when="before-commit", matching="paid") as done:
            client.sendall(b"".join(packets))
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert (done.times, status(gateway.database, "orders")) == (1, "new")


def test_a_half_open_connection_keeps_its_transaction_open_until_the_block_ends(plain: str) -> None:
    open_backends = (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    with Link.to(plain) as link, psycopg.connect(plain, autocommit=True) as observer:
        with cut(link, when="before-commit", half_open=True), psycopg.connect(link.url) as connection:
            with pytest.raises(psycopg.OperationalError):
                pay(connection)
            assert observer.execute(open_backends.encode()).fetchone() == (1,)
        assert status(plain) == "new"
