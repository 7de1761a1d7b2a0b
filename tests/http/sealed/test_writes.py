"""Sealed tokens: a seal for one resource writes no other, on every way to write; and what it is bound to, it writes."""

import asyncpg
import pytest
from tests.http.conftest import StartGateway
from tests.http.sealed_ways import (
    REFUSED,
    WAYS,
    SealedShop,
    lease,
    refused_elsewhere,
)
from tests.support.asking import Api, code

from fencepost.testing.servers.processes import eventually


async def test_a_seal_for_one_resource_writes_no_other(shop: SealedShop, api: Api) -> None:
    # 403, "FP041"
    for way in WAYS:
        await shop.reset()
        await refused_elsewhere(shop, api, way)
        held, before = await lease(api, f"job-{way.name}", writes=[way.covering]), await shop.state()
        if "without seals" not in way.name:
            bare = await way.go(api, held["token"])
            assert code(bare) == (428, "FP003"), way.name
            assert "has no seal" in bare.json()["detail"], way.name
            assert "sealed_token" in bare.json()["hint"], way.name
            assert await shop.state() == before, way.name
        answer = await way.go(api, held["sealed_token"])
        assert answer.is_success, (way.name, answer.text)
        assert await shop.state() != before, way.name


async def test_a_delete_takes_other_rows_of_its_scope_and_none_of_another(shop: SealedShop, api: Api) -> None:
    """A seal for a scope is enough for what a foreign key deletes in it: the scope's own trigger refuses the rest."""
    parts = "INSERT INTO public.transfers VALUES (5, 41, 0, 1), (6, 42, 0, 2), (7, 41, 0, 6)"
    await shop.run(f"SET session_replication_role = replica; {parts}")
    seals = (await lease(api, "parts", writes=["account/41", "account/42"]))["sealed_tokens"]
    for token, row in enumerate(("/2", "?id=eq.2")):
        assert code(await api.ask("DELETE", f"data/transfers{row}", token=seals[token])) == (409, "FP428"), row
    for token, row in enumerate(("/1", "?id=eq.7", "?id=eq.2"), 2):
        assert (await api.ask("DELETE", f"data/transfers{row}", token=seals[token])).is_success, row
    assert not await shop.sql("SELECT FROM public.transfers")


async def test_tokens_that_are_minted_are_bound_like_those_of_the_grant(api: Api) -> None:
    """A claim binds by the name of the row, and so does a lock that is called like it: orders/a%20b."""
    held = await lease(api, "orders/a%20b", claim=["numbered/0007", "account/041"], writes=["plain/b"])
    minted = await api.http.post(
        f"/v1/leases/{held['lease_id']}/tokens", json={"count": 5}, headers={"X-Lease-Secret": held["secret"]}
    )
    body = minted.json()
    assert [text.partition(".")[0] for text in body["sealed_tokens"]] == body["tokens"]
    assert body["sealed_token"] == body["sealed_tokens"][0]
    seals = iter(body["sealed_tokens"])
    for path, change in (
        ("orders/a%20b", {"status": "m"}),
        ("numbered/7", {"label": "m"}),
        ("transfers/1", {"amount": 5}),
        ("plain/b", {"label": "m"}),
    ):
        written = await api.ask("PATCH", f"data/{path}", change, token=next(seals))
        assert written.status_code == 200, (path, written.text)
    assert code(await api.ask("POST", "data/orders", {"order_id": "zz"}, token=next(seals))) == REFUSED


async def test_the_same_secret_gets_the_same_tokens_sealed_and_other_writes_are_another_request(api: Api) -> None:
    headers = {"X-Lease-Secret": "s" * 40}
    wanted = {"lock": "again", "writes": ["orders/*", "numbered/007"], "ttl_ms": 60_000}
    first = (await api.http.post("/v1/leases", json=wanted, headers=headers)).json()
    again = await api.http.post("/v1/leases", json={**wanted, "writes": ["numbered/7", "orders/*"]}, headers=headers)
    assert (again.status_code, again.json()["tokens"]) == (200, first["tokens"])
    assert again.json()["sealed_token"].startswith(f"{first['token']}.one.")
    other = await api.http.post("/v1/leases", json={**wanted, "writes": ["orders/*"]}, headers=headers)
    assert code(other) == (400, "FP016")
    state = (await api.http.get(f"/v1/leases/{first['lease_id']}")).json()
    assert state["writes"] == ["numbered/7", "orders/*"]


async def test_what_writes_cannot_have_is_400_by_name(api: Api) -> None:
    for writes, said in (
        ("orders/*", "array"),
        (["orders/*", "orders/*"], "twice"),
        (["*"], "stand before the *"),
        (["orders"], "named table/key"),
        ([1], "strings"),
        (["orders/\n*"], "strings"),
        (["orders/%zz"], "hexadecimal"),
        (["orders/%z*"], "hexadecimal"),
        (["numbered/1,2"], "the key of numbered has 1 value"),
        (["transfers/1"], "account/{account}"),
        (["transfers/*"], "account/{account}"),
        (["orders/" + "x" * 1100 + "*"], "1024 bytes"),
        (["priced/1e2000"], "1024 bytes as the database spells them"),
        ([f"orders/{n}" for n in range(33)], "at most 32"),
    ):
        answer = await api.http.post("/v1/leases", json={"lock": "w", "writes": writes})
        assert code(answer) == (400, "FP016"), (writes, said)
        assert said in answer.json()["detail"], (writes, said)
        assert "writes" in answer.json()["detail"], (writes, said)
    no_number = await api.http.post("/v1/leases", json={"lock": "w", "writes": ["numbered/x"]})
    assert code(no_number) == (400, "22P02")


