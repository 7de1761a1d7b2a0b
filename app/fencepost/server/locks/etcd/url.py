"""The URL of an etcd source: etcds://user:password@h1:2379,h2:2379?prefix=locks/&ca=/etc/ca.pem for example."""

import re
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.locks.source_url import Form, Option, read, text

_TLS: Final = "etcds://"
PREFIX: Final = Option("prefix", text(), "fencepost/")
"""What all keys begin with."""
CA: Final[Option[str | None]] = Option("ca", text(), None, only=_TLS)
CERT: Final[Option[str | None]] = Option("cert", text(), None, only=_TLS)
KEY: Final[Option[str | None]] = Option("key", text(), None, only=_TLS)

_FORM: Final = Form(
    "etcd://[user:password@]host[:port][,host…][?prefix=…], or etcds://…[?ca=…&cert=…&key=…] with TLS",
    (PREFIX, CA, CERT, KEY),
    re.compile("/?"),
    port=2379,
    most=99,
    credentials="both",
)


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """The parts of a source's URL. `endpoints` are base URLs without a path."""

    name: str
    endpoints: tuple[str, ...]
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"etcd source {self.name} ({', '.join(self.endpoints)})"


def parse(url: str, name: str) -> EtcdUrl:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read(url, name, _FORM)
    if (CERT in found) != (KEY in found):
        raise found.wrong("needs cert= and key= together")
    web = "https" if found.scheme == "etcds" else "http"
    return EtcdUrl(
        name,
        tuple(f"{web}://{host}" for host in found.hosts),
        found[PREFIX],
        found.user,
        found.password,
        found[CA],
        found[CERT],
        found[KEY],
    )
