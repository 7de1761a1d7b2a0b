"""The DDL actor: one change of the tables after the other, at random, beside the writers.

Where Fencepost or PostgreSQL refuses a change of a protected table the actor does what an operator would do then:
unprotect, change, protect again.
"""

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import asyncpg
from tests.robustness.ddl_storm import world as log
from tests.robustness.ddl_storm.world import APART, TYPES, Kind, Shape, World
from tests.robustness.ddl_storm.writers import TRIES, Actor, Emitter
from tests.support.interleave import Connection, connection_to

from fencepost.server.ops.embedded_files import Binaries
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually

# What is done to the partitions of a table that has them: each holds a third of its keys.


class Partitions:
    """DDL of partitions; each gives "" or why it was refused."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._made = 0
        self.changes: list[Callable[[Shape], Awaitable[str]]] = [
            self.renew, self.edit_apart, self.truncate, self.recreate,
        ]  # fmt: skip

    def _some(self, shape: Shape) -> tuple[str, int]:
        return self._actor.dice.choice(list(shape.partitions.items()))

    @staticmethod
    def _bounds(third: int) -> str:
        return f"FOR VALUES FROM ({third * 3}) TO ({third * 3 + 3})"

    async def create(self, shape: Shape, third: int) -> str:
        self._made += 1
        name = f"{shape.line}_{self._made}"
        output = await self._actor.sql(
            shape,
            f'CREATE TABLE public.{name} PARTITION OF public."{shape.name}" {self._bounds(third)}',
            f"ALTER TABLE public.{name} REPLICA IDENTITY FULL",
        )
        if not output:
            shape.partitions[name] = third
        return output

    async def recreate(self, shape: Shape) -> str:
        """Drop one; make it anew, empty."""
        name, third = self._some(shape)
        async with self._actor.moving(shape):
            away = [f"DROP TABLE public.{name}"]
            if self._actor.dice.random() < 0.5:
                away.insert(0, f'ALTER TABLE public."{shape.name}" DETACH PARTITION public.{name}')
            output = await self._actor.sql(shape, *away)
            if output:
                return output
            del shape.partitions[name]
            await self._actor.world.after(self._actor.dice.randrange(15))
            return await self.create(shape, third)

    async def renew(self, shape: Shape) -> str:
        """Detach one and attach it again as it is, or a copy of it in its place."""
        name, third = self._some(shape)
        async with self._actor.moving(shape):
            output = await self._actor.sql(shape, f'ALTER TABLE public."{shape.name}" DETACH PARTITION public.{name}')
            if output:
                return output
            await self._actor.world.after(self._actor.dice.randrange(15))
            return await self._attach(shape, name, third)

    async def edit_apart(self, shape: Shape) -> str:
        """Detach one, delete rows of it that no trigger watches there, make others anew, and attach it again."""
        name, third = self._some(shape)
        async with self._actor.moving(shape):
            output = await self._actor.sql(shape, f'ALTER TABLE public."{shape.name}" DETACH PARTITION public.{name}')
            if output:
                return output
            gone, made = self._actor.dice.sample(range(third * 3, third * 3 + 3), 2)
            operation = self._actor.world.begin(APART, None, shape, frozenset((gone, made)))
            group = made % 2
            output = await self._actor.sql(
                shape,
                f"SELECT pg_logical_emit_message(true, 'op', '{operation.id}')",
                f"DELETE FROM public.{name} WHERE lk IN ('{shape.lk(gone)}', '{shape.lk(made)}')",
                f"INSERT INTO public.{name} ({shape.columns[0]}, {shape.group}, lk, op)"
                f" VALUES ({made}, {group}, '{shape.lk(made)}', '{operation.id}')",
            )
            self._actor.world.finish(operation, "maybe", output[:5] or "ok", None)
            return await self._attach(shape, name, third)

    async def _attach(self, shape: Shape, name: str, third: int) -> str:
        output = await self._actor.sql(
            shape, f'ALTER TABLE public."{shape.name}" ATTACH PARTITION public.{name} {self._bounds(third)}'
        )
        if output:
            del shape.partitions[name]
            await self._actor.sql(shape, f"DROP TABLE public.{name}")
        return output

    async def truncate(self, shape: Shape) -> str:
        name, _ = self._some(shape)
        output = await self._actor.sql(shape, f"TRUNCATE public.{name}")
        if shape.protected and not output:
            self._actor.world.wrong.append(f"TRUNCATE of {name}, a partition of {shape}, passed")
        return output


# A dump, more writes and DDL, and then the dump put in the database's place, in the same cluster.


class Restores:
    """Dumps, and restores what was dumped the last time."""

    def __init__(self, world: World, server: str, binaries: Binaries, directory: Path) -> None:
        self._world, self._server, self._binaries = world, server, binaries
        self._file = directory / "dump"
        self._saved: list[Shape] | None = None
        self._dumps = 0
        self.drained: list[Callable[[Connection], Awaitable[None]]] = []
        """Called with a connection to the database that was replaced, before it is dropped."""

    @property
    def _name(self) -> str:
        return f"d{self._dumps}"

    async def dump_or_restore(self, actor: Actor) -> None:
        if self._saved is None:
            await self._dump(actor)
        else:
            await self._restore(actor, self._saved)
            self._saved = None

    async def _dump(self, actor: Actor) -> None:
        self._dumps += 1
        await actor.emitter.emit("dump", {"name": self._name}, self._world.epoch)
        self._saved = copy.deepcopy(self._world.shapes)
        await self._run("pg_dump", "-Fc", "-f", str(self._file), "-d", self._world.dsn)
        self._world.ddl["pg_dump"] += 1

    async def _restore(self, actor: Actor, saved: list[Shape]) -> None:
        async with connection_to(self._server) as maintenance:
            await maintenance.execute("CREATE DATABASE storm_new TEMPLATE template0")
            new = in_database(self._server, "storm_new")
            await self._run("pg_restore", "--exit-on-error", "-d", new, str(self._file))
            async with connection_to(new) as connection:
                await log.begin(connection)
                await connection.execute(
                    "SELECT pg_logical_emit_message(false, 'restored', $1::text)", f'{{"name": "{self._name}"}}'
                )
            await actor.close()
            for shape in self._world.shapes:
                shape.version += 1
            self._world.epoch += 1
            await actor.emitter.close()
            await self._swap(maintenance)
            for shape in saved:
                shape.version += 2
            self._world.shapes[:] = saved
            self._world.epoch += 1
            oldest = await self._keep_the_log(maintenance)
        self._world.ddl["pg_restore"] += 1
        # Its generation was not raised yet: gateways must not write.
        await self._world.after(40, within=1.5)
        # The dump may be from before a generation that the gateways have met.
        above = ("--above", str(oldest))
        for _ in range(TRIES):  # it may meet a deadlock with direct SQL, which changes nothing
            if await actor.fencepost(None, "generation", "raise", "--reason", "a dump was restored", *above):
                break

    async def _swap(self, maintenance: Connection) -> None:
        """Put the new database in the old one's place; sessions of the old one are ended."""
        await maintenance.execute("ALTER DATABASE storm WITH ALLOW_CONNECTIONS false")

        async def renamed() -> bool:
            await maintenance.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'storm'")
            try:
                await maintenance.execute("ALTER DATABASE storm RENAME TO storm_old")
            except asyncpg.ObjectInUseError:
                return False
            return True

        await eventually(renamed, what="no connection to the old database")
        await maintenance.execute("ALTER DATABASE storm_new RENAME TO storm")

    async def _keep_the_log(self, maintenance: Connection) -> int:
        """Take what the log has of the old database, and drop it. Returns the first token of its generation."""
        await maintenance.execute("ALTER DATABASE storm_old WITH ALLOW_CONNECTIONS true")
        async with connection_to(in_database(self._server, "storm_old")) as old:
            for take in self.drained:
                await take(old)
            await log.end(old)
            oldest: int = await old.fetchval("SELECT fencepost.oldest()")
        await maintenance.execute("DROP DATABASE storm_old WITH (FORCE)")
        return oldest

    async def _run(self, program: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            self._binaries.bin_dir / program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self._binaries.environment,
        )
        _, output = await process.communicate()
        assert process.returncode == 0, f"{program}: {output.decode()}"


