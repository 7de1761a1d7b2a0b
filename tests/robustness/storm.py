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

import asyncpg
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
    connection: Connection, latest: dict[tuple[str, str], int], rows: dict[tuple[str, str], dict[str, Any] | None]
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


# Holders of locks on accounts who claim, read, and write what follows from it, over three tables of one scope; some
# are paused and write late. And an oracle inside the database, of the test's own.
# Its triggers draw a number while the scope's mark is locked, so the numbers order the operations of a scope. A write
# from an outdated reading that is accepted after all is seen twice: its token falls, and the account's counter does
# not rise by one. It shares no code with the product; of its interface it knows the table of marks, and the errors of
# direct SQL.

ACCOUNTS = (1, 2, 3)

SCOPED_TABLES = """
CREATE TABLE public.counters (account_id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE public.entries (account_id bigint NOT NULL, no int, late boolean NOT NULL DEFAULT false,
  PRIMARY KEY (account_id, no));
CREATE TABLE public.parts (region int, account_id int NOT NULL, n int, PRIMARY KEY (region, account_id))
  PARTITION BY LIST (region);
CREATE TABLE public.parts_0 PARTITION OF public.parts FOR VALUES IN (0);
CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES IN (1);
INSERT INTO public.counters SELECT a, 0 FROM unnest(ARRAY[1, 2, 3]) a"""
NAMES = ("counters", "entries", "parts")

SCOPE_ORACLE = """
CREATE SCHEMA oracle;
CREATE TABLE oracle.seen (n bigserial PRIMARY KEY, tx xid8 NOT NULL DEFAULT pg_current_xact_id(), what text NOT NULL,
  scope text NOT NULL, token bigint, before int, after int);
CREATE FUNCTION oracle.see_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO oracle.seen (what, scope, token) VALUES ('mark', NEW.resource, NEW.last_fence_token);
  RETURN NULL;
END $$;
CREATE FUNCTION oracle.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    INSERT INTO oracle.seen (what, scope) VALUES (TG_TABLE_NAME, 'account/' || OLD.account_id);
  ELSIF TG_TABLE_NAME = 'counters' THEN
    INSERT INTO oracle.seen (what, scope, before, after)
    VALUES (TG_TABLE_NAME, 'account/' || NEW.account_id, OLD.n, NEW.n);
  ELSE
    INSERT INTO oracle.seen (what, scope) VALUES (TG_TABLE_NAME, 'account/' || NEW.account_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER oracle AFTER INSERT OR UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION oracle.see_mark();
CREATE TRIGGER zzzz_oracle AFTER UPDATE ON public.counters FOR EACH ROW EXECUTE FUNCTION oracle.see();
CREATE TRIGGER zzzz_oracle AFTER INSERT OR UPDATE OR DELETE ON public.entries
  FOR EACH ROW EXECUTE FUNCTION oracle.see();
CREATE TRIGGER zzzz_oracle AFTER INSERT OR UPDATE OR DELETE ON public.parts
  FOR EACH ROW EXECUTE FUNCTION oracle.see()"""


@dataclass(frozen=True)
class Turn:
    """What a holder has read under its claim, and the tokens to write with."""

    account: int
    read: int
    tokens: tuple[int, ...]


