"""What is known of a resource: its mark, rule and source, and how it came by them."""

from collections.abc import Mapping
from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import NO_MARK
from fencepost.gateway.core import Done, Gateway, Outcome, on_table, require_fence, require_key
from fencepost.gateway.culprit import naming_the_column
from fencepost.gateway.superseded import holder_of
from fencepost.storage.catalog import Fence, Table
from fencepost.storage.errors import translated
from fencepost.storage.issued import Issued
from fencepost.storage.marks import Known, known


@dataclass(frozen=True, slots=True)
class Explained(Done):
    """The answer of GET /v1/fences, as members of its JSON body."""

    body: dict[str, object] | None = None


async def explain(gateway: Gateway, resource: Resource) -> Outcome:
    """Look a resource up. A key that was never written has the mark 0."""

    async def use(table: Table) -> Outcome:
        fence = require_fence(table)
        if isinstance(fence, Problem):
            return fence
        require_key(table, resource.key)
        async with (
            gateway.database.connection() as connection,
            naming_the_column(connection, table, None, resource.key),
        ):
            with translated(writing=False):
                found = await known(connection, table, fence, resource.key)
            tokens = {found.live, found.recorded} if fence.builtin else set()
            holders = {token: await holder_of(connection, token) for token in tokens if token}
        return Explained([], body=_body(found, fence, holders))

    return await on_table(gateway, resource.table, "read", use)


def _body(found: Known, fence: Fence, holders: Mapping[int, Issued | None]) -> dict[str, object]:
    def told(event: str, token: int, at: str | None) -> dict[str, object]:
        by = holders.get(token)
        return {"event": event, "token": str(token), "at": at, "by": by.body() if by else None}

    absent = found.recorded if found.row_absent else None
    mark = found.live if found.live is not None else absent
    story: list[dict[str, object]] = []
    if found.recorded is not None:
        event = "deleted, or claimed without a row" if found.row_absent else "created"
        story.append(told(event, found.recorded, found.changed_at))
    if found.live is not None and found.live != found.recorded:
        story.append(told("last written or claimed", found.live, None))
    return {
        "resource": found.resource,
        "mark": str(mark if mark is not None else NO_MARK),
        "rule": fence.rule,
        "source": fence.source,
        "row_exists": found.live is not None,
        "story": story,
    }
