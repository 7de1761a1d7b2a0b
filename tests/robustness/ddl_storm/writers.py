"""The means of the DDL actor: SQL of its own, `fencepost` as an operator runs it, and notes of both in the log."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal
from urllib.parse import quote

import asyncpg
import httpx
from click.testing import CliRunner
from tests.robustness.ddl_storm.world import KEYS, PREFIX, Operation, Outcome, Shape, World, group_of
from tests.support.interleave import Connection

from fencepost.cli.main import main
from fencepost.testing.servers.processes import PATIENCE

# Messages of the storm's own in the log of what PostgreSQL commits.

GONE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class Emitter:
    """A connection that only emits messages which belong to no transaction: they stand where they were emitted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: Connection | None = None
        self._epoch = -1
        self._turn = asyncio.Lock()

    async def emit(self, prefix: str, content: dict[str, object], epoch: int) -> bool:
        """Write a message into the log of this epoch's database; False: that database is no more."""
        async with self._turn:
            if epoch % 2:
                return False
            if self._epoch != self._world.epoch or self._connection is None or self._connection.is_closed():
                await self.close()
                self._epoch = self._world.epoch
                try:
                    self._connection = await asyncpg.connect(self._world.dsn)
                except GONE:
                    return False
            if epoch != self._epoch:
                return False
            try:
                await self._connection.execute(
                    "SELECT pg_logical_emit_message(false, $1, $2::text)", prefix, json.dumps(content)
                )
            except GONE:
                return False
            return epoch == self._world.epoch

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


# Writers that go past the gateways: SQL in all isolation levels, with tokens, with old ones, and without any.

Level = Literal["read_committed", "repeatable_read", "serializable"]
LEVELS: Final[tuple[Level, ...]] = ("read_committed", "repeatable_read", "serializable")
VERBS: Final = ("update", "insert", "insert", "upsert", "delete", "delete", "many")
LOST: Final = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg raises when the connection ends while it rolls back
    asyncpg.AdminShutdownError,
    asyncpg.PostgresConnectionError,
    OSError,
)


