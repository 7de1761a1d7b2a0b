"""Tables of the built-in source over real HTTP: tokens that were never issued (R12), and who is behind a 409 (R18)."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.asking import Api, code
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop

from fencepost.server.fence.token import MAX_TOKEN

BUILTIN = ("orders", "leased", "items")
TIME = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    with running_shop(databases, BUILTIN) as shop:
        yield shop


def shown(table: str, mark: str) -> str | None:
    """Give the mark as a 409 shows it: leased is under the rule epoch."""
    return mark if table == "orders" else None


async def lease(api: Api, *locks: str, owner: str = "worker-a", tokens: int = 1) -> Any:
    """Acquire locks; gives the lease."""
    answer = await api.ask("POST", "leases", {"locks": list(locks), "owner": owner, "tokens": tokens, "ttl_ms": 60_000})
    assert answer.status_code == 201, answer.text
    return answer.json()


def holder(given: Any) -> dict[str, object]:
    """Return what an answer must have of a token's lease, apart from the time of issue; never the token itself."""
    return {
        "holder": given["owner"], "lease_id": given["lease_id"], "locks": given["locks"],
        "granted_at": given["granted_at"], "source": "builtin",
    }  # fmt: skip


def answered(superseded_by: Any) -> dict[str, object]:
    """Check the time of issue, and leave it out."""
    assert TIME.fullmatch(superseded_by["issued_at"])
    assert superseded_by["issued_at"] >= superseded_by["granted_at"]
    return {name: value for name, value in superseded_by.items() if name != "issued_at"}


def writes(table: str, there: str, absent: str) -> list[tuple[str, str, object]]:
    """Every way to write or claim: keyed, to a collection, of a row that is there and of one that is not."""
    column = {"orders": "order_id", "leased": "id"}[table]
    value: dict[str, object] = {"note": "x"} if table == "orders" else {"n": 1}
    return [
        ("PATCH", f"data/{table}/{there}", value), ("PATCH", f"data/{table}/{absent}", value),
        ("PUT", f"data/{table}/{there}", value), ("PUT", f"data/{table}/{absent}", value),
        ("DELETE", f"data/{table}/{there}", None), ("DELETE", f"data/{table}/{absent}", None),
        ("POST", f"data/{table}", {column: there}), ("POST", f"data/{table}", {column: absent}),
        ("POST", f"data/{table}", [{column: there}, {column: absent}]),
        ("PATCH", f"data/{table}?{column}=eq.{there}", value), ("DELETE", f"data/{table}?{column}=eq.{there}", None),
        ("POST", "claims", {"resource": f"{table}/{there}"}), ("POST", "claims", {"resource": f"{table}/{absent}"}),
    ]  # fmt: skip


@pytest.mark.parametrize("table", ["orders", "leased"])
async def test_a_token_that_was_never_issued_is_refused_on_every_way_in(api: Api, shop: Shop, table: str) -> None:
    there, absent, gone = shop.key(), shop.key(), shop.key()
    given = await lease(api, there, tokens=3)
    for key, token in ((there, given["tokens"][0]), (gone, given["tokens"][1])):
        assert (await api.ask("PUT", f"data/{table}/{key}", {}, token=token)).status_code == 201
    assert (await api.ask("DELETE", f"data/{table}/{gone}", token=given["tokens"][2])).status_code == 204
    issued = int(given["tokens"][2])
    for token, missing in ((issued + 1, absent), (MAX_TOKEN, gone)):
        for method, path, body in writes(table, there, missing):
            answer = await api.ask(method, path, body, token=token)
            assert code(answer) == (409, "FP018"), (method, path, answer.text)
            problem = answer.json()
            assert problem["type"] == "/problems/unissued-token"
            assert str(issued) not in answer.text.replace(str(token), ""), "the newest token is its holder's"
            assert problem["presented_token"] == str(token)
            assert problem["current_token"] is None
            assert problem["resource"] in {f"{table}/{there}", f"{table}/{missing}"}
            assert str(token) in problem["detail"]
    marks = await shop.sql("SELECT max(last_fence_token) FROM fencepost.marks WHERE resource LIKE $1 || '/%'", table)
    assert marks[0][0] == issued
    token = (await lease(api, absent))["token"]
    assert (await api.ask("PATCH", f"data/{table}/{absent}", {}, token=token)).status_code == 404
    assert (await api.ask("PATCH", f"data/{table}/{there}", {}, token=token)).status_code == 200


