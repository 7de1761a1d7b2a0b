"""`fencepost lock`: what the command sees, and how it ends."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.cli.running import StartLock, locks, variables_in, waiters, written

from fencepost.cli.lock import margin_for
from fencepost.cli.main import main

ENV = "env > env.new && mv env.new env"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"


async def test_the_command_has_token_lease_and_url_and_nothing_else_is_printed(
    lock: StartLock, http: httpx.AsyncClient, gateway_url: str, tmp_path: Path
) -> None:
    running = lock("nightly", "--", "sh", "-c", f"{ENV}; echo out; {UNTIL_GO}")
    seen = await variables_in(tmp_path / "env")
    [held] = await locks(http)
    assert seen.pop("FENCEPOST_LEASE_SECRET") not in str(held)
    assert int(seen.pop("FENCE_TOKEN")) > 0
    assert seen == {"FENCE_LOCK": "nightly", "FENCEPOST_URL": gateway_url, "FENCEPOST_LEASE": held["lease_id"]}
    (tmp_path / "go").touch()
    assert await running.ended() == 0
    assert (await running.output(), running.printed) == ("out\n", "")
    assert await locks(http) == [], "released when the command ended"


async def test_the_exit_code_is_the_commands(lock: StartLock, http: httpx.AsyncClient) -> None:
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "kill -KILL $$"), 128 + 9, ""),
        (("no-such-command",), 127, "fencepost lock: cannot run no-such-command: No such file or directory\n"),
        (("/etc/passwd",), 126, "fencepost lock: cannot run /etc/passwd: Permission denied\n"),
    ]
    for command, code, message in cases:
        running = lock("a", *command)
        assert await running.ended() == code
        assert running.printed == message
        assert await locks(http) == [], "released at once"


async def test_options_stand_around_the_name_and_those_of_the_command_are_its_own(lock: StartLock) -> None:
    running = lock("--ttl", "9", "a", "-n", "--owner", "me", "printf", "%s,", "--ttl", "-n", "--")
    assert await running.ended() == 0
    assert await running.output() == "--ttl,-n,--,"


async def test_stdin_and_descriptors_are_the_commands(lock: StartLock) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"by stdin")
    os.close(writing)
    given, giving = os.pipe()
    os.write(giving, b" and more")
    os.close(giving)
    running = lock("a", "sh", "-c", f"cat; cat /dev/fd/{given}", stdin=reading, pass_fds=(given,))
    os.close(reading)
    os.close(given)
    assert await running.ended() == 0
    assert await running.output() == "by stdin and more"


async def test_a_held_lock_has_an_exit_code_of_its_own(lock: StartLock, tmp_path: Path) -> None:
    lock("a", "--owner", "holder-1", "sh", "-c", f"echo > held; {UNTIL_GO}")
    await written(tmp_path / "held")
    cases: list[tuple[tuple[str, ...], int, bool]] = [
        (("--no-wait",), 75, False), (("--wait", "0.5"), 75, False), (("-n", "-E", "9"), 9, False),
        (("-n", "-E", "0"), 0, True),
    ]  # fmt: skip
    others = [lock("a", *options, "touch", "ran") for options, _, _ in cases]
    for other, (_, code, silent) in zip(others, cases, strict=True):
        assert await other.ended() == code
        assert ("a is held by holder-1 since 20" in other.printed) is not silent
        assert len(other.printed.splitlines()) == (0 if silent else 1)
    assert not (tmp_path / "ran").exists()


async def test_a_port_without_a_listener_is_unreachable_for_lock_and_for_mint(lock: StartLock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    running = lock("a", "touch", "ran", url=url)
    minting = lock("a", "sh", "-c", f"FENCEPOST_URL={url} $MINT")
    assert await running.ended() == 69
    assert running.printed.startswith(f"fencepost lock: cannot ask {url}: ")
    assert len(running.printed.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert await minting.ended() == 69, "the exit code of the command"
    assert (await minting.output(), minting.printed.count("mint") >= 1) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a",), "Missing argument 'COMMAND...'"),
        (("a", "--wait", "3", "-n", "true"), "--wait and --no-wait contradict each other"),
        (("a", "--grace", "6", "--ttl", "12", "true"), "The grace can be 5.4 s at most"),
        (("a", "--ttl", "nan", "true"), "ttl=nan"),
        (("a", "--wait", "nan", "true"), "wait=nan"),
        (("a", "--url", "gateway:8080", "true"), "a gateway is at http://host:port"),
        (("a", "--url", "http://127.0.0.1:99999", "true"), "a port is at most 65535"),
        (("a", "--url", "http://worker:S3cr3t@127.0.0.1:9", "true"), "a gateway's URL has no user and no password"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(arguments: tuple[str, ...], message: str) -> None:
    refused = CliRunner().invoke(main, ["lock", "--url", "http://127.0.0.1:9", *arguments])
    assert (refused.exit_code, message in refused.output) == (2, True), refused.output
    assert "S3cr3t" not in refused.output


async def test_what_the_gateway_refuses_has_exit_code_2(lock: StartLock) -> None:
    for arguments, message in (
        (("a", "--ttl", "4000", "true"), "refused: body: ttl_ms"),
        (("a", "--claim-resource", "nowhere/1", "true"), "nowhere"),
    ):
        running = lock(*arguments)
        assert await running.ended() == 2
        assert message in running.printed


async def test_verbose_names_who_holds_it_and_what_was_acquired(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    lock("a", "--owner", "holder-1", "sh", "-c", f"echo > held; {UNTIL_GO}")
    await written(tmp_path / "held")
    other = lock("-v", "a", "sh", "-c", ENV)
    await written(other.errors)
    assert "waiting for a: held by holder-1 since 20" in other.printed
    (tmp_path / "go").touch()
    assert await other.ended() == 0
    seen = await variables_in(tmp_path / "env")
    assert f"acquired a: lease {seen['FENCEPOST_LEASE']}, token {seen['FENCE_TOKEN']}\n" in other.printed
    assert seen["FENCEPOST_LEASE_SECRET"] not in other.printed
    assert await locks(http) == []


async def test_a_signal_ends_the_wait_and_the_place(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    lock("a", "sh", "-c", f"echo > held; {UNTIL_GO}")
    await written(tmp_path / "held")
    waiting = lock("a", "touch", "ran")
    await waiters(http, 1)
    waiting.process.terminate()
    assert await waiting.ended() == 128 + 15
    (tmp_path / "go").touch()
    assert await lock("a", "--wait", "5", "true").ended() == 0, "the one that was ended does not block the queue"
    assert not (tmp_path / "ran").exists()


async def test_a_claim_fences_older_holders_before_the_command_writes(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    lock("orders/order-123", "--claim", "sh", "-c", f"{ENV}; {UNTIL_GO}")
    token = int((await variables_in(tmp_path / "env"))["FENCE_TOKEN"])

    async def write(with_token: int) -> int:
        headers = {"X-Fence-Token": str(with_token)}
        return (await http.patch("/v1/data/orders/order-123", json={"note": "x"}, headers=headers)).status_code

    assert await write(token - 1) == 409, "the claim's own token, and every older one"
    assert await write(token) == 200, "FENCE_TOKEN was not spent by the claim"


async def test_several_locks_are_taken_together_or_not_at_all(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    lock("b", "--also", "a", "sh", "-c", f"{ENV}; {UNTIL_GO}")
    assert (await variables_in(tmp_path / "env"))["FENCE_LOCK"] == "b"
    assert [held["name"] for held in await locks(http)] == ["a", "b"]
    other = lock("c", "--also", "a", "-n", "true")
    assert await other.ended() == 75
    assert "a is held by" in other.printed
    assert [held["name"] for held in await locks(http)] == ["a", "b"]


async def test_mint_prints_fresh_tokens_that_are_good_for_writes(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    script = "set -e; echo $FENCE_TOKEN > new; $MINT >> new; $MINT 3 >> new; mv new tokens"
    lock("a", "sh", "-c", f"{script}; {UNTIL_GO}")
    tokens = [int(token) for token in await written(tmp_path / "tokens", lines=5)]
    assert tokens == sorted(set(tokens))
    for token in tokens:
        headers = {"X-Fence-Token": str(token)}
        answer = await http.patch("/v1/data/orders/order-123", json={"note": str(token)}, headers=headers)
        assert answer.status_code == 200


async def test_mint_fails_with_the_exit_codes_of_lock_and_prints_no_token(lock: StartLock, tmp_path: Path) -> None:
    cases = [
        ("FENCEPOST_LEASE=999999 $MINT", 79), ("FENCEPOST_LEASE=999999 $MINT --lost-exit-code 5", 5),
        ("FENCEPOST_LEASE_SECRET=0123456789012345678901 $MINT", 79), ("FENCEPOST_URL=nowhere $MINT", 2),
        ("$MINT 1001", 2), ("$MINT --sealed", 2), ("unset FENCEPOST_LEASE; $MINT", 2),
    ]  # fmt: skip
    running = lock("a", "sh", "-c", "; ".join(f"({script}); echo $? >> codes" for script, _ in cases))
    assert await running.ended() == 0
    assert await written(tmp_path / "codes") == [str(code) for _, code in cases]
    assert await running.output() == ""
    assert running.printed.count("mint") >= len(cases)


# `fencepost lock --help`, and the timings that it refuses.


def test_the_help_shows_the_exit_codes_and_the_environment() -> None:
    answer = CliRunner().invoke(main, ["lock", "--help"])
    assert answer.exit_code == 0
    assert "lock NAME [OPTIONS] [--] COMMAND [ARGS]..." in answer.output
    for code in ("2", "69", "75", "79", "126", "127", "128+n"):
        assert f" {code}  " in answer.output, code
    for variable in ("FENCE_TOKEN", "FENCE_LOCK", "FENCEPOST_URL", "FENCEPOST_LEASE", "FENCEPOST_LEASE_SECRET"):
        assert f"  {variable}  " in answer.output, variable


def test_lock_and_mint_load_no_server() -> None:
    code = (
        "import sys; from fencepost.cli.main import main\n"
        "for name in ('lock', 'mint', 'batch'): main.get_command(None, name)\n"
        "print([name for name in ('fastapi', 'sqlalchemy', 'asyncpg', 'alembic', 'pydantic') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("ttl", "grace", "margin"), [(30.0, 5.0, 6.5), (6.0, 1.0, 1.3), (0.3, 0.05, 0.07), (30.0, 0.0, 1.5)]
)
def test_trust_ends_by_the_grace_and_the_clients_own_margin_early(ttl: float, grace: float, margin: float) -> None:
    assert margin_for(ttl, grace) == pytest.approx(margin)


@pytest.mark.parametrize(("ttl", "grace"), [(30.0, 13.6), (30.0, -1.0), (30.0, float("nan")), (10.0, 5.0)])
def test_a_grace_that_does_not_fit_into_the_ttl_is_refused(ttl: float, grace: float) -> None:
    with pytest.raises(ValueError, match=r"--grace .* does not fit into --ttl"):
        margin_for(ttl, grace)
