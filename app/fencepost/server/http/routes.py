"""System routes as data. A Route says once what a route takes and what it answers: from it come the reading of its
requests, the refusals of what it does not take, who may ask, and its part of the OpenAPI document.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, cast

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.server.fence.problems import bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.http.bodies import BodiesInHand, is_large, read_json, read_no_body
from fencepost.server.http.edge import NAMED, READS, Answering, Needs, caller_of
from fencepost.server.http.headers import LOOKED_AT, Headers, by_name, judge_headers
from fencepost.server.http.headers import Route as Kind
from fencepost.server.http.openapi_answers import problems
from fencepost.server.http.openapi_parts import prefer
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.postgres.query import QueryError

Part = dict[str, Any]


class UnfitError(ValueError):
    """A member of a query or of a body cannot be taken. The message is the end of a sentence that names the member."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Says:
    """In the annotation of a member: what is said of a value that the member cannot have; `{value}` is that value."""

    text: str


class Taken(BaseModel):
    """The query or the body of a request: these members and no others. A member has a sentence (Says), or what
    validates the member raises UnfitError; the context is the Gateway, whose limits count, for a body.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Taken):
    """The query of a route that takes no parameters."""


Q = TypeVar("Q", bound=Taken)
B = TypeVar("B")


@dataclass(slots=True)
class Asked(Generic[Q, B]):
    """A request of a route, read."""

    scope: Scope
    gateway: Gateway
    headers: Headers
    query: Q
    body: B
    secret: str | None
    """X-Lease-Secret, where the route takes one."""

    @property
    def lease_secret(self) -> str:
        """Give X-Lease-Secret, where the route must have one."""
        if self.secret is None:
            raise RuntimeError("the route does not declare that it must have a secret")
        return self.secret

    def part(self, name: str) -> str:
        """Give a part of the path by its name in the route's template."""
        text: str = self.scope["path_params"][name]
        return text


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is no problem, of one status."""

    description: str
    model: Any = None
    """The type of its JSON; None: it has no body, or one of another kind."""
    media: str | None = None
    """The media type of a body that is no JSON; a text."""

    def described(self, *, usual: bool) -> Part:
        """Describe it as an argument of FastAPI's route, which is given the type of the usual one by itself."""
        described: Part = {"description": self.description}
        if self.model is not None and not usual:
            described["model"] = self.model
        if self.media is not None:
            described["content"] = {self.media: {"schema": {"type": "string"}}}
        return described


@dataclass(frozen=True)
class Route:
    """One system route: a method of a path. The docstring of `answer` is what /docs says of it."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    answer: Callable[[Asked[Any, Any]], Awaitable[Response]]
    summary: str
    tag: str
    needs: Needs
    answers: Mapping[int, Answered]
    """By status; the usual one is the first."""
    refusals: Sequence[tuple[int, str]] = ()
    """Statuses of problems, and when they are answered."""
    kind: Kind | None = "look"
    """What its header Prefer may say, and which other headers are refused; None: neither headers nor query are read."""
    query: type[Taken] = NoQuery
    body: type[Taken] | None = None
    """None: it takes no body."""
    may_lack_body: bool = False
    """Whether a request without a body is as one with {}."""
    example: Part | None = None
    """An example of the body."""
    secret: Literal["may", "must"] | None = None
    """Whether X-Lease-Secret may be there, or must be."""
    names_resources: bool = False
    """Whether it takes names of resources, to which a profile would have to be applied."""
    parameters: Sequence[Part] = field(default=())
    """Parts of the path, and headers that `answer` reads by itself, as OpenAPI describes them."""


class SystemRoutes:
    """Reads and answers requests to system routes, which their paths lead to past FastAPI (Paths of http/edge.py)."""

    def __init__(self, gateway: Callable[[Scope], Gateway], max_body_bytes: int, bodies: BodiesInHand) -> None:
        self._gateway, self._max_body_bytes, self._bodies = gateway, max_body_bytes, bodies

    def entry(self, route: Route) -> tuple[str, str, Answering]:
        """Give a route's method, its path, and what answers."""
        return route.method, route.path, partial(self._answer, route)

    async def _answer(self, route: Route, scope: Scope, receive: Receive, _send: Send) -> Response:
        try:
            headers: Headers = scope.get(NAMED) or by_name(scope["headers"])
            asked: Asked[Any, Any] = Asked(scope, self._gateway(scope), headers, NO_QUERY, None, None)
            if not is_large(headers):
                return await route.answer(await _read(route, asked, receive, self._max_body_bytes))
            async with self._bodies.counting(caller_of(scope), headers, receive) as counted:
                return await route.answer(await _read(route, asked, counted, self._max_body_bytes))
        except RequestError as error:
            return problem_response(error.problem)
        except QueryError as error:
            return problem_response(bad_request(str(error)))


