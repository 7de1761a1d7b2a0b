"""Mutants of the token source's safety lines, each in a fresh database, and the scenario that sees it.

Not here: the INSERT into fencepost.draws as what makes a token survive a crash. A grant and a mint both write the
lease's row too, so without that one line nothing is lost; robustness/test_lease_order.py has the control, a bare
nextval.
"""

from dataclasses import dataclass

import pytest
from tests.scenarios import leases as scenarios
from tests.scenarios import leases_clock as clock
from tests.scenarios import leases_queue as queue
from tests.scenarios import leases_secrets as secrets
from tests.scenarios import leases_sweep as sweeping
from tests.scenarios.leases import LeaseScenario
from tests.support.interleave import Connect
from tests.support.lease_racing import LeaseRace, open_lease_race

ACQUIRE = "fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer)"
EXTEND = "fencepost.extend(bigint, bytea, integer, integer)"
RELEASE = "fencepost.release(bigint, bytea, uuid)"
LEAVE = "fencepost.leave(uuid, integer)"
BEAT = "fencepost.beat(uuid, uuid[], uuid[])"
RETIRE = "fencepost.retire(uuid)"
WAKE = "fencepost.wake(text[], uuid)"
SWEEP = "fencepost.sweep()"
FORGET = "fencepost.forget(double precision, bigint)"
LEASE = "fencepost.lease(bigint)"
WAITERS = "fencepost.live_waiters"

ONE = "drawn := ARRAY[nextval('fencepost.tokens')];"
MANY = "drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));"
SUPERSEDED = "SET ended_at = clock_timestamp(), secret_hash = NULL\n      WHERE x.lease_id = ANY (before)"