# Fences with a hole each, for the storm's control: SQL that is run right after `fencepost migrate`.

_MUTANT: Final = """
DO $mutate$
DECLARE
  original text := pg_get_functiondef('{function}'::regprocedure);
  mutant text := replace(original, $old${old}$old$, $new${new}$new$);
BEGIN
  ASSERT mutant <> original, 'the line to change is not in {function} any more';
  EXECUTE mutant;
END $mutate$;
"""


def _mutant(function: str, old: str, new: str) -> str:
    return _MUTANT.format(function=function, old=old, new=new)


SABOTAGE: Final = {
    "raise_mark takes every token": _mutant(
        "fencepost.raise_mark(text, bigint, text, boolean)", "RETURN refused_by;", "RETURN NULL;"
    ),
    "a DELETE leaves no mark": _mutant(
        "fencepost.judge_delete(text, text, bigint, text, xid)",
        "VALUES (p_resource, token, pg_current_xact_id(), true)",
        "SELECT p_resource, token, pg_current_xact_id(), true WHERE false",
    ),
    "a floor does not rise when a table leaves its scope": """
CREATE FUNCTION storm.lower_floor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.floor := CASE WHEN TG_OP = 'INSERT' THEN 0 ELSE OLD.floor END;
  RETURN NEW;
END $$;
CREATE TRIGGER a_saboteur BEFORE INSERT OR UPDATE ON fencepost.floors
  FOR EACH ROW EXECUTE FUNCTION storm.lower_floor();
""",
}