class DirectWriter:
    """One of them. Its statements name rows by lk, so they need no key, but for inserts."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._dice = world.dice("direct", number)
        self._connection: Connection | None = None

    async def write(self) -> None:
        """Write until the storm is over."""
        try:
            while self._world.running:
                await self._world.turn()
                await self._operate()
        finally:
            self.close()

    def _token(self, shape: Shape) -> int | None:
        chance = self._dice.random()
        if chance < 0.12:
            return None
        slept = self._world.slept[shape.source]
        if (chance < 0.5 or shape.source == "builtin") and slept:
            # The newest that leases gave belong to writers by HTTP: a foreign holder's tokens are as good.
            return self._dice.choice(slept) if chance < 0.5 else slept[-1]
        return self._world.fresh()

    async def _operate(self) -> None:
        shape = self._dice.choice(self._world.shapes)
        numbers = frozenset(self._dice.sample(range(KEYS), self._dice.choice((1, 1, 2))))
        verb = self._dice.choice(VERBS)
        if verb == "many":
            numbers = frozenset(range(KEYS))
        await self.attempt(verb, shape, numbers, self._token(shape))

    async def attempt(self, verb: str, shape: Shape, numbers: frozenset[int], token: int | None) -> Operation:
        """Try one operation, and write down its answer."""
        world, operation = self._world, self._world.begin(f"direct {verb}", token, shape, numbers)
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(
                    world.dsn, server_settings={"lock_timeout": "3s", "statement_timeout": "20s"}
                )
            rows = await self._transaction(self._connection, operation, shape, verb, sorted(numbers))
        except LOST as error:
            self.close()
            world.finish(operation, "maybe", type(error).__name__, None)
            await world.after(3, within=0.2)
        except asyncpg.PostgresError as error:
            if error.sqlstate in ("XX000", "P0001", "P0004"):
                world.complaints.append(f"{operation}: {error.sqlstate} {error}")
            world.finish(operation, "refused", str(error.sqlstate))
        else:
            world.finish(operation, "done", "committed", frozenset(rows))
        return operation

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _transaction(
        self, connection: Connection, operation: Operation, shape: Shape, verb: str, numbers: list[int]
    ) -> list[str]:
        level = self._dice.choice(LEVELS)
        written: list[str] = []
        async with connection.transaction(isolation=level):
            await connection.execute("SELECT pg_logical_emit_message(true, 'op', $1::text)", operation.id)
            if self._dice.random() < 0.3:  # its snapshot is old when it comes to write
                await connection.execute("SELECT count(*) FROM fencepost.protected")
                await world_turns(self._world, self._dice.randrange(12))
            out_loud = verb in ("update", "upsert") and operation.token is not None and self._dice.random() < 0.2
            if operation.token is not None and not out_loud:
                await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(operation.token))
            for number in numbers if verb != "many" else numbers[:1]:
                sql = self._statement(operation, shape, verb, number, out_loud=out_loud)
                written += [row["lk"] for row in await connection.fetch(sql)]
                if self._dice.random() < 0.1:
                    await world_turns(self._world, self._dice.randrange(6))
        return written

    @staticmethod
    def _statement(operation: Operation, shape: Shape, verb: str, number: int, *, out_loud: bool) -> str:
        token = "NULL" if operation.token is None else str(operation.token)
        table, output = f'public."{shape.name}"', f", last_fence_token = -{token}" if out_loud else ""
        sets = f"op = '{operation.id}', tok = {token}{output}"
        match verb:
            case "update":
                return f"UPDATE {table} SET {sets} WHERE lk = '{shape.lk(number)}' RETURNING lk"
            case "many":
                return f"UPDATE {table} SET {sets} WHERE {shape.group} = {group_of(number)} RETURNING lk"
            case "delete":
                return f"DELETE FROM {table} WHERE lk = '{shape.lk(number)}' RETURNING lk"
        columns = ", ".join(
            [*shape.columns, shape.group, "lk", "op", "tok", *(["last_fence_token"] if out_loud else [])]
        )
        values = [*shape.values(number), str(group_of(number)), f"'{shape.lk(number)}'", f"'{operation.id}'", token]
        insert = (
            f"INSERT INTO {table} ({columns}) VALUES ({', '.join([*values, *([f'-{token}'] if out_loud else [])])})"
        )
        if verb == "upsert":
            insert += f" ON CONFLICT ({', '.join(shape.columns)}) DO UPDATE SET {sets}"
        return f"{insert} RETURNING lk"


async def world_turns(world: World, operations: int) -> None:
    """Let others go on for a moment, who may wait for what we hold."""
    await world.after(operations, within=0.15)


async def direct_writers(world: World, count: int) -> None:
    """Run so many of them until the storm is over."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(DirectWriter(world, number).write())


# Writers that go through the gateways: all verbs, claims, leases with claims, and paused holders that come back.

HTTP_VERBS: Final = (
    "PATCH", "PATCH", "PUT", "PUT", "POST", "POST", "DELETE", "DELETE", "DELETE", "claim", "claim", "lease",
)  # fmt: skip
RARE: Final = ("PATCH many", "DELETE many", "PATCH rows")
NOTHING_WAS_DONE: Final = ("FP010", "FP015", "55P03", "57014", "FP024")
"""Codes of 503s that mean that nothing was done for sure."""


