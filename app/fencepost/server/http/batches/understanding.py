"""What a line of a batch asks for: its place among the others, and what decides it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from fencepost.server.fence.problem_types import BODY_TOO_LARGE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.writes.places import Place, place_of, place_of_claim
from fencepost.server.http.batches.line import ClaimLine, read_line
from fencepost.server.http.problems.response import RequestError
from fencepost.server.http.requests.data import body_of
from fencepost.server.http.requests.headers import read_idempotency_key, read_token
from fencepost.server.http.writes.claiming import claim_answer, read_resource
from fencepost.server.http.writes.deciding import write_answer
from fencepost.server.http.writes.reading import read_write
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.tables import Catalog

LINES_IN_A_ROW: Final = 16
"""Lines that are read before others have their turn in the event loop."""


@dataclass(slots=True)
class Understood:
    """A line that can be decided."""

    place: Place
    key: str | None
    """Its Idempotency-Key."""
    decide: Callable[[Gateway], Awaitable[Response]]
    """Decides it, as a request; raises RequestError, QueryError."""


async def understand(raw: bytes, catalog: Catalog, max_body_bytes: int) -> Understood | Problem:
    """Read a line, or say what is wrong with it."""
    try:
        return await _understood(raw, catalog, max_body_bytes)
    except RequestError as error:
        return error.problem
    except QueryError as error:
        return bad_request(str(error))


async def _understood(raw: bytes, catalog: Catalog, max_body_bytes: int) -> Understood:
    line = read_line(raw)
    if isinstance(line, ClaimLine):
        token, headers, name = read_token(line.headers), line.headers, line.resource
        place = place_of_claim(catalog, read_resource(name, "claim"))
        key = read_idempotency_key(headers)
        return Understood(place, key, lambda gateway: claim_answer(gateway, name, token, headers))
    request = line.request
    write = await read_write(request, line.table, line.key, max_body_bytes)
    if write.preferences.queued:
        raise RequestError(
            bad_request(
                "prefer: respond-async means nothing in a batch: each line is decided before its verdict.",
                "To queue a write, send it as a request.",
            )
        )
    request.receive = body_of(b"")  # its body is in `write` now, once
    key = None if write.idempotency_key is None else write.idempotency_key.text
    return Understood(place_of(catalog, write), key, lambda gateway: write_answer(gateway, request, write))


def too_long(limit: int) -> Problem:
    """Refuse a line that has more bytes than a body may have."""
    return Problem(
        BODY_TOO_LARGE,
        f"The line has more than {limit} bytes: it was skipped.",
        hint="FENCEPOST_MAX_BODY_BYTES sets it.",
    )
