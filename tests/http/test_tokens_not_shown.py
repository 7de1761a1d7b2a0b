"""No answer to others has a number with which a write would be accepted (docs/decisions/0032)."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.asking import Api, code
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    with running_shop(databases, ("orders", "leased")) as shop:
        yield shop


async def lease(api: Api, lock: str, **asked: object) -> Any:
    answer = await api.ask("POST", "leases", {"lock": lock, "ttl_ms": 60_000, "tokens": 3, **asked})
    assert answer.status_code == 201, answer.text
    return answer.json()


KEYS = {"orders": "order_id", "leased": "id"}


@pytest.mark.parametrize(("rule", "how"), [("strict", "written"), ("epoch", "claimed"), ("epoch", "neither")])
async def test_no_number_that_is_shown_can_write(api: Api, shop: Shop, rule: str, how: str) -> None:
    tables = {"strict": "orders", "epoch": "leased"}
    table, key = tables[rule], shop.key()
    lock = f"election/{key}"
    first = await lease(api, lock)
    assert (await api.ask("PUT", f"data/{table}/{key}", {}, token=first["tokens"][2])).status_code == 201
    await api.ask("DELETE", f"leases/{first['lease_id']}", headers={"X-Lease-Secret": first["secret"]})
    held = await lease(api, lock, **({"claim": [f"{table}/{key}"]} if how == "claimed" else {}))
    if how == "written":
        assert (await api.ask("PATCH", f"data/{table}/{key}", {}, token=held["tokens"][0])).status_code == 200
    # Ask everything that a client may ask that has neither the lease's secret nor a token of it. `late` is its
    # own.
    resource, stale = f"{table}/{key}", first["tokens"][0]
    found = {
        "row": await api.ask("GET", f"data/{resource}"),
        "rows": await api.ask("GET", f"data/{table}"),
        "mark of the row": await api.ask("GET", f"data/{resource}?select=last_fence_token"),
        "marks of rows": await api.ask("GET", f"data/{table}?select=last_fence_token"),
        "fence": await api.ask("GET", f"fences?resource={resource}"),
        "lock": await api.ask("GET", f"locks?name={lock}"),
        "locks": await api.ask("GET", "locks"),
        "election": await api.ask("GET", f"elections?name={lock.removeprefix('election/')}"),
        "elections": await api.ask("GET", "elections"),
        "lease": await api.ask("GET", f"leases/{held['lease_id']}"),
        "lost": await api.ask("GET", f"leases/{first['lease_id']}"),
        "held": await api.ask("POST", "leases", {"lock": lock}),
        "stale patch": await api.ask("PATCH", f"data/{resource}", {}, token=stale),
        "stale put": await api.ask("PUT", f"data/{resource}", {}, token=stale),
        "stale patch of many": await api.ask("PATCH", f"data/{table}?{KEYS[table]}=eq.{key}", {}, token=stale),
        "stale delete": await api.ask("DELETE", f"data/{resource}", token=stale),
        "stale post": await api.ask("POST", f"data/{table}", {KEYS[table]: key}, token=stale),
        "stale claim": await api.ask("POST", "claims", {"resource": resource}, token=stale),
        "never issued": await api.ask("PATCH", f"data/{resource}", {}, token=2**40),
    }
    times = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+")
    numbers = re.compile(r"(?<![0-9.:-])[1-9][0-9]{0,18}(?![0-9])")
    for name, answer in found.items():
        text = times.sub("", answer.text).replace(str(2**40), "")  # six o'clock in the evening is no token
        shown = {*numbers.findall(text), *numbers.findall(str(answer.headers.get("x-fence-mark", "")))}
        # What the caller itself has sent, and what it held before, are its own.
        for number in shown - {*first["tokens"], "20000000000000000000"}:
            write = await api.ask("PATCH", f"data/{table}/{key}", {}, token=number)
            assert write.status_code != 200, f"{name} shows {number}, which writes: {answer.text}"
    assert (await api.ask("PATCH", f"data/{table}/{key}", {}, token=held["tokens"][2])).status_code == 200


async def test_marks_under_the_rule_epoch_are_not_asked_for_by_filters(api: Api) -> None:
    for query in ("last_fence_token=gt.5", "order=last_fence_token", "or=(id.eq.a,last_fence_token.lt.9)"):
        held = await lease(api, f"asked for by {query}")
        for answer in (
            await api.ask("GET", f"data/leased?{query}"),
            *([] if "order=" in query else [
                await api.ask("PATCH", f"data/leased?{query}", {}, token=held["token"]),
                await api.ask("DELETE", f"data/leased?{query}", token=held["token"]),
            ]),
        ):  # fmt: skip
            assert code(answer) == (400, "FP016"), answer.text
            assert "leased is under the rule epoch" in answer.json()["detail"], query


async def test_an_answer_that_is_repeated_shows_no_mark_of_another_token(api: Api, shop: Shop) -> None:
    """Whoever guesses an Idempotency-Key and its request gets the answer, and must not get a token that can write."""
    key = shop.key()
    late, held = await lease(api, f"late-{key}"), await lease(api, f"guessed-{key}")
    once = {"Idempotency-Key": f"guessed-{key}"}
    put = await api.ask("PUT", f"data/leased/{key}", {}, token=held["token"], headers=once)
    assert (put.status_code, put.headers["x-fence-mark"]) == (201, str(held["token"]))
    again = await api.ask("PUT", f"data/leased/{key}", {}, token=late["token"], headers=once)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert "x-fence-mark" not in again.headers
    once, claim = {"Idempotency-Key": f"claimed-{key}"}, {"resource": f"leased/{key}"}
    assert (await api.ask("POST", "claims", claim, token=held["token"], headers=once)).status_code == 200
    for token, mark in ((held["token"], str(held["token"])), (late["token"], None)):
        again = await api.ask("POST", "claims", claim, token=token, headers=once)
        assert (again.status_code, again.json()["mark"]) == (200, mark)
        assert again.headers["idempotent-replayed"] == "true"
