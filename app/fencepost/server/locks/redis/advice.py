"""What in a Redis server's settings makes tokens repeat, or a lock be held twice: for `fencepost doctor`."""

from typing import Any, Final

from fencepost.server.locks.redis.counter import require_a_next
from fencepost.server.locks.redis.node import RedisNode
from fencepost.server.locks.source import SourceError, SourceUnavailableError

_SETTINGS: Final = ("appendonly", "appendfsync", "min-replicas-to-write")


async def advice(node: RedisNode, counter: str | None, *, alone: bool = False) -> list[str]:
    """List what is unsafe on one server, one sentence each. Raises SourceError when it cannot be asked, or grants
    nothing: it is a cluster's, or its counter has no next token.

    counter: the key that tokens are drawn from, if they are. alone: it has to be independent, as for Redlock.
    """
    info = await server_info(node)
    if info.get("cluster_enabled") == "1":
        raise node.of_a_cluster()
    found = _eviction(node, info, counter)
    settings = await _settings(node)
    if settings is None:
        found.append(
            f"{node.name} does not let this user read its configuration: see by yourself that appendfsync is always, "
            "and min-replicas-to-write at least 1 if a replica may take over"
        )
        found += _journal(node, {"appendonly": "yes" if info.get("aof_enabled") == "1" else "no"})
    else:
        found += _journal(node, settings)
    found += _replication(node, info, settings or {}, alone=alone)
    if counter is None:
        return found
    await require_a_next(node, counter)
    return [*found, *await _expiring(node, counter)]


async def server_info(node: RedisNode) -> dict[str, str]:
    """Return the fields of INFO. Raises SourceError."""
    found: dict[str, str] = {}
    # One section at a time: Redis before 7 takes only one.
    for section in ("server", "memory", "persistence", "replication", "cluster"):
        answer: Any = await node.command("INFO", section, about="its settings (INFO)")
        # redis-py parses it, and makes numbers of some values.
        found |= {name: str(value) for name, value in answer.items()}
    return found


async def _settings(node: RedisNode) -> dict[str, str] | None:
    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            found |= _text(await node.command("CONFIG GET", name, about="its settings (CONFIG GET)"))
    except SourceUnavailableError:
        raise
    except SourceError:
        return None  # managed Redis often forbids it, or has renamed it
    return found


def _text(answer: dict[Any, Any]) -> dict[str, str]:
    return {_word(name): _word(value) for name, value in answer.items()}


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _eviction(node: RedisNode, info: dict[str, str], counter: str | None) -> list[str]:
    policy, most = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", "0")
    if policy == "noeviction" or most == "0":
        return []
    if policy.startswith("allkeys") and counter is not None:
        return [
            f"{node.name} evicts any key when its memory is full (maxmemory-policy {policy}), the counter of tokens "
            "too, and it begins at 1 again: set maxmemory-policy noeviction"
        ]
    return [
        f"{node.name} evicts keys when its memory is full (maxmemory-policy {policy}), locks too, and they are "
        "granted a second time: set maxmemory-policy noeviction"
    ]


def _journal(node: RedisNode, settings: dict[str, str]) -> list[str]:
    if settings.get("appendonly", "yes") != "yes":
        return [
            f"{node.name} keeps no journal (appendonly no): after a crash it has forgotten locks and tokens, and gives "
            "them out again; set appendonly yes and appendfsync always"
        ]
    if (when := settings.get("appendfsync", "always")) != "always":
        return [
            f"{node.name} answers before its journal is on disk (appendfsync {when}): after a crash it may have "
            "forgotten locks and tokens, and gives them out again; set appendfsync always"
        ]
    return []


def _replication(node: RedisNode, info: dict[str, str], settings: dict[str, str], *, alone: bool) -> list[str]:
    if info.get("role") == "slave":
        return [f"{node.name} is a replica, which takes no locks: name its primary in the source's URL"]
    replicas = info.get("connected_slaves", "0")
    if replicas == "0":
        return []
    if alone:
        return [
            f"{node.name} has {replicas} replicas: if one takes over it may lack locks, and Redlock's majority counts "
            "for nothing; its nodes have to be independent"
        ]
    if settings.get("min-replicas-to-write", "0") == "0":
        return [
            f"{node.name} has {replicas} replicas and goes on without them: a replica that takes over may lack the "
            "last tokens and give them out again; set min-replicas-to-write 1, and replicas=1 in the source's URL"
        ]
    return []


async def _expiring(node: RedisNode, counter: str) -> list[str]:
    # -1: it does not; -2: there is no counter yet.
    if await node.command("PTTL", counter, about=f"the counter {counter}") < 0:
        return []
    return [f"{node.name} lets the counter {counter} expire, and then it begins at 1 again: PERSIST {counter} keeps it"]
