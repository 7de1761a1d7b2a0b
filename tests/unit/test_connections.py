"""The pool on connections that are made up; PostgreSQL's errors; which database it is; who gets to PostgreSQL."""

import ast
import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from asyncpg.exceptions import _base
from tests.support.manual_clock import ManualClock
from tests.unit.test_docs import ROOT

from fencepost.server.fence.caller import ASKING
from fencepost.server.gateway.outcomes import Turns
from fencepost.server.ops.embedded import disown_stale_pid_file, live_postmaster
from fencepost.server.ops.embedded_files import Account, DataDirectory, EmbeddedServerError
from fencepost.server.postgres.database_identity import Location, Origin, OriginStatus, Watch
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    ReadOnlyError,
    RefusedError,
    SessionError,
    StorageError,
    UnavailableError,
    map_errors,
    ours,
)
from fencepost.server.postgres.pool import AskedFor, ClosedError, Limiter, Pool, waiting_quota
from fencepost.server.startup import LEAST, Stopping
from fencepost.testing.servers.processes import PATIENCE

# Who gets which connection: the pool's rules, on connections that are made up, opened when the test lets it.


class Made:
    """A connection that nothing is connected to."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = self.acting = self.code_ran = False
        self.close_fails_with: Exception | None = None

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    async def close(self, timeout: float) -> None:  # noqa: ARG002, ASYNC109 - asyncpg's signature
        if self.close_fails_with is not None:
            raise self.close_fails_with
        self.closed = True

    def terminate(self) -> None:
        self.closed = True


class Bench:
    """A pool whose connects wait until they are answered."""

    def __init__(self, size: int) -> None:
        self.connects: list[asyncio.Future[Made]] = []
        self.reports: list[str] = []
        made: Any = self._connect
        self.pool = Pool(made, size, self.reports.append)

    async def _connect(self) -> Made:
        connect: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self.connects.append(connect)
        return await connect

    def asked(self) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.pool.lend())

    async def lent(self) -> Any:
        """Lend one that is opened for it."""
        asked = self.asked()
        await settled()
        self.connects.pop().set_result(Made())
        return await asked


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


FULL = asyncpg.TooManyConnectionsError("sorry, too many clients already")


async def test_the_one_that_came_back_last_is_lent_first() -> None:
    bench = Bench(2)
    one, two = await bench.lent(), await bench.lent()
    bench.pool.give_back(one)
    bench.pool.give_back(two)
    assert await bench.pool.lend() is two
    assert (bench.pool.size, bench.pool.idle) == (2, 1)


async def test_with_all_lent_callers_are_served_in_the_order_in_which_they_came() -> None:
    bench = Bench(1)
    one = await bench.lent()
    first, second = bench.asked(), bench.asked()
    await settled()
    bench.pool.give_back(one)
    assert await first is one
    assert not second.done()
    bench.pool.give_back(one)
    assert await second is one
    assert bench.connects == []


async def test_a_connect_that_hangs_keeps_no_caller_from_one_that_comes_back() -> None:
    bench = Bench(2)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    assert len(bench.connects) == 1
    bench.pool.give_back(one)
    assert await waiting is one
    bench.connects[0].set_result(Made())
    await settled()
    assert (bench.pool.size, bench.pool.idle) == (2, 1)


async def test_having_no_more_connections_fails_no_caller_while_one_is_open() -> None:
    bench = Bench(3)
    one = await bench.lent()
    waiting = [bench.asked() for _ in range(2)]
    await settled()
    for connect in bench.connects:
        connect.set_exception(FULL)
    await settled()
    later = bench.asked()
    await settled()
    assert len(bench.connects) == 2, "it was asked again at once"
    for each in (*waiting, later):
        bench.pool.give_back(one)
        assert await each is one
    assert len(bench.reports) == 1
    assert "sorry, too many clients already" in bench.reports[0]


async def test_with_none_open_having_no_more_connections_is_an_answer_for_each() -> None:
    bench = Bench(1)
    waiting = [bench.asked(), bench.asked()]
    for number, each in enumerate(waiting):
        await settled()
        assert len(bench.connects) == number + 1
        bench.connects[-1].set_exception(FULL)
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await each


async def test_when_the_last_open_one_is_closed_another_is_opened_at_once() -> None:
    bench = Bench(2)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    bench.connects.pop().set_exception(FULL)
    await settled()
    bench.pool.give_back(one, spoilt=True)
    await settled()
    bench.connects.pop().set_result(two := Made())
    assert await waiting is two


@pytest.mark.parametrize("harm", ["spoilt", "closed", "in_transaction", "expired"])
async def test_what_may_not_be_lent_again_is_closed(harm: str) -> None:
    bench = Bench(1)
    one = await bench.lent()
    if harm == "expired":
        bench.pool.expire()
    elif harm != "spoilt":
        setattr(one, harm, True)
    bench.pool.give_back(one, spoilt=harm == "spoilt")
    await settled()
    assert one.closed
    assert await bench.lent() is not one


async def test_one_that_was_being_opened_while_all_expired_is_not_lent_twice() -> None:
    bench = Bench(1)
    asked = bench.asked()
    await settled()
    bench.pool.expire()
    bench.connects.pop().set_result(one := Made())
    bench.pool.give_back(await asked)
    await settled()
    assert one.closed


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("out of order"), TimeoutError()])
async def test_giving_back_raises_nothing_and_reports_what_went_wrong(error: Exception) -> None:
    bench = Bench(1)
    one = await bench.lent()
    one.close_fails_with = error
    bench.pool.give_back(one, spoilt=True)
    await settled()
    assert one.closed
    assert bench.reports[0].endswith(str(error) or "TimeoutError")


@pytest.mark.parametrize("leaves", ["before", "as another is served", "as its connection comes"])
async def test_a_caller_that_leaves_delays_no_other_and_loses_no_connection(leaves: str) -> None:
    bench = Bench(1)
    one = await bench.lent()
    leaving, staying = bench.asked(), bench.asked()
    await settled()
    if leaves == "as its connection comes":
        bench.pool.give_back(one)
    leaving.cancel()
    if leaves == "before":
        await settled()
    if leaves != "as its connection comes":
        bench.pool.give_back(one)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await staying is one


async def test_closing_waits_for_what_is_lent_and_refuses_the_line() -> None:
    bench = Bench(1)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    closing = asyncio.create_task(bench.pool.close())
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await bench.pool.lend()
    await settled()
    assert not closing.done()
    bench.pool.give_back(one)
    await closing
    assert one.closed


async def test_closing_waits_no_longer_once_it_is_to_end() -> None:
    bench = Bench(2)
    lent, idle = await bench.lent(), await bench.lent()
    bench.pool.give_back(idle)
    bench.pool.end()
    assert lent.closed, "its statement goes on"
    with pytest.raises(ClosedError):
        await bench.pool.lend()
    closing = asyncio.create_task(bench.pool.close())
    await settled()
    assert idle.closed
    assert not closing.done()
    bench.pool.give_back(lent)
    await closing


# Foreign errors become ours, all of them, in one place.


def becomes(sqlstate: str, *, writing: bool) -> type[StorageError]:
    if sqlstate.startswith(("08", "57P")):
        return OutcomeUnknownError if writing else UnavailableError
    if sqlstate == "25006":
        return ReadOnlyError
    if sqlstate.startswith("53"):
        return UnavailableError
    return SessionError if sqlstate in ("26000", "42P05") else RefusedError


@pytest.mark.parametrize("writing", [True, False])
def test_every_error_of_the_server_is_translated(writing: bool) -> None:
    # Every class of error that asyncpg can raise for an SQLSTATE.
    found: set[type[asyncpg.PostgresError]] = set()
    todo: list[type[asyncpg.PostgresError]] = [asyncpg.PostgresError]
    while todo:
        each = todo.pop()
        found.add(each)
        todo += each.__subclasses__()
    kinds = sorted((each for each in found if getattr(each, "sqlstate", None)), key=lambda each: each.__name__)
    assert len(kinds) > 200
    for kind in kinds:
        error = ours(kind("what it said"), writing=writing)
        expected = becomes(str(kind.sqlstate), writing=writing)
        if expected is RefusedError:
            assert isinstance(error, RefusedError), kind
            assert error.sqlstate == kind.sqlstate
        else:
            assert type(error) is expected, kind


@pytest.mark.parametrize("sqlstate", ["26000", "42P05"])
def test_of_prepared_statements_only_what_postgresql_said_is_shown(sqlstate: str) -> None:
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": 'prepared statement "s1" does not exist'})
    assert "asyncpg" in str(error), "what is taken out"
    with pytest.raises(SessionError, match='nothing was done: prepared statement "s1" does not exist') as caught:
        raise ours(error, writing=True)
    assert "asyncpg" not in str(caught.value)


@pytest.mark.parametrize("writing", [True, False])
def test_a_broken_connection_is_unknown_after_a_write_and_unavailable_before(writing: bool) -> None:
    for error in (
        OSError("no route"), ConnectionResetError(), ConnectionRefusedError(), BrokenPipeError(), TimeoutError(),
        ConnectionAbortedError(),
        asyncpg.InterfaceError("closed"), asyncpg.InternalClientError("oops"), asyncpg.exceptions.ProtocolError("odd"),
        asyncpg.exceptions.ConnectionDoesNotExistError("gone"), _base.ClientConfigurationError("bad"),
    ):  # fmt: skip
        mapped = ours(error, writing=writing)
        assert type(mapped) is (OutcomeUnknownError if writing else UnavailableError)
        assert str(mapped), repr(error)


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), KeyError("a bug"), asyncio.CancelledError(), StorageError("ours")]
)
def test_what_is_not_foreign_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, map_errors():
        raise error
    assert caught.value is error


FUNCTION_GONE = "cache lookup failed for function 20838"


@pytest.mark.parametrize(
    ("error", "of_an_old_query_plan"),
    [
        (asyncpg.InternalServerError(FUNCTION_GONE), True),
        (asyncpg.InternalServerError(f"trigger: {FUNCTION_GONE}"), False),
        (asyncpg.InternalServerError("could not open relation with OID 20838"), False),
        (asyncpg.DataCorruptedError(FUNCTION_GONE), False),
        (asyncpg.RaiseError(FUNCTION_GONE), False),
    ],
    ids=lambda each: f"{each}",
)
def test_a_dropped_function_makes_a_session_new(error: asyncpg.PostgresError, of_an_old_query_plan: bool) -> None:
    """Only PostgreSQL's own words for it, which it does not translate."""
    mapped = ours(error, writing=True)
    assert isinstance(mapped, RefusedError)
    assert mapped.of_an_old_query_plan is of_an_old_query_plan


