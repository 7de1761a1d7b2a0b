"""Writers that go past the gateways: SQL in all isolation levels, with tokens, with old ones, and without any."""

import asyncio
from typing import Final, Literal

import asyncpg
from tests.robustness.ddl_storm.world import KEYS, Operation, Shape, World, group_of
from tests.support.interleave import Connection

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
