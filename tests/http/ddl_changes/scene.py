"""A gateway, and the owner of its table, who changes it."""

from dataclasses import dataclass

from tests.support.asking import Api
from tests.support.interleave import Connection

from fencepost.testing.servers.waiting import eventually

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

        The first new picture may be one that was under way. The one after it was begun later: loads follow one another.
        """

        async def catalog() -> str:
            return str((await self.api.http.get("/readyz")).json()["catalog"])

        for _ in range(2):
            before = await catalog()
            await self.owner.execute("NOTIFY fencepost, 'reload'")

            async def looked(before: str = before) -> bool:
                return await catalog() != before

            await eventually(looked, what="a new catalog")
