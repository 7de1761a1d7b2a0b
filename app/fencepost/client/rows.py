"""The methods of a client that read and write rows, and the requests that they become."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload
from urllib.parse import quote

from fencepost.client.answers import Claimed, Key, Row, collection_path, resource_of, row_path
from fencepost.client.errors import OutcomeUnknown
from fencepost.client.http import Answer, Call, Exchange, Pairs, new_key
from fencepost.client.lease import Lease, claim_call, write_headers

# Each method of the client as the request that it sends. No I/O here.

Filters: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""PostgREST's filters: `{"status": "eq.new"}`, or pairs where a column has several."""

AnyLease = TypeVar("AnyLease")
"""A Lease; for the callers of `SyncClient`, which passes on the Lease behind it, a SyncLease."""


class How(TypedDict, Generic[AnyLease], total=False):
    """How a write is sent: with exactly one of `lease` and `token`. A queued write may have neither."""

    lease: AnyLease | None
    """The lease whose next token the write carries."""
    token: int | None
    """A token from elsewhere: an int, or a FenceToken."""
    idempotency_key: str | None
    """A key that outlives the process; without one the client makes one."""


WithToken: TypeAlias = Callable[[int | None], Call]
"""A write that lacks only its token; None for one whose place in a queue is its token."""

MAX_TOKEN: Final = 2**63 - 1
LOCKS_PER_PAGE: Final = 1000
QUEUED: Final = 202
ANSWER_SECONDS: Final = 10.0
"""How long an answer may take that is due."""
_ROWS_BACK: Final = "return=representation"
_ASYNC: Final = "respond-async"
_MARK: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def locks(name: str | None, after: str | None, source: str | None) -> Call:
    """GET a page of locks."""
    given = {"source": source, "name": name, "after": after, "limit": str(LOCKS_PER_PAGE)}
    pairs = [(member, value) for member, value in given.items() if value is not None]
    return Call(method="GET", path="/v1/locks", params=pairs)


def post(table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], token: int | None) -> Call:
    """POST a row, or several."""
    body = dict(rows) if isinstance(rows, Mapping) else [dict(row) for row in rows]
    return _write("POST", collection_path(table), token, body)


def patch(
    table: str, key: Key, changes: Mapping[str, Any], token: int | None, if_match: int | str | None = None
) -> Call:
    """PATCH one row."""
    resource = resource_of(table, key)
    return _write("PATCH", row_path(table, key), token, dict(changes), resource=resource, if_match=if_match)


def put(table: str, key: Key, row: Mapping[str, Any], token: int | None, if_match: int | str | None = None) -> Call:
    """PUT one row."""
    resource = resource_of(table, key)
    return _write("PUT", row_path(table, key), token, dict(row), resource=resource, if_match=if_match)


def delete(table: str, key: Key, token: int | None, if_match: int | str | None = None) -> Call:
    """DELETE one row."""
    resource = resource_of(table, key)
    return _write("DELETE", row_path(table, key), token, None, prefer=None, resource=resource, if_match=if_match)


def queued(call: Call) -> Call:
    """Ask for a write to be queued, and for what it would return to be kept."""
    prefer = call.headers.get("Prefer")
    return replace(call, headers={**call.headers, "Prefer": _ASYNC if prefer is None else f"{_ASYNC}, {prefer}"})


def queued_write(write_id: str, wait: int) -> Call:
    """GET what became of a queued write; answered when it is decided, or after `wait` seconds."""
    return Call(
        method="GET",
        path=f"/v1/writes/{quote(write_id, safe=':')}",
        params=[("wait", str(wait))] if wait else [],
        upkeep=True,  # a hundred who wait would leave no connection for writes
        read_seconds=wait + ANSWER_SECONDS if wait else None,
    )


