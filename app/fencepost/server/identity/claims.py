"""A verified JWT's claims, and the Caller that they make."""

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from fencepost.server.fence.caller import EVERY_ACCESS, Access, Caller
from fencepost.server.identity.locks import read_patterns
from fencepost.server.startup import StartupError

SKEW: Final = 30.0
"""Seconds that the clocks of the issuer and the gateway may differ."""
LONGEST_NAME: Final = 512
"""Characters of `sub`, and of `iss`."""
LONGEST_ROLE: Final = 63
"""Bytes of a role's name in PostgreSQL."""
_STEP: Final = re.compile(
    r'\.(?P<name>[\w@$-]+)|\."(?P<quoted>[^"]+)"|\[(?P<index>\d{1,4})\]'
    r'|\[\?\(@ *(?P<how>==\^?|!=|\^==|\*==) *"(?P<text>[^"]*)"\)\]'
)
_COMPARED: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "^==": str.startswith,
    "==^": str.endswith,
    "*==": operator.contains,
}


class ClaimError(Exception):
    """A JWT is not accepted because of its claims. The message says which, and quotes little."""


class RolePathError(StartupError):
    """The setting cannot be read. The message is one line."""


@dataclass(frozen=True, slots=True)
class Search:
    """The last step of a path: the first text of a list of which this is true. `how`: a key of _COMPARED."""

    how: str
    text: str

    def first(self, found: Any) -> str | None:
        texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        return next((each for each in texts if _COMPARED[self.how](each, self.text)), None)


Step = str | int | Search
"""A member's name, a place in a list, or a search in one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What JWTs must have. `audience`, `issuer`: empty, none is set. `role_path`: where the role is; empty, JWTs
    name no role. `anonymous_role`: the role of JWTs without one.
    """

    audience: str = ""
    issuer: str = ""
    role_path: tuple[Step, ...] = ("role",)
    anonymous_role: str | None = None


def read_role_path(text: str) -> tuple[Step, ...]:
    """Read a path as PostgREST writes it: `.role`, `.realm_access.roles[0]`, `."https://shop.example/role"`,
    `.roles[?(@ ^== "app_")]`. Raises RolePathError.
    """
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None or (steps and isinstance(steps[-1], Search)):
            break
        position = found.end()
        steps.append(_step(found))
    if position < len(text) or (steps and not isinstance(steps[0], str)):
        raise RolePathError(
            f'JWT role claim key: {text!r} is no path of claims: .role, .realm.roles[0], ."https://a.example/b",'
            ' .roles[?(@ == "web")]'
        )
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["how"] is not None:
        return Search(found["how"], found["text"])
    return int(found["index"]) if found["index"] is not None else found["name"] or found["quoted"]


def caller_of(
    claims: Mapping[str, Any], text: str, expected: Expected, now: float, monotonic: Callable[[], float]
) -> Caller:
    """Make the caller. `text`: the claims as they were signed; `now`: seconds since 1970. Raises ClaimError."""
    _check_text(claims, text)
    expires = _check_times(claims, now)
    _check_parties(claims, expected)
    role = _role(claims, expected)
    return Caller(
        _name(claims, role),
        role,
        text,
        _access(claims),
        _locks(claims),
        monotonic() + (expires + SKEW - now),
    )


def _check_text(claims: Mapping[str, Any], text: str) -> None:
    """Policies read the claims as jsonb, which holds neither."""
    try:
        json.dumps(claims, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ClaimError("a claim has half of a surrogate pair") from None
    if "\\u0000" in text:
        raise ClaimError("a claim has U+0000")


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    """Check exp, nbf and iat. Returns when the JWT ends."""
    expires, begins, issued = (_number(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise ClaimError("it has no claim exp, so that it would never end")
    if now >= expires + SKEW:
        raise ClaimError("it has expired")
    if begins is not None and now < begins - SKEW:
        raise ClaimError("it is not valid yet (nbf)")
    if issued is not None and now < issued - SKEW:
        raise ClaimError("it was issued in the future (iat)")
    return expires


def _check_parties(claims: Mapping[str, Any], expected: Expected) -> None:
    audiences = claims.get("aud", [])
    audiences = [audiences] if isinstance(audiences, str) else audiences
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise ClaimError("its aud is neither a text nor a list of texts")
    if expected.audience:
        if expected.audience not in audiences:
            raise ClaimError("it is for another audience (aud)")
    elif "aud" in claims:
        raise ClaimError("it is for an audience (aud), and the gateway has none: --jwt-aud sets it")
    if expected.issuer and _text(claims, "iss") != expected.issuer:
        raise ClaimError("it is from another issuer (iss)")


def _role(claims: Mapping[str, Any], expected: Expected) -> str | None:
    """Find the role of the database; None: JWTs name none."""
    if not expected.role_path:
        return None
    found: Any = claims
    for step in expected.role_path:
        found = _member(found, step)
    if found is None:
        if expected.anonymous_role is None:
            raise ClaimError("it names no role, and there is no anonymous one: --jwt-role-claim-key says where")
        return expected.anonymous_role
    if not isinstance(found, str) or not found.isprintable() or not 0 < len(found.encode()) <= LONGEST_ROLE:
        raise ClaimError("its role is no name of a role")
    return found


def _member(value: Any, step: Step) -> Any:
    if isinstance(step, Search):
        return step.first(value)
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and step < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def _name(claims: Mapping[str, Any], role: str | None) -> str:
    """Name the identity: by issuer and subject; where JWTs have no subject, by the role, which they share then."""
    issuer, subject = _text(claims, "iss") or "", _text(claims, "sub")
    issuer = issuer.replace("%", "%25").replace("|", "%7C")  # `a|b` and `c` is another identity than `a` and `b|c`
    if subject is not None:
        return f"jwt:{issuer}|{subject}"
    if role is None:
        raise ClaimError("it has no claim sub, so that it belongs to no identity")
    return f"jwt-role:{issuer}|{role}"


def _access(claims: Mapping[str, Any]) -> frozenset[Access]:
    """Read the claim scope: what of ours is in it narrows. Scopes of other services are theirs."""
    if "scope" not in claims:
        return EVERY_ACCESS
    scope = claims["scope"]
    if not isinstance(scope, str):
        raise ClaimError("its scope is no text of names with blanks between them")
    found = EVERY_ACCESS.intersection(cast("list[Access]", scope.split(" ")))
    return EVERY_ACCESS if found == EVERY_ACCESS else found


def _locks(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    if "locks" not in claims:
        return None
    try:
        return read_patterns(claims["locks"])
    except ValueError as error:
        raise ClaimError(f"its claim locks: {error}") from None


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"its {name} is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ClaimError(f"its {name} is no time")
    return number


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_NAME:
        raise ClaimError(f"its {name} is no text of 1 to {LONGEST_NAME} printable characters")
    return value
