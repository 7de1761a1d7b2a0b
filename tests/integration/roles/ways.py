"""What each route needs, by column, as docs/roles.md says it; the matrix compares it with what PostgreSQL says."""

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tests.integration.test_lease_claims import ask, asking
from tests.support.use_cases import delete, keyed, listed, matching, once, patch, post, put

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.seal import parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.gateway import use_cases
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import DEFAULT_QUEUE, Gateway, Seals
from fencepost.server.gateway.leases import Granted
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.use_cases import claim, explain, read_many, read_one
from fencepost.server.gateway.write import Verb, Write
from fencepost.server.postgres.query import Condition, Field, Query, Selected
from fencepost.server.postgres.tables import KnownPrivileges
from fencepost.server.queues.message import WriteMessage
from fencepost.server.queues.postgres import PostgresLog

SEALS = Seals(parse_keys(f"k1:{base64.b64encode(b'k' * 32).decode()}"))
MARK = "last_fence_token"
VISIBLE = ("id", "account_id", "n")
COLUMNS = {"jobs": (*VISIBLE, MARK), "parts": (*VISIBLE, MARK), "items": VISIBLE, "plain": VISIBLE, "seen": VISIBLE}

Need = tuple[str, str]
"""A privilege, and the column; `*`: of the table."""


def need(privilege: str, *columns: str) -> set[Need]:
    return {(privilege, column) for column in columns}


@dataclass(frozen=True)
class Way:
    """A request, as the role sends it. `key` is a row that is there; `fresh`, one that is not."""

    needs: dict[str, set[Need]]
    send: Callable[[Gateway, str, int, int, int], Awaitable[Outcome]]


def of(rows: set[Need], scoped: set[Need], *unprotected: str) -> dict[str, set[Need]]:
    """What it takes in a table whose rows have marks, and what where they share their scope's; `unprotected`: what has
    no marks, and can be read all the same.
    """
    return {"jobs": rows, "parts": rows, "items": scoped} | dict.fromkeys(unprotected, SHOWN)


ROW = need("SELECT", "id", MARK)
SHOWN = need("SELECT", *VISIBLE)
RAISED = need("UPDATE", MARK)
CHANGED = of(SHOWN | ROW | RAISED | need("UPDATE", "n"), SHOWN | need("UPDATE", "n"))
REPLACED = of(SHOWN | ROW | RAISED | need("UPDATE", "account_id", "n"), SHOWN | need("UPDATE", "account_id", "n"))
MADE = of(SHOWN | ROW | need("INSERT", "id", "account_id", MARK), SHOWN | need("INSERT", "id", "account_id"))
MADE_BY_PUT = of(
    REPLACED["jobs"] | need("INSERT", "id", "account_id", "n", MARK),
    REPLACED["items"] | need("INSERT", "id", "account_id", "n"),
)
# A statement that locks rows to delete them needs UPDATE of any column.
DELETED = of(SHOWN | ROW | need("DELETE", "*"), SHOWN | need("DELETE", "*") | need("UPDATE", "any"))
DELETED_MANY = of(DELETED["jobs"] | need("UPDATE", "any"), DELETED["items"])


def filtered(table: str, key: int, token: int, **values: int) -> Write:
    return matching((Condition(Field("id"), "eq", str(key)),), token, table, **values)


async def whole(gateway: Gateway, *parts: Callable[[Gateway], Awaitable[Outcome]]) -> Outcome:
    """Send a batch that lands as a whole."""

    async def use(part: Gateway) -> Outcome:
        for each in parts:
            if isinstance(answer := await each(part), Problem):
                raise Undone(answer)
        return answer

    return await atomically(gateway, use)


async def claimed_by_lease(gateway: Gateway, table: str, key: int) -> Outcome:
    # a scope of its own: tokens of leases are above all others here
    name = f"account/{key}" if table == "items" else f"{table}/{key}"
    got = await ask(gateway, asking(name, secret=f"{key:032}", claims=(name,)))
    return got.claims[0] if isinstance(got, Granted) else got


async def queued(gateway: Gateway, verb: Verb, write: Write, **values: object) -> Outcome:
    """Submit a write. Nothing is known of the role before."""
    log = PostgresLog(gateway.database, "")  # nobody listens
    submitting = replace(gateway, seals=SEALS, queues={DEFAULT_QUEUE: log}, privileges=KnownPrivileges())
    given = replace(write.body, values=values)
    preferred = replace(write, verb=verb, body=given, preferences=replace(write.preferences, queued=True))
    return await use_cases.write(submitting, preferred, as_message=lambda: WriteMessage("", "PATCH", b"{}"))


