"""A client belongs to one process and one event loop: elsewhere it says so, at once."""

import asyncio
import subprocess
import sys

import httpx
import pytest

from fencepost import Client
from fencepost.testing.servers.processes import PATIENCE

FORKED = """
import os, sys
from fencepost import SyncClient
with SyncClient("http://127.0.0.1:9", timeout=1, retry=None) as client:
    child = os.fork()
    if child == 0:
        try:
            client.select("orders")
        except RuntimeError as error:
            print(error)
        client.close()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("parent")
"""


def test_a_forked_process_is_told_to_open_a_client_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    said, parent = ran.stdout.splitlines()
    assert "from which this one was forked" in said
    assert parent == "parent", "its own client is closed as ever"


ASYNC_FORKED = """
import asyncio, os
from fencepost import Client
async def main():
    client = Client("http://127.0.0.1:9", timeout=1, retry=None)
    try:
        await client.select("orders")
    except Exception:
        pass
    child = os.fork()
    if child == 0:
        for asked in (client.select("orders"), client.lock("a").__aenter__()):
            try:
                await asked
            except RuntimeError as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    await client.aclose()
asyncio.run(main())
"""


def test_a_forked_process_is_told_that_the_client_of_an_event_loop_belongs_to_another() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASYNC_FORKED], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.stdout.count("or before a fork") == 2, ran.stdout + ran.stderr


def test_a_client_in_a_second_event_loop_says_that_it_belongs_to_the_first() -> None:
    client = Client("http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=[])))

    async def ask() -> object:
        return await client.select("orders")

    assert asyncio.run(ask()) == []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this Client was used in another event loop"):
            asyncio.run(ask())


def test_a_key_log_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", "/none/there")
    with pytest.raises(ValueError, match=r"TLS cannot be used: .*/none/there.* \(SSLKEYLOGFILE\)"):
        Client("https://x")
    command = [sys.executable, "-m", "fencepost", "mint", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = "Error: SSLKEYLOGFILE: /none/there cannot be opened: No such file or directory\n"
    assert (ran.returncode, ran.stderr) == (1, said)
