"""What `fencepost doctor` reports of prepared transactions: a forgotten one locks its rows until ended by hand."""

from typing import Final

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.connection import Connection

OLD: Final = 300.0
"""Seconds after which no transaction manager is expected to come back to its prepared transaction."""


async def examine_prepared(connection: Connection, old: float = OLD) -> list[Finding]:
    """Name those that hold locks on protected tables, whatever their age, and all that are `old`, in seconds."""
    findings = []
    for each in await upkeep.all_prepared(connection):
        if each.protected:
            effect = (
                f"holds locks on {', '.join(each.protected)}: writes to its rows, and whatever needs the whole table,"
                " wait for it and fail"
            )
        elif each.age >= old:
            of = f"holds locks on {', '.join(each.locked)}, and " if each.locked else ""
            effect = f"{of}keeps VACUUM, and the pruning of marks, from removing what is newer than it"
        else:
            continue
        findings.append(Finding("warning", "prepared", f"{each.describe()}, {effect}: {each.mend()}"))
    return findings
