"""The means of the DDL actor: SQL of its own, `fencepost` as an operator runs it, and notes of both in the log."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
from click.testing import CliRunner
from tests.robustness.ddl_storm.emitter import Emitter
from tests.robustness.ddl_storm.world import PREFIX, Shape, World
from tests.support.interleave import Connection

from fencepost.cli.main import main

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
        """Take a table's protection away."""
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
