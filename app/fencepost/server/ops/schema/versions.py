"""Whether this version of Fencepost can work on the schema that it finds: what versions N and N+1 promise each other.

Revisions of the schema follow one another in a line. Version N of Fencepost brings all up to its newest.

- The schema is older: nothing of this version works on it. `fencepost migrate` comes first, and then the gateways.
- The schema is newer: its function fencepost.compatible_from() names the revision from which on gateways and commands
  can work on it. If that is one that this version has, they work, and report that they are behind: so the schema is
  migrated while gateways of version N serve, and they are replaced one after the other. Else they are to be upgraded.

A migration that leaves everything in place that the version before uses keeps compatible_from() as it is; one that
does not sets it to its own revision. A version that is older than the schema never migrates it.
"""

from dataclasses import dataclass
from typing import Literal

from fencepost.server.ops.schema import revisions
from fencepost.server.postgres.connection import Connection

Verdict = Literal["same", "missing", "older", "newer", "too new"]


@dataclass(frozen=True, slots=True)
class Fit:
    """What became of the comparison. `found` is the revision of the schema, `newest` that of this version."""

    verdict: Verdict
    found: str | None
    newest: str

    @property
    def works(self) -> bool:
        return self.verdict in ("same", "newer")

    def describe(self) -> str:
        """Return the version found and the command to run, as one line."""
        match self.verdict:
            case "same":
                return f"revision {self.found}"
            case "missing":
                return "the database has no schema fencepost: run `fencepost migrate`"
            case "older":
                return f"revision {self.found}, where {self.newest} is needed: run `fencepost migrate`"
            case "newer":
                return (
                    f"revision {self.found}, newer than {self.newest} of this version of Fencepost, which can work on"
                    " it: upgrade it when the migration is done"
                )
            case "too new":
                return (
                    f"revision {self.found}, on which this version of Fencepost ({self.newest}) cannot work: upgrade"
                    " it. Migrating again changes nothing"
                )


async def fit(connection: Connection) -> Fit:
    """Compare the schema with this version."""
    found, known = await revisions.current(connection), revisions.known()
    if found is None or found in known:
        verdict: Verdict = "missing" if found is None else "same" if found == known[-1] else "older"
        return Fit(verdict, found, known[-1])
    oldest = None
    if await connection.fetchval("SELECT to_regprocedure('fencepost.compatible_from()') IS NOT NULL"):
        oldest = await connection.fetchval("SELECT fencepost.compatible_from()")
    return Fit("newer" if oldest in known else "too new", found, known[-1])
