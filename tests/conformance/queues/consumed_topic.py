"""A Kafka topic that is consumed as `fencepost consume` does it, into a table of a real PostgreSQL with an oracle."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from click.testing import CliRunner, Result
from tests.conformance.queues.kafka_bench import url_of
from tests.support.consuming import make_tables, settings_of, write
from tests.support.interleave import Connection

from fencepost.cli.main import main
from fencepost.cli.queue import chosen_queues
from fencepost.server.consuming.consumer import QueueConsumer
from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.postgres import sources
from fencepost.server.queues.log import DeadLetter, Log, LogUnavailableError, Position
from fencepost.server.settings import Settings
from fencepost.server.wiring import consumer_gateway
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, eventually

WITHIN = 3 * PATIENCE


@dataclass
class ConsumedTopic:
    """The queue of a topic, as a gateway has it, and a connection that looks on. Writes are numbered: `n` of a row."""

    name: str
    gateway: Gateway
    settings: Settings
    owner: Connection
    consumer: QueueConsumer | None = None

    @property
    def log(self) -> Log:
        return self.gateway.queues[self.name]

    @asynccontextmanager
    async def consumed(self, member: str = "a") -> AsyncIterator[None]:
        """Consume it as this member."""
        self.consumer = consumer_of(self.gateway, self.name, self.settings, member)
        async with consuming(self.gateway, {self.name: self.consumer}, self.settings):
            yield

    async def append(self, key: str, *numbers: int) -> list[Position]:
        """Append writes of a row; each until it is acknowledged, so one may be there twice."""

        async def appended(number: int) -> Position | None:
            try:
                return await self.log.append(write(f"orders/{key}", body={"n": number}))
            except LogUnavailableError:
                return None

        async def acknowledged(number: int) -> Position:
            return await eventually(lambda: appended(number), within=WITHIN, what="an acknowledgement")

        return [await acknowledged(number) for number in numbers]

    async def effects(self) -> list[tuple[str, int, int]]:
        """List what was written, in its order: key, number, generation of its token."""
        rows = await self.owner.fetch("SELECT resource, n, token FROM public.effects ORDER BY id")
        found = [(row["resource"].partition("/")[2], row["n"], row["token"] >> GENERATION_BITS) for row in rows]
        return list(dict.fromkeys(found))

    async def has(self, *effects: tuple[str, int, int]) -> None:
        """Return once exactly these are there, those of a row in this order; rows have none among them."""

        def by_row(found: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
            return sorted(found, key=lambda each: each[0])

        async def there() -> bool:
            return by_row(await self.effects()) == by_row(effects)

        try:
            await eventually(there, within=WITHIN, what="all effects")
        except TimeoutError as error:
            state, consumer = await sources.state(self.owner, self.name, ""), self.consumer
            error.add_note(f"{await self.effects()} instead of {[*effects]}; {state}")
            error.add_note("" if consumer is None else f"{consumer.paused_because} {consumer.partitions}")
            raise

    async def quarantined(self) -> str:
        """Return why it is quarantined, once it is."""

        async def because() -> str | None:
            return (await sources.state(self.owner, self.name, "")).quarantined

        return await eventually(because, within=WITHIN, what="a quarantine")

    async def run(self, *arguments: str) -> Result:
        """Run `fencepost …` on its database."""
        assert self.settings.database_url is not None
        assert self.settings.queues is not None
        environment = {
            "FENCEPOST_DATABASE_URL": self.settings.database_url.get_secret_value(),
            "FENCEPOST_QUEUES": self.settings.queues.get_secret_value(),
        }
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments], env=environment)

    async def is_raised(self) -> None:
        """Raise the source, which is shown to be quarantined, as an operator would; that ends it."""
        shown = await self.run("source")
        assert (shown.exit_code, f"{self.name} (kafka): quarantined at" in shown.output) == (1, True), shown.output
        raised = await self.run("source", "raise", self.name, "--reason", "the log is another")
        assert raised.exit_code == 0, raised.output
        shown = await self.run("source")
        assert shown.exit_code == 0, shown.output

    async def letters(self, count: int) -> list[DeadLetter]:
        """Return the dead letters once there are so many."""

        async def there() -> list[DeadLetter] | None:
            try:
                found = [*await self.log.dead.list(count + 1)]
            except LogUnavailableError:  # the topic may just be made
                return None
            return found if len(found) >= count else None

        return await eventually(there, within=WITHIN, what=f"{count} dead letters")


@asynccontextmanager
async def consumed_topic(cluster: Kafka, topic: str, owner: Connection, database: str) -> AsyncIterator[ConsumedTopic]:
    """Make the table that takes its writes by the topic, and open both."""
    url = url_of(cluster, topic)
    name = f"kafka:{urlsplit(url).path.removeprefix('/')}"
    await make_tables(owner, effects=True, queue=name)
    settings = settings_of(database, queues=url)
    async with consumer_gateway(settings, chosen_queues(settings, [name])) as gateway:
        yield ConsumedTopic(name, gateway, settings, owner)
