"""The URL of a source on Kubernetes, read strictly.

kubernetes://in-cluster[/NAMESPACE][?serviceaccount=DIRECTORY][&names=hashed|own]
kubernetes://kubeconfig[/NAMESPACE][?file=PATH][&context=NAME][&names=hashed|own]
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from fencepost.locks.kubernetes.access import SERVICE_ACCOUNT, Access, InCluster, Kubeconfig
from fencepost.locks.source import SourceConfigError

Names = Literal["hashed", "own"]
"""Which Lease is a lock's: one of Fencepost's own, or the one of the lock's name where a Lease can have it."""

_OPTIONS: Final = {"in-cluster": {"names", "serviceaccount"}, "kubeconfig": {"names", "file", "context"}}
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Options:
    """What a URL says. `namespace` None: the one that the credentials come with."""

    access: Access
    namespace: str | None
    names: Names


def parsed(url: str, source: str) -> Options:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    parts = urlsplit(url)
    if parts.netloc not in _OPTIONS:
        # Not repeated: what stands before the slash may be a password.
        raise SourceConfigError(
            f"source {source}: kubernetes:// is followed by in-cluster or kubeconfig and then a slash or a question "
            "mark: address and credentials come from the pod or from a kubeconfig"
        )
    where = f"source {source}, kubernetes://{parts.netloc}"
    if parts.fragment:
        raise SourceConfigError(f"{where}: a fragment (#…) means nothing here: leave it out")
    namespace = unquote(parts.path.removeprefix("/")) or None
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise SourceConfigError(f"{where}: {namespace!r} cannot be the name of a namespace: correct the path")
    options = _options(parts.query, where, _OPTIONS[parts.netloc])
    access: Access
    if parts.netloc == "in-cluster":
        access = InCluster(Path(options.get("serviceaccount", SERVICE_ACCOUNT)))
    else:
        access = Kubeconfig(options.get("file"), options.get("context"))
    match options.get("names", "hashed"):
        case "hashed" | "own" as names:
            return Options(access, namespace, names)
        case other:
            raise SourceConfigError(f"{where}: names={other} is neither hashed (the default) nor own")


def _options(query: str, where: str, allowed: set[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise SourceConfigError(f"{where}: what follows the question mark is not name=value&…") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise SourceConfigError(f"{where}: {name} is no option here; there are {', '.join(sorted(allowed))}")
        if name in found:
            raise SourceConfigError(f"{where}: {name} is given twice: leave one out")
        if not value:
            raise SourceConfigError(f"{where}: {name} is empty: give a value, or leave it out")
        found[name] = value
    return found
