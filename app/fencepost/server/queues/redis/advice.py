"""What in a Redis server's settings loses messages or repeats their offsets: for `fencepost doctor`."""

import re
from typing import Final

from fencepost.server.locks.source_url import SourceUrl
from fencepost.server.queues.redis.layout import QueueLayout
from fencepost.server.queues.redis.server import RedisRefusedError, RedisServer
from fencepost.server.queues.redis.url import FSYNC, REPLICAS, QueueKeys

_SETTINGS: Final = ("appendonly", "appendfsync", "min-replicas-to-write")
_SECTIONS: Final = ("server", "memory", "persistence", "replication")
_FIELD: Final = re.compile(r"([a-z0-9_]+):([^\r\n]*)")


async def advice(server: RedisServer, where: SourceUrl, layout: QueueLayout, keys: QueueKeys) -> list[str]:
    """List what is unsafe, one sentence each. Raises LogUnavailableError."""
    info = await _info(server)
    settings = await _settings(server)
    found = _eviction(server.name, info)
    if settings is None:
        found.append(
            f"{server.name} does not let this user read its configuration: see by yourself that appendfsync is always, "
            "and min-replicas-to-write at least 1 if a replica may take over."
        )
        settings = {"appendonly": "yes" if info.get("aof_enabled") == "1" else "no"}
    found += _journal(server.name, settings, fsync=bool(where[FSYNC]))
    found += _replication(server.name, info, settings, where[REPLICAS])
    return found + await _expiring(server, layout, keys)


async def _info(server: RedisServer) -> dict[str, str]:
    answer: bytes = await server.command("INFO", *_SECTIONS, about="its settings (INFO)")
    return dict(_FIELD.findall(answer.decode(errors="replace")))


async def _settings(server: RedisServer) -> dict[str, str] | None:
    """Read its configuration; None where it refuses, as managed Redis often does."""
    try:
        answer: list[bytes] = await server.command("CONFIG", "GET", *_SETTINGS, about="its settings (CONFIG GET)")
    except RedisRefusedError:
        return None
    words = [word.decode() for word in answer]
    return dict(zip(words[::2], words[1::2], strict=True))


def _eviction(name: str, info: dict[str, str]) -> list[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory", "0") == "0":
        return []
    return [
        f"{name} evicts keys when its memory is full (maxmemory-policy {policy}): "
        + (
            "a partition with all its messages, too"
            if policy.startswith("allkeys")
            else "who owns a partition, too, and two take from it"
        )
        + "; set maxmemory-policy noeviction."
    ]


def _journal(name: str, settings: dict[str, str], *, fsync: bool) -> list[str]:
    if settings.get("appendonly", "yes") != "yes":
        return [
            f"{name} keeps no journal (appendonly no): a crash loses messages that were acknowledged; set "
            "appendonly yes and appendfsync always."
        ]
    when = settings.get("appendfsync", "always")
    if when != "always" and not fsync:
        return [
            f"{name} answers before its journal is on disk (appendfsync {when}): a crash may lose messages that were "
            "acknowledged; set appendfsync always, or fsync=1 in the queue's URL (Redis 7.2)."
        ]
    return []


def _replication(name: str, info: dict[str, str], settings: dict[str, str], replicas: int) -> list[str]:
    if info.get("role") == "slave":
        return [f"{name} is a replica, which takes no messages: name its primary in the queue's URL."]
    connected = int(info.get("connected_slaves", "0"))
    if connected < replicas:
        return [f"{name} has {connected} replicas, and the queue's URL wants {replicas}: no message is acknowledged."]
    found = []
    if connected and not replicas:
        found.append(
            f"{name} has {connected} replicas, and acknowledges messages that none of them has: a replica that takes "
            "over may lack them; set replicas=1 in the queue's URL."
        )
    if connected and settings.get("min-replicas-to-write", "1") == "0":
        found.append(
            f"{name} goes on without its replicas: after a failover two servers may take messages; set "
            "min-replicas-to-write 1."
        )
    return found


async def _expiring(server: RedisServer, layout: QueueLayout, keys: QueueKeys) -> list[str]:
    names = (
        keys.queue,
        keys.dead,
        keys.dead_order,
        keys.dead_counts,
        *(keys.stream(each) for each in range(layout.partitions)),
    )
    expiring = [name for name in names if await server.command("PTTL", name, about=f"whether {name} expires") >= 0]
    return [
        f"{server.name} lets {name} expire, and then its messages are gone: PERSIST {name} keeps it."
        for name in expiring
    ]
