"""Reads the keys that seal tokens from their file, and again when it changes: so keys are changed without a restart."""

import os
from pathlib import Path
from typing import Final

from fencepost.server.fence.seal import SealKeys, SealKeysError, parse_keys
from fencepost.server.gateway.seals import Seals
from fencepost.server.identity.keys import looks_like
from fencepost.server.observe.events import Emit, SealKeysRead, SealKeysUnreadable
from fencepost.server.setting_files import SettingFileError, read_setting_file
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

LARGEST: Final = 65_536
"""Bytes of the file."""

_Signature = tuple[int, int, int, int]
"""By which a file is known to be another one, or changed: device, inode, time of its last change, size."""


def read_seal_keys(settings: Settings) -> SealKeys | None:
    """Read FENCEPOST_SEAL_KEYS_FILE; None: it is not set. Raises StartupError, which shows no key."""
    if settings.seal_keys_file is None:
        return None
    try:
        return _read(settings.seal_keys_file)[0]
    except (OSError, SealKeysError, SettingFileError) as error:
        raise StartupError(f"FENCEPOST_SEAL_KEYS_FILE: {settings.seal_keys_file}: {_reason(error)}") from error


class SealKeysFile:
    """Keeps a gateway's seals at the keys that the file has. Of a file that cannot be read the last good keys stay."""

    def __init__(self, path: Path, seals: Seals, emit: Emit) -> None:
        self._path, self._seals, self._emit = path, seals, emit
        self._known: _Signature | None = None
        self._failed = ""

    def look(self) -> None:
        """Read the file if it is another one than when it was read."""
        try:
            if _signature(os.stat(self._path)) == self._known:  # noqa: PTH116 - nothing else of it is wanted
                return
        except OSError as error:
            self._fail(error)
            return
        self.read()

    def read(self) -> None:
        try:
            keys, self._known = _read(self._path)
        except (OSError, SealKeysError, SettingFileError) as error:
            self._fail(error)
            return
        self._failed = ""
        if self._seals.keys != keys:
            self._seals.keys = keys
            self._emit(SealKeysRead(tuple(keys.keys)))

    def _fail(self, error: OSError | ValueError) -> None:
        self._known = None
        reason = f"{self._path}: {_reason(error)}"
        if reason != self._failed:
            self._failed = reason
            self._emit(SealKeysUnreadable(reason))


def _read(path: Path) -> tuple[SealKeys, _Signature]:
    signature = _signature(os.stat(path))  # noqa: PTH116 - before: a file that is replaced meanwhile is read again
    keys = parse_keys(read_setting_file(path, LARGEST))
    for name, key in keys.keys.items():
        if found := looks_like(key):
            raise SealKeysError(f"the key {name} looks like {found}: others may know it")
    return keys, signature


def _signature(of: os.stat_result) -> _Signature:
    return of.st_dev, of.st_ino, of.st_mtime_ns, of.st_size


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
