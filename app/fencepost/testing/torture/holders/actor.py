"""One client of a run: it does one operation after the other, and records when each began and how it ended."""

import random
from collections.abc import Sequence
from typing import Final

from fencepost.testing.history import Op, Operation, Recorder
from fencepost.testing.torture.assignment import Assignment
from fencepost.testing.torture.holders.exchange import Answer
from fencepost.testing.torture.holders.outcomes import mark_read
from fencepost.testing.torture.holders.sender import Sender
from fencepost.testing.torture.holders.token import run_token
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.tally import Tally

_MISSING: Final = 404


class Actor:
    """A client with a name and dice of its own. What it does to rows; locks are in `locks.py`."""

    def __init__(self, number: int, assignment: Assignment, recorder: Recorder, tally: Tally) -> None:
        self.assignment = assignment
        self.name = f"w{assignment.index}.{number}"
        self.dice = random.Random(f"{assignment.seed}/{assignment.index}/{number}")  # noqa: S311 - must repeat
        self.recorder = recorder
        self._tally = tally
        self._senders: list[Sender] = []
        self.sender = self.another_sender()
        self._values = 0

    def another_sender(self) -> Sender:
        """Make connections for requests at the same time as those of `sender`."""
        token = run_token() if self.assignment.authenticated else None
        sender = Sender(self.assignment.gateways, self.dice, self._tally, self.assignment.index, token)
        self._senders.append(sender)
        return sender

    def close(self) -> None:
        for sender in self._senders:
            sender.close()

    def value(self) -> str:
        """Make a value that no other write of this run has."""
        self._values += 1
        return f"{self.name}-{self._values}"

    async def write(
        self,
        table: Fenced,
        key: str,
        token: int,
        *,
        verb: str = "PUT",
        value: str | None = None,
        once: str | None = None,
        sender: Sender | None = None,
    ) -> Answer | None:
        """Write a row: PUT creates or replaces it, PATCH changes it, POST creates it. `once`: an Idempotency-Key.

        `sender`: for a write at the same time as another one.
        """
        value = self.value() if value is None else value
        operation = self._invoke("write", table, key, token, value=value, once=once)
        headers = _headers(token) | ({} if once is None else {"Idempotency-Key": once})
        body = {"value": value} | ({"id": key} if verb == "POST" else {})
        path = table.path(None if verb == "POST" else key)
        answer = await (sender or self.sender).send([operation], verb, path, headers, body)
        if answer is not None:
            operation.ok(replayed=b"idempotent-replayed" in answer.headers)
        return answer

    async def write_many(self, table: Fenced, keys: Sequence[str], token: int) -> None:
        """Write several rows under one token, in one transaction: an operation on each of them."""
        rows = [{"id": key, "value": self.value()} for key in keys]
        operations = [self._invoke("write", table, row["id"], token, value=row["value"]) for row in rows]
        if await self.sender.send(operations, "PATCH", table.path(None), _headers(token), rows) is not None:
            for operation in operations:
                operation.ok()

    async def delete(self, table: Fenced, key: str, token: int) -> None:
        operation = self._invoke("delete", table, key, token)
        if await self.sender.send([operation], "DELETE", table.path(key), _headers(token)) is not None:
            operation.ok()

    async def claim(self, table: Fenced, key: str, token: int) -> bool:
        """Raise a row's mark without changing it; whether that is known to have happened."""
        operation = self._invoke("claim", table, key, token)
        body = {"resource": table.resource(key)}
        answer = await self.sender.send([operation], "POST", "/v1/claims", {"X-Fence-Token": str(token)}, body)
        if answer is not None:
            operation.ok()
        return answer is not None

    async def read(self, table: Fenced, key: str) -> tuple[bool, str | None]:
        """Read a row without a token: whether an answer came, and the value, or None where there is no row."""
        operation = self.recorder.invoke(process=self.name, op="read", resource=table.resource(key))
        answer = await self.sender.send([operation], "GET", f"{table.path(key)}?select=value", {})
        if answer is None:
            return False, None
        value: str | None = None if answer.status == _MISSING else answer.body["value"]
        operation.ok(value=value, token=mark_read(answer))
        return True, value

    def _invoke(
        self, op: Op, table: Fenced, key: str, token: int, *, value: str | None = None, once: str | None = None
    ) -> Operation:
        resource = table.resource(key)
        return self.recorder.invoke(
            process=self.name, op=op, resource=resource, token=token, value=value, rule=table.rule, key=once
        )


def _headers(token: int) -> dict[str, str]:
    return {"X-Fence-Token": str(token), "Prefer": "return=minimal"}
