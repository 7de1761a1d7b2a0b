"""The authenticator: which header has a credential, what is kept for how long, and what is forgotten."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.manual_clock import ManualClock, settled

from fencepost.server.fence.caller import ANONYMOUS, EVERY_ACCESS, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.http.guard import STANDING, leaving, refuse_if_over
from fencepost.server.identity import authenticator
from fencepost.server.identity.authenticator import Authenticator, Standing
from fencepost.server.identity.jwt import read_patterns
from fencepost.server.times import TIMES, Times


class Verifier:
    """Takes what begins with its prefix; `bad` is refused. Counts."""

    def __init__(self, prefix: str = "t", ends: float | None = None) -> None:
        self.prefix, self.ends, self.asked = prefix, ends, 0
        self.says: Problem | None = None
        self.fails: BaseException | None = None
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def takes(self, credential: str) -> bool:
        return credential.startswith(self.prefix)

    async def verify(self, credential: str) -> Caller | Problem:
        self.asked += 1
        self.waiting.set()
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        if self.says is not None:
            return self.says
        if "bad" in credential:
            return Problem(INVALID_CREDENTIAL, "It is bad.")
        return Caller(f"{self.prefix}:{credential}", ends=self.ends)


async def test_a_known_header_is_not_verified_again_until_its_time_is_up() -> None:
    clock, verifier = ManualClock(), Verifier()
    there = Authenticator((verifier,), times=Times(clock=clock))
    assert there.known(b"Bearer t1") is None
    found = await there.identify(b"Bearer t1")
    assert there.known(b"Bearer t1") is found
    assert there.known(b"Bearer t2") is None
    await clock.advance(TIMES.identity.kept_for - 1)
    assert there.known(b"Bearer t1") is found
    await clock.advance(1)
    assert there.known(b"Bearer t1") is None
    assert verifier.asked == 1


async def test_a_token_that_ends_earlier_is_known_no_longer() -> None:
    clock = ManualClock()
    there = Authenticator((Verifier(ends=clock.now() + 10.0),), times=Times(clock=clock))
    await there.identify(b"Bearer t1")
    await clock.advance(9.9)
    assert there.known(b"Bearer t1") is not None
    await clock.advance(0.2)
    assert there.known(b"Bearer t1") is None


async def test_what_is_refused_is_not_kept() -> None:
    verifier = Verifier()
    there = Authenticator((verifier,))
    for _ in range(2):
        assert isinstance(await there.identify(b"Bearer t-bad"), Problem)
        assert there.known(b"Bearer t-bad") is None
    assert verifier.asked == 2


async def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "MOST_KEPT", 3)
    there = Authenticator((Verifier(),))
    for number in range(5):
        await there.identify(b"Bearer t%d" % number)
    assert [there.known(b"Bearer t%d" % number) is not None for number in range(5)] == [False, False, True, True, True]


async def test_forgetting_makes_all_be_verified_anew() -> None:
    there = Authenticator((Verifier(),))
    await there.identify(b"Bearer t1")
    there.forget()
    assert there.known(b"Bearer t1") is None


async def test_what_was_verified_by_keys_that_have_changed_meanwhile_is_not_kept() -> None:
    verifier = Verifier()
    there = Authenticator((verifier,))
    verifier.gate.clear()
    asking = asyncio.create_task(there.identify(b"Bearer t1"))
    await verifier.waiting.wait()
    there.forget()
    verifier.gate.set()
    assert isinstance(await asking, Caller)
    assert there.known(b"Bearer t1") is None


async def test_the_first_verifier_that_takes_it_decides() -> None:
    one, other = Verifier("t"), Verifier("fp_")
    there = Authenticator((one, other))
    assert (await there.identify(b"Bearer fp_1") or Problem).name == "fp_:fp_1"
    found = await there.identify(b"Bearer x")
    assert isinstance(found, Problem)
    assert found.name == "FP037"
    assert (one.asked, other.asked) == (0, 1)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", "FP036"),
        (b"Basic dDE6", "FP036"),
        (b"t1", "FP036"),
        (b"Bearer", "FP037"),
        (b"Bearer ", "FP037"),
        (b"Bearer t1 t2", "FP037"),
        (b"Bearer\tt1", "FP036"),
        (b"Bearer t1\x00", "FP037"),
        ("Bearer tä".encode(), "FP037"),
        (b"Bearer t" + b"x" * 9000, "FP037"),
        (b"Bearer Bearer t1", "FP037"),
    ],
)
async def test_a_header_without_one_bearer_credential_is_refused(header: bytes, code: str) -> None:
    verifier = Verifier()
    there = Authenticator((verifier,), Caller(ANONYMOUS))  # who has sent one is not taken for one who has not
    found = await there.identify(header)
    assert isinstance(found, Problem)
    assert (found.name, verifier.asked) == (code, 0)
    assert there.known(header) is None


async def test_the_schemes_case_does_not_count() -> None:
    there = Authenticator((Verifier(),))
    for header in (b"bearer t1", b"BEARER t1", b"Bearer  t1"):
        assert isinstance(await there.identify(header), Caller)


async def test_without_a_header_it_is_the_anonymous_caller_or_nobody() -> None:
    refused = await Authenticator((Verifier(),)).identify(None)
    assert isinstance(refused, Problem)
    assert refused.name == "FP036"
    anonymous = Caller(ANONYMOUS, "anon")
    there = Authenticator((Verifier(),), anonymous)
    assert there.known(None) is anonymous
    assert await there.identify(None) is anonymous


async def test_a_request_under_way_learns_that_its_credential_is_good_no_longer() -> None:
    clock, verifier = ManualClock(), Verifier()
    there = Authenticator((verifier,), times=Times(clock=clock))
    found = await there.identify(b"Bearer t1")
    assert isinstance(found, Caller)
    over = asyncio.create_task(there.refuses(found, b"Bearer t1"))
    await settled()
    there.forget()
    await settled()
    verifier.says = Problem(VERIFICATION_UNAVAILABLE, "The database is away.")
    await clock.advance(TIMES.identity.kept_for)  # although nothing has announced a change
    assert (verifier.asked, over.done()) == (3, False), "what cannot be found out is no reason to end"
    verifier.says = Problem(INVALID_CREDENTIAL, "It was revoked.")
    await clock.advance(TIMES.identity.unheard_for)
    assert over.done()


@pytest.mark.parametrize("fault", [RuntimeError("ours"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_a_fault_of_our_own_is_not_taken_for_a_credential_that_was_revoked(fault: BaseException) -> None:
    verifier, refused = Verifier(), list[Problem]()
    there = Authenticator((verifier,))
    found = await there.identify(b"Bearer t1")
    assert isinstance(found, Caller)
    scope = {STANDING: Standing(there, found, b"Bearer t1")}
    verifier.fails = fault

    async def ask() -> None:
        async with leaving(scope) as gone:
            there.forget()
            await asyncio.wait((gone,))
            refuse_if_over(scope, gone, refused.append)

    with pytest.raises(RuntimeError, match=r"ours|cancelled"):
        await ask()
    assert refused == []


def test_a_caller_may_do_what_it_might_when_its_rights_have_become_more_and_not_when_some_are_gone() -> None:
    before = Caller("key:1", "web", access=frozenset({"lock"}), locks=("a/*", "b"))
    more = {"access": EVERY_ACCESS}, {"locks": None}, {"locks": ("b", "c", "a/*")}
    less = {"access": frozenset({"read"})}, {"locks": ("a/*",)}, {"role": None}, {"claims": "{}"}, {"name": "key:2"}
    for changed in ({}, *more, *less):
        assert replace(before, **changed).may_do_what(before) == (changed not in less), changed
    assert not before.may_do_what(replace(before, locks=None))


def test_patterns_of_locks() -> None:
    assert read_patterns(["orders/*", "*", "report"]) == ("orders/*", "*", "report")
    assert read_patterns([]) == ()
    for bad in (None, "x", {"a": 1}, [1], [""], ["a*b"], ["**"], ["\n"], ["x" * 513], ["x"] * 101):
        with pytest.raises(ValueError, match="pattern"):
            read_patterns(bad)
