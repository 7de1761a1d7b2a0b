"""Keys that seal tokens: changed without a restart and without a refused write; and what a file of keys cannot be."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.sealed_ways import REFUSED, key_line, lease
from tests.support.asking import Api, code
from tests.support.interleave import Connect

from fencepost.server.fence.seal import Binding, parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.gateway.gateway import Seals
from fencepost.server.observe.events import Event, SealKeysRead, SealKeysUnreadable
from fencepost.server.ops.protect import protect
from fencepost.server.parts import SealKeysFile, read_seal_keys
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError
from fencepost.testing.servers.processes import eventually


@pytest.fixture
async def sealed_database(database: str, connect: Connect) -> str:
    owner = await connect()
    await owner.execute(
        "CREATE TABLE public.orders (id text PRIMARY KEY, n int); INSERT INTO public.orders VALUES ('a')"
    )
    await protect(owner, "orders", source="builtin", sealed=True)
    return database


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(key_line("one"))
    return file


@pytest.fixture
async def api(sealed_database: str, keys: Path, start_gateway: StartGateway) -> AsyncIterator[Api]:
    async with Api.open(await start_gateway(sealed_database, seal_keys_file=str(keys))) as api:
        yield api


def replace(file: Path, text: str) -> None:
    """Change a file as an operator should: at once."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


async def seals_with(api: Api, key: str) -> None:
    """Wait until the gateway seals with this key."""

    async def does() -> bool:
        held = await lease(api, f"probe-{time.monotonic_ns()}")
        return bool(held["sealed_token"].split(".")[1] == key)

    await eventually(does)


async def write(api: Api, token: str) -> httpx.Response:
    return await api.ask("PATCH", "data/orders/a", {"n": 1}, token=token)


async def test_keys_are_changed_in_three_steps_and_no_write_is_refused(api: Api, keys: Path) -> None:
    held = await lease(api, "orders/a")
    old = iter(held["sealed_tokens"])
    replace(keys, key_line("one") + key_line("two", 2))  # 1: everywhere known
    assert (await write(api, next(old))).status_code == 200
    replace(keys, key_line("two", 2) + key_line("one"))  # 2: it seals
    await seals_with(api, "two")
    assert (await write(api, next(old))).status_code == 200
    minted = await api.http.post(
        f"/v1/leases/{held['lease_id']}/tokens", json={"count": 2}, headers={"X-Lease-Secret": held["secret"]}
    )
    new = iter(minted.json()["sealed_tokens"])
    assert (await write(api, next(new))).status_code == 200
    replace(keys, key_line("two", 2))  # 3: the old one is taken away
    last = next(new)

    async def refused() -> bool:
        answer = await api.ask("PATCH", "data/orders/a", {"n": 1}, token=held["sealed_tokens"][-1])
        return code(answer) == REFUSED and answer.json()["reason"] == "unknown-key"

    await eventually(refused)
    assert (await write(api, last)).status_code == 200


async def test_a_seal_of_another_source_or_time_or_with_another_key_is_refused(api: Api) -> None:
    held = await lease(api, "elsewhere")
    token, names = Token(int(held["token"])), frozenset({"orders/a"})
    right = parse_keys(key_line("one"))
    of_lease = Binding("builtin", held["lease_id"], names)
    for text, reason in (
        (right.seal([token], of_lease, int(time.time()) - 1)[0], "ended"),  # noqa: TID251 - what a gateway compares with
        (right.seal([token], Binding("etcd", "etcd-1", names), 2**40)[0], "other-source"),
        (parse_keys(key_line("one", 9)).seal([token], Binding("builtin", "1", names), 2**40)[0], "wrong-seal"),
        (parse_keys(key_line("nine")).seal([token], Binding("builtin", "1", names), 2**40)[0], "unknown-key"),
    ):
        answer = await write(api, text)
        assert (code(answer), answer.json()["reason"]) == (REFUSED, reason)
    never = right.seal([Token(10**9)], Binding("builtin", "1", names), 2**40)[0]
    assert code(await write(api, never)) == (409, "FP018")  # the fence decides, whatever the seal says
    assert (await write(api, right.seal([token], Binding("builtin", "1", names), 2**40)[0])).status_code == 200


def test_a_file_that_cannot_be_read_leaves_the_last_good_keys(keys: Path) -> None:
    seen: list[Event] = []
    seals = Seals(read_seal_keys(Settings(seal_keys_file=keys)))
    file = SealKeysFile(keys, seals, seen.append)
    file.look()
    assert seen == []
    replace(keys, "one:short\n")
    for _ in range(3):
        file.look()
    assert [type(event) for event in seen] == [SealKeysUnreadable]
    assert "line 1: the key one" in str(seen[0])
    assert seals.keys == parse_keys(key_line("one"))
    keys.unlink()
    file.look()
    assert [type(event) for event in seen] == [SealKeysUnreadable, SealKeysUnreadable]
    keys.write_text(key_line("one"))
    file.look()
    before = keys.stat()
    keys.write_text(key_line("two"))
    os.utime(keys, ns=(before.st_atime_ns, before.st_mtime_ns))
    file.look()
    assert seals.keys == parse_keys(key_line("one")), "a file may change twice within the resolution of its time"
    file.read()
    assert seals.keys == parse_keys(key_line("two")), "SIGHUP reads it in any case"
    keys.write_text(key_line("one"))
    file.read()
    keys.write_text(key_line("two"))
    file.look()
    assert seen[-1] == SealKeysRead(("two",))
    assert seals.keys == parse_keys(key_line("two"))


def test_a_gateway_does_not_start_with_keys_that_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for text, said in ((b"#", "there is no key in it"), (b"a:b\n", "the key a"), (b"#" * 70_000, "65536 bytes")):
        file.write_bytes(text)
        with pytest.raises(StartupError) as raised:
            read_seal_keys(Settings(seal_keys_file=file))
        assert "FENCEPOST_SEAL_KEYS_FILE" in str(raised.value), text
        assert said in str(raised.value), text
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="it is no text"):
        Settings(seal_keys_file=file)
