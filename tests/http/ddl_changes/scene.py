"""A gateway, and the owner of its table, who changes it."""

from dataclasses import dataclass

from tests.support.asking import Api
from tests.support.interleave import Connection

from fencepost.testing.servers.processes import eventually

EVERY_WRITE: list[tuple[str, str, object]] = [
    ("PATCH", "data/t/1", {"v": "x"}),
    ("PUT", "data/t/1", {"v": "x"}),
    ("DELETE", "data/t/1", None),
    ("POST", "data/t", {"v": "x"}),
    ("PATCH", "data/t?v=eq.a", {"v": "x"}),
    ("DELETE", "data/t?v=eq.a", None),
    ("POST", "claims", {"resource": "t/1"}),
]


@dataclass
class Scene:
    """A gateway, and the owner's connection."""

    api: Api
    owner: Connection
    dsn: str
    token: int = 10

    async def write(self, method: str, path: str, body: object = None) -> tuple[int, str | None]:
        """Write with a new token; returns status and the code of an error."""
        self.token += 1
        answer = await self.api.ask(method, path, body, token=self.token)
        return answer.status_code, answer.json()["code"] if answer.status_code >= 400 else None

    async def reload(self) -> None:
        """Make the gateway look, and return once it has a picture that it began after this call.

        The first load may be one that was under way. The one after it was begun later: loads follow one another.
        """

        async def loads() -> str:
            metrics = (await self.api.http.get("/metrics")).text
            return next(line for line in metrics.splitlines() if line.startswith("fencepost_catalog_loads_total"))

        for _ in range(2):
            before = await loads()
            await self.owner.execute("NOTIFY fencepost, 'reload'")

            async def looked(before: str = before) -> bool:
                return await loads() != before

            await eventually(looked, what="a new catalog")
