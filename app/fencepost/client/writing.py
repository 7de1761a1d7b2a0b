"""Sending a write: under a lease or with a token of the caller's, once though its answer gets lost."""

from typing import Final

from fencepost.client import calls
from fencepost.client.errors import OutcomeUnknown
from fencepost.client.exchange import Answer, Exchange
from fencepost.client.idempotency import new_key
from fencepost.client.lease import Lease

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
        key = new_key() if key is None else key
        try:
            return await self._write_under(key, resource, lease, token, call)
        except OutcomeUnknown as error:
            error.idempotency_key = key
            raise

    async def _write_under(
        self, key: str, resource: str | None, lease: Lease | None, token: int | None, call: calls.WithToken
    ) -> Answer:
        if lease is not None and token is None:
            # Rows of one scope have one mark: two writes at once would make each other stale (R8).
            table = (resource or "").partition("/")[0]
            async with lease.operation(resource if table in self._unscoped else None) as fresh:
                answer = await lease.send(call(fresh).under(key))
            if resource is not None and SCOPE_HEADER not in answer.headers:
                self._unscoped.add(table)
            else:
                self._unscoped.discard(table)
            return answer
        if lease is None and token is not None:
            return await self._exchange.repeat(call(calls.check_token(token)).under(key))
        raise TypeError("a write takes exactly one of lease= and token=")
