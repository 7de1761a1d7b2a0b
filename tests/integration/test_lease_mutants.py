"""Mutants of the token source's safety lines, each in a fresh database, and the scenario that sees it."""

import pytest
from tests.scenarios import leases as scenarios
from tests.scenarios import leases_secrets as secrets
from tests.scenarios import leases_sweep as sweeping
from tests.support.interleave import Connect
from tests.support.lease_gateways import (
    ACQUIRE,
    EXTEND,
    LEASE,
    MANY,
    ONE,
    RELEASE,
    SUPERSEDED,
    SWEEP,
    Mutant,
    assert_seen,
    mutant,
)

MUTANTS = [
    # Tokens
    Mutant("tokens are drawn before the locks are locked",
        ((ACQUIRE, ONE, "NULL;"), (ACQUIRE, MANY, "NULL;"),
         (ACQUIRE, "  FOREACH n IN ARRAY wanted LOOP", f"  {MANY}\n  FOREACH n IN ARRAY wanted LOOP")),
        scenarios.token_is_drawn_after_the_wait),
    mutant("the holder's lease is not locked", ACQUIRE, "ORDER BY x.lease_id FOR UPDATE", "ORDER BY x.lease_id",
        scenarios.token_is_drawn_after_the_wait),
    mutant("grants leave no draw", ACQUIRE,
        "INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)"
        " VALUES (drawn[1], drawn, r.lease_id, r.granted_at);", "", secrets.repeated_secret_is_the_same_lease),
    mutant("mints leave no draw", EXTEND, """INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)
    VALUES (drawn[1], drawn, p_lease_id, clock_timestamp());""", "", sweeping.history_is_kept_as_long_as_asked),
    # Time
    mutant("the clock is read before the wait", EXTEND, "x.secret_hash = p_hash FOR UPDATE;", "x.secret_hash = p_hash;",
        scenarios.clock_is_read_after_the_wait),
    mutant("the clock is not read", EXTEND, "AND x.expires_at > clock_timestamp();", ";",
        scenarios.clock_is_read_after_the_wait),
    mutant("a lease that another one superseded has not ended", ACQUIRE, SUPERSEDED,
        "SET secret_hash = NULL\n      WHERE x.lease_id = ANY (before)", scenarios.superseded_lease_stays_lost),
    mutant("a lease that has ended looks alive", LEASE, "AND x.ended_at IS NULL", "",
        scenarios.superseded_lease_stays_lost),
    Mutant("a superseded lease keeps its secret, and what has ended can be renewed",
        ((ACQUIRE, SUPERSEDED, "SET ended_at = clock_timestamp()\n      WHERE x.lease_id = ANY (before)"),
         (EXTEND, "AND x.ended_at IS NULL AND", "AND")),
        scenarios.superseded_lease_stays_lost),
    Mutant("a swept lease keeps its secret, and what has ended can be renewed",
        ((SWEEP, "SET ended_at = clock_timestamp(), secret_hash = NULL", "SET ended_at = clock_timestamp()"),
         (EXTEND, "AND x.ended_at IS NULL AND", "AND")),
        sweeping.swept_lease_stays_lost),
    # Secrets
    mutant("any secret renews", EXTEND, "x.lease_id = p_lease_id AND x.secret_hash = p_hash", "x.lease_id = p_lease_id",
        secrets.lease_is_its_holders),
    mutant("any secret releases", RELEASE, "AND x.secret_hash = p_hash AND", "AND", secrets.lease_is_its_holders),
    mutant("a repeated secret is not recognised", ACQUIRE, "IF FOUND AND l.ended_at IS NULL AND",
        "IF false AND l.ended_at IS NULL AND", secrets.repeated_secret_is_the_same_lease),
    mutant("a repeated secret finds a lease that is over", ACQUIRE,
        "IF FOUND AND l.ended_at IS NULL AND l.expires_at > clock_timestamp() THEN", "IF FOUND THEN",
        secrets.repeated_secret_after_expiry_is_a_new_lease),
    mutant("a repeated secret takes any locks and claims", ACQUIRE, "l.names = wanted AND l.claims = claimed", "true",
        secrets.repeated_secret_of_other_locks_is_a_mismatch),
    mutant("the secret's earlier lease goes on", ACQUIRE, "IF l.lease_id IS NOT NULL THEN", "IF false THEN",
        secrets.repeated_secret_after_expiry_is_a_new_lease),
    # Several locks
    mutant("locks are taken as they are named", ACQUIRE,
        'ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(wanted) x ORDER BY 1)', "wanted",
        scenarios.opposite_orders_do_not_deadlock),
    mutant("only the last lock counts", ACQUIRE, "before := before || other;", "before := ARRAY[other];",
        scenarios.all_or_none),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session")  # one version shows it
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
async def test_a_mutant_of_the_token_source_is_seen(mutant: Mutant, connect: Connect) -> None:
    await assert_seen(mutant, connect)
