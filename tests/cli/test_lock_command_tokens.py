"""`fencepost lock`, `elect` and `mint` at a gateway that wants API keys; and what the command gets of them."""

import subprocess
from pathlib import Path

import pytest
from tests.cli.running import FENCEPOST, StartLock, environment, variables_in, written
from tests.support import gateways
from tests.support.interleave import Connection

from fencepost.server.postgres import api_keys

shared, owner = gateways.shared, gateways.owner
SHOW = ("sh", "-c", "env > env.new; mv env.new env")


@pytest.fixture
async def key(owner: Connection) -> str:
    _, key = await api_keys.create(owner, gateways.FOR_ALL)
    return key


async def test_a_key_comes_from_a_file_which_the_command_knows_of(lock: StartLock, key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{key}\n")
    running = lock(
        "--api-token-file", "key", "nightly", "--", "sh", "-c", f"{SHOW[2]}; cd /; $MINT 2 > {tmp_path}/minted"
    )
    assert await running.ended() == 0, running.errors.read_text()
    assert len(await written(tmp_path / "minted", lines=2)) == 2, "mint has the file, wherever the command goes"
    assert (await variables_in(tmp_path / "env"))["FENCEPOST_API_TOKEN_FILE"] == str(tmp_path / "key")
    assert key not in (tmp_path / "env").read_text()


async def test_a_key_of_the_environment_is_not_handed_on(lock: StartLock, key: str, tmp_path: Path) -> None:
    given = ("env", f"FENCEPOST_API_TOKEN={key}")
    running = lock("nightly", "--", "sh", "-c", f"{SHOW[2]}; $MINT", prefix=given, verb="elect")
    assert await running.ended() == 2, "as `mint` exits"
    assert key not in (tmp_path / "env").read_text()
    assert "hands on FENCEPOST_API_TOKEN_FILE, and not FENCEPOST_API_TOKEN" in running.errors.read_text()


async def test_without_a_key_or_with_a_bad_one_it_is_refused_and_the_key_not_shown(
    lock: StartLock, key: str, tmp_path: Path
) -> None:
    running = lock("nightly", "--", "true")
    assert await running.ended() == 2
    assert "(FP036)" in running.errors.read_text()
    running = lock("nightly", "--", "true", prefix=("env", f"FENCEPOST_API_TOKEN={key}0"))
    assert await running.ended() == 2
    assert "(FP037)" in running.errors.read_text()
    assert key not in running.errors.read_text()
    for arguments, message in (
        (("--api-token-file", "nowhere"), "the token's file nowhere cannot be read"),
        (("--api-token-file", "empty"), "the token's file empty: it is empty"),
    ):
        (tmp_path / "empty").write_text("\n")
        running = lock(*arguments, "nightly", "--", "true")
        assert await running.ended() == 2
        assert message in running.errors.read_text()


@pytest.mark.realtime
async def test_a_key_that_is_revoked_ends_the_command_with_its_reason(
    lock: StartLock, key: str, tmp_path: Path, owner: Connection
) -> None:
    (tmp_path / "key").write_text(key)
    running = lock("--api-token-file", "key", "--ttl", "3", "nightly", "--", "sh", "-c", "echo > begun; sleep 60")
    await written(tmp_path / "begun")
    await api_keys.revoke(owner, key.split("_")[1])
    assert await running.ended() == 79
    said = running.errors.read_text()
    assert "unless the gateway renews it: Authorization: the API key" in said
    assert "the last renewal was refused" in said
    assert key not in said


def test_mint_takes_a_key_from_a_file_too(gateway_url: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(key)
    given = environment(FENCEPOST_URL=gateway_url, FENCEPOST_LEASE="999", FENCEPOST_LEASE_SECRET="0" * 32)
    for extra, code in (([], 2), (["--api-token-file", str(tmp_path / "key")], 79)):
        done = subprocess.run([*FENCEPOST, "mint", *extra], env=given, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
