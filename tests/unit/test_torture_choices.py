"""What a run of torture is asked to do: faults by name, a schedule by seed, and what cannot be run."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.torture import WITHOUT_KEYS
from fencepost.testing.checker import Verdict
from fencepost.torture.assignment import Assignment, Lapses
from fencepost.torture.config import Config
from fencepost.torture.errors import BadInputError, RunFailedError
from fencepost.torture.faults import KINDS, Need, choose
from fencepost.torture.play import require_faults
from fencepost.torture.running import of_the_control
from fencepost.torture.schedule import schedule
from fencepost.torture.stages.foreign import available as of_a_foreign_gateway
from fencepost.torture.stages.own import available as of_servers_of_its_own
from fencepost.torture.workloads import WORKLOADS

EVERYTHING: frozenset[Need] = frozenset({need for kind in KINDS.values() for need in kind.needs})


def config(**changes: Any) -> Config:
    return Config(**{"out": Path("nowhere"), "seed": 1, **changes})


def first(seed: int, kinds: tuple[str, ...]) -> list[tuple[str, float, float, float]]:
    planned = itertools.islice(schedule(seed, kinds), 100)
    return [(each.kind.name, each.after, each.lasts, each.target) for each in planned]


def test_the_same_seed_makes_the_same_choices() -> None:
    assert first(7, tuple(KINDS)) == first(7, tuple(KINDS))
    assert first(7, tuple(KINDS)) != first(8, tuple(KINDS))


def test_the_order_in_which_faults_are_named_does_not_matter() -> None:
    assert first(7, tuple(KINDS)) == first(7, tuple(reversed(KINDS)))


def test_kinds_can_be_left_out_of_all() -> None:
    assert set(choose("all", EVERYTHING)) - set(choose("all,-failover,-kill-holder", EVERYTHING)) == {
        "failover",
        "kill-holder",
    }
    for wrong in ("all,failover", "all,-meteor"):
        with pytest.raises(BadInputError, match="after `all` only kinds to leave out can follow"):
            choose(wrong, EVERYTHING)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("", "names no fault: for a run without faults give none"),
        (" , ", "names no fault"),
        ("none,kill-holder", "none cannot stand there"),
        ("kill-holder,all", "all cannot stand there"),
        ("pause-holder,-kill-holder", "-kill-holder cannot stand there"),
    ],
)
def test_a_list_of_faults_that_means_nothing_is_refused(names: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        choose(names, EVERYTHING)


@pytest.mark.parametrize("name", ["expire-leases", "kill-lock-service", "failover"])
def test_a_fault_that_would_break_the_workloads_promise_by_itself_is_refused_for_that_reason(name: str) -> None:
    available = of_servers_of_its_own(config(workload="client", source="redis" if "service" in name else "builtin"))
    with pytest.raises(BadInputError, match="would break its promise by itself"):
        choose(name, available, trusts=True)


def test_faults_that_were_named_must_have_come() -> None:
    with pytest.raises(RunFailedError, match=r"over before one of its faults came \(failover\)"):
        require_faults("failover", set())
    require_faults("failover,kill-holder", {"failover"})
    for names in ("all", "all,-failover", "none"):
        require_faults(names, set())


def test_the_command_knows_the_workloads_without_keys() -> None:
    assert {name for name, each in WORKLOADS.items() if not each.shares} == WITHOUT_KEYS


def test_each_kind_of_fault_comes_before_one_comes_again() -> None:
    names = [name for name, *_ in first(7, tuple(KINDS))]
    assert sorted(names[: len(KINDS)]) == sorted(KINDS)


def test_there_are_ten_kinds_of_faults_and_more() -> None:
    assert len(KINDS) >= 10


def test_without_faults_the_schedule_is_empty() -> None:
    assert list(schedule(7, ())) == []


def test_all_faults_are_those_that_the_run_can_have() -> None:
    assert choose("all", frozenset({"holders"})) == ("pause-holder", "kill-holder")
    assert choose("all", EVERYTHING) == tuple(KINDS)
    assert choose("none", EVERYTHING) == ()


def test_an_unknown_fault_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadInputError, match=r"no fault 'pause-everything'.* pause-holder, "):
        choose("pause-holder,pause-everything", EVERYTHING)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.needs != {"holders"}])
def test_a_fault_that_cannot_be_done_to_a_foreign_gateway_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(BadInputError, match=f"the fault {name} is not possible here: .*"):
        choose(name, of_a_foreign_gateway(config(url="http://127.0.0.1:8080")))


def test_what_a_run_of_its_own_can_break_depends_on_what_it_starts() -> None:
    assert {"postgres", "standby", "gateways", "builtin"} <= of_servers_of_its_own(config())
    assert not {"postgres", "standby"} & of_servers_of_its_own(config(database_url="postgresql://h/db"))
    assert "lock-service" in of_servers_of_its_own(config(source="redis"))
    assert not {"lock-service", "builtin"} & of_servers_of_its_own(config(source="postgres-advisory"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": "nonsense"}, "no workload 'nonsense'.*register"),
        ({"source": "consul"}, "no source 'consul'.*redis"),
        ({"minutes": 0.0}, "above 0"),
        ({"operations": 0}, "above 0"),
        ({"out": Path(__file__)}, "is a file"),
    ],
)
def test_what_cannot_be_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        config(**changes)


def test_the_command_that_repeats_a_run_names_the_database_without_its_password() -> None:
    command = config(database_url="postgresql://me:secret@h/db").command
    assert '--database-url "$DATABASE_URL"' in command
    assert "secret" not in command
    assert "DATABASE_URL" not in config().command


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_what_a_verdict_on_the_control_means_is_said(name: str) -> None:
    def remark(*, valid: bool) -> str:
        return of_the_control(WORKLOADS[name], Verdict(valid, (), 9, 9, 0, 0, 1))

    control = WORKLOADS[name].loses
    assert ("has lost nothing" in remark(valid=True)) == control
    assert ("what it has to show" in remark(valid=False)) == control


def test_an_assignment_reaches_the_worker_as_it_was() -> None:
    sent = Assignment(
        seed=1,
        index=2,
        tasks=3,
        gateways=("http://a", "http://b"),
        workload="register",
        prefix="torture_1",
        part="part",
        tally="tally",
        lapses=Lapses(0.1, 0.2, 0.3),
    )
    assert Assignment.from_json(sent.to_json()) == sent
