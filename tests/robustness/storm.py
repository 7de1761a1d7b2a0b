"""Writers that storm a gateway over HTTP, and an oracle that saw every accepted write inside the database.

The oracle is a trigger of the test's own on the tables and on fencepost.marks. It draws a number while the row (or its
index entry, or its mark) is locked, so the numbers order the operations on one key. It shares no code with the product;
of its interface it knows the column, the table of marks, and the setting that direct SQL uses.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.support.interleave import Connection

from fencepost.server.fence.token import Rule
from fencepost.testing.servers.processes import PATIENCE

TABLES: dict[str, Rule] = {"strictly": "strict", "leased": "epoch"}
KEYS = ("k0", "k1", "k2")

SCHEMA = """
CREATE SCHEMA oracle;
CREATE TABLE oracle.seen (
  n bigserial PRIMARY KEY, tx xid8 NOT NULL DEFAULT pg_current_xact_id(), tab text NOT NULL, key text NOT NULL,
  op text NOT NULL, token bigint NOT NULL, tag text, line jsonb
);
CREATE FUNCTION oracle.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    INSERT INTO oracle.seen (tab, key, op, token)
    VALUES (TG_TABLE_NAME, OLD.id, 'delete', split_part(current_setting('fencepost.token'), '=', 2)::bigint);
  ELSIF TG_OP = 'UPDATE' AND NEW.tag IS NOT DISTINCT FROM OLD.tag THEN
    INSERT INTO oracle.seen (tab, key, op, token, line)
    VALUES (TG_TABLE_NAME, NEW.id, 'claim', NEW.last_fence_token, to_jsonb(NEW));
  ELSE
    INSERT INTO oracle.seen (tab, key, op, token, tag, line)
    VALUES (TG_TABLE_NAME, NEW.id, 'write', NEW.last_fence_token, NEW.tag, to_jsonb(NEW));
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION oracle.see_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO oracle.seen (tab, key, op, token)
  VALUES (split_part(NEW.resource, '/', 1), split_part(NEW.resource, '/', 2), 'mark', NEW.last_fence_token);
  RETURN NULL;
END $$;
CREATE TRIGGER oracle AFTER INSERT OR UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION oracle.see_mark();
"""

TABLE = """
CREATE TABLE public.{0} (id text PRIMARY KEY, bucket integer NOT NULL DEFAULT 0, tag text);
"""
# After the product's own triggers, by name: the number is drawn when all locks are held.
ORACLE = """
CREATE TRIGGER zzzz_oracle AFTER INSERT OR UPDATE OR DELETE ON public.{0}
FOR EACH ROW EXECUTE FUNCTION oracle.see();
"""

OPERATION = """
SELECT tab, key, min(n) AS n, array_agg(DISTINCT token) AS tokens, array_agg(op ORDER BY n) AS ops,
       (array_agg(tag) FILTER (WHERE tag IS NOT NULL))[1] AS tag,
       (array_agg(line ORDER BY n DESC) FILTER (WHERE op <> 'mark'))[1]::text AS line
  FROM oracle.seen GROUP BY tab, key, tx ORDER BY tab, key, min(n)
