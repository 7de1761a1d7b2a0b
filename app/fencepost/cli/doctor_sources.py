"""What `fencepost doctor` looks at in the lock services that are configured, and in what is recorded of them."""

from collections.abc import Sequence

import asyncpg
import click

from fencepost.locks.source import SourceError
from fencepost.settings import Settings
from fencepost.source_wiring import Configured, read_sources
from fencepost.startup import StartupError
from fencepost.storage import sources
from fencepost.storage.inspect import Finding


def configured_sources(settings: Settings) -> list[Configured]:
    """Read FENCEPOST_SOURCES. Raises ClickException."""
    try:
        return read_sources(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


async def examine_sources(connection: asyncpg.Connection, configured: Sequence[Configured]) -> list[Finding]:
    """Say which sources are frozen or missing, and ask each configured service about its settings."""
    here = {each.name for each in configured}
    findings = []
    for known in await sources.known(connection):
        subject = f"source {known.name}"
        if known.frozen is not None:
            mend = f"fencepost source bump {known.name} --reason …"
            findings.append(Finding("error", subject, f"{known.describe()}. When it can be vouched for: {mend}"))
        elif known.name in here:
            findings.append(Finding("ok", subject, known.describe()))
        elif known.tables:
            needed = ", ".join(known.tables)
            findings.append(Finding("warning", subject, f"{needed} needs it, and FENCEPOST_SOURCES here has it not"))
    for each in configured:
        findings += await _ask(each)
    return findings


async def _ask(configured: Configured) -> list[Finding]:
    subject = f"source {configured.name}"
    source = configured.source
    await source.open()
    try:
        return [Finding("warning", subject, text) for text in await source.advice()]
    except SourceError as error:
        return [Finding("error", subject, f"{error}")]
    finally:
        await source.close()