@pytest.mark.parametrize("table", ["orders", "leased"])
async def test_the_answer_to_a_stale_holder_names_its_successor(api: Api, shop: Shop, table: str) -> None:
    there, absent = shop.key(), shop.key()
    late = await lease(api, shop.key(), owner="worker-a")
    newer = await lease(api, there, owner="worker-b", tokens=2)
    for key, token in zip((there, absent), newer["tokens"], strict=True):
        assert (await api.ask("PUT", f"data/{table}/{key}", {}, token=token)).status_code == 201
    # A key without a row has a mark too: absent is deleted under a third lease.
    third = await lease(api, absent, owner="worker-c")
    assert (await api.ask("DELETE", f"data/{table}/{absent}", token=third["token"])).status_code == 204
    for method, path, body in writes(table, there, absent):
        answer = await api.ask(method, path, body, token=late["token"])
        assert code(answer) == (409, "FP001"), (method, path, answer.text)
        problem = answer.json()
        by, token = (
            (newer, newer["tokens"][0]) if problem["resource"] == f"{table}/{there}" else (third, third["token"])
        )
        assert problem["current_token"] == shown(table, token)
        assert answered(problem["superseded_by"]) == holder(by)
        assert problem["detail"].endswith(
            f" The newer token was issued to {by['owner']}, who was granted the lock {by['lock']} at"
            f" {by['granted_at']}."
        )
        if isinstance(body, list):
            assert problem["rows"] == [
                {"resource": f"{table}/{there}", "current_token": shown(table, newer["tokens"][0])},
                {"resource": f"{table}/{absent}", "current_token": shown(table, third["token"])},
            ]


async def test_a_spent_token_names_its_own_lease_and_answers_as_before(api: Api, shop: Shop) -> None:
    key = shop.key()
    given = await lease(api, key)
    assert (await api.ask("PUT", f"data/orders/{key}", {}, token=given["token"])).status_code == 201
    answer = await api.ask("PATCH", f"data/orders/{key}", {}, token=given["token"])
    assert code(answer) == (409, "FP002")
    assert answer.json()["detail"] == f"Token {given['token']} was already used on orders/{key}."
    assert answered(answer.json()["superseded_by"]) == holder(given)


async def test_many_locks_are_counted_and_not_all_named(api: Api, shop: Shop) -> None:
    late = await lease(api, shop.key())
    locks = sorted(shop.key() for _ in range(5))
    given = await lease(api, *locks, owner="worker-b")
    assert (await api.ask("PUT", f"data/orders/{locks[0]}", {}, token=given["token"])).status_code == 201
    problem = (await api.ask("PATCH", f"data/orders/{locks[0]}", {}, token=late["token"])).json()
    assert f"granted the locks {', '.join(locks[:3])} and 2 more at" in problem["detail"]
    assert problem["superseded_by"]["locks"] == locks


async def test_a_fences_story_names_the_holders(api: Api, shop: Shop) -> None:
    key = shop.key()
    first, second = await lease(api, key, owner="worker-a"), await lease(api, shop.key(), owner="worker-b")
    await api.ask("PUT", f"data/orders/{key}", {}, token=first["token"])
    await api.ask("PATCH", f"data/orders/{key}", {}, token=second["token"])
    fence = (await api.ask("GET", f"fences?resource=orders/{key}")).json()
    assert (fence["mark"], fence["source"]) == (second["token"], "builtin")
    assert [(event["event"], answered(event["by"])) for event in fence["story"]] == [
        ("created", holder(first)),
        ("last written or claimed", holder(second)),
    ]
    drawn = (await shop.sql("SELECT nextval('fencepost.tokens')"))[0][0]
    await api.ask("DELETE", f"data/orders/{key}", token=drawn)
    story = (await api.ask("GET", f"fences?resource=orders/{key}")).json()["story"]
    assert [(event["token"], event["by"]) for event in story] == [(str(drawn), None)]
    assert (await api.ask("GET", f"fences?resource=orders/{shop.key()}")).json()["story"] == []


async def test_a_sequence_that_is_behind_what_is_recorded_is_named_with_what_to_run(api: Api, shop: Shop) -> None:
    """As after a restore of the one and not of the other: it was a 409 of the table's primary key."""
    given = await lease(api, "behind")
    (before,) = await shop.sql("SELECT last_value FROM fencepost.tokens")
    await shop.sql(f"SELECT setval('fencepost.tokens', {given['token']}, false)")
    try:
        answer = await api.ask("POST", "leases", {"lock": "behind-2", "ttl_ms": 60_000})
        assert code(answer) == (503, "FP015"), answer.text
        assert "the sequence fencepost.tokens is behind" in answer.json()["detail"]
        assert "generation raise" in answer.json()["hint"]
    finally:
        await shop.sql(f"SELECT setval('fencepost.tokens', {before[0]})")
