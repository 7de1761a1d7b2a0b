"""Whose a token of a source is, as long as that is remembered (R18)."""

from dataclasses import dataclass

from fencepost.server.fence.token import BUILTIN
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.leases.builtin import LeaseId


@dataclass(frozen=True, slots=True)
class Issued:
    """A token, and the lease that it was drawn for. Times are ISO 8601 texts in UTC."""

    token: int
    lease_id: str
    locks: tuple[str, ...]
    holder: str
    granted_at: str
    issued_at: str
    source: str = BUILTIN

    def body(self) -> dict[str, object]:
        """The members that answers show: not the token, which may be one that writes are still accepted with."""
        return {
            "holder": self.holder,
            "lease_id": self.lease_id,
            "locks": list(self.locks),
            "granted_at": self.granted_at,
            "issued_at": self.issued_at,
            "source": self.source,
        }


async def issued_to(connection: Connection, token: int, source: str) -> Issued | None:
    """Look a token of a source up; None: it is not remembered, or another source's."""
    builtin = source == BUILTIN
    row = await connection.fetchrow(
        "SELECT lease_id, names, owner, pg_catalog.to_json(granted_at) OPERATOR(pg_catalog.#>>) '{}' AS granted_at,"
        " pg_catalog.to_json(drawn_at) OPERATOR(pg_catalog.#>>) '{}' AS issued_at FROM "
        + ("fencepost.issued_to($1)" if builtin else "fencepost.source_issued_to($2, $1)"),
        *((token,) if builtin else (token, source)),
    )
    if row is None:
        return None
    lease_id = str(LeaseId(source, row["lease_id"]))
    return Issued(token, lease_id, tuple(row["names"]), row["owner"], row["granted_at"], row["issued_at"], source)
