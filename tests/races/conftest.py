"""Interleavings that the product must survive, stepped. mutants.py has what each of these tests sees."""

from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
from tests.races.openings import STRICT, Opening
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.violations import judging


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Any]:
    """Give a race for the table `orders` under strict, or what the test is `opened` with."""
    opening: Opening = getattr(request, "param", STRICT)
    race = await opening.opened(connect, unmade)
    async with opening.around(race):
        yield race


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each of what it is `opened` with: by itself or, where it says nothing, by its file."""
    mark = metafunc.definition.get_closest_marker("opened")
    if mark is not None:
        found = [pytest.param(each, id=each.name, marks=each.marks) for each in mark.args]
        metafunc.parametrize("race", found, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Have what a test asserts of the product be a Violation. Of a mutant it is what is wanted."""
    if pyfuncitem.get_closest_marker("long") is not None:
        return (yield)
    with judging():
        return (yield)
