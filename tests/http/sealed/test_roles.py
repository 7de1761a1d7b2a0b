"""Sealed tokens of callers that have a role: the seal is compared in the middle of statements that the role runs."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.http.sealed_ways import (
    MINIMAL,
    REFUSED,
    SEALED,
    WAYS,
    SealedShop,
    Way,
    key_line,
    lease,
    refused_elsewhere,
    release,
    sealed_shop,
)
from tests.support.asking import SECRET, Api, bearer, code, token
from tests.support.postgres import ReadyMade

WEB, NARROW, NOBODY = "sealed_web", "sealed_narrow", "sealed_nobody"
GRANTS = f"""
SELECT pg_advisory_xact_lock(3306);
DO $$ DECLARE name text; BEGIN
  FOREACH name IN ARRAY ARRAY['{WEB}', '{NARROW}'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
  END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON {", ".join((*SEALED, "transfers", "plain"))} TO {WEB};
GRANT SELECT (order_id, last_fence_token), INSERT (order_id, status, last_fence_token),
      UPDATE (status, last_fence_token) ON orders TO {NARROW};
"""
FEW = {"status": "x"}
TWO = [{"order_id": "n1"}, {"order_id": "n2"}]

OF_A_ROLE = [way for way in WAYS if way.name in (
    "patch of a numeric", "put of a new row", "post of several", "patch by filter", "patch of an array",
    "claim of a scope", "patch in a scope", "delete", "delete by filter", "delete that takes other rows",
)]  # fmt: skip
"""A way for each statement that the role runs."""


@pytest.fixture(scope="module")
def shop(databases: ReadyMade, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedShop]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("one"))
    with sealed_shop(databases, keys, jwt_secret=SECRET, roles=f"{WEB},{NARROW},{NOBODY}") as shop:
        asyncio.run(shop.run(GRANTS))
        yield shop


@pytest.fixture
async def api(shop: SealedShop) -> AsyncIterator[Api]:
    """Give what asks as a caller with the role that may write to all tables."""
    await shop.reset()
    async with Api.open(shop.url) as api:
        api.http.headers.update(bearer(token(sub="ann", role=WEB)))
        yield api


async def refused_and_written(shop: SealedShop, api: Api, way: Way) -> None:
    """Write under a seal for another resource, which changes nothing, and under one that covers what is written."""
    await refused_elsewhere(shop, api, way)
    held, before = await lease(api, f"job-{way.name}", writes=[way.covering]), await shop.state()
    try:
        answer = await way.go(api, held["sealed_token"])
        assert answer.is_success, (way.name, answer.text)
        assert await shop.state() != before, way.name
    finally:
        await release(api, held)


async def test_a_caller_with_a_role_writes_what_its_seal_is_for(shop: SealedShop, api: Api) -> None:
    for way in OF_A_ROLE:
        await shop.reset()
        await refused_and_written(shop, api, way)


async def test_a_seal_needs_no_privilege_that_the_write_does_not(shop: SealedShop, api: Api) -> None:
    api.http.headers.update(bearer(token(sub="bob", role=NARROW)))
    narrow_ways = (
        Way("patch", "PATCH", "data/orders/b", FEW, "orders/a", "orders/b", MINIMAL),
        Way("put of a row", "PUT", "data/orders/b", FEW, "orders/a", "orders/b", MINIMAL),
        Way("put of a new row", "PUT", "data/orders/new", FEW, "orders/a", "orders/n*", MINIMAL),
        Way("post of several", "POST", "data/orders", TWO, "orders/n1", "orders/*", MINIMAL),
        Way("patch by filter", "PATCH", "data/orders?order_id=in.(a,b)", FEW, "orders/a", "orders/*", MINIMAL),
        Way("patch of an array", "PATCH", "data/orders", [{"order_id": "b", **FEW}], "orders/a", "orders/*", MINIMAL),
    )  # fmt: skip
    for way in narrow_ways:
        await shop.reset()
        await refused_and_written(shop, api, way)


async def test_a_seal_gives_no_privilege(shop: SealedShop, api: Api) -> None:
    api.http.headers.update(bearer(token(sub="bob", role=NARROW)))
    held = await lease(api, "all", writes=["numbered/*", "orders/*"])
    before = await shop.state()
    for method, path, body in (
        ("PATCH", "data/numbered/7", {"label": "x"}),
        ("DELETE", "data/orders/a", None),
        ("POST", "claims", {"resource": "numbered/7"}),
    ):
        answer = await api.ask(method, path, body, token=held["sealed_token"])
        assert code(answer) == (403, "42501"), answer.text
    assert await shop.state() == before
    await release(api, held)


async def test_tokens_that_a_caller_claims_with_and_mints_are_bound_by_the_names_of_rows(api: Api) -> None:
    """`priced/2.50` is read as the key's type, which PostgreSQL does, as the caller."""
    held = await lease(api, "claiming", claim=["priced/2.50", "account/041"])
    headers = {"X-Lease-Secret": held["secret"]}
    minted = await api.http.post(f"/v1/leases/{held['lease_id']}/tokens", json={"count": 3}, headers=headers)
    for seals in (held["sealed_tokens"], minted.json()["sealed_tokens"]):
        paths = (("data/priced/2.5", {"label": "x"}), ("data/transfers/1", {"amount": 5}))
        for sealed, (path, body) in zip(seals, paths, strict=False):
            answer = await api.ask("PATCH", path, body, token=sealed)
            assert answer.status_code == 200, answer.text
        assert code(await api.ask("PATCH", "data/priced/1.5", {"label": "x"}, token=seals[-1])) == REFUSED
    await release(api, held)


async def test_a_role_that_is_not_allowed_gets_no_lease_that_names_what_it_writes(api: Api) -> None:
    """The role is listed, and is not there. Reading the name as a key's type would be done as it; a lock needs none."""
    api.http.headers.update(bearer(token(sub="eve", role=NOBODY)))
    wanted = {"lock": "job", "ttl_ms": 20_000, "writes": ["priced/2.50"]}
    refused = await api.http.post("/v1/leases", json=wanted)
    assert code(refused) == (403, "FP043"), refused.text
    await release(api, await lease(api, "job"))
