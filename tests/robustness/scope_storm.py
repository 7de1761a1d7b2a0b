"""Holders of locks on accounts who claim, read, and write what follows from it, over three tables of one scope; some
are paused and write late. And an oracle inside the database, of the test's own.

Its triggers draw a number while the scope's mark is locked, so the numbers order the operations of a scope. A write
from an outdated reading that is accepted after all is seen twice: its token falls, and the account's counter does not
rise by one. It shares no code with the product; of its interface it knows the table of marks, and the errors of direct
SQL.
"""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import asyncpg
import httpx
from tests.support.interleave import Connection

ACCOUNTS = (1, 2, 3)

TABLES = """
CREATE TABLE public.counters (account_id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE public.entries (account_id bigint NOT NULL, no int, late boolean NOT NULL DEFAULT false,
  PRIMARY KEY (account_id, no));
CREATE TABLE public.parts (region int, account_id int NOT NULL, n int, PRIMARY KEY (region, account_id))
  PARTITION BY LIST (region);
CREATE TABLE public.parts_0 PARTITION OF public.parts FOR VALUES IN (0);
CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES IN (1);
INSERT INTO public.counters SELECT a, 0 FROM unnest(ARRAY[1, 2, 3]) a"""
NAMES = ("counters", "entries", "parts")

ORACLE = """
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
class Storm:
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
        for token, (method, path, body) in zip(
            turn.tokens,
            (
                ("PATCH", f"counters/{a}", {"n": n}),
                ("POST", "entries", {"account_id": a, "no": n}),
                ("PUT", f"parts/{n % 2},{a}", {"n": n}),
                ("DELETE", f"entries?account_id=eq.{a}&no=lt.{n}", None),
            ),
            strict=True,
        ):
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


async def judge(connection: Connection, storm: Storm) -> list[str]:
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
