"""Faults of networks, on links: a partition, a delay, and connections that are cut at the worst moment."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal, get_args

from fencepost.testing.faults.connection import Direction
from fencepost.testing.faults.cutter import Cutter, When
from fencepost.testing.faults.errors import FaultError
from fencepost.testing.faults.fault import fault
from fencepost.testing.faults.link import Link, links_between

Ways = Literal["both", "to-server", "to-client"]


@fault
def partitioned(a: object, b: object = None, *, direction: Ways = "both") -> Iterator[None]:
    """Let nothing pass between `a` and `b` until the block ends. Connections stay open; what was sent arrives
    afterwards.

    `a` is a Link; or `a` and `b` are the ends that links were made with (`Link.to(url, between=(a, b))`): all open
    links between them are meant. With `direction`, only one way is blocked. A new connection is accepted, as by a
    kernel's queue, and stays silent. FaultError when there is no link between the ends.
    """
    links = [a] if isinstance(a, Link) and b is None else links_between(a, b)
    if not links:
        raise FaultError(
            f"no link leads from {a!r} to {b!r}: make one with Link.to(url, between=(a, b)), and use its url in the one"
            " to reach the other"
        )
    ways = [(link, way) for link in links for way in _ways(link, direction)]
    closed: list[tuple[Link, Direction]] = []
    try:
        for link, way in ways:
            closed.append((link, way))
            link.call(way.close)
        yield
    finally:
        for link, way in closed:
            link.call(way.reopen)


@fault
def delayed(link: Link, seconds: float, *, direction: Ways = "both") -> Iterator[None]:
    """Let all that passes a link arrive so much later, in its order, until the block ends; a round trip takes twice
    that.

    Delays that overlap add up, and each ends with its own block. What is under way then still arrives late.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a delay is 0 s or more, and ends some time; it cannot be {seconds}")
    ways = _ways(link, direction)
    begun: list[Direction] = []
    try:
        for way in ways:
            begun.append(way)
            link.call(partial(way.slow_down, seconds))
        yield
    finally:
        for way in begun:
            link.call(partial(way.speed_up, seconds))


@fault
def cut(
    link: Link,
    when: When = "after-commit",
    *,
    times: int = 1,
    matching: str | None = None,
    bytes_to_server: int | None = None,
    half_open: bool = False,
) -> Iterator[Cutter]:
    """Cut the next `times` connections of a link, each at a certain moment. Gives what counts them: `.times`,
    `.wait()`.

    - `before-commit`: the client has asked for a commit, and the server has not received it. Nothing was written.
    - `after-commit`: the server has committed, and its answer is lost.
    - `after-bytes`: when `bytes_to_server` more bytes have passed to the server.

    The link must speak PostgreSQL or HTTP for the first two (`Link.to` knows by the URL). Meant are commits of INSERT,
    UPDATE, DELETE and MERGE, and requests other than GET; `matching`: instead those whose SQL, or HTTP request of any
    method (its head or its body, in whatever packets they come), has this text. `half_open`: the server's side stays
    open until the block ends. ValueError for arguments that select nothing, or nothing at such a moment. FaultError at
    the end of a block in which nothing was cut because a connection could not be read.
    """
    _check_cut(when, times, matching, bytes_to_server)
    if when != "after-bytes" and link.protocol is None:
        raise FaultError(f"cut(…, {when!r}) must read what passes: make the link with protocol='postgresql' or 'http'")
    cutter = Cutter(when, times, matching, bytes_to_server or 0, half_open)
    try:
        link.call(lambda: link.cutters.append(cutter))
        yield cutter
    finally:
        link.call(lambda: link.disarm(cutter))
        if half_open:
            link.hang_up()
    if not cutter.times and when != "after-bytes" and (problems := link.unreadable()):
        raise FaultError(f"nothing was cut {when}: a connection cannot be read, {problems[0]}")


def _check_cut(when: When, times: int, matching: str | None, bytes_to_server: int | None) -> None:
    """ValueError for what would be ignored."""
    if when not in get_args(When):
        raise ValueError(f"when is one of {', '.join(get_args(When))}, not {when!r}")
    if times < 1:
        raise ValueError(f"times is 1 or more, not {times}: nothing would be cut")
    if bytes_to_server is not None and when != "after-bytes":
        raise ValueError(f"bytes_to_server belongs to when='after-bytes', and not to {when!r}")
    if bytes_to_server is not None and bytes_to_server < 0:
        raise ValueError(f"bytes_to_server is 0 or more, not {bytes_to_server}")
    if matching is not None and when == "after-bytes":
        raise ValueError("matching belongs to commits, and not to when='after-bytes', which reads nothing")


def _ways(link: Link, direction: Ways) -> list[Direction]:
    if direction not in get_args(Ways):
        raise ValueError(f"direction is one of {', '.join(get_args(Ways))}, not {direction!r}")
    both = {"to-server": link.to_server, "to-client": link.to_client}
    return list(both.values()) if direction == "both" else [both[direction]]
