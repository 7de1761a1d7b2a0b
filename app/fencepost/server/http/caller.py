"""Who sends a request, as far as quotas count callers: the caller that the authenticator has found, or the address of
the connection.

What a header says of the client (X-Forwarded-For) anyone can write: behind a proxy all are one address.
"""

from ipaddress import IPv6Address, ip_network

from starlette.types import Scope

from fencepost.server.fence.caller import ANONYMOUS, CALLER, EVERYBODY
from fencepost.server.quota import UNKNOWN


def caller_of(scope: Scope) -> str:
    """Name the caller."""
    name: str = scope.get(CALLER, EVERYBODY).name
    return name if name and name != ANONYMOUS else network_of(scope)


def network_of(scope: Scope) -> str:
    """Give the address of the connection, of IPv6 its first 64 bits: one client has all addresses that begin so."""
    address = address_of(scope)
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.ipv4_mapped is not None:  # a socket that takes both kinds shows IPv4 addresses so
        return str(ip.ipv4_mapped)
    return str(ip_network((ip, 64), strict=False))


def address_of(scope: Scope) -> str:
    """Give the address of the connection."""
    client = scope.get("client")
    return str(client[0]) if client else UNKNOWN
