"""Puts the authenticator together, as the settings say."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import orjson

from fencepost.server.fence.caller import ANONYMOUS, Access, Caller
from fencepost.server.identity.api_keys import ApiKeys
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.identity.jwt import (
    LONGEST_ROLE,
    ChangingKeys,
    Expected,
    FixedKeys,
    FromFile,
    JwtVerifier,
    read_jwks,
    read_place,
    read_role_path,
)
from fencepost.server.identity.keys import KeysError, read_secret
from fencepost.server.observe.events import Emit
from fencepost.server.postgres.database import Database
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES, Times

_ANONYMOUS: frozenset[Access] = frozenset({"read", "write"})
"""What requests without a credential may ask for, if any: a lock is for one that can be told from others."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """The authenticator, and what runs beside it."""

    authenticator: Authenticator
    jwks: ChangingKeys | None
    api_keys: ApiKeys | None
    names_roles: bool = False
    """Whether what a JWT says, or that there is none, makes a request that of a role."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep keys fresh, as long as the block runs."""
        async with AsyncExitStack() as stack:
            if self.jwks is not None:
                await stack.enter_async_context(self.jwks.refreshed())
            yield


def read_authentication(
    settings: Settings, emit: Emit, database: Callable[[], Database] | None = None, times: Times = TIMES
) -> Authentication | None:
    """Read the settings; None: there is no authentication. `database`: where API keys are, once requests are there.
    Raises StartupError.
    """
    expected = _expected(settings)
    if settings.jwt_secret is not None and settings.jwt_jwks:
        raise StartupError("a JWT secret and a JWT JWKS are given: give one of them")
    fixed = _fixed(settings)
    jwks = _changing(settings.jwt_jwks, emit, times) if settings.jwt_jwks else None
    api_keys = ApiKeys(database or _no_database, times) if settings.api_keys else None
    keys = jwks or fixed
    if keys is None and (expected.audience or expected.issuer):
        raise StartupError("JWT audience and JWT issuer are about JWTs: give --jwt-secret or --jwt-jwks, too")
    if keys is None and api_keys is None:
        if expected.anonymous_role:
            raise StartupError(
                "the anonymous role is for requests without a credential: give --jwt-secret, --jwt-jwks or --api-keys,"
                " too"
            )
        return None
    verifiers = [each for each in (api_keys, JwtVerifier(keys, expected) if keys else None) if each is not None]
    authenticator = Authenticator(verifiers, _anonymous(expected.anonymous_role), times)
    if jwks is not None:
        jwks.changed = authenticator.forget
    names_roles = bool(expected.anonymous_role or (keys is not None and expected.role_path))
    return Authentication(authenticator, jwks, api_keys, names_roles)


def _fixed(settings: Settings) -> FixedKeys | None:
    if settings.jwt_secret is None:
        return None
    try:
        return FixedKeys(read_secret(settings.jwt_secret.get_secret_value()))
    except KeysError as error:
        raise StartupError(f"the JWT secret cannot be used: {error}") from error


def _no_database() -> Database:
    raise RuntimeError("only settings are looked at")


def check_authentication(settings: Settings) -> bool:
    """Say whether there is authentication. Raises StartupError where it cannot be as it is set, or is needed."""
    found = read_authentication(settings, lambda _: None) is not None
    if settings.allow_remote and not found:
        raise StartupError(
            "--allow-remote (FENCEPOST_ALLOW_REMOTE) needs authentication, or each machine on the network could write:"
            " give --api-keys, --jwt-secret-file or --jwt-jwks (docs/authentication.md)"
        )
    return found


def _expected(settings: Settings) -> Expected:
    role = settings.anon_role
    if role and (not role.isprintable() or len(role.encode()) > LONGEST_ROLE):
        raise StartupError(f"anonymous role: {role[:60]!r} is no name of a role")
    path = read_role_path(settings.jwt_role_claim_key)
    return Expected(settings.jwt_aud, settings.jwt_issuer, path, role or None)


def _anonymous(role: str | None) -> Caller | None:
    if role is None:
        return None
    claims = orjson.dumps({"role": role}).decode()
    return Caller(ANONYMOUS, role, claims, _ANONYMOUS)


def _changing(where: str, emit: Emit, times: Times) -> ChangingKeys:
    load = read_place(where, times.identity.jwks_within)
    if isinstance(load, FromFile):  # a URL may be away for a while; a file without keys is a mistake
        raw = load.read()
        try:
            read_jwks(raw, secrets=True)
        except KeysError as error:
            raise KeysError(f"JWT JWKS: {where!r}: {error}") from error
    return ChangingKeys(load, emit, secrets=isinstance(load, FromFile), times=times)