ONLY_N = (Selected(Field("n")),)
DELETED_N = of(need("SELECT", "n") | ROW | need("DELETE", "*"), DELETED["items"])
WAYS: dict[str, Way] = {
    "GET row": Way(of(SHOWN | ROW, SHOWN, "plain"), lambda g, t, k, _f, _n: read_one(g, ReadOne(t, (str(k),)))),
    "GET list": Way(of(SHOWN, SHOWN, "plain", "seen"), lambda g, t, _k, _f, _n: read_many(g, ReadMany(t, Query()))),
    "PATCH batched": Way(CHANGED, lambda g, t, k, _f, n: patch(g, keyed(str(k), n, table=t, n=1))),
    "PATCH keyed": Way(
        CHANGED, lambda g, t, k, _f, n: patch(g, replace(keyed(str(k), n, table=t, n=1), idempotency_key=once(f"{n}")))
    ),
    "PATCH array": Way(CHANGED, lambda g, t, k, _f, n: patch(g, listed(n, {"id": k, "n": 1}, table=t))),
    "PATCH filter": Way(CHANGED, lambda g, t, k, _f, n: patch(g, filtered(t, k, n, n=5))),
    "PUT there": Way(REPLACED, lambda g, t, k, _f, n: put(g, keyed(str(k), n, table=t, account_id=42, n=1))),
    "PUT new": Way(MADE_BY_PUT, lambda g, t, _k, f, n: put(g, keyed(str(f), n, table=t, account_id=42, n=1))),
    "POST batched": Way(MADE, lambda g, t, _k, f, n: post(g, listed(n, {"id": f, "account_id": 42}, table=t))),
    "POST keyed": Way(
        MADE,
        lambda g, t, _k, f, n: post(
            g, replace(listed(n, {"id": f, "account_id": 42}, table=t), idempotency_key=once(f"{n}"))
        ),
    ),
    "POST alone": Way(
        MADE, lambda g, t, _k, f, n: post(g, listed(n, *({"id": e, "account_id": 42} for e in (f, -f)), table=t))
    ),
    "DELETE batched": Way(DELETED, lambda g, t, k, _f, n: delete(g, keyed(str(k), n, table=t))),
    "DELETE keyed": Way(
        DELETED, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), idempotency_key=once(f"{n}")))
    ),
    "DELETE batched, n": Way(
        DELETED_N, lambda g, t, k, _f, n: delete(g, replace(keyed(str(k), n, table=t), select=ONLY_N))
    ),
    "DELETE keyed, n": Way(
        DELETED_N,
        lambda g, t, k, _f, n: delete(
            g, replace(keyed(str(k), n, table=t), idempotency_key=once(f"{n}"), select=ONLY_N)
        ),
    ),
    "DELETE filter": Way(DELETED_MANY, lambda g, t, k, _f, n: delete(g, filtered(t, k, n))),
    "claim": Way(
        of(SHOWN | ROW | RAISED, need("write", "*")),
        lambda g, t, k, _f, n: claim(g, Claim(parse_resource("account/42" if t == "items" else f"{t}/{k}"), Token(n))),
    ),
    "claim of a lease": Way(
        of(SHOWN | ROW | RAISED, need("write", "*")), lambda g, t, k, _f, _n: claimed_by_lease(g, t, k)
    ),
    "line batched": Way(CHANGED, lambda g, t, k, _f, n: patch(g.for_batch(), keyed(str(k), n, table=t, n=1))),
    "line alone": Way(CHANGED, lambda g, t, k, _f, n: patch(g.for_batch(), filtered(t, k, n, n=5))),
    "whole": Way(
        of(CHANGED["jobs"] | DELETED["jobs"], CHANGED["items"] | DELETED["items"]),
        lambda g, t, k, _f, n: whole(
            g,
            lambda part: patch(part, keyed(str(k), n, table=t, n=1)),
            lambda part: delete(part, keyed(str(k), n + 1, table=t)),
        ),
    ),
    "PATCH queued": Way(CHANGED, lambda g, t, k, _f, n: queued(g, "patch", keyed(str(k), n, table=t, n=1))),
    "PUT queued": Way(REPLACED, lambda g, t, k, _f, n: queued(g, "put", keyed(str(k), n, table=t, account_id=42, n=1))),
    "POST queued": Way(
        MADE, lambda g, t, _k, f, n: queued(g, "post", listed(n, {"id": f, "account_id": 42}, table=t), id=f)
    ),
    "DELETE queued": Way(DELETED, lambda g, t, k, _f, n: queued(g, "delete", keyed(str(k), n, table=t))),
    "DELETE queued, n": Way(
        DELETED_N, lambda g, t, k, _f, n: queued(g, "delete", replace(keyed(str(k), n, table=t), select=ONLY_N))
    ),
    "fences": Way(
        of(ROW, need("read", "*")),
        lambda g, t, k, _f, _n: explain(g, parse_resource("account/42" if t == "items" else f"{t}/{k}")),
    ),
}
"""A scope is none of a table's columns: its claim needs some privilege to write to one of its tables, and a look at it
some privilege to read one (`write`, `read`)."""