# What a process remembers of the database, and what it makes of answers that come in any order (R19).

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


# By which ways the gateway reaches PostgreSQL: what is written goes through `run_write`, or in batches.
# Both map errors and answer only when a commit is as safe as PostgreSQL makes it; who lent a connection for itself
# could forget that.

SERVER = ROOT / "app/fencepost/server"
CALLS = {
    "for_writing": set(),
    "for_leases": {"postgres/database.py"},  # for_grants, which is lent like it
    "for_grants": set(),
    "batch_connection": {"gateway/group_commit.py"},
    "lease_connection": {"gateway/group_commit.py"},
    "require_replicated": {"postgres/database.py", "gateway/group_commit.py"},
    "connect": {
        "postgres/connection.py",  # of the pools, and checks before the start
        "postgres/listen.py",
        "queues/postgres.py",  # listens, too
        "ops/demo.py",  # before the start
        "ops/doctor.py",  # doctor and status
        "ops/migrate.py",  # SQLAlchemy's, for alembic
        "locks/advisory.py",  # a lock service, maybe in another database
    },
}


@cache
def _called() -> dict[str, set[str]]:
    """The names of methods that the gateway calls, and in which of its files: all are read once."""
    found: dict[str, set[str]] = {}
    for path in SERVER.rglob("*.py"):
        file = str(path.relative_to(SERVER))
        for node in ast.walk(ast.parse(path.read_text("utf-8"), file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found.setdefault(node.func.attr, set()).add(file)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_only_these_call(name: str) -> None:
    found = _called().get(name, set())
    assert found == CALLS[name], "what writes is handed to run_write (postgres/database.py)"


# Whose the places are, of which there are few.


async def test_places_go_to_one_caller_after_the_other_and_none_has_all() -> None:
    limiter, came = Limiter(3, 2, None, "place"), []

    async def have(caller: str) -> None:
        await limiter.enter(caller)
        came.append(caller)

    tasks = [asyncio.ensure_future(have(caller)) for caller in ("ann", "ann", "ann", "bob", "bob", "cyd")]
    await settled()
    assert came == ["ann", "ann", "bob"], "ann has as many as one may have, and bob the last one"
    limiter.leave("ann")
    await settled()
    limiter.leave("bob")
    await settled()
    limiter.leave("ann")
    await settled()
    assert came[3:] == ["ann", "bob", "cyd"]
    await asyncio.gather(*tasks)
    assert (limiter.has_room("dan"), limiter.has_room("ann")) == (False, False)
    for caller in ("ann", "bob", "cyd"):
        limiter.leave(caller)
    assert limiter.has_room("dan")


@pytest.mark.parametrize("first", ["the place", "the end"])
async def test_who_gives_up_in_the_moment_of_a_place_leaves_it_to_the_next(first: str) -> None:
    limiter = Limiter(1, 1, None, "place")
    await limiter.enter("ann")
    gone, stays = (asyncio.ensure_future(limiter.enter(caller)) for caller in ("bob", "cyd"))
    await settled()
    steps: list[Callable[[], object]] = [lambda: limiter.leave("ann"), gone.cancel]
    for step in steps if first == "the place" else reversed(steps):
        step()
    await settled()
    assert stays.done()
    assert gone.cancelled()
    limiter.leave("cyd")
    assert limiter.has_room("ann")


async def test_a_question_takes_no_share_of_its_callers_and_waits_as_one_of_them() -> None:
    waiting = waiting_quota(4)
    limiter = Limiter(3, 1, 60, "place", waiting)
    for caller in ("ann", AskedFor("ann"), AskedFor("ann")):
        await asyncio.wait_for(limiter.enter(caller), PATIENCE)
    asked = [asyncio.ensure_future(limiter.enter(AskedFor(caller))) for caller in ("ann", "ann", "ann", "bob")]
    await settled()
    assert waiting.count == 4
    with pytest.raises(UnavailableError, match="3 of ann already"):
        await limiter.enter(AskedFor("ann"))
    for _ in range(2):
        limiter.leave(AskedFor("ann"))
        await settled()
    assert [each.done() for each in asked] == [True, False, False, True], "of one caller after the other"
    for each in asked:
        each.cancel()


async def test_a_turn_at_a_locked_row_is_waited_for_without_the_place_that_its_holder_needs() -> None:
    """Else two callers' writes wait for each other: one with the place for the row, one with the row for a place."""
    turns, let_go = Turns(at_once=1, wait=3600), asyncio.Event()

    async def write(caller: str, row: str) -> bool:
        ASKING.set(caller)
        async with turns.of(row) as mine:
            if row == "first":
                await let_go.wait()
            return mine

    tasks = []
    for caller, row in (("ann", "first"), ("ann", "second"), ("bob", "second")):
        tasks.append(asyncio.ensure_future(write(caller, row)))
        await settled()
    let_go.set()
    await settled()
    assert [each.done() and each.result() for each in tasks] == [True, True, True]


async def test_who_waits_too_long_for_a_place_and_who_is_one_too_many_is_told_why() -> None:
    waiting = waiting_quota(1)
    limiter = Limiter(2, 1, 0.0, "place", waiting)
    await limiter.enter("ann")
    with pytest.raises(UnavailableError, match="no place within 0 s: ann has as many as one may have"):
        await limiter.enter("ann")
    assert waiting.count == 0
    with waiting.place("bob"), pytest.raises(UnavailableError, match="no more may wait for a place: there are 1"):
        await limiter.enter("ann")
    patient = asyncio.ensure_future(limiter.enter("ann", patient=True))
    await settled()
    limiter.leave("ann")
    await settled()
    assert patient.done()


# How much time is left for the end.


async def test_time_counts_from_the_first_signal() -> None:
    clock = ManualClock()
    stopping = Stopping(30, clock.now)
    await clock.advance(100)
    assert stopping.left() == 30, "no stop was requested"
    stopping.ask()
    await clock.advance(10)
    stopping.ask()
    assert stopping.left() == pytest.approx(20)
    await clock.advance(100)
    assert stopping.left() == LEAST


# What the embedded server's account puts into the data directory does not lead us to other files.

VALUABLE = "1\nroot's own\n"


@pytest.fixture
def valuable(tmp_path: Path) -> Path:
    """A file outside of the data directory."""
    path = tmp_path / "valuable"
    path.write_text(VALUABLE)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    (tmp_path / "data" / "pgdata").mkdir(parents=True)
    return DataDirectory(tmp_path / "data", Account(os.geteuid(), os.getegid(), drop=False))


def pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


links = pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to, pipe])
Link = Callable[[Path, Path], None]


