"""Each safety line is there because something breaks without it: a mutant is the product with one line changed.

Its scenario, which the race tests run against the product, must fail with it. `seen` makes a test of a table of them:

    test_a_mutant_of_pruning_is_seen = seen(MUTANTS)
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race
from tests.support.ready_made import Unmade

from fencepost.server.fence.token import Rule

Scenario = Callable[[Race], Awaitable[None]]
"""An AssertionError says that a rule is broken."""


class Mutant(Protocol):
    """`name` says what is wrong in it."""

    @property
    def name(self) -> str: ...
    @property
    def scenario(self) -> Scenario: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def source(self) -> str: ...
    async def apply(self, race: Race, monkeypatch: pytest.MonkeyPatch, /) -> None: ...


@dataclass(frozen=True)
class SqlMutant:
    """`old` becomes `new` in a function. `{stem}` is the start of the names of the functions of `table`."""

    name: str
    function: str
    old: str
    new: str
    scenario: Scenario
    rule: Rule = "strict"
    source: str = "external"
    table: str = "orders"

    async def apply(self, race: Race, _: pytest.MonkeyPatch, /) -> None:
        await mutate(race, self.function, self.old, self.new, self.table)


@dataclass(frozen=True)
class PythonMutant:
    """`change` changes the gateway."""

    change: Callable[[pytest.MonkeyPatch], None]
    scenario: Scenario
    rule: Rule = "strict"
    source: str = "external"

    @property
    def name(self) -> str:
        return f"{self.change.__name__}-{self.scenario.__name__}"

    async def apply(self, _: Race, monkeypatch: pytest.MonkeyPatch, /) -> None:
        self.change(monkeypatch)


async def plain(connect: Connect, unmade: Unmade, rule: Rule, source: str) -> Race:
    return await open_race(connect, unmade, rule, source=source)


def seen(
    mutants: Sequence[Mutant],
    world: Callable[[Connect, Unmade, Rule, str], Awaitable[Race]] = plain,
    fails_with: tuple[type[BaseException], ...] = (AssertionError,),
) -> Callable[..., Awaitable[None]]:
    """Make the test that each mutant is seen by its scenario, in a world of its own."""

    @pytest.mark.long("mutants of the product")
    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name.replace(" ", "-"))
    async def test(mutant: Mutant, connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch) -> None:
        race = await world(connect, unmade, mutant.rule, mutant.source)
        await mutant.apply(race, monkeypatch)
        await assert_seen(mutant.scenario, race, fails_with)

    return test


async def mutate(race: Race, function: str, old: str, new: str, table: str = "orders") -> None:
    """Replace a line of a function; a mutant that changes nothing would prove nothing."""
    if function.startswith("{stem}"):
        stem = await race.observer.fetchval("SELECT functions FROM fencepost.protected WHERE name = $1", table)
        function = f'fencepost."{function.format(stem=stem)}"()'
    definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert old in definition, f"{function} has no {old!r}"
    await race.observer.execute(definition.replace(old, new))


async def assert_seen(
    scenario: Scenario, race: Race, fails_with: tuple[type[BaseException], ...] = (AssertionError,)
) -> None:
    """Assert that the scenario sees the mutant."""
    try:
        await scenario(race)
    except fails_with:
        return
    pytest.fail("the scenario passes with the mutant: it does not see that line, or the line is not needed")
