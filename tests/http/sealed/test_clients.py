"""The Python client and the commands with sealed tokens: what they send and show, and that numbers stay numbers."""

import asyncio
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
from click.testing import CliRunner
from tests.http.sealed_ways import SealedShop

from fencepost import Client, FenceToken, SealRefused, SyncClient
from fencepost.cli.main import main
from fencepost.client import TokenRequired


@pytest.fixture
async def client(shop: SealedShop) -> AsyncIterator[Client]:
    await shop.reset()
    async with Client(shop.url) as client:
        yield client


async def test_a_lease_writes_what_it_is_bound_to_by_every_method(client: Client) -> None:
    async with client.lock("job", writes=["orders/*", "account/42"], claim="numbered/007") as lease:
        await client.patch("orders", "a", {"status": "1"}, lease=lease)
        await client.put("orders", "c", {"status": "1"}, lease=lease)
        await client.post("orders", [{"order_id": "d"}, {"order_id": "e"}], lease=lease)
        await client.patch_where("orders", {"order_id": "in.(a,c)"}, {"status": "2"}, lease=lease)
        await client.patch_rows("orders", [{"order_id": "a", "status": "3"}], lease=lease)
        await client.delete_where("orders", {"order_id": "eq.e"}, lease=lease)
        await client.delete("orders", "d", lease=lease)
        await client.patch("numbered", 7, {"label": "x"}, lease=lease)
        await client.patch("transfers", 2, {"amount": 1}, lease=lease)
        await lease.claim("orders/a")
        queued = await client.submit.patch("orders", "c", {"status": "q"}, lease=lease)
        assert (await queued.result())["status"] == "q"
        with pytest.raises(SealRefused, match="account/41") as refused:
            await client.patch("transfers", 1, {"amount": 1}, lease=lease)
        assert (refused.value.reason, refused.value.resource, refused.value.status) == (
            "other-resource",
            "account/41",
            403,
        )


async def test_a_token_is_a_number_and_its_text_is_what_is_presented(client: Client) -> None:
    async with client.lock("numbers", writes="orders/*") as lease:
        first, second = await lease.next_token(), await lease.next_token()
        assert first < second
        assert f"{first}" == str(int(first))
        assert first.text.startswith(f"{first}.one.")
        await client.patch("orders", "a", {"status": "x"}, token=FenceToken.read(first.text))
        with pytest.raises(TokenRequired):
            await client.patch("orders", "a", {"status": "x"}, token=int(second))
    with pytest.raises(ValueError, match="begins with its number"):
        FenceToken.read("x.one")


async def test_seals_that_have_ended_are_replaced_once_unseen(client: Client) -> None:
    async with client.lock("long", writes="orders/*") as lease:
        drawn = [await lease.next_token() for _ in range(2)]
        # As they are after a day: of a key that was taken away meanwhile.
        for token in lease._pool._tokens:  # noqa: SLF001 - what is at hand
            assert token.sealed is not None
            token.sealed = token.sealed.replace(".one.", ".gone.")
        row = await client.patch("orders", "a", {"status": "y"}, lease=lease)
        assert row["status"] == "y"
        newer = await lease.next_token()
        assert newer > drawn[-1]
        assert ".one." in newer.text
        await lease.claim("orders/b")


def test_the_synchronous_client_sends_seals_as_well(shop: SealedShop) -> None:
    with SyncClient(shop.url) as client, client.lock("sync", writes="orders/*") as lease:
        client.patch("orders", "a", {"status": "s"}, lease=lease)
        with lease.operation("orders/a") as token:
            assert isinstance(token, FenceToken)
            assert token.sealed is not None


async def run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_the_command_gets_number_and_seal_and_mint_prints_either(shop: SealedShop) -> None:
    await shop.reset()
    script = (
        f'echo "$FENCE_TOKEN"; echo "$FENCE_SEALED_TOKEN"; {sys.executable} -m fencepost mint;'
        f" {sys.executable} -m fencepost mint --sealed"
    )
    code, out = await run("lock", "--url", shop.url, "--writes", "orders/*", "shell", "--", "sh", "-c", script)
    number, sealed, minted, minted_sealed = out.split()
    assert code == 0
    assert sealed.startswith(f"{number}.one.")
    assert minted.isdigit()
    assert minted_sealed.count(".") == 3
    async with httpx.AsyncClient(base_url=shop.url, trust_env=False) as http:
        for token, status in ((minted, 428), (minted_sealed, 200)):
            answer = await http.patch("/v1/data/orders/a", json={"status": "sh"}, headers={"X-Fence-Token": token})
            assert answer.status_code == status


async def test_doctor_and_status_show_seals(shop: SealedShop) -> None:
    def invoke(*arguments: str) -> str:
        return CliRunner().invoke(main, [*arguments, "--database-url", shop.dsn]).output

    shown = await asyncio.to_thread(invoke, "status")
    assert "builtin (sealed)" in shown
    assert '"sealed": true' in await asyncio.to_thread(invoke, "status", "--json")
    without = await asyncio.to_thread(invoke, "doctor")
    assert "ERROR    seals:" in without
    assert "orders" in without.partition("seals: ")[2].splitlines()[0]
    with_keys = await asyncio.to_thread(invoke, "doctor", "--seal-keys-file", str(shop.keys))
    assert "ok       seals: one seals, one verify" in with_keys
    bad = shop.keys.with_name("bad")
    bad.write_text("x")
    assert "line 1: it has no colon" in await asyncio.to_thread(invoke, "doctor", "--seal-keys-file", str(bad))