@dataclass
class ScopeStorm:
    """The holders' own record. `accepted`: (account, token) of each write that was answered with success."""

    gateways: list[httpx.AsyncClient]
    direct: list[Connection]
    seed: int
    accepted: Counter[tuple[str, int]] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    """Answers that were not expected, as a 503 is of a busy machine."""
    paused: list[Turn] = field(default_factory=list)
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    async def rage(self, *, holders: int, turns: int) -> None:
        """Let all holders loose; then those that are still paused."""
        async with asyncio.TaskGroup() as group:
            for number in range(holders):
                group.create_task(self._hold(number, random.Random(self.seed * 1000 + number), turns))
        for turn in self.paused:
            await self._write(turn, self.gateways[0])

    async def _hold(self, number: int, dice: random.Random, turns: int) -> None:
        for _ in range(turns):
            gateway = dice.choice(self.gateways)
            turn = await self._acquire(gateway, dice.choice(ACCOUNTS))
            if turn is None:
                continue
            if dice.random() < 0.4:  # paused: its lease is over, and it does not know
                self.paused.append(turn)
                if self.paused and dice.random() < 0.7:
                    await self._late(self.paused.pop(dice.randrange(len(self.paused))), number, dice)
            else:
                await self._write(turn, gateway)

    async def _acquire(self, gateway: httpx.AsyncClient, account: int) -> Turn | None:
        secret = f"{next(self.names):032}"
        scope = f"account/{account}"
        asked = {"lock": scope, "owner": "storm", "ttl_ms": 5000, "wait_ms": 5000, "tokens": 4, "claim": [scope]}
        answer = await gateway.post("/v1/leases", json=asked, headers={"X-Lease-Secret": secret})
        self.answers[f"acquire {answer.status_code}"] += 1
        if answer.status_code != 201:
            if answer.status_code != 423:
                self.complaints.append(f"acquire: {answer.text}")
            return None
        lease = answer.json()
        row = (await gateway.get(f"/v1/data/counters/{account}")).json()
        # Released before it writes: the next one claims, and then this one is refused.
        await gateway.delete(f"/v1/leases/{lease['lease_id']}", headers={"X-Lease-Secret": secret})
        return Turn(account, row["n"], tuple(int(token) for token in lease["tokens"]))

    async def _write(self, turn: Turn, gateway: httpx.AsyncClient) -> None:
        """Write to all tables; stops at the first refusal, as a client would."""
        a, n = turn.account, turn.read + 1
        writes = (
            ("PATCH", f"counters/{a}", {"n": n}), ("POST", "entries", {"account_id": a, "no": n}),
            ("PUT", f"parts/{n % 2},{a}", {"n": n}), ("DELETE", f"entries?account_id=eq.{a}&no=lt.{n}", None),
        )  # fmt: skip
        for token, (method, path, body) in zip(turn.tokens, writes, strict=True):
            answer = await gateway.request(
                method, f"/v1/data/{path}", json=body, headers={"X-Fence-Token": str(token), "Prefer": "return=minimal"}
            )
            code = "" if answer.is_success else f" {answer.json()['code']}"
            self.answers[f"{method} {answer.status_code}{code}"] += 1
            if not answer.is_success:
                if code != " FP001":
                    self.complaints.append(f"{turn} {method} {path}: {answer.text}")
                return
            if method != "DELETE":  # which may have found nothing, and entered nothing
                self.accepted[f"account/{a}", token] += 1

    async def _late(self, turn: Turn, number: int, dice: random.Random) -> None:
        """Write late: through the gateway, or past it."""
        if dice.random() < 0.5:
            await self._write(turn, dice.choice(self.gateways))
            return
        connection = self.direct[number]
        try:
            async with connection.transaction():
                await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(turn.tokens[0]))
                await connection.execute(
                    "UPDATE public.counters SET n = $2 WHERE account_id = $1", turn.account, turn.read + 1
                )
                await connection.execute(
                    "INSERT INTO public.entries VALUES ($1, $2, true)", turn.account, turn.read + 1
                )
        except asyncpg.PostgresError as error:
            self.answers[f"direct {error.sqlstate}"] += 1
            if error.sqlstate not in ("FP409", "40P01"):
                self.complaints.append(f"{turn} by SQL: {error}")
        else:
            self.answers["direct ok"] += 1
            self.accepted[f"account/{turn.account}", turn.tokens[0]] += 1


async def judge_scopes(connection: Connection, storm: ScopeStorm) -> list[str]:
    """Compare the holders' answers with what the oracle saw; list every violation."""
    wrong: list[str] = []
    newest: dict[str, int] = {}
    entered: dict[tuple[object, str], int] = {}
    wrote: set[tuple[str, int]] = set()
    counted: Counter[str] = Counter()
    for row in await connection.fetch("SELECT * FROM oracle.seen ORDER BY n"):
        scope = row["scope"]
        if row["what"] == "mark":
            if row["token"] <= newest.get(scope, 0):
                wrong.append(f"{scope}: {row['token']} was accepted after {newest[scope]}")
            newest[scope] = entered[row["tx"], scope] = row["token"]
            continue
        token = entered.get((row["tx"], scope))
        if token is None:
            wrong.append(f"{row['what']}: written without entering {scope}")
            continue
        if token != newest[scope]:
            wrong.append(f"{scope}: {token} wrote to {row['what']} after {newest[scope]} had entered")
        wrote.add((scope, token))
        counted[scope] += row["what"] == "counters"
        if row["what"] == "counters" and row["after"] != row["before"] + 1:
            wrong.append(f"{scope}: {token} wrote {row['after']} over {row['before']}: from an outdated reading")
    wrong += [f"{reported} was accepted {n} times" for reported, n in storm.accepted.items() if n > 1]
    wrong += [f"{reported} was answered as accepted, and not seen" for reported in storm.accepted.keys() - wrote]
    for account in ACCOUNTS:
        n = await connection.fetchval("SELECT n FROM public.counters WHERE account_id = $1", account)
        mark = await connection.fetchval(
            "SELECT last_fence_token FROM fencepost.marks WHERE resource = $1", f"account/{account}"
        )
        if mark != newest.get(f"account/{account}"):
            wrong.append(f"account/{account} has the mark {mark}, last seen {newest.get(f'account/{account}')}")
        if n != counted[f"account/{account}"]:
            wrong.append(f"account {account} has counted to {n}")
    return wrong
