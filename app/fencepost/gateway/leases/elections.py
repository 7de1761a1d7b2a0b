"""Observing elections: who leads now, and every change of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencepost.election.state import PREFIX, Election, election_of, lock_of
from fencepost.election.watching import Subscription
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.leases.verbs import locks

PAGE = 1000


async def observe(gateway: Gateway, source: str, name: str) -> Election | Problem:
    """Show how an election stands."""
    found = await locks(gateway, source, lock_of(name), None, 1)
    if isinstance(found, Problem):
        return found
    return (found and election_of(source, found[0])) or Election(name, source)


async def elections(gateway: Gateway, source: str, after: str, limit: int) -> list[Election] | Problem:
    """List the elections of a source that have a leader, by name; only names after that one, at most so many."""
    led: list[Election] = []
    position = lock_of(after)
    while True:
        found = await locks(gateway, source, None, position, PAGE)
        if isinstance(found, Problem):
            return found
        for state in found:
            election = election_of(source, state)
            if election is None and not state.name.startswith(PREFIX):
                return led  # names come in order: those of elections are through
            if election is not None and election.leader is not None:
                led.append(election)
                if len(led) == limit:
                    return led
            position = state.name
        if len(found) < PAGE:
            return led


@asynccontextmanager
async def watch_election(gateway: Gateway, source: str, name: str) -> AsyncIterator[Subscription]:
    """Watch an election until the block ends."""
    async with gateway.watches.subscribe((source, name), lambda: observe(gateway, source, name)) as subscription:
        yield subscription
