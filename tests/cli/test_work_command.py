"""`fencepost work`: a command for each row. The demo's new orders are jobs."""

import json
import re
import signal
from pathlib import Path

import httpx
from click.testing import CliRunner
from tests.cli.running import Running, StartLock, locks, release, variables_in, written
from tests.support.gateways import DemoGateway
from tests.support.interleave import connection_to
from tests.support.servers import all_gone

from fencepost.cli.main import main

NEW = ("orders", "--where", "status=eq.new", "--order", "order_id")
WRITES = ("--done", "status=paid", "--failed", "status=cancelled", "--failed", "note=see the log")
ENV = "env > env.new && mv env.new env"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"
PATCH = 'curl -sf -o answer -X PATCH "$FENCEPOST_URL/v1/data/$FENCE_LOCK" -H "Content-Type: application/json"'


async def statuses(http: httpx.AsyncClient) -> dict[str, str]:
    rows = (await http.get("/v1/data/orders", params={"select": "order_id,status"})).json()
    return {row["order_id"]: row["status"] for row in rows}


def told(running: Running) -> list[str]:
    """What was printed, without how long it took."""
    return [re.sub(r" after [\d.]+ s", "", line.removeprefix("fencepost work: ")) for line in running.lines]


async def test_each_row_is_given_to_the_command_whose_exit_code_is_written_to_it(
    lock: StartLock, http: httpx.AsyncClient, gateway_url: str, tmp_path: Path
) -> None:
    script = f"cat > $(basename $FENCE_LOCK).json; {ENV}; [ $FENCE_LOCK = orders/order-123 ] || exit 3"
    running = lock(*NEW, "--once", *WRITES, "sh", "-c", script, verb="work")
    assert await running.ended() == 0
    assert told(running) == [
        "orders/order-123, attempt 1: done", "orders/order-125, attempt 1: exit code 3",
        "1 done, 1 failed, 0 lost, 0 ended",
    ]  # fmt: skip
    assert await statuses(http) == {"order-123": "paid", "order-124": "paid", "order-125": "cancelled"}
    assert (await http.get("/v1/data/orders/order-125")).json()["note"] == "see the log"
    assert json.loads((tmp_path / "order-123.json").read_text())["customer"] == "Ada"
    seen = await variables_in(tmp_path / "env")
    assert (int(seen.pop("FENCE_TOKEN")) > 0, bool(seen.pop("FENCEPOST_LEASE_SECRET"))) == (True, True)
    assert seen.pop("FENCEPOST_LEASE").isdigit()
    assert seen == {"FENCE_LOCK": "orders/order-125", "FENCEPOST_ATTEMPT": "1", "FENCEPOST_URL": gateway_url}
    assert await locks(http) == []


async def test_what_is_written_at_the_end_is_newer_than_what_the_command_wrote_with_tokens_of_its_own(
    lock: StartLock, http: httpx.AsyncClient
) -> None:
    note = f"""{PATCH} -d '{{"note": "mine"}}' -H "X-Fence-Token:"""
    running = lock(*NEW, "--once", *WRITES, "sh", "-c", f'{note} $FENCE_TOKEN" && {note} $($MINT)"', verb="work")
    assert await running.ended() == 0
    assert told(running)[-1] == "2 done, 0 failed, 0 lost, 0 ended", running.printed
    assert set((await statuses(http)).values()) == {"paid"}


async def test_a_row_whose_command_failed_is_next_again_after_a_pause_and_its_attempt_one_higher(
    lock: StartLock, http: httpx.AsyncClient
) -> None:
    name, one = "orders/order-123, attempt", (*NEW, "--where", "order_id=eq.order-123", "--done", "status=paid")
    failing = lock(*one, "--pause", "60", "false", verb="work")
    await written(failing.errors)
    other = lock(*one, "--once", "true", verb="work")
    assert (await other.ended(), told(other)) == (0, ["0 done, 0 failed, 0 lost, 0 ended"]), "it is taken for the pause"
    failing.signal(signal.SIGTERM)
    assert await failing.ended() == 0
    assert told(failing) == [
        f"{name} 1: exit code 1: it is next again", "SIGTERM: no more rows are taken; commands that run: 0",
        "0 done, 1 failed, 0 lost, 0 ended",
    ]  # fmt: skip
    script = "[ $FENCEPOST_ATTEMPT -gt 2 ]"
    running = lock(*one, "--once", "--pause", "0.1", "sh", "-c", script, verb="work")
    assert await running.ended() == 0
    assert told(running)[:2] == [f"{name} 2: exit code 1: it is next again", f"{name} 3: done"]
    assert (await statuses(http))["order-123"] == "paid"


