"""What `fencepost doctor` looks at: each server's own word, by its commands of four letters, and the permissions."""

import asyncio
import re
from typing import Final

from kazoo.exceptions import NoNodeError

from fencepost.server.locks.source import REQUEST_TIMEOUT
from fencepost.server.locks.zookeeper.session import ZooKeeperSession
from fencepost.server.locks.zookeeper.url import ZooKeeperUrl

_ANYBODY: Final = ("world", "anyone")
_LATE_EPOCH: Final = 60_000
_MOST_EPOCH: Final = 65_535


async def advice(settings: ZooKeeperUrl, session: ZooKeeperSession) -> list[str]:
    """List what is unsafe, one sentence each. Raises SourceError where the ensemble cannot be asked."""
    found = await _permissions(settings, session)
    answer = await asyncio.gather(*(_server(host, port) for host, port in settings.hosts))
    for (host, port), text in zip(settings.hosts, answer, strict=True):
        found += [f"ZooKeeper at {host}:{port} {what}." for what in _judge_server(text)]
    conf = await asyncio.gather(*(_server(host, port, b"conf") for host, port in settings.hosts))
    for (host, port), text in zip(settings.hosts, conf, strict=True):
        found += [f"ZooKeeper at {host}:{port} {what}." for what in _limits(text or "", settings.session_timeout_s)]
    return found


async def _permissions(settings: ZooKeeperUrl, session: ZooKeeperSession) -> list[str]:
    try:
        acls, _ = await session.ask("*", lambda client: client.get_acls_async(settings.root))
    except NoNodeError:
        return []
    if any((acl.id.scheme, acl.id.id) == _ANYBODY and acl.perms & ~1 for acl in acls):
        return [
            f"Any client that reaches ZooKeeper can delete or change what is under {settings.root}, and so end a hold: "
            "put user:password@ into the URL, which makes new nodes its own."
        ]
    return []


async def _server(host: str, port: int, command: bytes = b"srvr") -> str | None:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(command)
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


def _judge_server(answer: str | None) -> list[str]:
    if answer is None:
        return ["does not answer: with a majority of servers down nothing can be acquired"]
    if "not currently serving" in answer:
        return ["is up and does not serve: it sees no majority"]
    found = []
    if "Mode: standalone" in answer:
        found.append("is a single server: when its disk is lost, numbers start over; run three")
    if (zxid := re.search(r"^Zxid: 0x([0-9a-f]+)", answer, re.MULTILINE)) and (int(zxid[1], 16) >> 32) > _LATE_EPOCH:
        epoch = int(zxid[1], 16) >> 32
        found.append(f"is in epoch {epoch}, and tokens end with epoch {_MOST_EPOCH}: plan to move to a new ensemble")
    return found


def _limits(conf: str, session_timeout_s: float) -> list[str]:
    """Judge the answer to `conf`, which servers only give where 4lw.commands.whitelist has it."""
    limits = {key: int(ms) / 1000 for key, ms in re.findall(r"^(m(?:in|ax)SessionTimeout)=(\d+)", conf, re.MULTILINE)}
    least, most = limits.get("minSessionTimeout", 0.0), limits.get("maxSessionTimeout", float("inf"))
    if not least <= session_timeout_s <= most:
        return [
            f"changes session_timeout_s={session_timeout_s:g} to {least if session_timeout_s < least else most:g} s"
        ]
    return []
