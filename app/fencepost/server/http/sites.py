"""Which host a request must name, and which pages of the web may send one.

A gateway without authentication is for all programs that reach its port. A page in a browser on the same machine is one
of them: it sends requests to any address, without being able to read the answers; or, under a name that leads to that
address (DNS rebinding), as its own site. Browsers say so: in Host, Origin and Sec-Fetch-Site.
"""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from fencepost.server.fence.problem_types import CROSS_SITE, WRONG_HOST
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.startup import StartupError

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
"""Always served."""
ANY: Final = "*"
"""Allows any host: for where a proxy checks it."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/?#\s]+)(?::\d{1,5})?")
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^:\[\]@/?#\s*]+)(:\d{1,5})?")
_MOST_KEPT: Final = 1000
_READS: Final = frozenset({"GET", "HEAD"})

ANSWERED_HEADERS: Final = (
    "Content-Location", "Content-Range", "Idempotent-Replayed", "Location", "Preference-Applied", "RateLimit",
    "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Fence-Mark", "X-Fence-Scope", "X-Request-Id",
)  # fmt: skip
"""What they may read."""


class SitesError(StartupError):
    """A setting cannot be read. The message is one line."""


@dataclass
class Sites:
    """`hosts`: names without a port, or ANY. `origins`: as https://shop.example, of pages that may use the gateway.
    `addresses`: whether each address is served: DNS rebinding needs a name, and Prometheus asks by address.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    addresses: bool = False
    _served: set[bytes] = field(default_factory=set)
    """Values of Host that were found to be served."""

    def refusal(
        self, method: str, hosts: list[bytes], origin: bytes | None, fetch_site: bytes | None, *, version: str
    ) -> Problem | None:
        """Say why a request is refused, by its headers Host (each of them), Origin and Sec-Fetch-Site."""
        if len(hosts) != 1:
            if hosts or version != "1.0":
                return bad_request(f"Host: {len(hosts) or 'no'} headers, and a request has one.")
        elif hosts[0] not in self._served and (problem := self._host_refusal(hosts[0])) is not None:
            return problem
        if method in _READS or (origin is None and fetch_site is None):
            return None
        return self._page_refusal(hosts[0] if hosts else b"", origin, fetch_site)

    def _host_refusal(self, host: bytes) -> Problem | None:
        text = host.decode("latin-1").lower()
        found = _HOST.fullmatch(text)
        if found is None:
            return bad_request(f"Host: {text[:100]!r} is no host.")
        if ANY not in self.hosts and found[1] not in self.hosts and not (self.addresses and _is_address(found[1])):
            return Problem(
                WRONG_HOST,
                f"Host: {text[:100]} is not served.",
                hint=f"FENCEPOST_ALLOWED_HOSTS={found[1][:100]} allows it.",
            )
        if len(self._served) < _MOST_KEPT:
            self._served.add(host)
        return None

    def _page_refusal(self, host: bytes, origin: bytes | None, fetch_site: bytes | None) -> Problem | None:
        if origin is not None:
            text = origin.decode("latin-1").lower()
            _, _, of = text.partition("://")
            if "," not in text and (text in self.origins or (of and of == host.decode("latin-1").lower())):
                return None
            return Problem(
                CROSS_SITE,
                f"Origin: {text[:100]} is another site than {host.decode('latin-1')[:100]}.",
                hint=f"FENCEPOST_CORS_ORIGINS={text[:100]} allows its pages.",
            )
        if fetch_site is not None and b"cross-site" in fetch_site.lower():
            return Problem(CROSS_SITE, "Sec-Fetch-Site: cross-site: a page of another site sent the request.")
        return None

    def for_page(self, origin: bytes | None) -> dict[str, str]:
        """Give the headers by which a page of an allowed site may read an answer that is made before any route."""
        text = (origin or b"").decode("latin-1")
        if text.lower() not in self.origins:
            return {}
        exposed = ", ".join(ANSWERED_HEADERS)
        return {"Access-Control-Allow-Origin": text, "Access-Control-Expose-Headers": exposed, "Vary": "Origin"}


def read_sites(listens_on: str, allowed_hosts: str, cors_origins: str, *, addresses: bool = False) -> Sites:
    """Read the settings. Raises SitesError. `addresses`: each address is served, too."""
    hosts = {*LOOPBACK_NAMES, *_names(allowed_hosts)}
    for host in hosts - {ANY}:
        if (found := _HOST.fullmatch(host)) is None or found[1] != host:
            raise SitesError(
                f"allowed hosts: {host!r} is no name of a host: shop.example, 10.0.0.5 or [fd00::5], without a port"
            )
    origins = _names(cors_origins)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SitesError(f"CORS origins: {origin!r} is no origin: https://shop.example, without a path")
    own = listens_on.lower()
    return Sites(frozenset({*hosts, f"[{own}]" if ":" in own else own}), frozenset(origins), addresses)


def _names(setting: str) -> list[str]:
    return [name for each in setting.split(",") if (name := each.strip().lower())]


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
