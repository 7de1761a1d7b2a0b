"""API keys (api_keys.sql): what the gateway reads of them, and what `fencepost key` does, as the schema's owner."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from fencepost.server.postgres.connection import Connection

PREFIX: Final = "fp_"
"""What each key begins with."""
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What the gateway knows of a key. Seconds count from when it was read; `ends_in` None: it does not end."""

    secret_hash: bytes
    old_hash: bytes | None
    old_ends_in: float
    role: str | None
    access: frozenset[str]
    locks: tuple[str, ...] | None
    ends_in: float | None
    revoked: bool


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is to be for. `expires_in`: seconds; None: it does not end. `locks` None: all."""

    role: str | None
    access: Sequence[str]
    locks: Sequence[str] | None
    expires_in: float | None
    note: str


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key as operators see it. It has no secret."""

    id: str
    role: str | None
    access: tuple[str, ...]
    locks: tuple[str, ...] | None
    note: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    old_until: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    state: str
    """active, expired or revoked."""


class KeyChangeError(Exception):
    """A key cannot be changed so. The message is one line."""


def hash_secret(secret: str) -> bytes:
    """Hash a key's secret for storing. It has 192 random bits, so it needs neither salt nor stretching: those make
    guessing slow, and nothing guesses that.
    """
    return hashlib.sha256(secret.encode()).digest()


async def look_up(connection: Connection, ids: Sequence[str]) -> Mapping[str, StoredKey]:
    """Find those of these keys that there are."""
    rows = await connection.fetch("SELECT * FROM fencepost.api_keys_of($1)", list(ids))
    return {
        row["id"]: StoredKey(
            row["secret_hash"],
            row["old_hash"],
            row["old_ends_in"] or 0.0,
            row["role"],
            frozenset(row["access"]),
            None if row["locks"] is None else tuple(row["locks"]),
            row["ends_in"],
            row["revoked"],
        )
        for row in rows
    }


async def note_uses(connection: Connection, ids: Sequence[str]) -> None:
    """Note that these are used."""
    await connection.execute("SELECT fencepost.api_keys_used($1)", list(ids))


async def create(connection: Connection, key: NewKey) -> tuple[str, str]:
    """Make a key; return its id, and the key itself, which is stored nowhere. Raises KeyChangeError."""
    if key.role is not None and not await _is_role(connection, key.role):
        raise KeyChangeError(f"there is no role {key.role} in this database")
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    await connection.execute(
        "INSERT INTO fencepost.api_keys (id, secret_hash, role, access, locks, expires_at, note)"
        " VALUES ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6), $7)",
        *(key_id, hash_secret(secret), key.role, list(key.access)),
        *(None if key.locks is None else list(key.locks), key.expires_in, key.note),
    )
    return key_id, _spelled(key_id, secret)


async def _is_role(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1)", name))


_LISTED: Final = """
SELECT k.id, k.role, k.access, k.locks, k.note, k.created_at, k.created_by, k.expires_at, k.rotated_at, k.revoked_at,
       k.used_at, CASE WHEN k.old_until > clock_timestamp() THEN k.old_until END AS old_until,
       CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= clock_timestamp() THEN 'expired'
            ELSE 'active' END AS state
  FROM fencepost.api_keys k"""


async def list_keys(connection: Connection) -> list[ListedKey]:
    """List all of them, the oldest first."""
    return [_listed(row) for row in await connection.fetch(f"{_LISTED} ORDER BY k.created_at, k.id")]


def _listed(row: asyncpg.Record) -> ListedKey:
    fields = dict(row)
    locks = None if fields["locks"] is None else tuple(fields["locks"])
    return ListedKey(**{**fields, "access": tuple(fields["access"]), "locks": locks})


async def rotate(connection: Connection, key_id: str, *, overlap: float, expires_in: float | None) -> str:
    """Give a key a new secret, and return the key. The old secret is taken for `overlap` seconds more; one that is
    still taken from an earlier rotation ends at once. `expires_in` None: it ends when it did. Raises KeyChangeError.
    """
    secret = secrets.token_hex(_SECRET_BYTES)
    async with connection.transaction():
        key = await _locked(connection, key_id)
        if key.state == "revoked":
            raise KeyChangeError(f"key {key_id} is revoked, for good: create another")
        if key.state == "expired" and expires_in is None:
            raise KeyChangeError(f"key {key_id} has expired: give --expires, from when on it ends anew")
        await connection.execute(
            "UPDATE fencepost.api_keys SET secret_hash = $2, rotated_at = clock_timestamp(),"
            " old_hash = CASE WHEN $3::double precision > 0 THEN secret_hash END,"
            " old_until = CASE WHEN $3 > 0 THEN clock_timestamp() + make_interval(secs => $3) END,"
            " expires_at = coalesce(clock_timestamp() + make_interval(secs => $4), expires_at) WHERE id = $1",
            *(key_id, hash_secret(secret), overlap, expires_in),
        )
    return _spelled(key_id, secret)


async def revoke(connection: Connection, key_id: str) -> bool:
    """Refuse a key from now on. False: it was revoked before. Raises KeyChangeError."""
    async with connection.transaction():
        if (await _locked(connection, key_id)).state == "revoked":
            return False
        await connection.execute(
            "UPDATE fencepost.api_keys SET revoked_at = clock_timestamp(), old_hash = NULL, old_until = NULL"
            " WHERE id = $1",
            key_id,
        )
        return True


async def _locked(connection: Connection, key_id: str) -> ListedKey:
    row = await connection.fetchrow(f"{_LISTED} WHERE k.id = $1 FOR UPDATE", key_id)
    if row is None:
        raise KeyChangeError(f"there is no key {key_id}: `fencepost key list` shows them")
    return _listed(row)


def _spelled(key_id: str, secret: str) -> str:
    return f"{PREFIX}{key_id}_{secret}"