class HttpWriter:
    """One of them, with a lease of its own to draw tokens from."""

    def __init__(self, world: World, emitter: Emitter, urls: list[str], number: int) -> None:
        self._world, self._emitter, self._urls, self._number = world, emitter, urls, number
        self._dice = world.dice("http", number)
        self._minted: list[int] = []
        self._leases = 0

    async def write(self) -> None:
        """Write until the storm is over."""
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
            while self._world.running:
                await self._world.turn()
                shape = self._dice.choice(self._world.shapes)
                verb = self._dice.choice(RARE if self._dice.random() < 0.06 else HTTP_VERBS)
                number = self._dice.randrange(KEYS)
                if verb == "lease" or (shape.source == "builtin" and not self._minted):
                    await self._acquire(client, shape, number if verb == "lease" else None)
                else:
                    await self._shoot(client, verb, shape, number)

    def _token(self, shape: Shape) -> int | None:
        """Mostly the newest; often that of a holder who slept; sometimes none."""
        chance = self._dice.random()
        if chance < 0.02:
            return None
        slept = self._world.slept[shape.source]
        if chance < 0.40 and slept:
            return self._dice.choice(slept)
        if shape.source == "external" and self._dice.random() < 0.8:
            return self._world.fresh()
        return self._minted.pop() if self._minted else self._world.fresh()

    async def _shoot(self, client: httpx.AsyncClient, verb: str, shape: Shape, number: int) -> None:
        world, token, version, epoch = self._world, self._token(shape), shape.version, self._world.epoch
        numbers = frozenset(range(KEYS)) if verb in RARE else shape.meant_by(number)
        if verb.endswith("many"):
            numbers = frozenset(n for n in numbers if group_of(n) == group_of(number))
        operation = world.begin(verb, token, shape, numbers)
        full = len(numbers) > 1 or self._dice.random() < 0.7
        request = self._request(client, operation, shape, number, full=full)
        try:
            answer = await client.send(request)
        except httpx.TransportError as error:
            world.finish(operation, "maybe", type(error).__name__, None)
            return
        finally:
            operation.behind = shape.version != version or version % 2 == 1
        self._note(operation, answer, answered=full and verb != "claim")
        if verb == "claim" and answer.is_success and token is not None:
            await self._claimed(answer.json(), token, None if operation.behind else shape.lk(number), epoch)

    def _request(
        self, client: httpx.AsyncClient, operation: Operation, shape: Shape, number: int, *, full: bool
    ) -> httpx.Request:
        url = self._dice.choice(self._urls)
        headers = {}
        if operation.what != "claim":
            headers["Prefer"] = "return=representation" if full else "return=minimal"
        if operation.token is not None:
            headers["X-Fence-Token"] = str(operation.token)
        seldom = {"DELETE": 0.7, "DELETE many": 1.0, "claim": 0.0}
        if keyed := self._dice.random() < seldom.get(operation.what, 0.1):
            headers["Idempotency-Key"] = operation.id
        operation.named = keyed or operation.what != "DELETE"
        data = f"{url}/v1/data/{shape.name}"
        texts = shape.texts(number)
        path = f"{data}/{','.join(quote(texts[column], safe='') for column in shape.key())}"
        payload: dict[str, object] = {"op": operation.id, "tok": operation.token}
        row = payload | {"lk": shape.lk(number), shape.group: group_of(number)}
        some = {shape.group: f"eq.{group_of(number)}"}
        rows = [shape.texts(n) | payload for n in self._dice.sample(range(KEYS), 2)]
        claimed = {"resource": _resource(shape, number)}
        method, url, params, body = {
            "PATCH": ("PATCH", path, {}, payload), "PUT": ("PUT", path, {}, row),
            "POST": ("POST", data, {}, row | texts), "DELETE": ("DELETE", path, {}, None),
            "PATCH many": ("PATCH", data, some, payload), "DELETE many": ("DELETE", data, some, None),
            "PATCH rows": ("PATCH", data, {}, rows), "claim": ("POST", f"{url}/v1/claims", {}, claimed),
        }[operation.what]  # fmt: skip
        return client.build_request(method, url, params=params, headers=headers, json=body)

    def _note(self, operation: Operation, answer: httpx.Response, *, answered: bool) -> None:
        outcome, output = read(answer)
        if answer.status_code == 500:
            self._world.complaints.append(f"{operation}: 500 {answer.text[:500]}")
        rows = None
        if outcome == "done" and answered:
            found = answer.json()
            rows = frozenset(row["lk"] for row in (found if isinstance(found, list) else [found]))
        self._world.finish(operation, outcome, output, rows)

    async def _claimed(self, answered: dict[str, Any], token: int, known: str | None, epoch: int) -> None:
        """Write into the log that a claim was acknowledged: from there on no older holder may write."""
        resource, row = answered["resource"], answered.get("row")
        if resource.startswith(f"{PREFIX}/"):
            await self._emitter.emit("claimed", {"scope": resource, "token": token}, epoch)
        elif (lk := row["lk"] if row else known) is not None:
            await self._emitter.emit("claimed", {"lk": lk, "token": token}, epoch)

    async def _acquire(self, client: httpx.AsyncClient, shape: Shape, number: int | None) -> None:
        world, version, epoch = self._world, shape.version, self._world.epoch
        self._leases += 1
        body: dict[str, object] = {
            "lock": f"w{self._number}-{self._leases}", "owner": f"w{self._number}", "ttl_ms": 60000, "tokens": 12,
        }  # fmt: skip
        if number is not None:
            body["claim"] = [_resource(shape, number)]
        operation = world.begin("lease", None, shape, frozenset())
        try:
            answer = await client.post(f"{self._dice.choice(self._urls)}/v1/leases", json=body)
        except httpx.TransportError as error:
            world.finish(operation, "maybe", type(error).__name__)
            return
        outcome, output = read(answer)
        world.finish(operation, "maybe" if outcome == "done" else outcome, output)
        if answer.status_code == 500:
            world.complaints.append(f"{operation}: 500 {answer.text[:500]}")
        if not answer.is_success or epoch != world.epoch:
            return
        lease = answer.json()
        # The old lease is left to itself, with what remains of its tokens: these are the paused holders'.
        self._minted = sorted((int(token) for token in lease["tokens"]), reverse=True)
        for token in self._minted:
            world.met(token)
        for claim in lease.get("claims", []):
            known = None if shape.version != version or version % 2 or number is None else shape.lk(number)
            await self._claimed(claim, int(claim["mark"]), known, epoch)