"""


Accepted = tuple[str, str, str, int, str | None]
"""One accepted operation on one row: table, key, what, token, tag."""


@dataclass
class Storm:
    """The writers' own record of their answers."""

    urls: list[str]
    seed: int
    accepted: Counter[Accepted] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that break a promise."""
    complaints: list[str] = field(default_factory=list)
    """Answers that were not expected, as a 503 is of a busy machine."""
    unknown: set[int | None] = field(default_factory=set)
    """The tokens of writes that may have been done, and may not."""
    tokens: "itertools.count[int]" = field(default_factory=lambda: itertools.count(100))

    async def rage(self, *, writers: int, writes: int) -> None:
        """Let all writers loose."""
        limits = httpx.Limits(max_connections=writers, max_keepalive_connections=writers)
        async with (
            httpx.AsyncClient(timeout=PATIENCE, trust_env=False, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(writers):
                group.create_task(self._write(client, random.Random(self.seed * 1000 + number), number, writes))

    async def _write(self, client: httpx.AsyncClient, dice: random.Random, number: int, writes: int) -> None:
        token = 1
        for turn in range(writes):
            fresh = next(self.tokens)
            # Mostly the newest; sometimes that of a holder who slept, sometimes the same one again.
            token = dice.choice((fresh, fresh, fresh, fresh - 1, fresh - 3, fresh - 25, token))
            shot = _aim(dice, max(token, 1), f"{number}-{turn}")
            answer = await client.send(shot.request(client, dice.choice(self.urls)))
            self._note(shot, answer)

    def _note(self, shot: "Shot", answer: httpx.Response) -> None:
        code = ""
        if answer.is_success:
            self.accepted.update(shot.accepted(answer))
            mark = answer.headers.get("X-Fence-Mark")
            if mark is not None and int(mark) != shot.token:
                self.wrong.append(f"{shot} was accepted and answered with the mark {mark}")
        else:
            problem = answer.json()
            code = problem["code"]
            if code in ("FP001", "FP002"):
                self._check_refusal(shot, problem)
        if (answer.status_code, code) not in shot.expected():
            (self.wrong if answer.is_success else self.complaints).append(
                f"{shot}: {answer.status_code} {code} {answer.text}"
            )
        if code == "FP009":  # it says that it is not known
            self.unknown.add(shot.token)
        self.statuses[shot.verb, answer.status_code, code] += 1

    def _check_refusal(self, shot: "Shot", problem: dict[str, Any]) -> None:
        presented, current = int(problem["presented_token"]), problem["current_token"]
        spent = problem["code"] == "FP002"
        if TABLES[shot.table] == "epoch":
            right = current is None  # it would be accepted
        else:
            right = int(current) == presented if spent else int(current) > presented
        if not right or presented != shot.token or (spent and TABLES[shot.table] == "epoch"):
            self.wrong.append(f"{shot}: {problem}")


@dataclass(frozen=True)
class Shot:
    """One request."""

    verb: str
    table: str
    key: str
    token: int | None
    tag: str
    bucket: int

    def request(self, client: httpx.AsyncClient, url: str) -> httpx.Request:
        headers = {"Prefer": "return=representation"}
        if self.token is not None:
            headers["X-Fence-Token"] = str(self.token)
        row: dict[str, object] = {"tag": self.tag, "bucket": self.bucket}
        many = {"bucket": f"eq.{self.bucket}"}
        data = f"{url}/v1/data/{self.table}"
        match self.verb:
            case "PATCH" | "PUT":
                return client.build_request(self.verb, f"{data}/{self.key}", headers=headers, json=row)
            case "POST":
                return client.build_request("POST", data, headers=headers, json=row | {"id": self.key})
            case "DELETE":
                return client.build_request("DELETE", f"{data}/{self.key}", headers=headers)
            case "PATCH many":
                return client.build_request("PATCH", data, params=many, headers=headers, json={"tag": self.tag})
            case "DELETE many":
                return client.build_request("DELETE", data, params=many, headers=headers)
        resource = {"resource": f"{self.table}/{self.key}"}
        return client.build_request("POST", f"{url}/v1/claims", headers=headers, json=resource)

    def accepted(self, answer: httpx.Response) -> list[Accepted]:
        """Read a success as the operations that must have happened."""
        if self.token is None:
            return [(self.table, self.key, f"accepted without a token: {self.verb}", 0, self.tag)]
        keys = [row["id"] for row in answer.json()] if self.verb.endswith("many") else [self.key]
        what = "delete" if "DELETE" in self.verb else "claim" if self.verb == "claim" else "write"
        return [(self.table, key, what, self.token, self.tag if what == "write" else None) for key in keys]

    def expected(self) -> set[tuple[int, str]]:
        """List what a gateway may answer to this."""
        if self.token is None:
            return {(428, "FP003")}
        refused = {(409, "FP001"), (409, "FP002")}
        match self.verb:
            case "PUT":
                return refused | {(200, ""), (201, "")}
            case "POST":
                return refused | {(201, ""), (409, "23505")}
            case "PATCH" | "DELETE":
                return refused | {(200, ""), (404, "FP006")}
        return refused | {(200, "")}


VERBS = ("PATCH", "PATCH", "PUT", "POST", "POST", "DELETE", "claim", "PATCH many", "DELETE many")


def _aim(dice: random.Random, token: int, tag: str) -> Shot:
    table, key, verb = dice.choice(tuple(TABLES)), dice.choice(KEYS), dice.choice(VERBS)
    return Shot(verb, table, key, None if dice.random() < 0.03 else token, tag, dice.randrange(2))


# The judgement


async def judge(connection: Connection, storm: Storm) -> list[str]:
    """Compare the writers' answers with what the oracle saw; list every violation."""
    wrong = list(storm.wrong)
    seen: Counter[Accepted] = Counter()
    latest: dict[tuple[str, str], int] = {}
    rows: dict[tuple[str, str], dict[str, Any] | None] = {}
    for operation in await connection.fetch(OPERATION):
        resource = (operation["tab"], operation["key"])
        ops = set(operation["ops"]) - {"mark"}
        if len(operation["tokens"]) != 1 or len(ops) > 1:
            wrong.append(f"one operation with two tokens or effects: {dict(operation)}")
        token = operation["tokens"][0]
        what = ops.pop() if ops else "claim"
        seen[*resource, what, token, operation["tag"]] += 1
        before = latest.get(resource, 0)
        if token < before or (token == before and TABLES[resource[0]] == "strict"):
            wrong.append(f"{resource}: {what} with {token} was accepted after {before}")
        latest[resource] = token
        if what == "delete":
            rows[resource] = None
        elif operation["line"] is not None:
            rows[resource] = json.loads(operation["line"])
    wrong += [f"answered as accepted {n} time(s), not seen so often: {t}" for t, n in (storm.accepted - seen).items()]
    more = {t: n for t, n in (seen - storm.accepted).items() if t[3] not in storm.unknown}
    wrong += [f"seen {n} time(s) more than answered as accepted: {t}" for t, n in more.items()]
    return wrong + await _judge_the_end(connection, latest, rows)


async def _judge_the_end(
    connection: Connection,
    latest: dict[tuple[str, str], int],
    rows: dict[tuple[str, str], dict[str, Any] | None],
) -> list[str]:
    wrong = []
    marks = {
        row["resource"]: (row["last_fence_token"], row["row_absent"])
        for row in await connection.fetch("SELECT resource, last_fence_token, row_absent FROM fencepost.marks")
    }
    for (table, key), token in latest.items():
        found = await connection.fetchval(f"SELECT to_jsonb(r)::text FROM public.{table} r WHERE id = $1", key)
        row = json.loads(found) if found else None
        if row != rows.get((table, key)):
            wrong.append(f"{table}/{key} is {row}, last seen {rows.get((table, key))}")
        recorded, row_absent = marks[f"{table}/{key}"]
        if row is not None and (row["last_fence_token"] != token or recorded > token or row_absent):
            wrong.append(f"{table}/{key} lives with {row}, accepted {token}, marks say {recorded}, {row_absent}")
        if row is None and (recorded != token or not row_absent):
            wrong.append(f"{table}/{key} is gone, accepted {token}, marks say {recorded}, {row_absent}")
    return wrong
