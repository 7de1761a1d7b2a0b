"""What a process remembers of the database, and what it makes of answers that come in any order (R19)."""

from dataclasses import replace

from fencepost.server.postgres.database_identity import Location, Origin, OriginStatus, Watch
from fencepost.server.postgres.errors import UnavailableError

HERE = Location(7, 1, 5, 16400)


def origin(
    flushed: int, generation: int = 1, identity: str = "x", *, location: Location = HERE, knows: str = ""
) -> Origin:
    """Give a database that its newest generation was raised on."""
    history = frozenset({f"{generation}/{identity}", *knows.split()})
    return Origin(False, location, flushed, generation, identity, location, history, None)


def seen(watch: Watch, answer: Origin) -> UnavailableError | None:
    """Ask, get the answer at once, and write if one may."""
    watch.compare(answer, watch.met)
    return watch.judge(answer)[0]


def text(error: UnavailableError | None) -> str:
    assert error is not None
    return str(error)


def test_a_position_behind_what_was_known_before_the_question_is_an_older_copy_for_good() -> None:
    watch = Watch()
    assert seen(watch, origin(1000)) is None
    assert seen(watch, origin(2000)) is None
    assert "found at 0/7CF after it had been safe up to 0/7D0" in text(seen(watch, origin(1999)))
    assert "older copy" in text(seen(watch, origin(5000))), "the copy's own writes carry it past that"
    assert seen(watch, origin(100, 2, "y", knows="1/x")) is None, "until the generation is raised"
    assert watch.met is not None
    assert watch.met.flushed == 100


def test_answers_that_arrive_in_another_order_than_they_were_given_in_are_no_copy() -> None:
    watch = Watch()
    seen(watch, origin(1000))
    early = watch.met  # a question is sent here, and read at 1500 by the server
    assert seen(watch, origin(2000)) is None
    watch.compare(origin(1500), early)
    assert watch.problem(origin(1500)) is None
    watch.compare(origin(1500), None)  # sent before anything was met
    assert watch.problem(origin(1500)) is None


def test_a_position_of_another_timeline_or_generation_is_not_compared() -> None:
    watch = Watch()
    seen(watch, origin(1000))
    watch.compare(origin(10, location=replace(HERE, timeline=2)), watch.met)
    watch.compare(origin(10, 2, "y"), watch.met)
    assert watch.problem(origin(1000)) is None


def test_one_number_with_two_identities_is_two_histories() -> None:
    watch = Watch()
    seen(watch, origin(1000, 3, "x"))
    refused = watch.problem(origin(1000, 3, "y"))
    assert "its history does not know the generation 3" in text(refused)
    assert "raise --above 844424930131968 --reason" in text(refused)
    assert "does not know" in text(watch.problem(origin(1, 9, "y", knows="3/y"))), "a higher number is no excuse"
    assert "does not know" in text(watch.problem(origin(1, 2, "y"))), "nor a lower one"
    assert watch.problem(origin(1, 9, "y", knows="3/x")) is None
    assert watch.problem(replace(origin(1, 9, "y", knows="3/y"), above=3 << 48)) is None
    assert watch.problem(replace(origin(1, 9, "y", knows="3/y"), above=(3 << 48) - 1)) is not None


def test_what_came_before_what_was_met_is_a_former_primary() -> None:
    watch = Watch()
    seen(watch, origin(1000, 3, "x", knows="0/a 2/b"))
    assert "former primary" in text(watch.problem(origin(9, 2, "b", knows="0/a")))


def test_a_database_without_the_moment_that_was_met_is_a_copy_and_the_original_goes_on() -> None:
    watch = Watch()
    assert seen(watch, replace(origin(1000), moment=4, nonce="a")) is None
    assert seen(watch, replace(origin(2000), moment=5, nonce="b")) is None
    copy = replace(origin(9000), moment=6, nonce="c", forgot=True)
    assert "is another copy of the database" in text(seen(watch, copy))
    assert watch.met is not None
    assert (watch.met.flushed, watch.met.moment, watch.met.nonce) == (2000, 5, "b"), "nothing of the copy's is met"
    assert seen(watch, replace(origin(2001), moment=5, nonce="b")) is None
    raised = replace(copy, generation=2, identity="y", history=frozenset({"1/x", "2/y"}))
    assert seen(watch, raised) is None, "until the generation is raised"


def test_connections_that_were_accepted_before_a_restore_are_asked_again() -> None:
    watch = Watch()
    before = origin(1000)
    assert seen(watch, before) is None
    restored = replace(before, found=replace(HERE, relation=17000))
    assert "a dump was restored over it" in text(seen(watch, restored))
    assert "made anew in it since" in text(watch.problem(before))
    mended = origin(1000, 2, "y", location=replace(HERE, relation=17000), knows="1/x")
    assert seen(watch, mended) is None


def test_a_change_is_reported_once() -> None:
    answered: list[OriginStatus] = []
    watch = Watch(answered.append)
    for answer in (origin(5), origin(6), origin(5), origin(4)):
        watch.compare(answer, watch.met)
        watch.judge(answer)
    assert [standing.accepted for standing in answered] == [True, False]