async def _read(route: Route, asked: Asked[Any, Any], receive: Receive, limit: int) -> Asked[Any, Any]:
    """Read a request: headers, query, secret, body, in this order. Raises RequestError, QueryError."""
    headers, raw = asked.headers, asked.scope["query_string"]
    if route.kind is not None and not LOOKED_AT.isdisjoint(headers):
        judge_headers(headers, route.kind, names_resources=route.names_resources)
    if (raw and route.kind) or route.query.model_fields:
        asked.query = _read_query(raw, route.query)
    if route.secret is not None:
        asked.secret = read_secret(asked.scope["headers"])
    if route.secret == "must" and asked.secret is None:  # noqa: S105 - no secret
        raise RequestError(
            bad_request("X-Lease-Secret: missing; it came with the lease, or was chosen by the client that acquired it")
        )
    if route.body is not None:
        asked.body = await _read_body(route, asked, receive, limit)
    elif route.method != "GET":
        await read_no_body(headers, receive, limit)
    return asked


def _read_query(raw: bytes, model: type[Taken]) -> Taken:
    """Read a query: each parameter once, and none that the route does not take. Raises RequestError, QueryError."""
    given: dict[str, str] = {}
    known = model.model_fields
    for name, value in query_pairs(raw):
        if not known:
            names = ", ".join(each for each, _ in query_pairs(raw))
            raise RequestError(bad_request(f"query: {names[:100]}: this route takes no parameters."))
        if name not in known or name in given:
            raise RequestError(bad_request(f"query: {name[:100] or _EMPTY}: this takes {_listed(list(known))} once"))
        given[name] = value
    if not known:
        return NO_QUERY
    try:
        return model.model_validate(given)
    except ValidationError as error:
        _refuse("query", error, model)


NO_QUERY: Final = NoQuery()
_EMPTY: Final = "''"
"""Stands for a name that is empty, where a refusal names it."""


async def _read_body(route: Route, asked: Asked[Any, Any], receive: Receive, limit: int) -> Taken:
    model, headers = cast("type[Taken]", route.body), asked.headers
    nothing = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    given: Any = {}
    if not (route.may_lack_body and nothing):
        _, given = await read_json(headers, receive, limit)
    if not isinstance(given, dict):
        raise RequestError(bad_request("body: a JSON object is expected"))
    try:
        return model.model_validate(given, context=asked.gateway)
    except ValidationError as error:
        _refuse("body", error, model)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)}, each" if len(names) > 1 else f"one parameter, {names[0]},"


def _refuse(where: str, error: ValidationError, model: type[Taken]) -> NoReturn:
    """Raise the first fault as a RequestError that names the member; unknown members come first, all of them."""
    faults = error.errors(include_url=False)
    unknown = sorted(str(each["loc"][0]) or _EMPTY for each in faults if each["type"] == "extra_forbidden")
    if unknown:
        known = ", ".join(sorted(model.model_fields))
        raise RequestError(bad_request(f"{where}: {', '.join(unknown)[:100]}: unknown; this takes {known}"))
    first = faults[0]
    member = str(first["loc"][0]) if first["loc"] else ""
    cause = first.get("ctx", {}).get("error")
    of_member = model.model_fields.get(member)
    says = next((each for each in of_member.metadata if isinstance(each, Says)), None) if of_member else None
    if first["type"] == "missing" and of_member is not None:
        example = (of_member.examples or ["…"])[0]
        text = f"missing: ?{member}={example}" if where == "query" else f'missing: {{"{member}": "{example}"}}'
    elif says is not None:
        text = says.text.format(value=f"{first['input']!r:.60}")
    else:
        text = str(cause) if isinstance(cause, UnfitError) else first["msg"]
    hint = cause.hint if isinstance(cause, UnfitError) else None
    raise RequestError(bad_request(": ".join(filter(None, (where, member, text))), hint))


# Who may ask, looked at before any route (Admission of http/edge.py).

_PAGES: Final[dict[str, Needs]] = {"/": "more for callers", "/docs": "nothing", "/problems": "nothing"}
_OPEN_UNDER: Final = ("/docs/assets/", "/problems/")


def needed(routes: Iterable[Route]) -> Callable[[str, str], Needs]:
    """Give what says what the caller of a request must be allowed to do, by its method and path. Paths under /v1/ count
    by how they begin; what nobody declares is for known callers.
    """
    exact = dict(_PAGES)
    under: dict[str, Needs] = {"/v1/batch": "write"}
    for route in routes:
        of, prefix = under if route.path.startswith("/v1/") else exact, route.path.partition("{")[0]
        if of.setdefault(prefix, route.needs) != route.needs:
            raise ValueError(f"the routes under {prefix} need different things")
    prefixes = tuple(under.items())

    def needs(method: str, path: str) -> Needs:
        if path.startswith("/v1/data/"):
            return "read" if method in READS else "write"
        if (found := exact.get(path)) is not None:
            return found
        for prefix, need in prefixes:
            if path.startswith(prefix):
                return need
        return "nothing" if path.startswith(_OPEN_UNDER) else "a caller"

    return needs


