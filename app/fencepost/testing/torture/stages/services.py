"""The lock services of a run: real servers, each with the settings under which its tokens rise."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fencepost.testing.servers.kubernetes import ADMIN, Cluster
from fencepost.testing.servers.lock_services import LOCK_SERVICES, MissingServerError, redis
from fencepost.testing.servers.server import Server
from fencepost.testing.torture.assignment import BUILTIN
from fencepost.testing.torture.errors import BadInputError

_REDLOCK_NODES: Final = 5
_NODE_TIMEOUT_MS: Final = 60


def start_lock_service(source: str, name: str, directory: Path, stack: ExitStack) -> tuple[str, list[Server]]:
    """Start the servers of a source; they end with `stack`. Returns what FENCEPOST_SOURCES has, and the servers.

    `name`: what gateways call it.

    Raises BadInputError when one is not installed.
    """
    if source == BUILTIN:
        return "", []
    if source == "postgres-advisory":
        return f"{name}=postgres-advisory:", []
    try:
        if source == "kubernetes":
            cluster = stack.enter_context(Cluster(directory / source))
            return f"{name}=kubernetes://kubeconfig?file={_kubeconfig(cluster)}", [cluster.apiserver]
        if source == "redlock":
            nodes = [redis(directory / f"redis{number}") for number in range(_REDLOCK_NODES)]
            places = ",".join(node.url.removeprefix("redis://").removesuffix("/0") for node in nodes)
            url = f"redlock://{places}/0?node_timeout_ms={_NODE_TIMEOUT_MS}"
        else:
            nodes = [LOCK_SERVICES[source](directory / source)]
            url = nodes[0].url
    except MissingServerError as error:
        raise BadInputError(f"the source {source} cannot be started: {error}") from error
    return f"{name}={url}", [stack.enter_context(node.server) for node in nodes]


def _kubeconfig(cluster: Cluster) -> Path:
    return cluster.kubeconfig("admin", {"token": ADMIN})
