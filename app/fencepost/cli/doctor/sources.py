"""What `fencepost doctor` looks at in the lock services that are configured, and in what is recorded of them."""

from collections.abc import Collection, Sequence

import asyncpg
import click

from fencepost.server.locks.source import Source, SourceError
from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres.leases import sources
from fencepost.server.queue_wiring import names_of_queues
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.settings import Settings
from fencepost.server.source_wiring import ConfiguredSource, read_sources
from fencepost.server.startup import StartupError


def read_configured_sources(settings: Settings) -> list[ConfiguredSource]:
    """Read FENCEPOST_SOURCES. Raises ClickException."""
    try:
        return read_sources(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


def read_names_of_queues(settings: Settings) -> list[str]:
    """Read the names of the queues of FENCEPOST_QUEUES. Raises ClickException."""
    try:
        return names_of_queues(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


async def examine_sources(
    connection: asyncpg.Connection, configured: Sequence[ConfiguredSource], queues: Collection[str]
) -> list[Finding]:
    """Find sources that are in quarantine or missing. Ask each configured service about its settings, and whether its
    numbers have reached its tokens. `queues`: the names of those that are configured.
    """
    here = {each.name: each for each in configured}
    findings, asked = [], []
    for known in await sources.list_known(connection):
        subject = f"source {known.name}"
        if known.quarantined is not None:
            mend = f"fencepost source raise {known.name} --reason …"
            findings.append(Finding("error", subject, f"{known.describe()}. When it can be vouched for: {mend}"))
        elif known.name in here:
            asked += (found := await _ask(here.pop(known.name), known))
            if all(each.level != "error" for each in found):
                findings.append(Finding("ok", subject, known.describe()))
        elif known.name == DEFAULT and known.unused:
            continue
        elif known.of_a_queue:
            findings.append(_of_queue(subject, known, queues))
        elif known.tables:
            needed = ", ".join(known.tables)
            findings.append(Finding("warning", subject, f"{needed} needs it, and FENCEPOST_SOURCES here has it not"))
    for each in here.values():
        asked += await _ask(each, None)
    return findings + asked


def _of_queue(subject: str, known: sources.KnownSource, queues: Collection[str]) -> Finding:
    if known.name in queues or not known.tables:
        return Finding("ok", subject, known.describe())
    needed = ", ".join(known.tables)
    return Finding("warning", subject, f"{needed} takes its writes by it, and FENCEPOST_QUEUES here has it not")


async def _ask(configured: ConfiguredSource, known: sources.KnownSource | None) -> list[Finding]:
    """Ask a service; `known` is what its tokens are compared with."""
    subject = f"source {configured.name}"
    source, findings = configured.source, list[Finding]()
    await source.open()
    try:
        findings += [Finding("warning", subject, text) for text in await source.advice()]
        if known is not None and known.number > 0 and source.capabilities.verifies:
            findings += await _behind(subject, source, known)
    except SourceError as error:
        findings.append(Finding("error", subject, f"{error}"))
    finally:
        await source.close()
    return findings


async def _behind(subject: str, source: Source, known: sources.KnownSource) -> list[Finding]:
    if await source.issued(known.number):
        return []
    return [
        Finding(
            "error",
            subject,
            f"it has not come as far as {known.number}, which is known to have been handed out ({known.describe()}):"
            " its data was lost or restored from a backup. Its next grant quarantines it, unless it counts past"
            " that number first, and then tokens repeat. When it can be vouched for: fencepost source raise"
            f" {known.name} --reason …",
        )
    ]