def check_token(token: int) -> int:
    """Return the token if it can be one (R11)."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"token {token!r}: a token is an int")
    if not 1 <= token <= MAX_TOKEN:
        raise ValueError(f"token {token}: a token is from 1 to {MAX_TOKEN}")
    return token


def _tag_of(mark: int | str) -> str:
    """Spell a mark as an ETag: an int, its digits as a row has them, or the ETag of an answer."""
    if isinstance(mark, bool) or not isinstance(mark, int | str):
        raise TypeError(f"if_match {mark!r}: a mark is an int, or its digits, as in last_fence_token")
    digits = str(mark).removeprefix('"').removesuffix('"')
    if not _MARK.fullmatch(digits) or int(digits) > MAX_TOKEN:
        raise ValueError(f"if_match {mark!r}: a mark is a whole number from 0 to {MAX_TOKEN}, without leading zeros")
    return f'"{digits}"'


def _write(
    method: str,
    path: str,
    token: int | None,
    body: object,
    *,
    prefer: str | None = _ROWS_BACK,
    params: Pairs = (),
    resource: str | None = None,
    if_match: int | str | None = None,
) -> Call:
    headers = write_headers(token, prefer)
    if if_match is not None:
        headers["If-Match"] = _tag_of(if_match)
    return Call(
        method=method,
        path=path,
        params=params,
        headers=headers,
        body=body,
        writes=True,
        resource=resource,
        token=token,
    )


def pairs(filters: Filters) -> Pairs:
    """Give filters as pairs."""
    return list(filters.items()) if isinstance(filters, Mapping) else list(filters)


def _some(filters: Filters) -> Pairs:
    found = pairs(filters)
    if not found:
        raise ValueError("filters: a write of a whole table is refused: name the rows by a filter")
    return found


SCOPE_HEADER: Final = "X-Fence-Scope"


class Writer:
    """Sends a client's writes: under a lease or with a token of the caller's, once though an answer gets lost."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._unscoped: set[str] = set()
        """Tables that have answered a write as those without a scope do."""

    async def write(self, resource: str | None, call: WithToken, **how: Unpack[How[AnyLease]]) -> Answer:
        """Send a write: under a lease in its turn and with a fresh token, or with the token that was given. It keeps
        token and key when it is sent again.
        """
        if (how.get("lease") is None) == (how.get("token") is None):
            raise TypeError("a write takes exactly one of lease= and token=")
        return await self._send(resource, call, **how)

    async def submit(self, resource: str | None, call: WithToken, **how: Unpack[How[AnyLease]]) -> Answer:
        """Send a write that is to be queued, as `write` does; without a token, where its place in the queue is it."""
        if how.get("lease") is not None and how.get("token") is not None:
            raise TypeError("a queued write takes one of lease= and token=, or neither")
        return await self._send(resource, lambda fresh: queued(call(fresh)), **how)

    async def _send(
        self,
        resource: str | None,
        call: WithToken,
        lease: AnyLease | None = None,
        token: int | None = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        key = new_key() if idempotency_key is None else idempotency_key
        try:
            if lease is not None:
                return await self._send_under(cast("Lease", lease), resource, key, call)
            given = None if token is None else check_token(token)
            return await self._exchange.repeat(call(given).under(key))
        except OutcomeUnknown as error:
            error.idempotency_key = key
            raise

    async def _send_under(self, lease: Lease, resource: str | None, key: str, call: WithToken) -> Answer:
        # Rows of one scope have one mark: two writes at once would make each other stale (R8).
        table = (resource or "").partition("/")[0]
        turn = resource if table in self._unscoped else None
        answer = await lease.write(turn, lambda fresh: call(fresh).under(key))
        if answer.status == QUEUED:  # it shows of no table whether it has a scope
            return answer
        if resource is not None and SCOPE_HEADER not in answer.headers:
            self._unscoped.add(table)
        else:
            self._unscoped.discard(table)
        return answer


class Rows(Generic[AnyLease]):
    """The methods of `Client` that are about rows."""

    _exchange: Exchange
    _writer: Writer

    async def get(self, table: str, key: Key, *, select: str | None = None) -> Row:
        """Return one row; RowNotFound if there is none."""
        params = [] if select is None else [("select", select)]
        row: Row = (await self._exchange.repeat(Call(method="GET", path=row_path(table, key), params=params))).body
        return row

    async def select(
        self,
        table: str,
        filters: Filters = (),
        *,
        select: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[Row]:
        """Return the rows that match all filters: `select("orders", {"status": "eq.new"}, order="amount.desc")`."""
        single = {"select": select, "order": order, "limit": limit, "offset": offset}
        params = [*pairs(filters), *((name, str(value)) for name, value in single.items() if value is not None)]
        call = Call(method="GET", path=collection_path(table), params=params)
        rows: list[Row] = (await self._exchange.repeat(call)).body
        return rows

    @overload
    async def post(self, table: str, rows: Mapping[str, Any], **how: Unpack[How[AnyLease]]) -> Row: ...

    @overload
    async def post(self, table: str, rows: Sequence[Mapping[str, Any]], **how: Unpack[How[AnyLease]]) -> list[Row]: ...

    @overload
    async def post(
        self, table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], **how: Unpack[How[AnyLease]]
    ) -> Row | list[Row]: ...

    async def post(
        self, table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], **how: Unpack[How[AnyLease]]
    ) -> Row | list[Row]:
        """Insert a row, or several in one transaction; returns what was stored."""
        answer = await self._writer.write(None, lambda fresh: post(table, rows, fresh), **how)
        stored: list[Row] = answer.body
        return stored[0] if isinstance(rows, Mapping) else stored

    async def patch(
        self,
        table: str,
        key: Key,
        changes: Mapping[str, Any],
        *,
        if_match: int | str | None = None,
        **how: Unpack[How[AnyLease]],
    ) -> Row:
        """Change columns of one row; returns the row. RowNotFound if there is none.

        `if_match`: the mark that the row must have, as `get(…, select="*,last_fence_token")` reads it; RowChanged if
        the row has another one, or is gone.
        """
        resource = resource_of(table, key)
        answer = await self._writer.write(resource, lambda fresh: patch(table, key, changes, fresh, if_match), **how)
        row: Row = answer.body
        return row

    async def put(
        self,
        table: str,
        key: Key,
        row: Mapping[str, Any],
        *,
        if_match: int | str | None = None,
        **how: Unpack[How[AnyLease]],
    ) -> Row:
        """Create or replace one row; columns that are left out get their defaults. Returns the row. `if_match`: as of
        `patch`; then no row is created.
        """
        resource = resource_of(table, key)
        answer = await self._writer.write(resource, lambda fresh: put(table, key, row, fresh, if_match), **how)
        stored: Row = answer.body
        return stored

    async def delete(
        self, table: str, key: Key, *, if_match: int | str | None = None, **how: Unpack[How[AnyLease]]
    ) -> None:
        """Delete one row; its mark stays. RowNotFound if there is none. `if_match`: as of `patch`."""
        await self._writer.write(resource_of(table, key), lambda fresh: delete(table, key, fresh, if_match), **how)

    async def patch_where(
        self, table: str, filters: Filters, changes: Mapping[str, Any], **how: Unpack[How[AnyLease]]
    ) -> list[Row]:
        """Change columns of every row that matches, or of none (R10); returns the rows. ValueError without a filter."""

        def call(fresh: int | None) -> Call:
            return _write("PATCH", collection_path(table), fresh, dict(changes), params=_some(filters))

        answer = await self._writer.write(None, call, **how)
        rows: list[Row] = answer.body
        return rows

    async def patch_rows(
        self, table: str, rows: Sequence[Mapping[str, Any]], **how: Unpack[How[AnyLease]]
    ) -> list[Row]:
        """Change many rows, each by its own mapping, or none (R10); returns them in this order. A mapping has the
        columns of the key and those to change, all have the same. RowNotFound if a row is not there.
        """

        def call(fresh: int | None) -> Call:
            return _write("PATCH", collection_path(table), fresh, [dict(row) for row in rows])

        answer = await self._writer.write(None, call, **how)
        changed: list[Row] = answer.body
        return changed

    async def delete_where(self, table: str, filters: Filters, **how: Unpack[How[AnyLease]]) -> list[Row]:
        """Delete every row that matches, or none (R10); returns the rows. ValueError without a filter."""

        def call(fresh: int | None) -> Call:
            return _write("DELETE", collection_path(table), fresh, None, params=_some(filters))

        answer = await self._writer.write(None, call, **how)
        rows: list[Row] = answer.body
        return rows

    async def claim(self, resource: str, **how: Unpack[How[AnyLease]]) -> Claimed:
        """Raise the resource's mark without writing, and return the row: no older holder can write from now on (R7)."""
        answer = await self._writer.write(resource, lambda fresh: claim_call(resource, fresh), **how)
        return Claimed.read(answer.body)
