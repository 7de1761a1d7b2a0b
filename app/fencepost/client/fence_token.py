"""A fencing token, as the client keeps it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self


class FenceToken(int):
    """A fencing token: its number, for comparing and for SQL; and `text`, what is presented to the gateway.

    Where the gateway seals tokens, the text is the number with its seal, and the number alone may not be enough.
    """

    sealed: str | None
    """The number with its seal; None: it has none."""

    def __new__(cls, number: int, sealed: str | None = None) -> Self:
        """Make one of its number, and its text if that is sealed."""
        token = super().__new__(cls, number)
        token.sealed = sealed
        return token

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what was passed on as text, FENCE_SEALED_TOKEN for example. ValueError if it is no token."""
        number, dot, _ = text.partition(".")
        if not (number.isascii() and number.isdigit()):
            raise ValueError("a token begins with its number")
        return cls(int(number), text if dot else None)

    @property
    def text(self) -> str:
        """What is presented: X-Fence-Token."""
        return self.sealed if self.sealed is not None else str(int(self))


def read_tokens(body: Mapping[str, Any]) -> tuple[FenceToken, ...]:
    """Read the tokens of a grant or a mint, with their seals if they have them."""
    numbers: Sequence[str] = body["tokens"]
    sealed: Sequence[str | None] = body.get("sealed_tokens") or [None] * len(numbers)
    return tuple(FenceToken(int(number), seal) for number, seal in zip(numbers, sealed, strict=True))