@dataclass(frozen=True)
class Mutant:
    """In each of these functions (or the view) `old` becomes `new`."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    scenario: LeaseScenario


def mutant(name: str, function: str, old: str, new: str, scenario: LeaseScenario) -> Mutant:
    return Mutant(name, ((function, old, new),), scenario)


MUTANTS = [
    # Tokens
    Mutant(
        "tokens are drawn before the locks are locked",
        (
            (ACQUIRE, ONE, "NULL;"),
            (ACQUIRE, MANY, "NULL;"),
            (ACQUIRE, "  FOREACH n IN ARRAY wanted LOOP", f"  {MANY}\n  FOREACH n IN ARRAY wanted LOOP"),
        ),
        scenarios.token_is_drawn_after_the_wait,
    ),
    mutant(
        "the holder's lease is not locked",
        ACQUIRE,
        "ORDER BY x.lease_id FOR UPDATE",
        "ORDER BY x.lease_id",
        scenarios.token_is_drawn_after_the_wait,
    ),
    mutant(
        "grants leave no draw",
        ACQUIRE,
        "INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)"
        " VALUES (drawn[1], drawn, drawn[1], r.granted_at);",
        "",
        secrets.repeated_secret_is_the_same_lease,
    ),
    mutant(
        "mints leave no draw",
        EXTEND,
        """INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)
    VALUES (drawn[1], drawn, p_lease_id, clock_timestamp());""",
        "",
        sweeping.history_is_kept_as_long_as_asked,
    ),
    # Time
    mutant(
        "the clock is read before the wait",
        EXTEND,
        "x.secret_hash = p_hash FOR UPDATE;",
        "x.secret_hash = p_hash;",
        scenarios.clock_is_read_after_the_wait,
    ),
    mutant(
        "nobody looks at the clock",
        EXTEND,
        "AND x.expires_at > clock_timestamp();",
        ";",
        scenarios.clock_is_read_after_the_wait,
    ),
    mutant(
        "a lease that another one superseded has not ended",
        ACQUIRE,
        SUPERSEDED,
        "SET secret_hash = NULL\n      WHERE x.lease_id = ANY (before)",
        scenarios.superseded_lease_stays_lost,
    ),
    mutant(
        "a lease that has ended looks alive",
        LEASE,
        "AND x.ended_at IS NULL",
        "",
        scenarios.superseded_lease_stays_lost,
    ),
    Mutant(
        "a superseded lease keeps its secret, and what has ended can be renewed",
        (
            (ACQUIRE, SUPERSEDED, "SET ended_at = clock_timestamp()\n      WHERE x.lease_id = ANY (before)"),
            (EXTEND, "AND x.ended_at IS NULL AND", "AND"),
        ),
        scenarios.superseded_lease_stays_lost,
    ),
    Mutant(
        "a swept lease keeps its secret, and what has ended can be renewed",
        (
            (SWEEP, "SET ended_at = clock_timestamp(), secret_hash = NULL", "SET ended_at = clock_timestamp()"),
            (EXTEND, "AND x.ended_at IS NULL AND", "AND"),
        ),
        sweeping.swept_lease_stays_lost,
    ),
    # Secrets
    mutant(
        "any secret renews",
        EXTEND,
        "x.lease_id = p_lease_id AND x.secret_hash = p_hash",
        "x.lease_id = p_lease_id",
        secrets.lease_is_its_holders,
    ),
    mutant(
        "any secret releases",
        RELEASE,
        "AND x.secret_hash = p_hash AND",
        "AND",
        secrets.lease_is_its_holders,
    ),
    mutant(
        "a repeated secret is not recognised",
        ACQUIRE,
        "IF FOUND AND l.ended_at IS NULL AND",
        "IF false AND l.ended_at IS NULL AND",
        secrets.repeated_secret_is_the_same_lease,
    ),
    mutant(
        "a repeated secret finds a lease that is over",
        ACQUIRE,
        "IF FOUND AND l.ended_at IS NULL AND l.expires_at > clock_timestamp() THEN",
        "IF FOUND THEN",
        secrets.repeated_secret_after_expiry_is_a_new_lease,
    ),
    mutant(
        "a repeated secret takes any locks and claims",
        ACQUIRE,
        "l.names = wanted AND l.claims = claimed",
        "true",
        secrets.repeated_secret_of_other_locks_is_a_mismatch,
    ),
    mutant(
        "the secret's earlier lease goes on",
        ACQUIRE,
        "IF l.lease_id IS NOT NULL THEN",
        "IF false THEN",
        secrets.repeated_secret_after_expiry_is_a_new_lease,
    ),
    # Several locks
    mutant(
        "locks are taken as they are named",
        ACQUIRE,
        'ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(wanted) x ORDER BY 1)',
        "wanted",
        scenarios.opposite_orders_do_not_deadlock,
    ),
    mutant(
        "only the last lock counts",
        ACQUIRE,
        "before := before || other;",
        "before := ARRAY[other];",
        scenarios.all_or_none,
    ),
    # Sweeping
    mutant(
        "the sweeper waits",
        SWEEP,
        "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE SKIP LOCKED;",
        "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE;",
        sweeping.sweep_skips_what_is_in_use,
    ),
    mutant(
        "the sweeper does not look again",
        SWEEP,
        "AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = k.lease_id AND x.ended_at IS NULL);",
        ";",
        sweeping.sweep_looks_again,
    ),
    mutant(
        "the first draw of a live lease is forgotten",
        FORGET,
        "d.first_token = d.lease_id OR ",
        "",
        secrets.repeated_secret_is_the_same_lease,
    ),
    mutant(
        "what has ended is not forgotten",
        FORGET,
        "AND x.ended_at < cutoff",
        "AND false",
        sweeping.idle_locks_leave_nothing,
    ),
    # The queue
    mutant(
        "a free lock is anybody's",
        ACQUIRE,
        "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE false AND fencepost.first_waiter(u) < coalesce",
        queue.nobody_passes_those_who_wait,
    ),
    mutant(
        "one free lock of two is enough to pass",
        ACQUIRE,
        "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE u = wanted[cardinality(wanted)] AND cardinality(wanted) > 1 AND fencepost.first_waiter(u) < coalesce",
        queue.several_locks_are_not_starved,
    ),
    mutant(
        "release wakes nobody",
        RELEASE,
        "RETURN fencepost.wake(released, p_gateway);",
        "RETURN '{}';",
        queue.release_wakes_the_first_and_nobody_else,
    ),
    mutant(
        "the last of the queue is woken",
        WAKE,
        "ORDER BY x.ticket LIMIT 1",
        "ORDER BY x.ticket DESC LIMIT 1",
        queue.release_wakes_the_first_and_nobody_else,
    ),
    mutant(
        "the waiters of the gateway that releases are told by NOTIFY",
        WAKE,
        "IF w.gateway = p_gateway THEN",
        "IF false THEN",
        queue.release_tells_its_own_gateway_directly,
    ),
    *(
        mutant(
            f"{name} wakes nobody",
            function,
            "PERFORM fencepost.wake(left_behind, NULL);",
            "NULL;",
            queue.leaving_wakes_the_next,
        )
        for name, function in (("leaving", LEAVE), ("a heartbeat", BEAT), ("retiring", RETIRE))
    ),
    mutant(
        "a last try wakes nobody",
        ACQUIRE,
        "IF FOUND THEN PERFORM fencepost.wake(wanted, NULL); END IF;",
        "",
        queue.leaving_wakes_the_next,
    ),
    mutant(
        "waiters that gave up count",
        WAITERS,
        "w.give_up_at > clock_timestamp()",
        "true",
        queue.nobody_waits_for_the_dead,
    ),
    mutant(
        "waiters of a silent gateway count",
        WAITERS,
        "(w.gateway IS NULL) OR",
        "true OR",
        queue.nobody_waits_for_the_dead,
    ),
    mutant(
        "a repeat is not the one that is woken",
        ACQUIRE,
        "SET gateway = p_gateway, visit = p_visit,",
        "SET gateway = p_gateway,",
        queue.repeat_keeps_the_place,
    ),
    mutant(
        "a repeat queues anew",
        ACQUIRE,
        "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()",
        "WHERE false",
        queue.repeat_keeps_the_place,
    ),
    mutant(
        "the first of two requests takes the place along",
        ACQUIRE,
        "AND w.visit = p_visit;",
        ";",
        queue.earlier_request_does_not_take_the_place_along,
    ),
    mutant(
        "a place that was given up is there again",
        ACQUIRE,
        "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()",
        "WHERE w.secret_hash = p_hash",
        queue.place_is_kept_for_a_while,
    ),
    mutant(
        "a place is not kept",
        LEAVE,
        "IF p_keep_ms > 0 THEN",
        "IF false THEN",
        queue.place_is_kept_for_a_while,
    ),
    mutant(
        "a heartbeat says nothing to those without a place",
        BEAT,
        "FROM unnest(p_visits) v WHERE",
        "FROM unnest(p_visits) v WHERE false AND",
        queue.beat_tells_those_without_a_place,
    ),
    mutant(
        "a heartbeat tells those who are first for one lock of two",
        BEAT,
        "HAVING count(*) =",
        "HAVING count(*) <=",
        queue.beat_tells_who_is_first,
    ),
    mutant(
        "a lease in the way keeps the time that it had before the clock stepped back",
        ACQUIRE,
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)",
        "SET expires_at = x.expires_at",
        clock.lease_in_the_way_counts_from_whoever_meets_it,
    ),
    mutant(
        "a lease shows the time that it had before the clock stepped back",
        LEASE,
        "fencepost.within_ttl(x.expires_at, x.ttl_ms) w",
        "(SELECT x.expires_at) w",
        clock.lease_never_shows_more_than_its_ttl,
    ),
    mutant(
        "a mint keeps the time that the lease had before the clock stepped back",
        EXTEND,
        "ELSE fencepost.within_ttl(x.expires_at, x.ttl_ms) END",
        "ELSE x.expires_at END",
        clock.holder_mints_on_and_its_lease_counts_anew,
    ),
    mutant(
        "a waiter sleeps for as long as the clock stepped back",
        BEAT,
        "ELSE 0 END",
        "ELSE 3600000 END",
        clock.waiter_is_sent_to_try_and_the_lease_counts_anew,
    ),
    mutant(
        "leases that nobody meets keep the time that they had before the clock stepped back",
        SWEEP,
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)",
        "SET expires_at = x.expires_at",
        clock.sweeping_counts_leases_anew_that_nobody_meets,
    ),
    mutant(
        "a kept place counts for as long as the clock stepped back",
        WAITERS,
        "(w.kept_ms IS NULL) OR",
        "true OR",
        clock.kept_place_of_before_is_nobodys_place,
    ),
    mutant(
        "for how long a place is kept is not written down",
        LEAVE,
        "kept_ms = p_keep_ms,",
        "",
        clock.kept_place_of_before_is_nobodys_place,
    ),
    mutant(
        "a place that was kept is one for good",
        ACQUIRE,
        "visit = p_visit, kept_ms = NULL,",
        "visit = p_visit,",
        clock.kept_place_of_before_is_there_for_whoever_comes_back,
    ),
    mutant(
        "a kept place stays for as long as the clock stepped back",
        SWEEP,
        "OR w.give_up_at > clock_timestamp() + w.kept_ms * interval '1 ms'",
        "",
        clock.kept_place_of_before_is_swept,
    ),
]


@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")  # one version shows it
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
async def test_a_mutant_of_the_token_source_is_seen(mutant: Mutant, connect: Connect) -> None:
    race = await open_lease_race(connect)
    for function, old, new in mutant.changes:
        await change(race, function, old, new)
    with pytest.raises(AssertionError):
        await mutant.scenario(race)


async def change(race: LeaseRace, name: str, old: str, new: str) -> None:
    """Change a function or the view; a mutant that changes nothing would prove nothing."""
    if name == WAITERS:
        query = await race.observer.fetchval("SELECT pg_get_viewdef($1::text::regclass)", name)
        definition = f"CREATE OR REPLACE VIEW {name} AS {query}"
    else:
        definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", name)
    assert old in definition, f"{name} has no {old!r}: {definition}"
    await race.observer.execute(definition.replace(old, new))
