"""Bugs of leases and their tokens (migrations/schema/acquire.sql)."""

from typing import Final

from tests.torture.bugs.settings import CLIENTS, LOCKS
from tests.torture.planted import Line, Planted

ACQUIRE: Final = "fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer, text[])"
RELEASE: Final = "fencepost.release(bigint, bytea, uuid)"
EXTEND: Final = "fencepost.extend(bigint, bytea, integer, integer)"

_ONE: Final = "drawn := ARRAY[nextval('fencepost.tokens')];"
_MANY: Final = "drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));"

BUGS: Final = [
    Planted(
        "tokens are drawn before the lock is taken",
        "mutex",
        LOCKS,
        (
            Line(ACQUIRE, _ONE, "NULL;"),
            Line(ACQUIRE, _MANY, "NULL;"),
            Line(ACQUIRE, "  FOREACH n IN ARRAY wanted LOOP", f"  {_MANY}\n  FOREACH n IN ARRAY wanted LOOP"),
        ),
    ),
    Planted(
        "sessions keep tokens in reserve",
        "mutex",
        LOCKS,
        statements=("ALTER SEQUENCE fencepost.tokens CACHE 20",),
    ),
    Planted(
        "a grant does not lock the lock's row",
        "mutex",
        LOCKS,
        (
            Line(ACQUIRE, "WHERE k.name = n FOR UPDATE;", "WHERE k.name = n;"),
            Line(ACQUIRE, "ORDER BY x.lease_id FOR UPDATE;", "ORDER BY x.lease_id;"),
        ),
    ),
    Planted(
        "a lease that has ended mints",
        "mutex",
        LOCKS,
        (
            Line(EXTEND, "AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()", ""),
            Line(ACQUIRE, "SET ended_at = clock_timestamp(), secret_hash = NULL\n      WHERE x.lease_id = ANY (before)",
                 "SET ended_at = clock_timestamp()\n      WHERE x.lease_id = ANY (before)"),
        ),
    ),
    Planted(
        "a grant does not wait for the end of the lease before it",
        "mutex",
        CLIENTS,
        (Line(ACQUIRE, "AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()\n      ORDER BY k.name",
              "AND false\n      ORDER BY k.name"),),
    ),
    Planted(
        "any secret releases a lease",
        "mutex",
        CLIENTS,
        (Line(RELEASE, "AND x.secret_hash = p_hash AND", "AND"),),
    ),
    Planted(
        "the end of a lease is judged by a clock that is half a second ahead",
        "mutex",
        CLIENTS,
        (Line(ACQUIRE, "x.expires_at > clock_timestamp()\n      ORDER BY k.name",
              "x.expires_at > clock_timestamp() + interval '0.5 s'\n      ORDER BY k.name"),),
    ),
]  # fmt: skip