@links
def test_the_pid_file(directory: DataDirectory, valuable: Path, link: Link) -> None:
    link(directory.pgdata / "postmaster.pid", valuable)
    for use in (live_postmaster, disown_stale_pid_file):
        with pytest.raises(EmbeddedServerError, match=r"postmaster.pid is a link, or no plain file"):
            use(directory.pgdata)
    assert valuable.read_text() == VALUABLE


@links
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("password", DataDirectory.new_password),
        ("password", DataDirectory.password),
        ("url.new", lambda directory: directory.publish_url("postgresql://x")),
        ("postgresql.log", DataDirectory.open_log),
        ("lock", DataDirectory.open),
        ("pgdata/PG_VERSION", lambda directory: directory.check_version("18")),
    ],
)
def test_our_own_files(
    directory: DataDirectory, valuable: Path, link: Link, name: str, use: Callable[[DataDirectory], object]
) -> None:
    link(directory.path / name, valuable)
    with pytest.raises(EmbeddedServerError, match="is a link, or no plain file"):
        use(directory)
    assert valuable.read_text() == VALUABLE


def a_file(directory: DataDirectory) -> None:
    directory.pgdata.rmdir()
    directory.path.rmdir()
    directory.path.write_text("")


def nothing(_directory: DataDirectory) -> None:
    pass


@pytest.mark.parametrize(
    ("made", "use", "message"),
    [
        (a_file, DataDirectory.open, "cannot be made: .*data"),
        (nothing, lambda directory: directory.check_version("18"), "pgdata is not a PostgreSQL data directory"),
        (nothing, DataDirectory.password, "password is missing, and without it no login is possible"),
    ],
)
def test_what_is_not_there(
    directory: DataDirectory,
    made: Callable[[DataDirectory], None],
    use: Callable[[DataDirectory], object],
    message: str,
) -> None:
    made(directory)
    with pytest.raises(EmbeddedServerError, match=message):
        use(directory)


def test_a_stale_pid_file_of_its_own_is_written(directory: DataDirectory) -> None:
    (directory.pgdata / "postmaster.pid").write_text("999999\nrest of it\n")
    disown_stale_pid_file(directory.pgdata)
    assert (directory.pgdata / "postmaster.pid").read_text() == f"{os.getpid()}\nrest of it\n"
