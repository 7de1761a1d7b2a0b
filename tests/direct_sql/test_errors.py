"""What a person at psql reads: SQLSTATE, MESSAGE, DETAIL and HINT of every refusal, word by word.

Scripts and people rely on these texts: a change here is a change of the contract.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import OPERATOR, REASON, STRANGER, operators, owner

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep

pytestmark = pytest.mark.versions

MAKE = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, n int DEFAULT 0);
CREATE TABLE public.lines (order_id text, line int, n int DEFAULT 0, PRIMARY KEY (order_id, line));
CREATE TABLE public.issued (id int PRIMARY KEY, n int DEFAULT 0);
CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int DEFAULT 0);
CREATE TABLE public."Odd/ Name" (id text PRIMARY KEY);
"""

NO_TOKEN = "In the same transaction: SET LOCAL fencepost.token = '<token>', with the one that the lock service gave."
STALE = "A newer token has been accepted since. Do not retry: acquire the lock anew and read again."
SPENT = "Under the rule strict each token writes a resource once: mint another one."
MALFORMED = "A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = '<token>'"
ANOTHER_KEY = "Delete the row and insert it under its new key, each with a token."
TRUNCATE = "DELETE the rows with a token, or `fencepost unprotect` the table first."
UNISSUED = "Tokens of this table come from leases: POST /v1/leases, or fencepost lock."
GENERATION = (
    "The database was failed over or restored since this token was drawn. Do not retry: acquire the lock anew and read"
    " again."
)
NULL_SCOPE = "Every row has a scope: give each of its columns a value."
OTHER_SCOPE = "Delete the row and insert it under its new scope, each with a token."
NO_REASON = "It is recorded for those who come after you: SET LOCAL fencepost.break_glass = 'INC-123: what happened'"
BEHIND_GLASS = "Behind broken glass no mark falls: leave last_fence_token out, and the row takes the mark of its key."


@dataclass(frozen=True)
class Refusal:
    """A statement, what is set before it, and PostgreSQL's message."""

    sql: str
    token: str | None
    sqlstate: str
    message: str
    detail: str | None
    hint: str | None
    glass: str | None = None
    login: str | None = None


def stale(resource: str, presented: int, mark: int) -> str:
    return f'{{"resource" : "{resource}", "presented" : "{presented}", "mark" : "{mark}"}}'


def of(resource: str) -> str:
    return f'{{"resource" : "{resource}"}}'


UPDATE = "UPDATE public.orders SET n = 1"
DELETE = "DELETE FROM public.orders"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('gone')"

UNSEEN = f"DROP TRIGGER zzz_fencepost_ins ON public.orders; {INSERT}"
TRIGGER_GONE = (
    "Its trigger zzz_fencepost_ins is gone, or one that fires later set last_fence_token: see fencepost doctor."
)