SECRET_HEADER: Final = b"x-lease-secret"
SHORTEST_SECRET: Final = 22  # characters: 128 bits in base64
LONGEST_SECRET: Final = 256
_SECRET: Final = re.compile(rb"[\x21-\x7e]{%d,%d}" % (SHORTEST_SECRET, LONGEST_SECRET))


def read_secret(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read X-Lease-Secret; None when it is not there. Its value is never repeated in an error."""
    values = [value for name, value in headers if name == SECRET_HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise RequestError(bad_request("X-Lease-Secret: a lease has one secret, and there are several headers"))
    if not _SECRET.fullmatch(values[0]):
        raise RequestError(
            bad_request(
                f"X-Lease-Secret: a secret has {SHORTEST_SECRET} to {LONGEST_SECRET} visible ASCII characters, and 128"
                " random bits or more in them"
            )
        )
    return values[0].decode("ascii")


_SECRET_PARAMETER: Final[Part] = {
    "name": "X-Lease-Secret",
    "in": "header",
    "description": f"The lease's secret: {SHORTEST_SECRET} to {LONGEST_SECRET} visible ASCII characters with 128 random"
    " bits or more.",
    "schema": {"type": "string", "minLength": SHORTEST_SECRET, "maxLength": LONGEST_SECRET, "pattern": "^[!-~]*$"},
}


def router_of(routes: Iterable[Route]) -> APIRouter:
    """Give routes as FastAPI's, which makes their part of the OpenAPI document, and of 405 what is allowed. None of
    them is asked: SystemRoutes answers.
    """
    router = APIRouter()
    for route in routes:
        status, usual = next(iter(route.answers.items()))
        router.add_api_route(
            route.path,
            _not_asked,
            methods=[route.method],
            tags=[route.tag],
            summary=route.summary,
            description=inspect.getdoc(route.answer),
            name=route.answer.__name__.strip("_"),
            status_code=status,
            response_model=usual.model,
            response_class=Response if usual.model is None else JSONResponse,
            responses={
                **{each: answer.described(usual=each == status) for each, answer in route.answers.items()},
                **problems(*route.refusals),
            },
            openapi_extra=_taken(route),
        )
    return router


async def _not_asked() -> NoReturn:
    raise RuntimeError("SystemRoutes answers the requests of this route")


def _taken(route: Route) -> Part:
    """Describe what a route takes: parameters and body."""
    schemas = route.query.model_json_schema(schema_generator=_Schemas).get("properties", {})
    query = [_parameter(name, known, schemas[name]) for name, known in route.query.model_fields.items()]
    secret = {**_SECRET_PARAMETER, "required": route.secret == "must"}  # noqa: S105 - no secret
    preferences = [] if route.kind is None else [prefer(route.kind)]
    parameters = [*route.parameters, *query, *([secret] if route.secret else []), *preferences]
    taken: Part = {"parameters": parameters} if parameters else {}
    if route.body is not None:
        content = {
            "application/json": {
                "schema": route.body.model_json_schema(schema_generator=_Schemas),
                "example": route.example,
            }
        }
        taken["requestBody"] = {"required": not route.may_lack_body, "content": content}
    return taken


class _Schemas(GenerateJsonSchema):
    """Leaves out defaults that only stand for a member that is not there."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return super().default_schema(schema) if schema.get("default") else self.generate_inner(schema["schema"])


EVENTS: Final = "text/event-stream"


def last_event_id(then: str) -> Part:
    """Describe the header by which EventSource goes on."""
    return {
        "name": "Last-Event-ID",
        "in": "header",
        "description": f"What EventSource sends when it connects again. {then}",
        "schema": {"type": "string"},
    }


def _parameter(name: str, known: FieldInfo, schema: Part) -> Part:
    """Describe a parameter of a query. None stands for one that is not there: it cannot be sent."""
    schema = next((each for each in schema.get("anyOf", ()) if each != {"type": "null"}), schema)
    parameter: Part = {
        "name": name,
        "in": "query",
        "description": known.description,
        "schema": {key: value for key, value in schema.items() if key not in _ABOUT},
    }
    if known.is_required():
        parameter["required"] = True
    if known.examples:
        parameter["example"] = known.examples[0]
    return parameter


_ABOUT: Final = frozenset({"title", "description", "examples", "default"})
"""What OpenAPI says of a parameter beside its schema, or in another way."""
