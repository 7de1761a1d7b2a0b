"""A preference that changes statements reaches all that write what a request gives, and plans are kept under it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.gateways import in_process

from fencepost.server.http import headers as preferences
from fencepost.server.http.headers import PREFERENCES, Preference
from fencepost.server.ops import demo
from fencepost.server.postgres import keyed, many
from fencepost.server.postgres.keyed import Change

WRITES = next(each.routes for each in PREFERENCES if each.name == "return")
PLANTED = Preference("planted", WRITES, "`planted`: of this test.", ("yes",), in_sql=True)
ROW = {"customer": "Ada", "status": "paid"}


@pytest.mark.parametrize(
    ("method", "path", "body", "written_by"),
    [
        ("PATCH", "orders/order-123", ROW, keyed.update),
        ("PUT", "orders/order-123", ROW, keyed.update),
        ("PUT", "orders/new", ROW, keyed.create),
        ("POST", "orders", {**ROW, "order_id": "new"}, keyed.insert),
        ("POST", "orders", [{**ROW, "order_id": "new"}, {**ROW, "order_id": "newer"}], keyed.insert),
        ("DELETE", "orders/order-123", None, keyed.delete),
        ("PATCH", "orders?order_id=eq.order-123", ROW, many.by_filter),
        ("DELETE", "orders?order_id=eq.order-123", None, many.by_filter),
        ("PATCH", "orders", [{**ROW, "order_id": "order-123"}], many.by_array),
    ],
)
async def test_it_reaches_the_statement_of(
    database: str, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: object, written_by: Callable[..., Any]
) -> None:
    made: set[frozenset[str]] = set()

    def noted(*of: Any, **options: Any) -> Any:
        made.update(each.preferences for each in of if isinstance(each, Change))
        return written_by(*of, **options)

    monkeypatch.setattr(keyed if written_by.__module__ == keyed.__name__ else many, written_by.__name__, noted)
    monkeypatch.setitem(preferences._BY_NAME, PLANTED.name, PLANTED)  # noqa: SLF001 - as one more of PREFERENCES
    await demo.load(database)
    async with in_process(database) as client:
        for token, row, prefer in ((101, "order-123", "planted=yes"), (102, "order-124", "return=minimal")):
            headers = {"X-Fence-Token": str(token), "Prefer": prefer}
            answer = await client.request(
                method, f"/v1/data/{path.replace('order-123', row)}", json=body, headers=headers
            )
            assert answer.headers.get("Preference-Applied") == prefer or answer.status_code == 409, answer.text
    assert made == {frozenset({"planted=yes"}), frozenset()}
