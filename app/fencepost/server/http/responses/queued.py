"""A queued write, as the answer 202, the page /v1/writes/{id} and its events show it."""

from typing import Final

import orjson
from starlette.responses import Response

from fencepost.server import wire
from fencepost.server.gateway.results import (
    CALLER_HEADER,
    CLAIMED_HEADER,
    DROPPED,
    LETTER_HEADER,
    RETRIED_AS,
    STATE_HEADER,
    letter_of,
    state_of,
)
from fencepost.server.gateway.submit import Submitted
from fencepost.server.gateway.writes.write import Write
from fencepost.server.http.responses.raw import JSON, NO_STORE, RawResponse
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.queues.message import WriteId

PREFIX: Final = "/v1/writes/"
_ACCEPTED: Final = 202
_OURS: Final = (STATE_HEADER, LETTER_HEADER, CALLER_HEADER, CLAIMED_HEADER)
"""Headers of a kept answer that are none of the answer."""


def path_of(write_id: WriteId) -> str:
    """Give the path where a write's result is. Every character of an id may stand in a path."""
    return f"{PREFIX}{write_id}"


def submitted_answer(write: Write, submitted: Submitted) -> Response:
    """Answer a write that is in its queue: 202, and where its result will be."""
    headers = [NO_STORE, (b"location", path_of(submitted.write_id).encode("ascii"))]
    if write.preferences.queued:
        headers.append((b"preference-applied", b"respond-async"))
    headers.append(JSON)
    return RawResponse(_ACCEPTED, headers, orjson.dumps(queued_answer(submitted.write_id)))


def queued_answer(write_id: WriteId) -> wire.WriteAnswer:
    """Show a write that is not decided."""
    return {
        "id": str(write_id),
        "queue": write_id.queue,
        "partition": write_id.position.partition,
        "offset": write_id.position.offset,
        "state": "queued",
        "answer": None,
        "reason": None,
        "dead_letter": False,
        "dropped": False,
        "retried_as": None,
    }


def decided_answer(write_id: WriteId, answer: Recorded) -> wire.WriteAnswer:
    """Show a write that is decided, with the answer that it would have had at once."""
    state, letter = state_of(answer), letter_of(answer) or ""
    dropped, retried = letter == DROPPED, letter.startswith(RETRIED_AS)
    return {
        **queued_answer(write_id),
        "state": state,
        "answer": {
            "status": answer.status,
            "headers": {name: value for name, value in answer.headers if name not in _OURS},
            "body": orjson.Fragment(answer.body) if answer.body else None,
        },
        "reason": None if state == "applied" else _reason(answer),
        "dead_letter": state == "failed" and not dropped and not retried,
        "dropped": dropped,
        "retried_as": letter.removeprefix(RETRIED_AS) if retried else None,
    }


def _reason(answer: Recorded) -> str:
    """Read a problem's sentence."""
    try:
        detail = orjson.loads(answer.body)["detail"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return f"It was answered {answer.status}."
    return str(detail)
