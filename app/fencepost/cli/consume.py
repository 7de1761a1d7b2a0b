"""`fencepost consume`: processes that apply what queues hold, beside the gateways or without any."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

import click
from pydantic import SecretStr

from fencepost.cli.queue import chosen_queues
from fencepost.cli.shared import database_url, handling_stops, one_line, settings_options, to_environment
from fencepost.server.ops.parent_death import die_with_parent
from fencepost.server.settings import Settings

_SETTINGS: Final = (
    "database_url", "data_dir", "schemas", "queues", "sources", "pool_size", "batch_pool_size", "lease_pool_size",
    "max_waiting", "pool_timeout", "statement_timeout", "lock_timeout", "max_body_bytes", "max_rows",
    "stop_resources", "start_timeout", "shutdown_timeout", "max_kept_bytes", "idempotency_retention",
    "seal_keys_file", "roles", "log_level", "log_format",
)  # fmt: skip
_RESTART_PAUSE: Final = 2.0
"""Seconds before a worker that died is started again."""


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of processes.")
@click.option(
    "--member",
    default=None,
    help="How this consumer is called among the others of its queues; with several workers, -1, -2 … follow. The same"
    " name after a restart gets its partitions back soonest. Default: host and process.",
)
@settings_options(*_SETTINGS)
def consume(settings: Settings, names: tuple[str, ...], workers: int, member: str | None) -> None:
    """Apply the writes that are in the queues NAME (postgres:default, kafka:TOPIC, redis:STREAM), in order of each
    resource and each once. Ctrl-C and SIGTERM finish what has begun and leave the rest to others.

    As many consumers work at a time as a queue has partitions. The gateways of `fencepost serve` consume
    postgres:default themselves, unless they have --no-consume-here.
    """
    from fencepost.server.parts import own_member  # noqa: PLC0415 - heavy, as in serve
    from fencepost.server.startup import StartupError  # noqa: PLC0415

    resolved = settings.model_copy(update={"database_url": SecretStr(database_url(settings))})
    name = member or own_member()
    with one_line(StartupError):
        if workers == 1:
            _run(_consume(resolved, names, name, echo=True))
            return
        asyncio.run(_check(resolved, names))
        os.environ.update(to_environment(resolved))
        _supervise([f"{name}-{number}" for number in range(1, workers + 1)], names)


def _run(work: Coroutine[Any, Any, None]) -> None:
    import uvloop  # noqa: PLC0415 - heavy, as in serve

    uvloop.run(work)


async def _check(settings: Settings, names: Sequence[str]) -> None:
    """Find out what keeps the workers from starting. Raises StartupError."""
    from fencepost.server.serve import check_database  # noqa: PLC0415
    from fencepost.server.startup import within  # noqa: PLC0415

    chosen_queues(settings, names)
    await within(settings.start_timeout, lambda: check_database(database_url(settings)))


async def _consume(settings: Settings, names: Sequence[str], member: str, *, echo: bool = False) -> None:
    """Consume until the process is asked to stop. Raises StartupError."""
    from fencepost.server.parts import consumer_of, consuming  # noqa: PLC0415
    from fencepost.server.serve import consumer_gateway  # noqa: PLC0415

    wanted = chosen_queues(settings, names)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    with handling_stops(lambda _number, _frame: loop.call_soon_threadsafe(stopping.set)):
        async with consumer_gateway(settings, wanted) as gateway:
            consumers = {name: consumer_of(gateway, name, settings, member) for name in names}
            async with consuming(gateway, consumers, settings):
                if echo:
                    click.echo(f"{member} consumes {', '.join(names)}")
                await stopping.wait()


def _work(parent: int, names: Sequence[str], member: str) -> None:
    """Be one worker: its settings are in the environment."""
    from fencepost.server.startup import StartupError  # noqa: PLC0415

    die_with_parent(parent)
    try:
        _run(_consume(Settings(), names, member))
    except StartupError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from error


def _supervise(members: Sequence[str], names: Sequence[str]) -> None:
    """Run a worker for each member until asked to stop; one that dies is started again."""
    with _asked_to_stop() as asked:
        running = {member: _started(names, member) for member in members}
        click.echo(f"{', '.join(members)} consume {', '.join(names)}")
        due: dict[str, float] = {}  # when those that died are started again
        try:
            while True:
                now = time.monotonic()
                for member in [each for each, at in due.items() if at <= now]:
                    del due[member]
                    running[member] = _started(names, member)
                alive = {process.sentinel: member for member, process in running.items() if member not in due}
                pause = max(min(due.values()) - now, 0) if due else None
                ended = wait([asked, *alive], pause)
                if asked in ended:
                    return
                due.update((member, now + _RESTART_PAUSE) for each, member in alive.items() if each in ended)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.join()


@contextmanager
def _asked_to_stop() -> Iterator[int]:
    """Give a file descriptor that can be read once SIGINT or SIGTERM came."""
    reading, writing = os.pipe()
    try:
        with handling_stops(lambda _number, _frame: os.write(writing, b".")):
            yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _started(names: Sequence[str], member: str) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(os.getpid(), names, member))
    process.start()
    return process
