"""The tokens of one lease: each is spent once, in rising order, and new ones are minted in blocks."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fencepost.client.errors import BadRequest, FencepostError
from fencepost.client.fence_token import FenceToken

FIRST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 256


class TokenPool:
    """Hands tokens out. `mint(count)` asks the gateway for more: one mint at a time, each twice as large."""

    def __init__(self, tokens: Sequence[int], mint: Callable[[int], Awaitable[Sequence[int]]]) -> None:
        self._tokens: deque[FenceToken] = deque()
        self._mint = mint
        self._newest = 0
        self._block = max(FIRST_BLOCK, 2 * len(tokens))
        self._largest = LARGEST_BLOCK
        self._turn = asyncio.Lock()
        self._add(tokens)

    async def take(self) -> FenceToken:
        """Return an unused token, larger than all before it. Mints when there is none left."""
        async with self._turn:
            if not self._tokens:
                self._add(await self._more())
            return self._tokens.popleft()

    def forget(self) -> None:
        """Take none of those at hand any more: their seals have ended."""
        self._tokens.clear()

    async def _more(self) -> Sequence[int]:
        while True:
            count = min(self._block, self._largest)
            try:
                tokens = await self._mint(count)
            except BadRequest:
                if count == 1:
                    raise
                self._largest = count // 2  # the gateway is set to draw fewer at once
            else:
                self._block = 2 * count
                return tokens

    def _add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token <= self._newest:
                raise FencepostError(f"the gateway gave token {token} after token {self._newest}: tokens must rise")
            self._newest = token
            self._tokens.append(token if isinstance(token, FenceToken) else FenceToken(token))
