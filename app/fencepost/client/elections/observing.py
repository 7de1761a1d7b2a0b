"""Observing an election: server-sent events, read for as long as the caller iterates.

A stream begins with the present leader, so a new connection needs to know nothing of the old one. The gateway sends a
heartbeat every ten seconds; a stream that is silent for longer than SILENCE is closed, and opened again.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fencepost.client.errors import Unavailable
from fencepost.client.http.exchange import Call, Exchange
from fencepost.client.http.jsontext import loads
from fencepost.client.http.retry import Failures
from fencepost.client.problem import as_time

SILENCE: Final = 25.0
"""Seconds without a heartbeat after which a stream is taken for dead."""
_NO_EVENT: Final = ""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. `term` is the number of its lease. Times are the database's; `remaining` is seconds."""

    term: int
    owner: str
    lease_id: str
    since: datetime | None
    expires_at: datetime | None
    remaining: float


def leader_in(election: Mapping[str, Any]) -> Leader | None:
    """Read the leader in an ElectionAnswer."""
    body = election["leader"]
    if body is None:
        return None
    return Leader(
        term=int(body["term"]),
        owner=body["owner"],
        lease_id=body["lease_id"],
        since=as_time(body["since"]),
        expires_at=as_time(body["expires_at"]),
        remaining=body["remaining_ms"] / 1000,
    )


def election_call(name: str, source: str | None, *, silence: float | None = None) -> Call:
    """Give the request that asks who leads: once, or as a stream that may be silent for so long."""
    params = [("name", name), *([] if source is None else [("source", source)])]
    if silence is None:
        return Call(method="GET", path="/v1/elections", params=params)
    # Streams are no data: a hundred of them would leave no connection for writes.
    return Call(method="GET", path="/v1/elections/events", params=params, upkeep=True, read_seconds=silence)


async def leaders(
    exchange: Exchange, name: str, source: str | None, silence: float = SILENCE
) -> AsyncGenerator[Leader | None, None]:
    """Give the leader, and each other one after it. See `Client.leaders`."""
    call = election_call(name, source, silence=silence)
    last_seen: str | None = _NO_EVENT
    failures = Failures(exchange.retry, exchange.clock, silence)
    while True:
        failed: Unavailable | None = None
        try:
            async with exchange.stream(call) as lines:
                async for data in _events(lines):
                    failures = Failures(exchange.retry, exchange.clock, silence)
                    leader = _read(data)
                    lease_id = None if leader is None else leader.lease_id
                    if lease_id != last_seen:
                        last_seen = lease_id
                        yield leader
        except Unavailable as error:
            if not error.may_repeat:
                raise
            failed = error
        pause = failures.pause(failed.retry_after if failed else None)
        if pause is None and failed is not None:
            raise failed
        # A stream that ended was answered: a gateway that stops ends it so.
        await exchange.clock.sleep(exchange.retry.longest if pause is None else pause)


def _read(data: str) -> Leader | None:
    try:
        event = loads(data.encode())
    except ValueError as error:
        raise Unavailable(f"an event of an election is not JSON: {data:.60}") from error
    if not isinstance(event, dict):
        raise Unavailable(f"an event of an election is not an object: {data:.60}")
    return leader_in(event)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Give the data of each event. Comments and other fields are left out."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