async def test_a_command_whose_lease_is_lost_is_ended_and_the_row_is_done_by_the_next(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    script = f"[ $FENCEPOST_ATTEMPT = 1 ] || exit 0; echo $$ > pid; {ENV}; while :; do sleep 0.02; done"
    one = (*NEW, "--once", "--where", "order_id=eq.order-123", *WRITES)
    running = lock(*one, "--ttl", "12", "sh", "-c", script, verb="work")
    await release(http, await variables_in(tmp_path / "env"))
    other = lock(*one, "true", verb="work")
    assert (await other.ended(), await running.ended()) == (0, 0)
    await all_gone([int((tmp_path / "pid").read_text())])
    assert told(other)[0] == "orders/order-123, attempt 2: done"
    assert told(running) == [
        "orders/order-123, attempt 1: the lease was lost, the command was ended", "0 done, 0 failed, 1 lost, 0 ended",
    ]  # fmt: skip


async def test_the_row_of_a_worker_that_was_killed_is_done_by_another_one(
    lock: StartLock, http: httpx.AsyncClient, shared: DemoGateway, tmp_path: Path
) -> None:
    killed = lock(*NEW, *WRITES, "sh", "-c", f"echo $$ > pid; {ENV}; while :; do sleep 0.02; done", verb="work")
    seen = await variables_in(tmp_path / "env")
    killed.signal(signal.SIGKILL)
    await all_gone([int((tmp_path / "pid").read_text())])
    async with connection_to(shared.dsn) as connection:
        await connection.execute("UPDATE fencepost.leases SET expires_at = clock_timestamp()")
    other = lock(*NEW, "--once", *WRITES, "true", verb="work")
    assert (await other.ended(), told(other)[0]) == (0, "orders/order-123, attempt 2: done")
    headers = {"X-Fence-Token": seen["FENCE_TOKEN"]}
    late = await http.patch("/v1/data/orders/order-123", json={"note": "late"}, headers=headers)
    assert (late.status_code, late.json()["code"]) == (409, "FP001")


async def test_term_lets_what_runs_finish_and_a_second_one_ends_it(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    for order, second in (("order-123", False), ("order-125", True)):
        began = tmp_path / f"began-{order}"
        script = f"echo $$ > {began.name}; {UNTIL_GO}"
        running = lock(*NEW, *WRITES, "-c", "2", "--where", f"order_id=eq.{order}", "sh", "-c", script, verb="work")
        [pid] = await written(began)
        running.signal(signal.SIGTERM)
        await written(running.errors)
        assert told(running) == ["SIGTERM: no more rows are taken; commands that run: 1"]
        running.signal(signal.SIGTERM) if second else (tmp_path / "go").touch()
        assert await running.ended() == 0
        (tmp_path / "go").unlink(missing_ok=True)
        await all_gone([int(pid)])
        end = "1: the command was ended" if second else "1: done"
        assert told(running)[-2:] == [
            f"orders/{order}, attempt {end}", f"{int(not second)} done, 0 failed, 0 lost, {int(second)} ended",
        ]  # fmt: skip
        assert await locks(http) == []
    assert await statuses(http) == {"order-123": "paid", "order-124": "paid", "order-125": "new"}


async def test_what_cannot_be_run_or_asked_for_ends_the_worker(lock: StartLock, http: httpx.AsyncClient) -> None:
    for arguments, code, said in (
        ((*NEW, "no-such-command"), 127, "cannot run no-such-command: No such file or directory"),
        (("nowhere", "true"), 2, "nowhere"),
    ):
        running = lock(*arguments, verb="work")
        assert await running.ended() == code
        assert said in running.printed
    assert await locks(http) == []
    refused = CliRunner().invoke(main, ["work", "orders", "--done", "paid", "true"])
    assert (refused.exit_code, "write COLUMN=VALUE" in refused.output) == (2, True)