def _resource(shape: Shape, number: int) -> str:
    if shape.scoped:
        return f"{PREFIX}/{group_of(number)}"
    texts = shape.texts(number)
    return f"{shape.name}/{','.join(quote(texts[column], safe='') for column in shape.key())}"


def read(answer: httpx.Response) -> tuple[Outcome, str]:
    """Read an answer: whether it reports that something was done, and its status and code."""
    if answer.is_success:
        return "done", str(answer.status_code)
    try:
        code = json.loads(answer.content).get("code")
    except ValueError:
        code = "?"
    output = f"{answer.status_code} {code}"
    if answer.status_code < 500 or code in NOTHING_WAS_DONE:
        return "refused", output
    return "maybe", output


async def http_writers(world: World, emitter: Emitter, urls: list[str], count: int) -> None:
    """Run so many of them until the storm is over."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(HttpWriter(world, emitter, urls, number).write())


TRIES: Final = 8

EXPECTED: Final = re.compile(
    "has held a lock|has the same scope with the rule|with this scope and another rule|is not protected"
    "|deadlock detected|did not end within|renamed since: unprotect that one first|its marks are lost"
    "|which holds the marks of its rows, is called"
)
"""What `fencepost` may refuse with, in a storm: it is no mistake of its."""

SQL: Final = """
CREATE SCHEMA storm;
CREATE FUNCTION storm.see_protected() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  r record := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  PERFORM pg_logical_emit_message(true, 'state', json_build_object(
    'line', obj_description(r.relation::oid, 'pg_class'), 'source', r.source, 'scope', r.scope,
    'rule', CASE WHEN TG_OP <> 'DELETE' THEN r.rule END)::text);
  RETURN NULL;
END $$;
CREATE TRIGGER storm AFTER INSERT OR UPDATE OR DELETE ON fencepost.protected
  FOR EACH ROW EXECUTE FUNCTION storm.see_protected();
CREATE FUNCTION storm.see_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_logical_emit_message(true, 'generation', json_build_object('generation', NEW.generation)::text);
  RETURN NULL;
END $$;
CREATE TRIGGER storm AFTER INSERT ON fencepost.generations FOR EACH ROW EXECUTE FUNCTION storm.see_generation();
CREATE PUBLICATION storm FOR TABLES IN SCHEMA public, TABLE fencepost.idempotency;
"""
"""The test's own triggers write into the log what is protected, in the very transaction that changes it."""


