"""Reads the files that settings name: secrets, URLs, keys. Each of them is read here.

A file without content is a mistake, and never means "off": the secret that a deployment failed to write would let
everybody in. A pipe (`--jwt-secret-file <(…)`) gives its content once; so settings read a file once.
"""

from pathlib import Path
from typing import Final

LARGEST: Final = 262_144
"""Bytes of a file, unless its reader says otherwise."""
BYTE_ORDER_MARK: Final = "\ufeff"
"""What some editors write before the first character. It belongs to no value."""


class SettingFileError(ValueError):
    """A file cannot be what a setting has. The message is one line, without the file's name and its content."""


def read_setting_file(path: Path, most: int = LARGEST) -> str:
    """Read a file of text, and leave out a byte order mark and blanks around the text. `most`: bytes. Raises
    SettingFileError: the file is not there, too large, no text, or empty.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        reason = getattr(error, "strerror", None) or "that is no path"
        raise SettingFileError(f"it cannot be read: {reason}") from None
    if len(raw) > most:
        raise SettingFileError(f"it has more than {most} bytes")
    try:
        text = plain(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise SettingFileError("it cannot be read: it is no text") from None
    if "\0" in text:  # a file whose content was lost in a crash has zeros
        raise SettingFileError("it cannot be read: it is no text")
    if not text:
        raise SettingFileError("it is empty")
    return text


def plain(text: str) -> str:
    """Leave out a byte order mark, and blanks around the text."""
    return text.strip().removeprefix(BYTE_ORDER_MARK).strip()
