"""POST /v1/batch?atomic=true: lines that land all, or none.

The whole body is read first, so that no lock waits for a slow client. The answer is that of all lines, or the refusal
of the first one that is refused, with its number.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.refusals import unavailable
from fencepost.server.http.batches.understanding import LINES_IN_A_ROW, Understood, understand
from fencepost.server.http.batches.verdict import NDJSON, verdict_of
from fencepost.server.http.problems.response import RequestError, answer_or_problem, problem_response
from fencepost.server.http.rate_limits import Pace
from fencepost.server.http.requests.bodies import read_body
from fencepost.server.http.requests.headers import Headers
from fencepost.server.http.responses.raw import NO_STORE, RawResponse
from fencepost.server.identity.authenticator import Standing
from fencepost.server.postgres.errors import UnavailableError

_REFUSALS: Final = 400

MOST_LINES: Final = 1000
"""Lines that land as a whole. Each Idempotency-Key is a lock until the end, and PostgreSQL has room for 64 locks per
connection that it allows, for all of its sessions.
"""


async def atomic_answer(
    gateway: Gateway,
    headers: Headers,
    receive: Receive,
    max_body_bytes: int,
    pace: Pace | None,
    standing: Standing | None,
) -> Response:
    """Read all lines, and decide them in one transaction. Raises RequestError."""
    body = await read_body(headers, receive, max_body_bytes)
    try:
        async with gateway.batches.whole():
            over = gateway.caller.is_over(asyncio.get_running_loop().time())
            if over or not (standing is None or await standing.is_good()):
                refused = Problem(INVALID_CREDENTIAL, "The caller's token ended while the batch waited.")
                gateway.report_if_forbidden(refused)
                raise RequestError(refused)
            lines = await _understood(gateway, body, max_body_bytes)
            if isinstance(lines, Response):
                return lines
            too_fast = None if pace is None else pace.refusal(len(lines))
            return await _decided(gateway, lines) if too_fast is None else problem_response(too_fast)
    except UnavailableError as error:
        return problem_response(unavailable(error))


async def _decided(gateway: Gateway, lines: Sequence[tuple[int, Understood]]) -> Response:
    async def use(part: Gateway) -> Response:
        verdicts, size = [], 0
        for number, line in lines:
            response = await answer_or_problem(line.decide(part))
            if response.status_code >= _REFUSALS:
                raise Undone(_refused(number, response))
            verdicts.append(verdict_of(number, response))
            size += len(verdicts[-1])
            if size > gateway.max_answer_bytes:
                raise Undone(_refused(number, problem_response(_answer_too_large(gateway.max_answer_bytes))))
        return RawResponse(200, [NO_STORE, (b"content-type", NDJSON)], b"".join(verdicts))

    answer = await atomically(gateway, use)
    return problem_response(answer) if isinstance(answer, Problem) else answer


async def _understood(
    gateway: Gateway, body: bytes, max_body_bytes: int
) -> Sequence[tuple[int, Understood]] | Response:
    lines: list[tuple[int, Understood]] = []
    most = min(MOST_LINES, gateway.max_rows)
    for number, raw in enumerate(body.split(b"\n"), 1):
        if not number % LINES_IN_A_ROW:
            await asyncio.sleep(0)
        if not raw.strip(b" \t\r"):
            continue
        if len(lines) == most:
            raise RequestError(
                Problem(
                    BODY_TOO_LARGE,
                    f"The batch has more than {most} lines, and is to land as a whole.",
                    hint=f"It may have {MOST_LINES}, or less if FENCEPOST_MAX_ROWS is less.",
                )
            )
        line = await understand(raw, gateway.catalog.current, max_body_bytes)
        if isinstance(line, Problem):
            return _refused(number, problem_response(line))
        lines.append((number, line))
    return lines


def _answer_too_large(most_bytes: int) -> Problem:
    return bad_request(
        f"with it the answer has more than {most_bytes} bytes.",
        "Prefer: return=minimal, or ?select= with fewer columns; FENCEPOST_MAX_ANSWER_BYTES.",
    )


def _refused(number: int, response: Response) -> Response:
    """Name the line in its refusal, which is the batch's."""
    problem = orjson.loads(response.body)
    detail = f"Line {number}: {problem['detail']}"
    problem |= {"detail": detail, "message": detail, "line": number}
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    return RawResponse(response.status_code, headers, orjson.dumps(problem))
