"""Observing elections: who leads now, and every change of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fencepost.server.election import PREFIX, Election, Key, Subscription, election_of, lock_of
from fencepost.server.fence.caller import EVERYBODY
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import forbidden_lock, locks

PAGE = 1000


async def observe(gateway: Gateway, source: str, name: str) -> Election | Problem:
    """Show how an election stands."""
    return (await _look(gateway, [(source, name)]))[source, name]


async def _look(gateway: Gateway, asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
    """Look how elections stand: one question for all of a source."""
    found: dict[Key, Election | Problem] = {}
    for source in {source for source, _ in asked}:
        names = [name for of, name in asked if of == source]
        states = await locks(gateway, source, [lock_of(name) for name in names], None, len(names))
        if isinstance(states, Problem):
            found |= dict.fromkeys([(source, name) for name in names], states)
            continue
        found |= {(source, name): Election(name, source) for name in names}
        elections_found = (election_of(source, state) for state in states)
        found |= {(source, each.name): each for each in elections_found if each is not None}
    return found


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
async def watch_election(
    gateway: Gateway, source: str, name: str, caller: str
) -> AsyncIterator[Subscription | Problem]:
    """Watch an election until the block ends. A Problem: the caller may not see it."""
    if (forbidden := forbidden_lock(gateway.caller, [lock_of(name)])) is not None:
        gateway.report_if_forbidden(forbidden)
        yield forbidden
        return
    everybody = gateway.of(EVERYBODY)  # one question is asked for all who watch, whatever each of them may see

    async def look(asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
        return await _look(everybody, asked)

    async with gateway.watches.subscribe((source, name), look, caller) as subscription:
        yield subscription
