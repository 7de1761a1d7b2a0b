"""A candidate that leads whenever it can, as a process of its own, which tests kill, stop, and cut off.

    python -m tests.support.election_leader GATEWAY_URL ELECTION SOURCE OWNER TTL

Elected, it writes one row again and again, each time with a fresh token and a note with its term. It is careless
on purpose: it draws each token one write ahead, and does not ask whether it may still trust its lease before it sends
it, as a client that is paused between the two. When it cannot draw any more it waits until its successor has written,
sends its last one, and campaigns again.
What happens is printed to stdout, a JSON object a line:

    {"elected": 12}   {"wrote": 12} after the first write of a term   {"lost": 12, "last": "FP001"}, or "written"
"""

import asyncio
import json
import math
import sys

from tests.support.elections import WITHIN

from fencepost import Client, Retry, Term
from fencepost.client import ApiError
from fencepost.testing.servers.processes import eventually

PACE = 0.005  # seconds between two writes, so that there is something left for others to do
ROW = ("orders", "order-123")
PATIENT = Retry(patience=math.inf)


async def main() -> None:
    url, election, source, owner, ttl = sys.argv[1:]
    async with Client(url, owner=owner, retry=PATIENT, timeout=2) as client:
        while True:
            try:
                async with client.elect(election, ttl=float(ttl), source=source) as term:
                    report(elected=term.term)
                    report(lost=term.term, last=await lead(client, term))
            except ApiError as error:  # the lock service fails: a candidate stays one
                report(failed=f"{type(error).__name__}: {error}")
                await asyncio.sleep(PACE)


async def lead(client: Client, term: Term) -> str:
    """Write until leadership is lost; returns what became of the last write."""
    ahead = await term.next_token()
    answer = False
    try:
        while True:
            await asyncio.sleep(PACE)
            after = await term.next_token()
            if await write(client, term, ahead) == "written" and not answer:
                report(wrote=term.term)
                answer = True
            ahead = after
    except ApiError:
        # A lease may end here before the lock service elects another: until that one has written, nothing is stale.
        if answer:
            await eventually(lambda: _has_risen(client, ahead), within=WITHIN, what="the mark of a successor")
        return await write(client, term, ahead)


async def _has_risen(client: Client, token: int) -> bool:
    return ((await client.fence("/".join(ROW))).mark or 0) > token


async def write(client: Client, term: Term, token: int) -> str:
    try:
        await client.patch(*ROW, {"note": str(term.term)}, token=token)
    except ApiError as error:
        return error.code or type(error).__name__
    return "written"


def report(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
