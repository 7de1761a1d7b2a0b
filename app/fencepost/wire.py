"""The JSON of the system routes, as types: for OpenAPI on one side and for clients on the other."""

from typing import Literal

# Pydantic reads these, and wants typing_extensions' TypedDict before Python 3.12.
from typing_extensions import TypedDict


class ClaimRequest(TypedDict):
    """What to claim."""

    resource: str


class ClaimAnswer(TypedDict):
    """An accepted claim. `row` is null where the key has no row; the mark is raised all the same."""

    resource: str
    mark: str
    row: dict[str, object] | None


class StoryEvent(TypedDict):
    """One thing that is known of a resource. `at` is null where only the token is kept."""

    event: str
    token: str
    at: str | None


class FenceAnswer(TypedDict):
    """What is known of a resource. The mark of one that was never written is "0"."""

    resource: str
    mark: str
    rule: Literal["strict", "lease"]
    source: str
    row_exists: bool
    story: list[StoryEvent]


class Health(TypedDict):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(TypedDict):
    """Whether requests can be served, and each thing that this depends on."""

    status: Literal["ready", "not ready"]
    database: str
    schema: str
    catalog: str
