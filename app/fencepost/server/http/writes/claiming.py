"""Claims: what POST /v1/claims and the lines of batches have in common."""

import re
from dataclasses import replace
from functools import partial

import orjson
from starlette.responses import Response

from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, Resource, parse_resource
from fencepost.server.fence.seal import Presented, SealedToken
from fencepost.server.gateway.claims.claim import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.writes.idempotency import Replayed
from fencepost.server.gateway.writes.write import IdempotencyKey
from fencepost.server.http.problems.response import RequestError, problem_response
from fencepost.server.http.requests.headers import RawHeaders, payload_hash, read_idempotency_key
from fencepost.server.http.responses.answers import fence_headers, replay, to_recorded
from fencepost.server.http.responses.raw import json_response
from fencepost.server.postgres.keyed import Recorded


def read_resource(name: str, where: str) -> Resource:
    """Read the name of a resource. Raises RequestError."""
    try:
        return parse_resource(name)
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"{where}: {error}")) from error


async def claim_answer(gateway: Gateway, name: str, token: Presented | None, raw_headers: RawHeaders) -> Response:
    """Claim the resource of this name, and answer. Raises RequestError."""
    text = read_idempotency_key(raw_headers)
    key = None if text is None else IdempotencyKey(text, payload_hash("claim", name))
    asked = Claim(read_resource(name, "body: resource"), token, key)
    outcome = await claim(gateway, asked, partial(_kept_answer, gateway))
    if isinstance(outcome, Replayed) and outcome.answer is not None:
        outcome.answer = _without_others_mark(outcome.answer, token)
    return _answer(outcome)


def _without_others_mark(answer: Recorded, token: Presented | None) -> Recorded:
    """Leave the mark out that another token than this request's has made: it may be good for writes still."""
    number = token.number if isinstance(token, SealedToken) else token
    if orjson.loads(answer.body)["mark"] == str(number):
        return answer
    # As text: the row stays as PostgreSQL has written it. In a name the quotes would be escaped.
    return replace(answer, body=re.sub(rb',"mark":"[0-9]+"', b',"mark":null', answer.body, count=1))


def _kept_answer(gateway: Gateway, done: Done) -> Recorded:
    """Give what is kept of an answer: all of it, or without the member `row` (gateway/kept.py)."""
    whole = to_recorded(_answer(done))
    if gateway.kept.takes(gateway.caller.name, len(whole.body)):
        return whole
    body = {"resource": done.resource, "mark": str(done.mark)}
    return to_recorded(json_response(body, [*fence_headers(done), (b"preference-applied", b"return=minimal")]))


def _answer(outcome: Outcome) -> Response:
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replay(outcome)
    row = orjson.Fragment(outcome.rows[0]) if outcome.rows else None
    body = {"resource": outcome.resource, "mark": str(outcome.mark), "row": row}
    return json_response(body, fence_headers(outcome))
