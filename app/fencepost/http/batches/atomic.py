"""POST /v1/batch?atomic=true: lines that land all, or none.

The whole body is read first, so that no lock waits for a slow client. The answer is that of all lines, or the refusal
of the first one that is refused, with its number.
"""

from collections.abc import Sequence
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive

from fencepost.fencing.problem_types import BODY_TOO_LARGE
from fencepost.fencing.problems import Problem
from fencepost.gateway.atomic import Undone, atomically
from fencepost.gateway.gateway import Gateway
from fencepost.http.batches.understanding import Understood, understand
from fencepost.http.batches.verdict import NDJSON, verdict_of
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.bodies import read_body
from fencepost.http.requests.headers import Headers
from fencepost.http.responses.raw import NO_STORE, RawResponse
from fencepost.http.writes.deciding import answer_or_problem

_REFUSALS: Final = 400


async def atomic_answer(gateway: Gateway, headers: Headers, receive: Receive, max_body_bytes: int) -> Response:
    """Read all lines, and decide them in one transaction. Raises RequestError."""
    lines = await _understood(gateway, await read_body(headers, receive, max_body_bytes), max_body_bytes)
    if isinstance(lines, Response):
        return lines

    async def use(part: Gateway) -> Response:
        verdicts = []
        for number, line in lines:
            response = await answer_or_problem(line.decide(part))
            if response.status_code >= _REFUSALS:
                raise Undone(_refused(number, response))
            verdicts.append(verdict_of(number, response))
        return RawResponse(200, [NO_STORE, (b"content-type", NDJSON)], b"".join(verdicts))

    answer = await atomically(gateway.for_batch(), use)
    return problem_response(answer) if isinstance(answer, Problem) else answer


async def _understood(
    gateway: Gateway, body: bytes, max_body_bytes: int
) -> Sequence[tuple[int, Understood]] | Response:
    lines: list[tuple[int, Understood]] = []
    for number, raw in enumerate(body.split(b"\n"), 1):
        if not raw.strip(b" \t\r"):
            continue
        if len(lines) == gateway.max_rows:
            raise RequestError(
                Problem(
                    BODY_TOO_LARGE,
                    f"The batch has more than {gateway.max_rows} lines, and is to land as a whole.",
                    hint="FENCEPOST_MAX_ROWS sets how many.",
                )
            )
        line = await understand(raw, gateway.catalog.current, max_body_bytes)
        if isinstance(line, Problem):
            return _refused(number, problem_response(line))
        lines.append((number, line))
    return lines


def _refused(number: int, response: Response) -> Response:
    """Name the line in its refusal, which is the batch's."""
    problem = orjson.loads(response.body)
    detail = f"Line {number}: {problem['detail']}"
    problem |= {"detail": detail, "message": detail, "line": number}
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    return RawResponse(response.status_code, headers, orjson.dumps(problem))
