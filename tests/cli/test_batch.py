"""`fencepost batch`: a file of lines, what was refused of it, and going on where it stopped."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.running import FENCEPOST, environment
from tests.support.use_cases import patch_line, written

from fencepost.testing.servers.processes import PATIENCE, wait_until

LINES: list[object] = [
    {**patch_line("order-123", 1001, amount=0), "path": "orders/order-123?select=amount"},
    b"\n",
    b"no JSON\n",
    b'{"claim": "orders/order-124", "token": 1002, "token": 1003}\n',
    {**patch_line("order-123", 1, note="stale")},
    {"claim": "orders/order-125", "token": 1004},
]


def run(url: str, *arguments: str, stdin: bytes = b"") -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [*FENCEPOST, "batch", *arguments], input=stdin, env=environment(FENCEPOST_URL=url), capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_what_was_refused_is_printed_by_the_numbers_of_the_file_and_nothing_is_done_twice(
    gateway_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    text = b"".join(written(line) for line in LINES).replace(b'"amount": 0', b'"amount": 1.10')
    file.write_bytes(text[:-1])
    code, refused, said = run(gateway_url, str(file))
    assert [(verdict["number"], verdict["status"]) for verdict in refused] == [(3, 400), (4, 400), (5, 409)]
    assert (code, said.splitlines()[-1]) == (1, "2 accepted, 3 refused")
    code, verdicts, said = run(gateway_url, str(file), "--all", "--from-line", "5")
    assert [(each["number"], each["status"], each.get("replayed")) for each in verdicts] == [
        (5, 409, None), (6, 200, True),
    ]  # fmt: skip
    assert said.splitlines()[-1] == "1 accepted (1 of them had been done before), 1 refused"
    first = text.splitlines()[0]
    code, verdicts, said = run(gateway_url, "-", "--all", "--run", str(file), stdin=first)
    assert (code, verdicts[0]["body"], verdicts[0]["replayed"]) == (0, {"amount": 1.1}, True), "the key is the text's"
    other = tmp_path / "other"
    other.write_bytes(first.replace(b"1001", b"2001"))
    anew = [run(gateway_url, each, "--all", stdin=other.read_bytes()) for each in ("-", "-", str(other))]
    said_of = [(verdicts[0]["status"], verdicts[0].get("replayed")) for _, verdicts, _ in anew]
    assert said_of == [(200, None), (409, None), (409, None)], "another run is not this one: its token is spent"


def test_a_line_behind_the_end_of_the_file_is_bad_usage(gateway_url: str) -> None:
    assert run(gateway_url, "-", "--from-line", "3", stdin=b"\n\n")[0] == 0, "that is where a file goes on that is done"
    code, _, said = run(gateway_url, "-", "--from-line", "4", stdin=b"\n\n")
    assert (code, said.splitlines()[-1]) == (2, "Error: --from-line 4: <stdin> has 2 lines.")


def test_where_verdicts_cannot_be_printed_it_says_where_to_go_on(gateway_url: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(written(LINES[-1]) + b"no JSON\n")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*FENCEPOST, "batch", file, "--run", "a name"], stdout=full, stderr=subprocess.PIPE, check=False,
            env=environment(FENCEPOST_URL=gateway_url, PYTHONUNBUFFERED=""),  # what is left would be written at the end
        )  # fmt: skip
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1] == b"fencepost batch: go on with --from-line 2 --run 'a name'"


def test_a_gateway_that_is_not_there_is_69_and_says_where_to_go_on() -> None:
    code, verdicts, said = run("http://127.0.0.1:9", "-", "--from-line", "2", stdin=b"\n" + written(LINES[0]))
    assert (code, verdicts) == (69, [])
    assert re.fullmatch("fencepost batch: go on with --from-line 2 --run [0-9a-f]{16}", said.splitlines()[-1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_it_says_where_to_go_on(gateway_url: str, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*FENCEPOST, "batch", "-", "--all"], env=environment(FENCEPOST_URL=gateway_url), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"".join(written(patch_line("order-123", 1001 + each, note="x")) for each in range(300)))
    process.stdin.flush()
    assert process.stdout is not None
    numbers = [json.loads(process.stdout.readline())["number"] for _ in range(300)]
    assert numbers == list(range(1, 301)), "also those behind the last whole 256, while it waits for the next line"
    wait_until(lambda: "poll" in Path(f"/proc/{process.pid}/wchan").read_text(), what="the last one is printed")
    process.send_signal(number)
    assert process.wait(PATIENCE) == code
    _, said = process.communicate()
    assert b"fencepost batch: go on with --from-line 301 --run " in said
    fence = httpx.get(f"{gateway_url}/v1/fences?resource=orders/order-123", trust_env=False)
    assert fence.json()["mark"] == "1300"
