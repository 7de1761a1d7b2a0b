"""Problems: codes are unique and documented, and a body satisfies both conventions."""

import json
import re
from pathlib import Path

from tests.support.asking import PROBLEM_MEMBERS

from fencepost.fencing import (
    access_problem_types,
    database_problem_types,
    edge_problem_types,
    identity_problem_types,
    problem_types,
    queue_problem_types,
    role_problem_types,
    seal_problem_types,
)
from fencepost.fencing.problem_type import ProblemType
from fencepost.fencing.problem_types import PROBLEM_TYPES, SPENT_TOKEN, STALE_TOKEN
from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.token import MAX_TOKEN, Token
from fencepost.fencing.verdict import MissingRow, Spent, Stale

TESTS = Path(__file__).parents[1]

# A code that was given out is never reused and never changed.
CONTRACT = {
    "FP001": (409, "stale-token"),
    "FP002": (409, "spent-token"),
    "FP003": (428, "token-required"),
    "FP004": (400, "malformed-token"),
    "FP005": (403, "unprotected-table"),
    "FP006": (404, "row-not-found"),
    "FP007": (404, "unknown-table"),
    "FP008": (409, "wrong-token-source"),
    "FP009": (503, "outcome-unknown"),
    "FP010": (503, "database-unavailable"),
    "FP011": (423, "lock-held"),
    "FP012": (410, "lease-lost"),
    "FP013": (409, "key-in-flight"),
    "FP014": (422, "key-reused"),
    "FP015": (503, "source-quarantined"),
    "FP016": (400, "bad-request"),
    "FP017": (413, "body-too-large"),
    "FP018": (409, "unissued-token"),
    "FP019": (404, "no-such-route"),
    "FP020": (405, "method-not-allowed"),
    "FP021": (406, "not-acceptable"),
    "FP022": (415, "unsupported-media-type"),
    "FP023": (500, "internal-error"),
    "FP024": (503, "source-unavailable"),
    "FP025": (502, "source-failed"),
    "FP026": (503, "queue-unavailable"),
    "FP027": (503, "submission-unknown"),
    "FP028": (502, "queue-failed"),
    "FP029": (404, "write-not-found"),
    "FP030": (409, "resource-stopped"),
    "FP031": (421, "wrong-host"),
    "FP032": (403, "cross-site"),
    "FP033": (408, "request-too-slow"),
    "FP034": (431, "head-too-large"),
    "FP035": (503, "too-many-connections"),
    "FP036": (401, "authentication-required"),
    "FP037": (401, "invalid-credential"),
    "FP038": (403, "insufficient-scope"),
    "FP039": (503, "verification-unavailable"),
    "FP041": (403, "seal-refused"),
    "FP042": (503, "no-seal-keys"),
    "FP043": (403, "role-not-allowed"),
    "FP044": (403, "queued-as-role"),
    "FP045": (403, "lock-forbidden"),
    "FP046": (429, "rate-limited"),
}

# Problems whose code is an SQLSTATE of PostgreSQL's, with one of them.
OF_POSTGRESQL = {
    "23503": (409, "constraint-violation"),
    "22P02": (400, "invalid-value"),
    "42501": (403, "permission-denied"),
    "55P03": (503, "database-busy"),
    "P0001": (400, "database-refused"),
}

