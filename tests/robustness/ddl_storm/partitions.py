"""What is done to the partitions of a table that has them: each holds a third of its keys."""

from typing import TYPE_CHECKING

from tests.robustness.ddl_storm.actor import Actor
from tests.robustness.ddl_storm.world import APART, Shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Partitions:
    """DDL of partitions; each gives "" or why it was refused."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._made = 0
        self.changes: list[Callable[[Shape], Awaitable[str]]] = [
            self.renew,
            self.edit_apart,
            self.truncate,
            self.recreate,
        ]

    def _some(self, shape: Shape) -> tuple[str, int]:
        return self._actor.dice.choice(list(shape.partitions.items()))

    @staticmethod
    def _bounds(third: int) -> str:
        return f"FOR VALUES FROM ({third * 3}) TO ({third * 3 + 3})"

    async def create(self, shape: Shape, third: int) -> str:
        """Make a partition for these keys."""
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
        """Empty one."""
        name, _ = self._some(shape)
        output = await self._actor.sql(shape, f"TRUNCATE public.{name}")
        if shape.protected and not output:
            self._actor.world.wrong.append(f"TRUNCATE of {name}, a partition of {shape}, passed")
        return output
