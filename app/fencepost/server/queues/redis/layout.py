"""The layout of a queue: which incarnation it is, and how many partitions it has. One key, made once with the queue."""

import re
import secrets
from dataclasses import dataclass
from typing import Any, Final, Self

from fencepost.server.locks.source_url import SourceUrl
from fencepost.server.queues.log import LogUnavailableError
from fencepost.server.queues.redis.scripts import MAKE
from fencepost.server.queues.redis.server import RedisServer
from fencepost.server.queues.redis.url import DEFAULT_PARTITIONS, FSYNC, PARTITIONS, QueueKeys

_TEXT: Final = re.compile(rb"([0-9a-f]{32})/([0-9]{1,4})")
_LEAST_VERSION: Final = (7, 0)
_LEAST_VERSION_FSYNC: Final = (7, 2)


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """`incarnation`: 32 hexadecimal digits, random. `text`: as the queue's key has it."""

    incarnation: str
    partitions: int

    @property
    def text(self) -> str:
        return f"{self.incarnation}/{self.partitions}"

    @classmethod
    def read(cls, text: bytes) -> Self | None:
        """Read it; None where it is something else."""
        found = _TEXT.fullmatch(text)
        return None if found is None or int(found[2]) == 0 else cls(found[1].decode(), int(found[2]))

    @classmethod
    def new(cls, partitions: int) -> Self:
        return cls(secrets.token_hex(16), partitions)


class Layouts:
    """Knows the queue's layout. Who appends or takes makes the queue where there is none; who looks does not.

    A process takes a queue as it finds it. The consumers compare it with the one that was recorded before
    (postgres/queues).
    """

    def __init__(self, where: SourceUrl, server: RedisServer, keys: QueueKeys) -> None:
        self._where, self._server, self._keys = where, server, keys
        self._known: QueueLayout | None = None
        self._makes = False

    async def get(self) -> QueueLayout:
        """Give the layout that was last seen, for one who appends or takes. Raises LogUnavailableError, also where the
        queue cannot be used.
        """
        self._makes = True
        return await self.seen() or self.none_yet

    async def seen(self) -> QueueLayout | None:
        """Give the layout that was last seen; None: there is no queue, and nobody has asked for one here. Raises as
        `get`.
        """
        if self._known is None:
            await self._check_version()
            self._known = await self._ask()
        return self._known

    @property
    def none_yet(self) -> QueueLayout:
        """Make the layout that the queue would have if it were made now."""
        return QueueLayout.new(self._where[PARTITIONS] or DEFAULT_PARTITIONS)

    def forget(self, layout: QueueLayout) -> None:
        """It has turned out that the queue has another one."""
        if self._known == layout:
            self._known = None

    async def _ask(self) -> QueueLayout | None:
        wanted, about = self._where[PARTITIONS], f"the queue {self._keys.queue}"
        text: Any
        if self._makes:
            keys = (self._keys.queue, self._keys.done)
            text = await self._server.run(MAKE, keys, self.none_yet.text, about=about, durable=True)
        else:
            text = await self._server.command("GET", self._keys.queue, about=about)
        if text is None:
            return None
        layout = QueueLayout.read(text)
        if layout is None:
            raise LogUnavailableError(f"{self._server.name} has something else than a queue as {self._keys.queue}")
        if wanted is not None and wanted != layout.partitions:
            raise LogUnavailableError(
                f"{self._server.name} has {about} with {layout.partitions} partitions, which cannot change: its URL "
                f"says partitions={wanted}"
            )
        return layout

    async def _check_version(self) -> None:
        info: bytes = await self._server.command("INFO", "server", about="its version (INFO)")
        found = re.search(rb"redis_version:(([0-9]+)\.([0-9]+)[^\r\n]*)", info)
        if found is None:
            raise LogUnavailableError(f"{self._server.name} does not say which version it is")
        version, fsync = (int(found[2]), int(found[3])), bool(self._where[FSYNC])
        if version < (_LEAST_VERSION_FSYNC if fsync else _LEAST_VERSION):
            least = "fsync=1 needs 7.2 or newer (WAITAOF)" if fsync else "queues need 7.0 or newer (XADD 0-*)"
            raise LogUnavailableError(f"{self._server.name} is Redis {found[1].decode()}: {least}")