REFUSALS = [
    # No token
    Refusal(UPDATE, None, "FP428", "orders/k is protected: a write needs a fence token", of("orders/k"), NO_TOKEN),
    Refusal(INSERT, None, "FP428", "orders/gone is protected: a write needs a fence token",
            of("orders/gone"), NO_TOKEN),
    Refusal(UNSEEN, None, "FP428", "orders/gone is protected: the row reached the table without a fence token",
            of("orders/gone"), TRIGGER_GONE),
    Refusal(UPDATE, "lines=31", "FP428", "orders/k is protected: a write needs a fence token",
            of("orders/k"), "fencepost.token is 'lines=31', which is for another table: '<token>' is for all of them,"
            " 'orders=<token>' for the table that Fencepost calls orders."),
    Refusal("UPDATE public.lines SET n = 1", None, "FP428", "lines/a%2Cb,7 is protected: a write needs a fence token",
            of("lines/a%2Cb,7"), NO_TOKEN),
    Refusal("""DELETE FROM public."Odd/ Name" """, None, "FP428",
            "Odd%2F Name/50%25 is protected: a write needs a fence token", of("Odd%2F Name/50%25"), NO_TOKEN),
    Refusal("TRUNCATE public.orders", "99", "FP428",
            "public.orders is protected: TRUNCATE would forget its marks", None, TRUNCATE),
    # Stale and spent
    Refusal(UPDATE, "29", "FP409", "stale token 29 for orders/k: its mark is 30", stale("orders/k", 29, 30), STALE),
    Refusal(INSERT, "39", "FP409", "stale token 39 for orders/gone: its mark is 40",
            stale("orders/gone", 39, 40), STALE),
    Refusal(UPDATE, "30", "FP409", "spent token 30 for orders/k: its mark is 30", stale("orders/k", 30, 30), SPENT),
    # Malformed
    Refusal(UPDATE, "x", "FP400", "malformed fence token 'x'", None, MALFORMED),
    Refusal("DELETE FROM public.items", "it's", "FP400", "malformed fence token 'it''s'", None, MALFORMED),
    # What cannot change
    Refusal("UPDATE public.orders SET order_id = 'z'", "50", "FP400",
            "orders/k: the primary key of a protected row cannot change", None, ANOTHER_KEY),
    Refusal("UPDATE public.items SET account = 7", "50", "FP400",
            "items: the columns of the scope account/{account} cannot change", None, OTHER_SCOPE),
    # Scopes
    Refusal("UPDATE public.items SET n = 1", None, "FP428", "account/42 is protected: a write needs a fence token",
            of("account/42"), NO_TOKEN),
    Refusal("INSERT INTO public.items VALUES (9, NULL)", "50", "FP400",
            "items: a column of the scope account/{account} is null", None, NULL_SCOPE),
    # Of the built-in source
    Refusal("UPDATE public.issued SET n = 1", "281474976715000", "FP018",
            "token 281474976715000 for issued/1 was never issued: the built-in source has issued none above"
            " 281474976710755",
            '{"resource" : "issued/1", "presented" : "281474976715000", "issued" : "281474976710755"}', UNISSUED),
    Refusal("UPDATE public.issued SET n = 1", "40", "FP409",
            "stale token 40 for issued/1: a token of an earlier generation, all of which are void up to"
            " 281474976710655",
            stale("issued/1", 40, (1 << 48) - 1), GENERATION),
    # Break-glass
    Refusal(UPDATE, None, "42501", f"{STRANGER} may not break the glass: fencepost.break_glass is set",
            "That is for roles which may execute fencepost.may_break_glass().",
            "Write with a token: SET LOCAL fencepost.token = '<token>'. Or ask postgres for: GRANT EXECUTE ON FUNCTION"
            f" fencepost.may_break_glass() TO {STRANGER}",
            glass=REASON, login=STRANGER),
    Refusal(DELETE, None, "FP400", "'??' is no reason to break the glass: one has three characters or more that are"
            " not blanks", None, NO_REASON, glass="??", login=OPERATOR),
    Refusal("INSERT INTO public.orders (order_id, last_fence_token) VALUES ('gone', 7)", None, "FP409",
            "stale token 7 for orders/gone: its mark is 40", stale("orders/gone", 7, 40), BEHIND_GLASS, glass=REASON),
    Refusal("DELETE FROM fencepost.break_glass_log", None, "42501",
            "fencepost.break_glass_log is append-only", None, None),
]  # fmt: skip


@pytest.fixture
async def db(connect: Connect) -> AsyncIterator[Connection]:
    """A table of each kind, each with a row whose mark is 30, and keys that were deleted."""
    connection = await owner(connect)
    await connection.execute(MAKE)
    for name in ("orders", "lines", "Odd/ Name"):
        await protect(connection, name)
    await protect(connection, "issued", source="builtin")
    await protect(connection, "items", scope="account/{account}")
    await connection.execute("SELECT setval('fencepost.tokens', 100)")
    await connection.execute("""
        BEGIN; SET LOCAL fencepost.token = '30';
        INSERT INTO orders VALUES ('k'); INSERT INTO lines VALUES ('a,b', 7);
        INSERT INTO issued VALUES (1); INSERT INTO items VALUES (1, 42);
        INSERT INTO "Odd/ Name" VALUES ('50%'); INSERT INTO orders VALUES ('gone');
        COMMIT;
        BEGIN; SET LOCAL fencepost.token = '40'; DELETE FROM orders WHERE order_id = 'gone'; COMMIT""")
    async with operators(connection):
        yield connection


async def refused(db: Connection, refusal: Refusal) -> Refusal:
    """Run it, and return PostgreSQL's error."""
    transaction = db.transaction()
    if refusal.login is not None:
        await db.execute(f"SET SESSION AUTHORIZATION {refusal.login}")
    await transaction.start()
    try:
        for name, value in (("token", refusal.token), ("break_glass", refusal.glass)):
            if value is not None:
                await db.execute("SELECT set_config($1, $2, true)", f"fencepost.{name}", value)
        await db.execute(refusal.sql)
    except asyncpg.PostgresError as error:
        shown = {part: getattr(error, part, None) for part in ("sqlstate", "message", "detail", "hint")}
        return Refusal(
            refusal.sql, refusal.token, str(shown["sqlstate"]), str(shown["message"]), shown["detail"], shown["hint"],
            refusal.glass, refusal.login,
        )  # fmt: skip
    finally:
        await transaction.rollback()
        await db.execute("RESET SESSION AUTHORIZATION")
    raise AssertionError(f"not refused: {refusal}")


async def test_every_refusal_has_its_message(db: Connection) -> None:
    # Tokens of the generation before: the row's mark is 30, and 40 is void now.
    await upkeep.raise_generation(db, "test")
    await db.execute(f"ALTER SEQUENCE fencepost.tokens MINVALUE {1 << 48} START {1 << 48} RESTART {1 << 48}")
    await db.execute(f"SELECT setval('fencepost.tokens', {(1 << 48) + 99})")
    for refusal in REFUSALS:
        assert await refused(db, refusal) == refusal
