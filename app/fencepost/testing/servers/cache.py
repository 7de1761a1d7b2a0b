"""What is fetched or made once for each machine: $FENCEPOST_CACHE, or else ~/.cache/fencepost."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fencepost.testing.servers.server import ServerError


def cache() -> Path:
    """Where it is kept. The directory need not be there."""
    return Path(os.environ.get("FENCEPOST_CACHE") or Path.home() / ".cache/fencepost")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Give the file or directory of this name. The first process that asks for it makes it: `make` gets a path where
    nothing is yet. Others wait meanwhile. What `make` left unfinished is never found. Raises ServerError.
    """
    place = cache() / name
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = place.with_name(f"{name}.lock").open("ab")
    except OSError as error:
        raise ServerError(f"nothing can be kept in {cache()}: {error}; FENCEPOST_CACHE names another place") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_name(f"{name}.unfinished")
            if unfinished.exists():  # whoever made it was killed
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            try:
                make(unfinished / name)
                (unfinished / name).rename(place)
            finally:
                shutil.rmtree(unfinished)
    return place
