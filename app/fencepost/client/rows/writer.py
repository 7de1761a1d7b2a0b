"""Sending a write: under a lease or with a token of the caller's, once though its answer gets lost."""

from typing import Final

from fencepost.client.errors import OutcomeUnknown
from fencepost.client.http.exchange import Answer, Exchange
from fencepost.client.http.idempotency import new_key
from fencepost.client.leases.lease import Lease
from fencepost.client.rows import calls

SCOPE_HEADER: Final = "X-Fence-Scope"


class Writer:
    """What a client's writes go through."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._unscoped: set[str] = set()
        """Tables that have answered a write as those without a scope do."""

    async def write(
        self, resource: str | None, lease: Lease | None, token: int | None, key: str | None, call: calls.WithToken
    ) -> Answer:
        """Send a write: under a lease in its turn and with a fresh token, or with the token that was given. It keeps
        token and key when it is sent again.
        """
        if (lease is None) == (token is None):
            raise TypeError("a write takes exactly one of lease= and token=")
        return await self._send(resource, lease, token, key, call)

    async def submit(
        self, resource: str | None, lease: Lease | None, token: int | None, key: str | None, call: calls.WithToken
    ) -> Answer:
        """Send a write that is to be queued, as `write` does; without a token, where its place in the queue is it."""
        if lease is not None and token is not None:
            raise TypeError("a queued write takes one of lease= and token=, or neither")
        return await self._send(resource, lease, token, key, lambda fresh: calls.queued(call(fresh)))

    async def _send(
        self, resource: str | None, lease: Lease | None, token: int | None, key: str | None, call: calls.WithToken
    ) -> Answer:
        key = new_key() if key is None else key
        try:
            if lease is not None:
                return await self._send_under(lease, resource, key, call)
            given = None if token is None else calls.check_token(token)
            return await self._exchange.repeat(call(given).under(key))
        except OutcomeUnknown as error:
            error.idempotency_key = key
            raise

    async def _send_under(self, lease: Lease, resource: str | None, key: str, call: calls.WithToken) -> Answer:
        # Rows of one scope have one mark: two writes at once would make each other stale (R8).
        table = (resource or "").partition("/")[0]
        turn = resource if table in self._unscoped else None
        answer = await lease.write(turn, lambda fresh: call(fresh).under(key))
        if answer.status == calls.QUEUED:  # it shows of no table whether it has a scope
            return answer
        if resource is not None and SCOPE_HEADER not in answer.headers:
            self._unscoped.add(table)
        else:
            self._unscoped.discard(table)
        return answer
