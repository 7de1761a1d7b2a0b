"""The URL of a `postgres-advisory` source: which database, and which advisory lock a lock's name means there.

postgres-advisory:?keys=hash&sessions=32                       the gateway's own database
postgres-advisory://user:password@host:5432/database?…         another one
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fencepost.locks.registry import Surroundings
from fencepost.locks.source import SourceConfigError, SourceError

MOST_SESSIONS: Final = 10_000

_PASSED_ON: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})
_SSLMODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OPTIONS: Final = ("keys", "sessions", *sorted(_PASSED_ON))

_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_PAIR: Final = re.compile(r"(0|-?[1-9][0-9]{0,9}),(0|-?[1-9][0-9]{0,9})")
_BIGINT: Final = range(-(2**63), 2**63)
_INT: Final = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Key:
    """An advisory lock, as SQL over the lock's name in $1. `arguments`: what pg_advisory_lock takes. `place`: a
    FROM item `k (classid, objid, objsubid)`, where pg_locks has it.
    """

    arguments: str
    place: str

    @classmethod
    def of_bigint(cls, value: str) -> "Key":
        """The one-argument form: pg_locks splits the bigint into two halves, and marks it with objsubid 1."""
        halves = "((h >> 32) & 4294967295)::oid AS classid, (h & 4294967295)::oid AS objid, 1 AS objsubid"
        return cls(value, f"(SELECT {halves} FROM (SELECT {value}) AS v (h)) AS k")

    @classmethod
    def of_ints(cls, one: str, two: str) -> "Key":
        """The two-argument form, objsubid 2."""
        pair = f"({one} & 4294967295)::oid AS classid, ({two} & 4294967295)::oid AS objid, 2 AS objsubid"
        return cls(f"({one})::int, ({two})::int", f"(SELECT {pair}) AS k")


HASHED: Final = Key.of_bigint("hashtextextended($1::text, 0)")
NUMBERED: Final = Key.of_bigint("$1::text::bigint")
PAIRED: Final = Key.of_ints("split_part($1::text, ',', 1)::bigint", "split_part($1::text, ',', 2)::bigint")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the URL says. `server` names the database for messages, without a password."""

    dsn: str
    server: str
    numbers: bool
    sessions: int

    def key(self, lock: str) -> Key:
        """Which advisory lock a name means. SourceError where it must be a number, and is none."""
        if not self.numbers:
            return HASHED
        if _NUMBER.fullmatch(lock) and int(lock) in _BIGINT:
            return NUMBERED
        if (pair := _PAIR.fullmatch(lock)) and all(int(part) in _INT for part in pair.groups()):
            return PAIRED
        raise SourceError(
            f"the lock {lock} is no number: with keys=number a lock's name is an advisory key, such as 12345 or 7,42"
        )


def parse(url: str, surroundings: Surroundings) -> Settings:
    """Read the URL. Raises SourceConfigError."""
    where = f"the URL of the token source {surroundings.name}"
    if "#" in url:
        raise SourceConfigError(f"{where} has a #: write it as %23 in a password")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        options = _options(parts.query, where)
    except ValueError:
        # What the standard library says quotes the URL, and with it the password.
        raise SourceConfigError(f"{where} cannot be read: write postgres-advisory://user@host:5432/database") from None
    if (sslmode := options.get("sslmode", "prefer")) not in _SSLMODES:
        raise SourceConfigError(f"{where} has sslmode={sslmode}: it is one of {', '.join(_SSLMODES)}")
    numbers, sessions = _keys(options, where), _sessions(options, where)
    passed_on = {name: value for name, value in options.items() if name in _PASSED_ON}
    if not parts.netloc and not parts.path:
        if passed_on:
            raise SourceConfigError(
                f"{where} names no host, so it means the gateway's own database: {', '.join(passed_on)} belongs into"
                " that one's URL"
            )
        if not surroundings.dsn:
            raise SourceConfigError(f"{where} names no host, and there is no database of the gateway's own")
        return Settings(surroundings.dsn, "the gateway's own database", numbers, sessions)
    if not host or "," in parts.netloc or not parts.path.strip("/") or "/" in parts.path[1:]:
        raise SourceConfigError(
            f"{where} has to name one host and one database: postgres-advisory://user@host/database"
        )
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(passed_on), ""))
    return Settings(dsn, f"{host}:{port or 5432}{parts.path}", numbers, sessions)


def _options(query: str, where: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []:
        if name not in _OPTIONS:
            raise SourceConfigError(f"{where} has the unknown option {name}: known are {', '.join(_OPTIONS)}")
        if name in options:
            raise SourceConfigError(f"{where} has the option {name} twice")
        options[name] = value
    return options


def _keys(options: Mapping[str, str], where: str) -> bool:
    keys = options.get("keys", "hash")
    if keys not in ("hash", "number"):
        raise SourceConfigError(f"{where} has keys={keys}: it is hash or number")
    return keys == "number"


def _sessions(options: Mapping[str, str], where: str) -> int:
    sessions = options.get("sessions", "32")
    if not re.fullmatch("[1-9][0-9]{0,4}", sessions) or int(sessions) > MOST_SESSIONS:
        raise SourceConfigError(f"{where} has sessions={sessions}: it is a number from 1 to {MOST_SESSIONS}")
    return int(sessions)
