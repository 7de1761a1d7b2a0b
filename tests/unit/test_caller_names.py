"""By which name callers without a credential are counted."""

import pytest
from starlette.types import Scope

from fencepost.http.caller import caller_of
from fencepost.quota import UNKNOWN


def scope(address: str | None) -> Scope:
    return {"type": "http", "client": None if address is None else (address, 4711)}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::a", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::b", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::a", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("a:socket", "a:socket"),
        (None, UNKNOWN),
    ],
)
def test_an_ipv6_client_is_named_by_its_network(address: str | None, name: str) -> None:
    assert caller_of(scope(address)) == name
