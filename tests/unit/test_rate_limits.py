"""Rate limits: what is counted for whom, and what answers show."""

import re
from typing import Any

import pytest

from fencepost.server.fence.caller import CALLER, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem
from fencepost.server.http.edge import HEADERS, Admission, RateLimitError, RateLimits, Unverified, read_rate
from fencepost.server.identity.authenticator import Authenticator


class Names:
    """Takes a name for a credential, unless it begins with a minus. It stands for no kind of credential that ships."""

    def __init__(self) -> None:
        self.verified: list[str] = []

    def takes(self, _credential: str) -> bool:
        return True

    async def verify(self, credential: str) -> Caller | Problem:
        self.verified.append(credential)
        return Problem(INVALID_CREDENTIAL, "no") if credential.startswith("-") else Caller(credential)


class Asking:
    """Sends requests to an Admission."""

    def __init__(self, rate: str = "", failed: str = "", anonymous: Caller | None = None) -> None:
        self.verifier = Names()
        limits = RateLimits(read_rate("a", rate), read_rate("b", failed))
        self.authenticator = Authenticator([self.verifier], anonymous)
        self.admission = Admission(self.authenticator, limits)

    async def ask(
        self, name: str | None, address: str = "10.0.0.1", path: str = "/v1/data/orders", method: str = "GET"
    ) -> tuple[str | None, dict[bytes, bytes]]:
        """Give the code of the refusal, if any, and the fields of the answer."""
        scope: dict[str, Any] = {"method": method, "path": path, "client": (address, 1)}
        problem = self.admission.admit(scope, [] if name is None else [f"Bearer {name}".encode()])
        if isinstance(problem, Unverified):
            problem = await problem.verify()
        assert problem is not None or isinstance(scope[CALLER], Caller)
        return None if problem is None else problem.name, dict(scope.get(HEADERS, ()))


async def test_a_caller_is_refused_what_is_too_much_and_others_are_not() -> None:
    asking = Asking("3/minute")
    assert [(await asking.ask("ann"))[0] for _ in range(4)] == [None, None, None, "FP046"]
    assert (await asking.ask("bob"))[0] is None
    without = Asking(" ")
    assert {(await without.ask("ann"))[0] for _ in range(50)} == {None}
    assert (await without.ask("ann"))[1] == {}


def test_lines_of_a_batch_count_as_requests_of_their_caller() -> None:
    limits = RateLimits(read_rate("a", "4/minute"))
    ann, bob = limits.pace(Caller("ann"), None), limits.pace(Caller("bob"), None)
    assert ann is not None
    assert bob is not None
    assert limits.take(Caller("ann"), None)[0] is None
    assert [ann.take() > 0 for _ in range(4)] == [False, False, False, True]
    assert limits.take(Caller("bob"), None)[0] is None, "the batch itself"
    too_many, fits, full = bob.refusal(4), bob.refusal(3), bob.refusal(1)
    assert (too_many and too_many.name, fits, full and full.name) == ("FP017", None, "FP046")
    assert RateLimits().pace(Caller("ann"), None) is None


async def test_answers_show_what_is_left() -> None:
    asking = Asking("3/minute")
    shown = [(await asking.ask("ann"))[1] for _ in range(4)]
    assert {fields[b"ratelimit-policy"] for fields in shown} == {b'"caller";q=3;w=60'}
    found = [re.fullmatch(rb'"caller";r=(\d+);t=(\d+)', fields[b"ratelimit"]) for fields in shown]
    assert [each and int(each[1]) for each in found] == [2, 1, 0, 0]
    assert all(each and 0 < int(each[2]) <= 60 for each in found)


async def test_a_holder_that_writes_too_much_keeps_its_leases() -> None:
    asking = Asking("2/minute")
    assert [(await asking.ask("ann"))[0] for _ in range(3)] == [None, None, "FP046"]
    renewed = [await asking.ask("ann", path="/v1/leases/7/renew", method="POST") for _ in range(2)]
    assert [code for code, _ in renewed] == [None, None]
    assert renewed[0][1][b"ratelimit-policy"] == b'"lease";q=2;w=60'
    assert (await asking.ask("ann", path="/v1/leases/7", method="DELETE"))[0] == "FP046", "they have a limit as well"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/leases"), ("GET", "/v1/leases/7"), ("POST", "/v1/leases/7/tokens")]
)
async def test_other_requests_for_leases_count_as_all_do(method: str, path: str) -> None:
    asking = Asking("1/minute")
    assert (await asking.ask("ann"))[0] is None
    assert (await asking.ask("ann", path=path, method=method))[0] == "FP046"


async def test_an_anonymous_caller_is_counted_by_its_address() -> None:
    asking = Asking("2/minute", anonymous=Caller("anonymous"))
    assert [(await asking.ask(None))[0] for _ in range(3)] == [None, None, "FP046"]
    assert (await asking.ask(None, "10.0.0.2"))[0] is None
    assert (await asking.ask("ann"))[0] is None, "a caller that has a name, from the same address"


async def test_an_address_that_has_no_good_token_is_looked_at_no_more() -> None:
    asking = Asking(failed="2/minute")
    assert (await asking.ask("ann"))[0] is None
    assert [(await asking.ask(f"-{number}"))[0] for number in range(4)] == ["FP037", "FP037", "FP046", "FP046"]
    assert asking.verifier.verified == ["ann", "-0", "-1"], "what comes after is not verified"
    assert (await asking.ask("ann"))[0] is None, "a known caller at that address"
    assert (await asking.ask("bob", "10.0.0.2"))[0] is None, "another address"


async def test_a_token_that_was_good_before_is_looked_at_also_at_an_address_that_fails() -> None:
    """Else a program at the same address, with bad tokens, would keep others from renewing their leases."""
    asking = Asking(failed="2/minute")
    assert (await asking.ask("ann"))[0] is None
    for number in range(4):
        await asking.ask(f"-{number}")
    asking.authenticator.forget()
    assert (await asking.ask("ann"))[0] is None
    assert asking.verifier.verified[-1] == "ann", "it is verified anew"
    assert (await asking.ask("bob"))[0] == "FP046", "one that was never seen there"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_of_health_count_for_no_caller(path: str) -> None:
    asking = Asking("2/minute", anonymous=Caller("anonymous"))
    assert {(await asking.ask(None, path=path))[0] for _ in range(5)} == {None}
    assert (await asking.ask(None))[0] is None


@pytest.mark.parametrize("text", ["x", "10", "-1/second", "0/second", "10/fortnight", "1/second; rm"])
def test_what_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(RateLimitError, match=r"^rate limit: "):
        read_rate("rate limit", text)
