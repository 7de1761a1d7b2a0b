"""An Idempotency-Key brings nobody an answer that its own request would not get (decision 0040)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.support.asking import NOTHING, WEB, Acting
from tests.support.racing import Race
from tests.support.use_cases import keyed, once, patch, rendered, result_of

from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.rounds import Replayed
from fencepost.server.gateway.use_cases import claim

WAYS: dict[str, Callable[[Gateway], Awaitable[Outcome]]] = {
    "write": lambda g: patch(g, replace(keyed("k", 40, n=1), idempotency_key=once())),
    "claim": lambda g: claim(g, Claim(parse_resource("orders/k"), Token(40), once()), rendered),
}
RULED = """
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON orders USING (current_setting('request.jwt.claims', true)::json ->> 'sub' = 'ann')"""


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_of_another_role_is_another_key(stage: Acting, race: Race, way: str) -> None:
    await race.insert(race.a, "k", 30)
    assert result_of(await WAYS[way](stage.of(WEB, "ann"))) in ("ok", "created")
    assert isinstance(await WAYS[way](stage.of(WEB, "bob")), Replayed), "a role's callers share theirs"
    assert result_of(await WAYS[way](stage.of(NOTHING, "ann"))) == "42501"


@pytest.mark.parametrize("way", WAYS)
async def test_under_row_security_a_key_of_another_caller_is_another_key(stage: Acting, race: Race, way: str) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute(RULED)
    await stage.gateway.catalog.reload()
    ann, bob = (stage.of(WEB, name, claims=f'{{"sub": "{name}"}}') for name in ("ann", "bob"))
    assert result_of(await WAYS[way](ann)) in ("ok", "created")
    assert isinstance(await WAYS[way](ann), Replayed)
    theirs = await WAYS[way](bob)
    assert not isinstance(theirs, Replayed)
    assert not getattr(theirs, "rows", ()), "the policy hides it"