async def test_writes_of_tables_that_are_not_there_or_not_protected_are_refused(shop: SealedShop, api: Api) -> None:
    assert code(await api.http.post("/v1/leases", json={"lock": "w", "writes": ["no/*"]})) == (404, "FP007")
    await shop.sql("CREATE TABLE IF NOT EXISTS public.diary (id int PRIMARY KEY)")
    assert code(await api.http.post("/v1/leases", json={"lock": "w", "writes": ["diary/*"]})) == (403, "FP005")
    assert (await api.http.get("/v1/locks", params={"name": "w"})).json() == []


async def test_a_repeated_write_is_answered_again_under_the_next_holders_seal(api: Api) -> None:
    key = {"Idempotency-Key": "handed-over"}
    first = await lease(api, "first", writes=["orders/a"])
    done = await api.ask("PATCH", "data/orders/a", {"status": "once"}, token=first["sealed_token"], headers=key)
    second = await lease(api, "second", writes=["orders/*"])
    again = await api.ask("PATCH", "data/orders/a", {"status": "once"}, token=second["sealed_token"], headers=key)
    assert (again.status_code, again.json()) == (200, done.json())
    assert again.headers["idempotent-replayed"] == "true"


async def test_lists_refusals_and_the_log_show_numbers_and_no_seals(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    held = await lease(api, "orders/a", claim=["orders/a"])
    stale = await lease(api, "stale", writes=["orders/a"])
    newer = await lease(api, "newer", writes=["orders/a"])
    assert (await api.ask("PATCH", "data/orders/a", {"status": "n"}, token=newer["sealed_token"])).status_code == 200
    refused = await api.ask("PATCH", "data/orders/a", {"status": "n"}, token=stale["sealed_token"])
    assert code(refused) == (409, "FP001")
    elsewhere = await api.ask("PATCH", "data/orders/b", {"status": "n"}, token=newer["sealed_token"])
    assert code(elsewhere) == REFUSED
    shown = [
        refused.text,
        elsewhere.text,
        (await api.http.get("/v1/locks")).text,
        (await api.http.get(f"/v1/leases/{held['lease_id']}")).text,
        (await api.ask("GET", "fences?resource=orders/a")).text,
        (await api.ask("PATCH", "data/orders/a", {"status": "n"}, token="34.one.x")).text,
    ]

    async def logged() -> bool:  # of very many refusals the rest follows after a second, by their codes
        return "FP001" in caplog.text and "FP041" in caplog.text

    await eventually(logged, what="the log")
    assert all(".one." not in text for text in (*shown, caplog.text))
    assert (await api.ask("GET", "fences?resource=orders/a")).json()["sealed"] is True
    assert (await api.ask("GET", "fences?resource=plain/a")).json()["sealed"] is False
    assert refused.json()["presented_token"] == stale["token"]


async def test_a_refused_seal_is_recorded_without_authentication_too(shop: SealedShop, api: Api) -> None:
    held = await lease(api, "elsewhere", writes=["orders/b"])
    assert code(await api.ask("PATCH", "data/orders/a", {"status": "x"}, token=held["sealed_token"])) == REFUSED

    async def recorded() -> str | None:
        connection = await asyncpg.connect(shop.dsn)
        try:
            found: str | None = await connection.fetchval("SELECT caller FROM fencepost.refusals WHERE code = 'FP041'")
            return found
        finally:
            await connection.close()

    assert await eventually(recorded, what="an entry") == "anybody"


async def test_sql_takes_the_bare_number_of_a_token_that_was_issued(shop: SealedShop, api: Api) -> None:
    """docs/direct-sql.md: PostgreSQL has no keys. What guards the number there is that it must have been issued."""
    held = await lease(api, "by-sql")
    write = "SET LOCAL fencepost.token = '{}'; UPDATE public.orders SET status = 'by sql' WHERE order_id = 'a'"
    with pytest.raises(asyncpg.PostgresError, match="was never issued"):
        await shop.run(write.format(int(held["token"]) + 1_000_000))
    await shop.run(write.format(held["token"]))
    assert (await api.ask("GET", "data/orders/a")).json()["status"] == "by sql"


async def test_a_gateway_without_keys_names_what_it_lacks(shop: SealedShop, start_gateway: StartGateway) -> None:
    async with Api.open(shop.url) as api:
        held = await lease(api, "keyless", writes=["orders/*", "plain/*"])
    async with Api.open(await start_gateway(shop.dsn)) as keyless:
        for token in (held["token"], held["sealed_token"]):
            answer = await keyless.ask("PATCH", "data/orders/a", {"status": "x"}, token=token)
            assert code(answer) == (503, "FP042")
            assert "FENCEPOST_SEAL_KEYS_FILE" in answer.json()["hint"]
        plain = await keyless.ask("PATCH", "data/plain/a", {"label": "x"}, token=held["sealed_token"])
        assert (code(plain), plain.json()["reason"]) == (REFUSED, "unknown-key")
        assert (await keyless.ask("PATCH", "data/plain/a", {"label": "x"}, token=held["token"])).status_code == 200
        writes = await keyless.http.post("/v1/leases", json={"lock": "kl", "writes": ["plain/*"]})
        assert code(writes) == (400, "FP016")
        assert "sealed_token" not in (await keyless.http.post("/v1/leases", json={"lock": "kl"})).json()
