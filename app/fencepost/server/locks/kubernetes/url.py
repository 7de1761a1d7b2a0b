"""The URL of a source on Kubernetes.

kubernetes://in-cluster[/NAMESPACE][?serviceaccount=DIRECTORY][&names=hashed|own]
kubernetes://kubeconfig[/NAMESPACE][?file=PATH][&context=NAME][&names=hashed|own]
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from fencepost.server.locks.kubernetes.access import SERVICE_ACCOUNT, Access, InCluster, Kubeconfig
from fencepost.server.locks.source_url import Form, Option, one_of, read, text

Names = Literal["hashed", "own"]
"""Which Lease is a lock's: one of Fencepost's own, or the one of the lock's name where a Lease can have it."""

_IN_CLUSTER: Final = "kubernetes://in-cluster"
_KUBECONFIG: Final = "kubernetes://kubeconfig"
_NAMES: Final = Option("names", one_of("hashed", "own"), "hashed")
_DIRECTORY: Final = Option("serviceaccount", text(), SERVICE_ACCOUNT, only=_IN_CLUSTER)
_FILE: Final[Option[str | None]] = Option("file", text(), None, only=_KUBECONFIG)
_CONTEXT: Final[Option[str | None]] = Option("context", text(), None, only=_KUBECONFIG)

_FORM: Final = Form(
    f"{_IN_CLUSTER}[/NAMESPACE][?option=value&…] or {_KUBECONFIG}[/NAMESPACE][?option=value&…]: address and credentials"
    " come from the pod or from a kubeconfig",
    (_NAMES, _DIRECTORY, _FILE, _CONTEXT),
    re.compile("(/([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?)?"),
    places=("in-cluster", "kubeconfig"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a URL has. `namespace` None: the one that the credentials come with."""

    access: Access
    namespace: str | None
    names: Names


def parse(url: str, source: str) -> Options:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read(url, source, _FORM)
    access: Access
    if found.place == "in-cluster":
        access = InCluster(Path(found[_DIRECTORY]))
    else:
        access = Kubeconfig(found[_FILE], found[_CONTEXT])
    return Options(access, found.path.strip("/") or None, cast("Names", found[_NAMES]))
