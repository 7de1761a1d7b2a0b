"""Queues a write that was read, and answers 202 with the address that will have its result."""

import asyncio
from typing import Final

import orjson
from starlette.responses import Response

from fencepost.fencing.problems import Problem, bad_request
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.preconditions import not_with_queue
from fencepost.gateway.submit import Submission, Submitted
from fencepost.gateway.use_cases import submit
from fencepost.gateway.writes.write import NO_BODY, Write
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.data import DataRequest
from fencepost.http.requests.headers import KEY_HEADER
from fencepost.http.responses.queued import path_of, queued_answer
from fencepost.http.responses.raw import JSON, NO_STORE, RawResponse
from fencepost.queues.message import METHODS, WriteMessage
from fencepost.storage.errors import StorageError

_ACCEPTED: Final = 202
_PLAIN: Final = (b"*/*", b"application/json")
"""What Accept and Content-Type mean anyway."""


def is_queued(gateway: Gateway, write: Write) -> bool | None:
    """Whether a write is to be queued: because its request prefers that, or its table takes no others. None: the
    picture of the tables may be outdated, since by it the write would be refused: no protected table of the name is
    known here, or one that needs a token, and the write has none.
    """
    table = gateway.catalog.current.find(write.table)
    if table is None or table.fence is None:
        return True if write.preferences.queued else None
    if table.fence.queue is not None:
        return True
    return None if write.token is None else write.preferences.queued


async def is_queued_by_now(gateway: Gateway, write: Write) -> bool:
    """Look again, where the picture of the tables proves outdated: a write of a table that has just got a queue must
    not be done at once.
    """
    table, now = gateway.catalog.current.find(write.table), asyncio.get_running_loop().time()
    try:
        async with gateway.look():
            changed = await gateway.catalog.has_changed(write.table, table, gateway.own_connection())
        if changed:
            await gateway.catalog.loaded_after(now)
    except StorageError:
        return write.preferences.queued  # the use case needs the same, and answers with the error
    return is_queued(gateway, write) is True or write.preferences.queued


async def submit_write(gateway: Gateway, request: DataRequest, write: Write) -> Response:
    """Queue it, and answer. Raises RequestError for a write of several rows."""
    if not write.single:
        raise RequestError(_of_many(gateway, write))
    outcome = await submit(gateway, Submission(write, _message(request, write)))
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if not isinstance(outcome, Submitted):
        raise TypeError(f"a submission gave {outcome!r}")
    headers = [NO_STORE, (b"location", path_of(outcome.write_id).encode("ascii"))]
    if write.preferences.queued:
        headers.append((b"preference-applied", b"respond-async"))
    headers.append(JSON)
    return RawResponse(_ACCEPTED, headers, orjson.dumps(queued_answer(outcome.write_id)))


def _of_many(gateway: Gateway, write: Write) -> Problem:
    table = gateway.catalog.current.find(write.table)
    if table is not None and table.fence is not None and table.fence.queue is not None:
        return not_with_queue(table.fence, "a write of several rows")
    return bad_request(
        "Prefer: respond-async: only a write of one row can be queued, because an order is one of a resource.",
        "Send each object by itself; or leave out respond-async.",
    )


def _message(request: DataRequest, write: Write) -> WriteMessage:
    """Say what the request says, as a message does. The preferences are those that count when it is applied."""
    accept, content_type = request.headers.get(b"accept"), request.headers.get(b"content-type")
    return WriteMessage(
        "",
        METHODS[request.method.encode()],
        _body(write),
        request.query,
        write.preferences.applied or None,
        None if accept in _PLAIN else accept,
        None if content_type in _PLAIN else content_type,
        next((value for name, value in request.raw_headers if name == KEY_HEADER), None),
    )


def _body(write: Write) -> bytes | None:
    if write.body is NO_BODY:
        return None
    # That of a POST is an array by now; a message has the object.
    return (write.body.text.strip()[1:-1] if write.verb == "post" else write.body.text).encode()
