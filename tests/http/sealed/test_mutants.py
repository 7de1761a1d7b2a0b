"""Mutants of what keeps a seal for one resource from writing another: each must be seen by a way to write."""

from collections.abc import Callable

import pytest
from tests.http.sealed_ways import WAYS, SealedShop, refused_elsewhere
from tests.support.asking import Api

from fencepost.server.fence.seal import Binding
from fencepost.server.gateway import alone, keyed, many
from fencepost.server.gateway.keyed import in_a_batch


def nothing_is_compared_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write by key in a batch, whatever the seal is for."""
    monkeypatch.setattr(keyed, "elsewhere", lambda *_: None)


def nothing_is_compared_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit what was written, whatever the seal is for."""
    monkeypatch.setattr(alone, "elsewhere", lambda *_: None)


def the_path_names_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the text of the path, and not the name of the row: 08 is the row 8."""

    async def name(_gateway: object, table: object, key: tuple[str, ...]) -> str:
        return f"{getattr(table, 'name', '')}/{','.join(key)}"

    monkeypatch.setattr(keyed, "name_of_key", name)


def rows_of_scopes_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the scope entered, and the row written, before it is known which scope it is."""

    async def mutant(gateway: object, _lanes: object, write: object) -> object:
        plans = [plan for table in gateway.catalog.current.tables.values() for plan in table.plans.values()]  # type: ignore[attr-defined]
        lanes = next(p.lanes for p in reversed(plans) if isinstance(p, keyed.Plan) and p.table.fence.scope is not None)
        return await in_a_batch(gateway, lanes, write)  # type: ignore[arg-type]

    monkeypatch.setattr(keyed, "in_a_batch", mutant)


def a_put_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe that a row is stored under the key that was sent."""
    monkeypatch.setattr(keyed.OfRow, "written", lambda self, _done: (self.name,))


def a_post_is_named_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many.NewRows, "written", lambda _self, _done: ())


def rows_that_match_are_named_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many.RowsMatching, "written", lambda _self, done: done.resources[:1])


def cascades_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a DELETE of a row for one of that row only."""
    monkeypatch.setattr(keyed, "require_reach", lambda *_: None)


def no_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe what a payload says."""
    monkeypatch.setattr(Binding, "covers", lambda _self, _resource: True)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (nothing_is_compared_before, "patch"),
    (nothing_is_compared_after, "post of one"),
    (nothing_is_compared_after, "patch by filter"),
    (nothing_is_compared_after, "claim of a scope"),
    (the_path_names_the_resource, "patch by the text in the lock"),
    (rows_of_scopes_go_in_batches, "patch in a scope"),
    (a_put_is_named_by_its_path, "put that a trigger moves"),
    (a_post_is_named_by_nothing, "post that a trigger moves"),
    (rows_that_match_are_named_by_the_first, "patch by filter"),
    (cascades_are_not_looked_at, "delete that takes other rows"),
    (cascades_are_not_looked_at, "delete that takes rows of a partition"),
    (no_key_is_needed, "patch"),
]


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=lambda each: getattr(each, "__name__", each))
async def test_a_way_to_write_sees_it(
    shop: SealedShop, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    await shop.reset()
    (way,) = [way for way in WAYS if way.name == name]
    async with Api.open(shop.url) as api:
        await refused_elsewhere(shop, api, way)
        mutant(monkeypatch)
        with pytest.raises(AssertionError):
            await refused_elsewhere(shop, api, way)
