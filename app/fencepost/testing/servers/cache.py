"""What is fetched or made once for each machine: $FENCEPOST_CACHE, or else ~/.cache/fencepost."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache() -> Path:
    """Where it is kept. The directory need not be there."""
    return Path(os.environ.get("FENCEPOST_CACHE") or Path.home() / ".cache/fencepost")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Give the file or directory of this name. The first process that asks for it makes it: `make` gets a path where
    nothing is yet. Others wait meanwhile. What `make` left unfinished is never found.
    """
    place = cache() / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=place.parent) as unfinished:
                new = Path(unfinished, name)
                make(new)
                new.rename(place)
    return place
