"""DDL, restores and generations at random beside writers of all kinds; the log of PostgreSQL's commits is the judge.

FENCEPOST_STORM_OPERATIONS=40000 makes it the long run, and FENCEPOST_STORM_SEED one that was seen before.
"""

import asyncio
import os
from pathlib import Path

import pytest
from tests.robustness.ddl_storm.ddl import SABOTAGE
from tests.robustness.ddl_storm.storm import NEW, OLD, Storm, judge, rage, server, steer
from tests.robustness.ddl_storm.world import Change, Message, Operation, Transaction, World
from tests.support.postgres import server_bin_dir
from tests.support.violations import assert_none

from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.long("storms of DDL and restores")

OPERATIONS = int(os.environ.get("FENCEPOST_STORM_OPERATIONS") or 1500)
THROUGH = {
    "no hole": None, "raise_mark takes every token": "insert", "a DELETE leaves no mark": "insert",
    "a floor does not rise when a table leaves its scope": "update",
}  # fmt: skip
"""Each hole of SABOTAGE → the stale write that goes through it."""


def storm_over(server_name: str, directory: Path, seed: int) -> Storm:
    within = PATIENCE * (4 + OPERATIONS / 600)  # seconds, of which it takes a tenth on two cores that do nothing else
    with server(server_bin_dir(server_name)) as running:
        return asyncio.run(asyncio.wait_for(rage(running, directory, seed, OPERATIONS), within))


def again(server_name: str, seed: int, test: str) -> str:
    """Return how to see it again: the same choices, if not the same moments."""
    return (
        f"FENCEPOST_STORM_SEED={seed} FENCEPOST_STORM_OPERATIONS={OPERATIONS}"
        f" .venv/bin/pytest tests/robustness/test_ddl_storm.py -k '{test} and {server_name.partition('-')[0]}'"
    )


@pytest.mark.parametrize("server_name", ["embedded-18", "debian-15"])
def test_ddl_and_restores_beside_writers_let_no_stale_write_in(server_name: str, short_dir: Path, seed: int) -> None:
    storm = storm_over(server_name, short_dir, seed)
    answer = [again(server_name, seed, "no_stale"), str(storm.answers), str(storm.ddl), str(storm.fenced)]
    assert_none(storm.wrong, *answer)
    assert not storm.complaints, "\n".join([*answer[:1], *storm.complaints[:20], *answer[1:]])
    # It was a storm, and not a row of refusals.
    assert storm.fenced.total() > OPERATIONS / 20, answer
    assert min(storm.fenced["external"], storm.fenced["builtin"]) > 0, answer  # which tables live long is up to dice
    assert storm.ddl["protect ok"] > OPERATIONS / 200, answer
    assert storm.ddl["unprotect ok"] > 0, answer
    assert storm.ddl["pg_restore"] > 0, answer
    assert storm.ddl["generation ok"] >= storm.ddl["pg_restore"], answer


@pytest.mark.parametrize("hole", THROUGH)
def test_the_oracle_sees_a_fence_with_a_hole(hole: str) -> None:
    """The control has no dice: its operations go through each hole."""
    with server(server_bin_dir("embedded-18")) as running:
        answers, storm = asyncio.run(asyncio.wait_for(steer(running, SABOTAGE.get(hole, "")), 4 * PATIENCE))
    assert answers == {verb: "committed" if verb == THROUGH[hole] else "FP409" for verb in ("insert", "update")}
    seen = [wrong.splitlines()[0] for wrong in storm.wrong]
    assert len(seen) == (THROUGH[hole] is not None), seen
    stale = f"{OLD} was accepted after {NEW}"
    assert all(f"(direct {THROUGH[hole]})" in each and each.endswith(stale) for each in seen), seen
    assert not storm.complaints, storm.complaints


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rows", [frozenset({"t4:4"}), None])
@pytest.mark.parametrize("behind", [True, False])
def test_a_delete_may_meet_the_table_that_took_the_name_meanwhile(
    named: bool, rows: frozenset[str] | None, behind: bool
) -> None:
    """t2 and t4 swap their names while DELETE of t2's row is under way: the gateway deletes t4's, under its token."""
    world = World("", seed=0, operations=0)
    world.operations["o1"] = Operation("o1", "DELETE", 161, "t2", frozenset({4}), "done", rows, "", named, behind)
    names = [Message("op", "o1")] if named else []
    protected = Message("state", '{"line": "t4", "rule": "strict", "source": "external", "scope": null}')
    deleted = Change("public", "t4_2", {"lk": "t4:4", "op": "o0"}, None)
    storm = judge(world, [Transaction(1, [protected]), Transaction(2, [*names, deleted])])
    assert (storm.wrong == []) is behind, storm.wrong
    assert (storm.fenced["external"] == 1) is behind