NAMES: Final = tuple(f"f{letter}" for letter in "abcdefghij")
MOST: Final = 6
"""Tables at a time."""
FIRST: Final[tuple[Kind, ...]] = ("plain", "plain", "pair", "parts")


class Ddl:
    """Chooses and does it."""

    def __init__(self, world: World, emitter: Emitter, extra: dict[Callable[[Actor], Awaitable[None]], int]) -> None:
        self.actor = Actor(world, emitter)
        self._world, self._dice = world, self.actor.dice
        self._partitions = Partitions(self.actor)
        self._extra = extra
        self._actions: dict[Callable[[Shape], Awaitable[None]], int] = {
            self.repeat: 3, self.options: 6, self.away_and_back: 6, self.rename: 4, self.replace: 5, self.drop: 3,
            self.swap: 3, self.retype: 7, self.rename_column: 3, self.reorder: 4, self.partition: 6,
            self.lose_the_column: 3, self.truncate: 2, self.raise_generation: 1,
        }  # fmt: skip

    async def begin(self) -> None:
        """Make the first tables: with tokens of either source, so that no storm is without one of them."""
        for kind, source in zip(FIRST, itertools.cycle(("external", "builtin")), strict=False):
            shape = await self.create(self._free_name(), kind)
            rule, scoped = self._dice.choice(("strict", "epoch")), self._dice.random() < 0.3
            await self.actor.protect(shape, rule, source, scoped=scoped)

    async def act(self) -> None:
        """Go on until the storm is over."""
        seldom = dict(self._extra)
        while self._world.running:
            self._world.act()
            due = [action for action, at in seldom.items() if at <= self._world.finished]
            if due:
                seldom[due[0]] += self._extra[due[0]]
                await due[0](self.actor)
            else:
                action = self._dice.choices(list(self._actions), list(self._actions.values()))[0]
                fit = [shape for shape in self._world.shapes if self._fits(action.__name__, shape)]
                if fit:
                    self._world.ddl[action.__name__] += 1
                    await action(self._dice.choice(fit))
            await self._world.after(self._dice.randrange(30))

    def _fits(self, action: str, shape: Shape) -> bool:
        """Whether this is something to do to that table."""
        kinds: dict[str, Kind] = {"retype": "plain", "reorder": "pair", "partition": "parts"}
        if action == "lose_the_column":
            return shape.protected and not shape.scoped
        if action in ("drop", "replace"):
            return shape.kind != "parts" and (action == "replace" or len(self._world.shapes) > len(FIRST))
        return kinds.get(action, shape.kind) == shape.kind

    def _free_name(self) -> str:
        taken = {shape.name for shape in self._world.shapes}
        return self._dice.choice([name for name in NAMES if name not in taken])

    async def create(self, name: str, kind: Kind) -> Shape:
        columns = ["k0", "k1"] if kind == "pair" else ["k0"]
        shape = Shape(self._world.line(), name, kind, columns, list(range(len(columns))))
        if kind == "plain":
            shape.type = self._dice.choice(tuple(TYPES))
        keys = ", ".join(f"{column} {shape.type} NOT NULL" for column in columns)
        primary = f"CONSTRAINT {shape.line}_key PRIMARY KEY ({', '.join(columns)})"
        output = await self.actor.sql(
            shape,
            f'CREATE TABLE public."{name}" ({keys}, g integer NOT NULL, lk text NOT NULL, op text, tok bigint,'
            f" CONSTRAINT is_lk CHECK ({shape.check()}), {primary})"
            + (" PARTITION BY RANGE (k0)" if kind == "parts" else ""),
            f'ALTER TABLE public."{name}" REPLICA IDENTITY FULL',
            f"COMMENT ON TABLE public.\"{name}\" IS '{shape.line}'",
        )
        assert not output, output
        if kind == "parts":
            for third in range(3):
                await self._partitions.create(shape, third)
        self._world.shapes.append(shape)
        return shape

    # How a table is protected

    async def repeat(self, shape: Shape) -> None:
        if shape.protected:
            await self.actor.protect(shape)
        else:
            await self.actor.protect_somehow(shape)

    async def options(self, shape: Shape) -> None:
        if not shape.protected:
            await self.actor.protect_somehow(shape)
            return
        match self._dice.randrange(3):
            case 0:
                await self.actor.protect(shape, rule="epoch" if shape.rule == "strict" else "strict")
            case 1:
                await self.actor.protect(shape, source="builtin" if shape.source == "external" else "external")
            case _ if shape.scoped:
                await self.actor.protect(shape, scoped=False)
            case _:
                others = [other for other in self._world.shapes if other.scoped]
                like = others[0] if others else shape
                await self.actor.protect(shape, like.rule, like.source, scoped=True)

    async def away_and_back(self, shape: Shape) -> None:
        if not shape.protected or await self.actor.unprotect(shape):
            await self._world.after(self._dice.randrange(30))
            await self.actor.protect_somehow(shape)

    async def _unprotected(self, shape: Shape, change: Callable[[], Awaitable[str]], *, try_first: bool) -> bool:
        """Change a table, without its protection where that is in the way; protects it again."""
        if shape.protected and try_first:
            output = await change()
            self._world.ddl[f"{'refused' if output else 'passed'} while protected"] += 1
            if not output:
                await self._world.after(self._dice.randrange(20))
                await self.actor.protect(shape)
                return True
        if shape.protected and not await self.actor.unprotect(shape):
            return False
        await self._world.after(self._dice.randrange(12))
        output = await change()
        await self._world.after(self._dice.randrange(12))
        await self.actor.protect_somehow(shape)
        return not output

    # Names

    async def _rename(self, shape: Shape, name: str) -> str:
        async with self.actor.moving(shape):
            output = await self.actor.sql(shape, f'ALTER TABLE public."{shape.name}" RENAME TO "{name}"')
            if not output:
                shape.name = name
        return output

    async def rename(self, shape: Shape) -> None:
        name = self._free_name()
        await self._unprotected(shape, lambda: self._rename(shape, name), try_first=self._dice.random() < 0.5)

    async def replace(self, shape: Shape) -> None:
        if len(self._world.shapes) >= MOST:
            await self.drop(shape)
            return
        if self._dice.random() < 0.7 and shape.protected and not await self.actor.unprotect(shape):
            return
        name = shape.name
        if await self._rename(shape, self._free_name()):
            return
        other = await self.create(name, self._dice.choice(("plain", "plain", "pair")))
        for each in self._dice.sample([shape, other], 2):
            await self._world.after(self._dice.randrange(20))
            await self.actor.protect_somehow(each)

    async def swap(self, shape: Shape) -> None:
        """Two tables take each other's names."""
        other = self._dice.choice([each for each in self._world.shapes if each is not shape])
        both = [shape, other]
        if not all([not each.protected or await self.actor.unprotect(each) for each in both]):
            return
        await self._world.after(self._dice.randrange(12))
        one, two, between = shape.name, other.name, self._free_name()
        async with self.actor.moving(shape), self.actor.moving(other):
            output = await self.actor.sql(
                shape,
                f'ALTER TABLE public."{one}" RENAME TO "{between}"',
                f'ALTER TABLE public."{two}" RENAME TO "{one}"',
                f'ALTER TABLE public."{between}" RENAME TO "{two}"',
            )
            if not output:
                shape.name, other.name = two, one
        for each in self._dice.sample(both, 2):
            await self.actor.protect_somehow(each)

    async def raise_generation(self, _: Shape) -> None:
        await self.actor.fencepost(None, "generation", "raise", "--reason", "a storm")

    async def drop(self, shape: Shape) -> None:
        if self._dice.random() < 0.6 and shape.protected and not await self.actor.unprotect(shape):
            return
        shape.version += 1
        output = await self.actor.sql(shape, f'DROP TABLE public."{shape.name}" CASCADE')
        if output:
            shape.version += 1
        else:
            self._world.shapes.remove(shape)

    async def rename_column(self, shape: Shape) -> None:
        async def change() -> str:
            async with self.actor.moving(shape):
                old = self._dice.choice([*shape.columns, shape.group])
                new = f"c{self._dice.randrange(10**6)}"
                output = await self.actor.sql(shape, f'ALTER TABLE public."{shape.name}" RENAME COLUMN {old} TO {new}')
                if not output:
                    shape.columns = [new if column == old else column for column in shape.columns]
                    shape.group = new if shape.group == old else shape.group
            return output

        await self._unprotected(shape, change, try_first=self._dice.random() < 0.5)

    # Keys

    async def retype(self, shape: Shape) -> None:
        new = self._dice.choice([name for name in TYPES if name != shape.type])

        async def change() -> str:
            async with self.actor.moving(shape):
                column, before = shape.columns[0], shape.type
                using = TYPES[new].make.format(TYPES[before].read.format(column))
                shape.type = new
                output = await self.actor.sql(
                    shape,
                    f'ALTER TABLE public."{shape.name}" DROP CONSTRAINT is_lk, ALTER COLUMN {column} TYPE {new}'
                    f" USING ({using}), ADD CONSTRAINT is_lk CHECK ({shape.check()})",
                )
                if output:
                    shape.type = before
            return output

        await self._unprotected(shape, change, try_first=self._dice.random() < 0.5)

    async def reorder(self, shape: Shape) -> None:
        async def change() -> str:
            async with self.actor.moving(shape):
                shape.order.reverse()
                output = await self.actor.sql(
                    shape,
                    f'ALTER TABLE public."{shape.name}" DROP CONSTRAINT {shape.line}_key,'
                    f" ADD CONSTRAINT {shape.line}_key PRIMARY KEY ({', '.join(shape.key())})",
                )
                if output:
                    shape.order.reverse()
            return output

        await self._unprotected(shape, change, try_first=self._dice.random() < 0.5)

    # Rows and columns

    async def partition(self, shape: Shape) -> None:
        for third in {0, 1, 2} - set(shape.partitions.values()):
            await self._partitions.create(shape, third)
        change = self._dice.choice(self._partitions.changes)
        await self._unprotected(shape, lambda: change(shape), try_first=self._dice.random() < 0.6)

    async def truncate(self, shape: Shape) -> None:
        output = await self.actor.sql(shape, f'TRUNCATE public."{shape.name}"')
        if shape.protected and not output:
            self._world.wrong.append(f"TRUNCATE of {shape} passed")

    async def lose_the_column(self, shape: Shape) -> None:
        """Rename the column of the marks, or drop it, and then do what `fencepost` advises."""
        table = f'public."{shape.name}"'
        if self._dice.random() < 0.3:
            name = f"c{self._dice.randrange(10**6)}"
            if not await self.actor.sql(shape, f"ALTER TABLE {table} RENAME COLUMN last_fence_token TO {name}"):
                await self._world.after(self._dice.randrange(20))
                await self.actor.protect(shape)  # refused: it names what the column is called now
                await self.actor.sql(shape, f"ALTER TABLE {table} RENAME COLUMN {name} TO last_fence_token")
            return
        # Its triggers go with it: from here on the table is not protected, whatever is written down.
        state = f'{{"line": "{shape.line}", "rule": null, "source": null, "scope": null}}'
        output = await self.actor.sql(
            shape,
            f"ALTER TABLE {table} DROP COLUMN last_fence_token CASCADE",
            f"SELECT pg_logical_emit_message(true, 'state', '{state}')",
        )
        if output:
            return
        await self._world.after(self._dice.randrange(20))
        if shape.source == "external":
            if self._dice.random() < 0.3:
                await self.actor.protect(shape)  # refused: only its operator knows how far its tokens have got
            await self.actor.protect(shape, above=self._world.top)
        else:
            await self.actor.protect(shape)
