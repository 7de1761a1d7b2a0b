"""The URL of a ZooKeeper source: zookeeper://user:password@h1:2181,h2:2181/chroot?session_timeout_s=10 for example."""

import re
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.locks.source_url import Form, Host, Option, read, seconds

SESSION_TIMEOUT: Final = Option("session_timeout_s", seconds(1, 600), 10.0)
"""Seconds that the servers keep the session, and with it the locks, of a process that is silent."""
ROOT: Final = "/fencepost"

_FORM: Final = Form(
    "zookeeper://[user:password@]host[:port][,host…][/chroot][?session_timeout_s=seconds]",
    (SESSION_TIMEOUT,),
    re.compile(r"(/(?!\.\.?(/|$))[^/]+)*/?"),  # the chroot: no empty part, no . and no ..
    port=2181,
    most=99,
    credentials="both",
)


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """What a URL has. `root`: the node that has one child per lock. `credentials`: user:password, for digest."""

    hosts: tuple[Host, ...]
    root: str = ROOT
    session_timeout_s: float = SESSION_TIMEOUT.default
    credentials: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The servers, as kazoo wants them and as people read them; never a password."""
        return ",".join(map(str, self.hosts))


def parse(url: str, name: str) -> ZooKeeperUrl:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read(url, name, _FORM)
    credentials = None if found.user is None else f"{found.user}:{found.password}"
    return ZooKeeperUrl(found.hosts, found.path.rstrip("/") + ROOT, found[SESSION_TIMEOUT], credentials)