class Actor:
    """Runs one statement or command at a time."""

    def __init__(self, world: World, emitter: Emitter) -> None:
        self.world, self.emitter = world, emitter
        self.dice = world.dice("ddl")
        self._connection: Connection | None = None
        self._epoch = -1

    async def note(self, shape: Shape | None, text: str) -> None:
        """Write into the log what is done next, or has been."""
        line = shape.line if shape is not None else ""
        await self.emitter.emit("ddl", {"line": line, "text": text}, self.world.epoch)

    async def connection(self) -> Connection:
        """Connect to the database that is the storm's now."""
        if self._connection is None or self._connection.is_closed() or self._epoch != self.world.epoch:
            await self.close()
            self._epoch = self.world.epoch
            self._connection = await asyncpg.connect(self.world.dsn, server_settings={"lock_timeout": "1s"})
        return self._connection

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def sql(self, shape: Shape | None, *statements: str) -> str:
        """Run statements in one transaction; "" or why they were refused. Locks are waited for a few times."""
        await self.note(shape, f"begins: {'; '.join(statements)}")
        refusal = ""
        for _ in range(TRIES):
            connection = await self.connection()
            try:
                async with connection.transaction():
                    for statement in statements:
                        await connection.execute(statement)
                refusal = ""
                break
            except asyncpg.PostgresError as error:
                refusal = f"{error.sqlstate} {error}"
                if not isinstance(error, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
                    break
                await self.world.after(20, within=0.5)
        await self.note(shape, f"done: {refusal or 'ok'}")
        return refusal

    async def fencepost(self, shape: Shape | None, *arguments: str) -> bool:
        """Run a command; whether it succeeded. A failure that is none of EXPECTED is a complaint."""
        await self.note(shape, f"fencepost {' '.join(arguments)}")
        command, *rest = arguments
        url = ["--database-url", self.world.dsn]
        result = await asyncio.to_thread(CliRunner().invoke, main, [command, *url, *rest])
        self.world.ddl[f"{command} {'ok' if result.exit_code == 0 else 'refused'}"] += 1
        await self.note(shape, f"it ended with {result.exit_code}: {result.output.strip()[:400]}")
        trace = result.exception is not None and not isinstance(result.exception, SystemExit)
        if result.exit_code != 0 and (trace or not EXPECTED.search(result.output)):
            self.world.complaints.append(
                f"fencepost {' '.join(arguments)} [{shape}]: {result.exit_code} {result.output} {result.exception!r}"
            )
        return result.exit_code == 0

    @asynccontextmanager
    async def moving(self, shape: Shape) -> AsyncIterator[None]:
        """While this goes on it is not certain which row a name means."""
        shape.version += 1
        try:
            yield
        finally:
            shape.version += 1

    # The two commands, and what they leave in the shape

    async def protect(
        self,
        shape: Shape,
        rule: str | None = None,
        source: str | None = None,
        scoped: bool | None = None,
        above: int | None = None,
    ) -> bool:
        """Protect a table, or change how it is. None: as it is."""
        if scoped is None and shape.protected and shape.scoped:
            scoped = True  # its column may have been renamed: that wants the template anew
        options = [*(["--rule", rule] if rule else []), *(["--source", source] if source else [])]
        options += ["--above", str(above)] if above is not None else []
        if scoped is not None:
            options += ["--scope", f"{PREFIX}/{{{shape.group}}}"] if scoped else ["--no-scope"]
        if not await self.fencepost(shape, "protect", shape.name, *options):
            return False
        was_protected, shape.protected = shape.protected, True
        shape.rule = rule or (shape.rule if was_protected else "strict")
        shape.source = source or (shape.source if was_protected else "external")
        shape.scoped = scoped if scoped is not None else shape.scoped and was_protected
        return True

    async def unprotect(self, shape: Shape) -> bool:
        if not await self.fencepost(shape, "unprotect", shape.name):
            return False
        shape.protected = shape.scoped = False
        return True

    async def protect_somehow(self, shape: Shape) -> None:
        """Protect a table by a rule and source at random, a scope now and then."""
        scoped = self.dice.random() < 0.3
        others = [other for other in self.world.shapes if other.scoped and other is not shape]
        if scoped and others:
            await self.protect(shape, others[0].rule, others[0].source, scoped=True)
            return
        await self.protect(
            shape, self.dice.choice(("strict", "epoch")), self.dice.choice(("external", "builtin")), scoped=scoped
        )