# Which test gets each of them from a gateway by a request.
REQUESTED = {
    "http/test_sealed_writes.py": {
        "FP041": "test_a_seal_for_one_resource_writes_no_other",
        "FP042": "test_a_gateway_without_keys_names_what_it_lacks",
    },
    "http/test_callers.py": {
        "FP045": "test_a_lock_that_no_pattern_names_is_403",
        "FP046": "test_too_many_requests_of_one_caller_are_429",
    },
    "http/test_data_routes_keyed.py": {
        "FP001": "test_stale_and_spent_are_different_answers",
        "FP002": "test_stale_and_spent_are_different_answers",
        "FP006": "test_a_missing_row_is_404",
    },
    "http/test_data_routes_tokens.py": {
        "FP003": "test_no_token_is_428_whether_or_not_the_row_exists",
        "FP004": "test_a_malformed_token_is_400_on_every_write",
    },
    "http/ddl_changes/test_tables.py": {
        "FP005": "test_a_table_unprotected_by_another_process",
        "FP007": "test_tables_that_come_and_go",
    },
    "http/test_leases.py": {
        "FP008": "test_a_claim_that_cannot_be_refuses_the_grant",
        "FP011": "test_a_held_lock_is_423_and_names_who_has_it",
        "FP012": "test_a_lost_lease_is_410_and_names_who_came_after",
    },
    "http/test_serve.py": {
        "FP009": "test_a_write_that_outlasts_the_time_for_stopping_has_an_unknown_outcome",
    },
    "http/test_data_routes_service.py": {
        "FP010": "test_a_database_that_goes_away_is_503_and_comes_back",
    },
    "http/test_idempotency.py": {
        "FP013": "test_a_key_in_flight_is_409_at_once_and_answered_afterwards",
        "FP014": "test_a_key_of_another_request_is_422",
    },
    "sources/test_quarantine.py": {
        "FP015": "test_an_old_snapshot_that_is_restored_quarantines_the_source",
    },
    "http/test_data_routes_errors.py": {
        "FP016": "test_a_body_that_is_no_json_is_400",
        "FP017": "test_a_body_too_large_is_413_announced_or_not",
        "FP020": "test_other_methods_are_405_with_allow",
        "FP022": "test_media_types_of_bodies",
        "FP023": "test_an_error_of_our_own_is_500_with_the_request_id",
        "23503": "test_what_postgresql_refuses_carries_its_sqlstate_and_names_what",
        "22P02": "test_a_key_that_is_none_of_its_type_is_named",
        "42501": "test_a_role_without_the_privilege_is_403",
        "55P03": "test_a_row_that_is_locked_is_503",
        "P0001": "test_the_refusal_of_a_tables_own_trigger_is_answered",
    },
    "http/test_builtin_source.py": {
        "FP018": "test_a_token_that_was_never_issued_is_refused_on_every_way_in",
    },
    "http/test_data_routes_paths.py": {
        "FP019": "test_other_paths_are_no_routes_and_nothing_is_redirected",
    },
    "http/test_data_routes_collection.py": {
        "FP021": "test_one_object_is_given_where_it_is_asked_for",
    },
    "sources/test_lease_api.py": {
        "FP024": "test_a_service_that_is_away_does_not_stop_writes",
    },
    "http/test_submitting.py": {
        "FP026": "test_a_log_that_does_not_take_it_is_told_apart_by_whether_it_may_be_there",
        "FP027": "test_a_log_that_does_not_take_it_is_told_apart_by_whether_it_may_be_there",
        "FP028": "test_a_queue_that_the_gateway_has_not_is_named",
    },
    "http/test_queued_writes.py": {
        "FP029": "test_an_id_that_never_was_is_404",
    },
    "integration/test_dead_letters_commands.py": {
        "FP030": "test_the_page_of_a_write_says_what_became_of_its_letter",
    },
    "http/test_sites.py": {
        "FP031": "test_another_host_is_421",
        "FP032": "test_a_page_of_another_site_may_not_write",
    },
    "http/test_guarded.py": {
        "FP033": "test_half_a_head_is_408_after_a_while",
        "FP034": "test_a_head_that_is_too_large_is_431",
        "FP035": "test_more_connections_than_may_be_are_503_while_all_work",
    },
    "http/test_roles.py": {
        "FP043": "test_a_role_that_is_not_allowed_is_refused_on_every_route",
        "FP044": "test_a_write_as_a_role_is_not_queued",
    },
    "http/test_authentication.py": {
        "FP036": "test_a_request_without_a_token_is_401_on_every_route",
        "FP037": "test_a_token_that_is_not_accepted_is_401",
        "FP038": "test_a_scope_that_is_missing_is_403",
        "FP039": "test_keys_that_cannot_be_had_are_503",
    },
    "sources/test_refusals.py": {
        "FP025": "test_a_lock_service_that_will_not_do_it_is_502",
    },
}


