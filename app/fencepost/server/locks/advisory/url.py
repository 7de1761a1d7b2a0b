"""The URL of a `postgres-advisory` source: which database, and which advisory lock a lock's name means there.

postgres-advisory:?keys=hash&sessions=32                       the gateway's own database
postgres-advisory://user:password@host:5432/database?…         another one
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlunsplit

from fencepost.server.locks.registry import SourceContext
from fencepost.server.locks.source import SourceNameError
from fencepost.server.locks.source_url import Form, Option, one_of, read, text, whole

_KEYS: Final = Option("keys", one_of("hash", "number"), "hash")
_SESSIONS: Final = Option("sessions", whole(1, 10_000), 32)
_PASSED_ON: Final = (
    Option("sslmode", one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"), "prefer"),
    *(Option(name, text(), "") for name in ("sslrootcert", "sslcert", "sslkey")),
)
_FORM: Final = Form(
    "postgres-advisory://[user:password@]host[:port]/database[?option=value&…], or postgres-advisory:[?option=value&…]"
    " for the gateway's own database",
    (_KEYS, _SESSIONS, *_PASSED_ON),
    re.compile("(/[^/]+)?"),
    port=5432,
    least=0,
)

_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_PAIR: Final = re.compile(r"(0|-?[1-9][0-9]{0,9}),(0|-?[1-9][0-9]{0,9})")
_BIGINT: Final = range(-(2**63), 2**63)
_INT: Final = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class AdvisoryKey:
    """An advisory lock, as SQL over the lock's name in $1. `arguments`: what pg_advisory_lock takes. `place`: a
    FROM item `k (classid, objid, objsubid)`, where pg_locks has it.
    """

    arguments: str
    place: str

    @classmethod
    def of_bigint(cls, value: str) -> "AdvisoryKey":
        """The one-argument form: pg_locks splits the bigint into two halves, and marks it with objsubid 1."""
        halves = "((h >> 32) & 4294967295)::oid AS classid, (h & 4294967295)::oid AS objid, 1 AS objsubid"
        return cls(value, f"(SELECT {halves} FROM (SELECT {value}) AS v (h)) AS k")

    @classmethod
    def of_ints(cls, one: str, two: str) -> "AdvisoryKey":
        """The two-argument form, objsubid 2."""
        pair = f"({one} & 4294967295)::oid AS classid, ({two} & 4294967295)::oid AS objid, 2 AS objsubid"
        return cls(f"({one})::int, ({two})::int", f"(SELECT {pair}) AS k")


HASHED: Final = AdvisoryKey.of_bigint("hashtextextended($1::text, 0)")
NUMBERED: Final = AdvisoryKey.of_bigint("$1::text::bigint")
PAIRED: Final = AdvisoryKey.of_ints("split_part($1::text, ',', 1)::bigint", "split_part($1::text, ',', 2)::bigint")


@dataclass(frozen=True, slots=True)
class AdvisoryUrl:
    """The parts of the URL. `server` names the database for messages, without a password."""

    dsn: str
    server: str
    numbers: bool
    sessions: int

    def key(self, lock: str) -> AdvisoryKey:
        """Which advisory lock a name means. SourceNameError where it must be a number, and is none."""
        if not self.numbers:
            return HASHED
        if _NUMBER.fullmatch(lock) and int(lock) in _BIGINT:
            return NUMBERED
        if (pair := _PAIR.fullmatch(lock)) and all(int(part) in _INT for part in pair.groups()):
            return PAIRED
        raise SourceNameError(
            f"the lock {lock} is no number: with keys=number a lock's name is an advisory key, such as 12345 or 7,42"
        )


def parse(url: str, context: SourceContext) -> AdvisoryUrl:
    """Read the URL. Raises SourceConfigError."""
    found = read(url, context.name, _FORM)
    passed_on = {option.name: found[option] for option in _PASSED_ON if option in found}
    numbers, sessions = found[_KEYS] == "number", found[_SESSIONS]
    if not found.hosts and not found.path:
        if passed_on:
            raise found.wrong(
                f"names no host, so it means the gateway's own database: {', '.join(passed_on)} belongs into that one's"
                " URL"
            )
        if not context.dsn:
            raise found.wrong("names no host, and there is no database of the gateway's own")
        return AdvisoryUrl(context.dsn, "the gateway's own database", numbers, sessions)
    if not (found.hosts and found.path):
        raise found.wrong("has to name one host and one database")
    (host,) = found.hosts
    user = quote(found.user or "", safe="") + (f":{quote(found.password, safe='')}" if found.password else "")
    dsn = urlunsplit(
        ("postgresql", f"{user}@{host}" if user else f"{host}", quote(found.path), urlencode(passed_on), "")
    )
    return AdvisoryUrl(dsn, f"{host}{found.path}", numbers, sessions)
