"""A lease of each source over HTTP: the same answers as over the built-in one. What else there is: tests/sources."""

from tests.sources.conftest import Api, api, stack

__all__ = ["api", "stack"]

LOCK = "orders/over-http"


async def test_a_lease_lives_from_its_grant_to_its_release(api: Api) -> None:
    granted = await api.grant(LOCK, owner="worker-a", tokens=3)
    assert granted["source"] == api.source
    assert granted["lease_id"].startswith(f"{api.source}-")
    tokens = [int(token) for token in granted["tokens"]]
    assert len(tokens) == 3
    held = await api.post(LOCK, owner="worker-b")
    assert (held.status_code, held.json()["code"]) == (423, "FP011")
    assert held.json()["holder"] == "worker-a"
    renewed = await api.on(granted, "renew", ttl_ms=25_000)
    assert renewed.status_code == 200
    assert 20_000 < renewed.json()["remaining_ms"] <= 25_000
    minted = await api.on(granted, "tokens", count=2)
    tokens += [int(token) for token in minted.json()["tokens"]]
    assert tokens == sorted(set(tokens))
    listed = (await api.client.get("/v1/locks", params={"source": api.source})).json()
    assert [(each["name"], each["owner"], "token" in each) for each in listed] == [(LOCK, "worker-a", False)]
    state = (await api.client.get(f"/v1/leases/{granted['lease_id']}")).json()
    assert (state["source"], "token" in state) == (api.source, False)
    assert (await api.on(granted, "delete")).status_code == 204
    assert (await api.on(granted, "delete")).status_code == 204
    for gone in (await api.on(granted, "renew"), await api.on(granted, "tokens")):
        assert (gone.status_code, gone.json()["code"]) == (410, "FP012")
    successor = await api.grant(LOCK, owner="worker-b")
    assert int(successor["token"]) > tokens[-1]
