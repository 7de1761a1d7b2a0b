"""Members that a JSON body has twice: refused where the gateway reads them, left to PostgreSQL within a value."""

import pytest
from starlette.types import Message

from fencepost.http.problems.response import RequestError
from fencepost.http.requests.bodies import read_json


async def read(raw: bytes) -> object:
    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    return (await read_json({b"content-type": b"application/json"}, receive, 1_000_000))[1]


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a": 1, "a": 1}', rb'{"a": 1, "b": ":", "a": {}}', rb'[{"b": 1}, {"a": 1, "a": 2}]',
        rb'{"a": 1e999, "a": 1}', rb'{"a": 1, "\u0061": 2, "b": "\u003a"}', rb'{"\u003A": 1, "a": 1, "a": 1}',
    ],
)  # fmt: skip
async def test_a_member_that_is_there_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError, match="body: 'a' is given twice"):
        await read(raw)


@pytest.mark.parametrize("raw", [rb'{"j": {"a": 1, "a": 2}}', rb'[{"a": ":"}, {"a": "\u003a"}]', rb'{"a": ":::"}'])
async def test_a_member_of_a_value_may_be(raw: bytes) -> None:
    assert await read(raw)


async def test_a_value_may_be_deep() -> None:
    assert await read(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}")
    for depth in (1000, 100_000):
        with pytest.raises(RequestError, match=r"nested too deeply|depth limit exceeded"):
            await read(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")
