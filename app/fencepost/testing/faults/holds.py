"""The hold of a lock service is over at once: done in the service's own data, as the service does it at a TTL's end.

Which keys and nodes these are is in docs/sources: programs may lock there past Fencepost. A hold is given by the text
that the gateway keeps of it (`fencepost.source_leases.handle`), so another holder's is never taken. One that is gone
already is no error.
"""

import http.client
import json
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Final
from urllib.parse import quote, urlsplit

from fencepost.testing.faults.errors import FaultError
from fencepost.testing.servers.lock_services import LockServiceServer

_TIMEOUT: Final = 10.0
"""Seconds for each step of the conversation with a service."""
_NO_SUCH_LEASE: Final = 5
"""etcd's code (gRPC's NOT_FOUND)."""
_DELETE_OURS: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def end_hold(service: LockServiceServer, lock: str, handle: str) -> None:
    """Let a service forget the hold of a lock. FaultError when it cannot be asked."""
    _WAYS[service.name](service.url, lock, handle)


def _in_redis(url: str, lock: str, handle: str) -> None:
    from redis import Redis, RedisError  # noqa: PLC0415 - it is installed where Redis is used

    try:
        with closing(Redis.from_url(url, socket_timeout=_TIMEOUT)) as client:
            client.eval(_DELETE_OURS, 1, f"fencepost:lock:{lock}", handle)
    except RedisError as error:
        raise _failed("Redis", url, error) from error


def _in_etcd(url: str, _lock: str, handle: str) -> None:
    """Revoke the hold's lease, which takes its key away."""
    parts = urlsplit(url)
    lease = int(handle.partition(":")[0], 16)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", "/v3/lease/revoke", json.dumps({"ID": str(lease)}))
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed("etcd", url, error) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK and said.get("code") != _NO_SUCH_LEASE:
        raise _failed("etcd", url, said)


def _in_zookeeper(url: str, lock: str, handle: str) -> None:
    """Delete the hold's node, as the end of its session does. Sessions are the gateway's, with all its other holds."""
    from kazoo.client import KazooClient  # noqa: PLC0415 - it is installed where ZooKeeper is used
    from kazoo.exceptions import KazooException, NoNodeError  # noqa: PLC0415
    from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415

    name = quote(lock, safe="")
    name = name if name.strip(".") else name.replace(".", "%2E")
    client = KazooClient(hosts=urlsplit(url).netloc)
    try:
        client.start(timeout=_TIMEOUT)
        with suppress(NoNodeError):
            client.delete(f"/fencepost/{name}/{json.loads(handle)['node']}")
    except (KazooException, KazooTimeoutError) as error:
        raise _failed("ZooKeeper", url, error) from error
    finally:
        client.stop()
        client.close()


def _failed(service: str, url: str, error: object) -> FaultError:
    return FaultError(f"{service} at {url} could not be asked to end the hold of a lock, and nothing was done: {error}")


_WAYS: Final[Mapping[str, Callable[[str, str, str], None]]] = {
    "redis": _in_redis,
    "etcd": _in_etcd,
    "zookeeper": _in_zookeeper,
}
"""By the names of LOCK_SERVICES."""