def test_the_contract_has_every_problem_with_its_status() -> None:
    listed = {(code, *fixed) for code, fixed in CONTRACT.items()} | {(None, *fixed) for fixed in OF_POSTGRESQL.values()}
    declared = {(kind.code, kind.status, kind.slug) for kind in PROBLEM_TYPES}
    assert declared == listed, "a new problem gets a line in CONTRACT or OF_POSTGRESQL; lines that are there stay"


def test_a_request_gets_each_problem() -> None:
    named = [code for tests in REQUESTED.values() for code in tests]
    assert sorted(named) == sorted([*CONTRACT, *OF_POSTGRESQL]), "add a test that sends a request, and name it above"


def test_the_test_of_a_problem_is_there() -> None:
    for file, tests in REQUESTED.items():
        text = (TESTS / file).read_text()
        for code, name in tests.items():
            assert re.search(rf"^async def {name}\(", text, re.MULTILINE), f"correct {name} above: the test has moved"
            status, _ = (CONTRACT | OF_POSTGRESQL)[code]
            assert re.search(rf"\b{status}\b", text), f"{file} has no {status}"
            assert f'"{code}"' in text, f"{file} has no {code}"


def test_codes_and_slugs_are_unique() -> None:
    codes = [kind.code for kind in PROBLEM_TYPES if kind.code]
    slugs = [kind.slug for kind in PROBLEM_TYPES]
    assert len(set(codes)) == len(codes)
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"FP\d{3}", code) for code in codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in slugs)


def test_every_type_is_in_the_tuple() -> None:
    files = (
        access_problem_types, database_problem_types, edge_problem_types, identity_problem_types, problem_types,
        queue_problem_types, role_problem_types, seal_problem_types,
    )  # fmt: skip
    declared = {value for each in files for value in vars(each).values() if isinstance(value, ProblemType)}
    assert declared == set(PROBLEM_TYPES)


def test_a_body_has_all_members_of_both_conventions() -> None:
    for kind in PROBLEM_TYPES:
        body = json.loads(json.dumps(Problem(kind, "what happened").body()))
        assert body.keys() >= PROBLEM_MEMBERS
        assert (body["type"], body["status"]) == (f"/problems/{kind.slug}", kind.status)
        assert body["detail"] == body["message"] == "what happened"
        assert body["retryable"] is (kind.status in (408, 423, 429, 503) or kind.code == "FP013"), kind.slug


def test_tokens_are_strings() -> None:
    body = Problem(STALE_TOKEN, "x", presented_token=Token(MAX_TOKEN - 1), current_token=MAX_TOKEN).body()
    assert (body["presented_token"], body["current_token"]) == (str(MAX_TOKEN - 1), str(MAX_TOKEN))


def test_refusals_are_never_retryable() -> None:
    assert not STALE_TOKEN.retryable
    assert not SPENT_TOKEN.retryable
    retryable = {
        "database-busy", "database-unavailable", "key-in-flight", "lock-held", "no-seal-keys", "outcome-unknown",
        "queue-unavailable", "rate-limited", "request-too-slow", "source-quarantined", "source-unavailable",
        "submission-unknown", "too-many-connections", "verification-unavailable",
    }  # fmt: skip
    found = {kind.slug for kind in PROBLEM_TYPES if kind.retryable}
    assert found == retryable, "add it here, and to test_a_body_has_all_members_of_both_conventions"


def test_verdicts_become_problems() -> None:
    stale = problem_of(Stale("orders/x", Token(35), 36), "strict")
    assert (stale.name, stale.http_status, stale.retry_after) == ("FP001", 409, None)
    spent = problem_of(Spent("orders/x", Token(36), 36), "strict")
    assert (spent.name, spent.current_token) == ("FP002", 36)
    assert "--rule epoch" in str(spent.hint)
    assert problem_of(MissingRow("orders/x"), "strict").name == "FP006"
