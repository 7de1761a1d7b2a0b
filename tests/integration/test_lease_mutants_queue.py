"""Mutants of the safety lines of sweeping, of the queue of waiters and of what forgets, each in a fresh database."""

import pytest
from tests.scenarios import leases_clock as clock
from tests.scenarios import leases_queue as queue
from tests.scenarios import leases_secrets as secrets
from tests.scenarios import leases_sweep as sweeping
from tests.support.interleave import Connect
from tests.support.lease_gateways import (
    ACQUIRE,
    BEAT,
    EXTEND,
    FORGET,
    LEASE,
    LEAVE,
    RELEASE,
    RETIRE,
    SWEEP,
    WAITERS,
    WAKE,
    Mutant,
    assert_seen,
    mutant,
)

MUTANTS = [
    # Sweeping
    mutant("the sweeper waits", SWEEP, "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE SKIP LOCKED;",
        "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE;", sweeping.sweep_skips_what_is_in_use),
    mutant("the sweeper does not look again", SWEEP,
        "AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = k.lease_id AND x.ended_at IS NULL);", ";",
        sweeping.sweep_looks_again),
    mutant("the first draw of a live lease is forgotten", FORGET, "d.first_token = x.first_token OR ", "",
        secrets.repeated_secret_is_the_same_lease),
    mutant("what has ended is not forgotten", FORGET, "AND x.ended_at < cutoff", "AND false",
        sweeping.idle_locks_leave_nothing),
    # The queue
    mutant("a free lock is anybody's", ACQUIRE, "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE false AND fencepost.first_waiter(u) < coalesce", queue.no_request_passes_those_that_wait),
    mutant("one free lock of two is enough to pass", ACQUIRE, "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE u = wanted[cardinality(wanted)] AND cardinality(wanted) > 1 AND fencepost.first_waiter(u) < coalesce",
        queue.several_locks_are_not_starved),
    mutant("release wakes no waiter", RELEASE, "RETURN fencepost.wake(released, p_gateway);", "RETURN '{}';",
        queue.release_wakes_the_first_and_no_other),
    mutant("the last of the queue is woken", WAKE, "ORDER BY x.ticket LIMIT 1", "ORDER BY x.ticket DESC LIMIT 1",
        queue.release_wakes_the_first_and_no_other),
    mutant("the waiters of the gateway that releases are woken by NOTIFY", WAKE, "IF w.gateway = p_gateway THEN",
        "IF false THEN", queue.release_notifies_its_own_gateway_directly),
    mutant("leaving does not wait for who is getting in line", LEAVE,
        "WHERE k.name = ANY (left_behind) ORDER BY k.name FOR UPDATE;", "WHERE false;",
        queue.who_gets_in_line_while_the_first_leaves_is_woken),
    *(mutant(f"{name} wakes no waiter", function, "PERFORM fencepost.wake(left_behind, NULL);", "NULL;",
             queue.leaving_wakes_the_next)
      for name, function in (("leaving", LEAVE), ("a heartbeat", BEAT), ("retiring", RETIRE))),
    mutant("a last try wakes no waiter", ACQUIRE, "IF FOUND THEN PERFORM fencepost.wake(wanted, NULL); END IF;", "",
        queue.leaving_wakes_the_next),
    mutant("waiters that gave up count", WAITERS, "w.give_up_at > clock_timestamp()", "true",
        queue.no_request_waits_for_the_dead),
    mutant("waiters of a silent gateway count", WAITERS, "(w.gateway IS NULL) OR", "true OR",
        queue.no_request_waits_for_the_dead),
    mutant("a repeat is not the one that is woken", ACQUIRE, "SET gateway = p_gateway, visit = p_visit,",
        "SET gateway = p_gateway,", queue.repeat_keeps_the_place),
    mutant("a repeat queues anew", ACQUIRE, "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()",
        "WHERE false", queue.repeat_keeps_the_place),
    mutant("the first of two requests takes the place along", ACQUIRE, "AND w.visit = p_visit;", ";",
        queue.earlier_request_does_not_take_the_place_along),
    mutant("a place that was given up is there again", ACQUIRE,
        "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()", "WHERE w.secret_hash = p_hash",
        queue.place_is_kept_for_a_while),
    mutant("a place is not kept", LEAVE, "IF p_keep_ms > 0 THEN", "IF false THEN", queue.place_is_kept_for_a_while),
    mutant("a heartbeat says nothing to those without a place", BEAT, "FROM unnest(p_visits) v WHERE",
        "FROM unnest(p_visits) v WHERE false AND", queue.beat_notifies_those_without_a_place),
    mutant("a heartbeat names those who are first for one lock of two", BEAT, "HAVING count(*) =", "HAVING count(*) <=",
        queue.beat_names_who_is_first),
    mutant("a lease in the way keeps the time that it had before the clock stepped back", ACQUIRE,
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)", "SET expires_at = x.expires_at",
        clock.lease_in_the_way_counts_from_the_request_that_meets_it),
    mutant("a lease shows the time that it had before the clock stepped back", LEASE,
        "fencepost.within_ttl(x.expires_at, x.ttl_ms) w", "(SELECT x.expires_at) w",
        clock.lease_never_shows_more_than_its_ttl),
    mutant("a mint keeps the time that the lease had before the clock stepped back", EXTEND,
        "ELSE fencepost.within_ttl(x.expires_at, x.ttl_ms) END", "ELSE x.expires_at END",
        clock.holder_mints_on_and_its_lease_counts_anew),
    mutant("a waiter sleeps for as long as the clock stepped back", BEAT, "ELSE 0 END", "ELSE 3600000 END",
        clock.waiter_is_sent_to_try_and_the_lease_counts_anew),
    mutant("leases that no request meets keep the time that they had before the clock stepped back", SWEEP,
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)", "SET expires_at = x.expires_at",
        clock.sweeping_counts_leases_anew_that_no_request_meets),
    mutant("a kept place counts for as long as the clock stepped back", WAITERS, "(w.kept_ms IS NULL) OR", "true OR",
        clock.kept_place_of_before_is_no_place_in_the_queue),
    mutant("for how long a place is kept is not written down", LEAVE, "kept_ms = p_keep_ms,", "",
        clock.kept_place_of_before_is_no_place_in_the_queue),
    mutant("a place that was kept is one for good", ACQUIRE, "visit = p_visit, kept_ms = NULL,", "visit = p_visit,",
        clock.kept_place_of_before_is_there_for_the_waiter_that_comes_back),
    mutant("a kept place stays for as long as the clock stepped back", SWEEP,
        "OR w.give_up_at > clock_timestamp() + w.kept_ms * interval '1 ms'", "", clock.kept_place_of_before_is_swept),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")  # one version shows it
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
async def test_a_mutant_of_the_queue_or_of_sweeping_is_seen(mutant: Mutant, connect: Connect) -> None:
    await assert_seen(mutant, connect)
