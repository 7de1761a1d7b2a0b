"""The layout of timelines: numbers, without SVG."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.report_histories import MILLISECOND, Script, large, paused_holder

from fencepost.testing.checker import Violation
from fencepost.testing.history import History, read
from fencepost.torture.report.choice import MOST_OPERATIONS, MOST_TIMELINES, Choice, Drawn, choose, natural
from fencepost.torture.report.excerpt import Excerpt
from fencepost.torture.report.holds import find_holds
from fencepost.torture.report.layout import Layout, first_view, lay_out
from fencepost.torture.report.look import look
from fencepost.torture.report.rows import MOST_OWN_ROWS, assign_rows
from fencepost.torture.report.scale import NARROWEST, spread, ticks
from fencepost.torture.report.survey import Survey, survey

Times = st.lists(st.integers(0, 10**13), min_size=1, max_size=60)


@given(Times)
def test_later_moments_are_further_right_and_none_cover_each_other(times: list[int]) -> None:
    scale = spread(times, 1000)
    xs = [scale.x(time) for time in sorted(set(times))]
    assert all(b - a >= NARROWEST - 0.001 for a, b in pairwise(xs))
    assert 0 < xs[0] <= xs[-1] < scale.width
    assert scale.width >= 1000 - 0.001


@given(Times, st.integers(0, 10**13))
def test_a_place_on_the_axis_is_a_moment_and_back(times: list[int], time: int) -> None:
    scale = spread(times, 1000)
    inside = min(max(time, scale.times[0]), scale.times[-1])
    assert scale.x(time) == scale.x(inside), "what is outside is at the edge"
    assert abs(scale.x(scale.time(scale.x(inside))) - scale.x(inside)) < 0.01


@given(Times)
def test_ticks_are_in_the_order_of_their_times(times: list[int]) -> None:
    marks = ticks(spread(times, 1000), min(times))
    values = [float(tick.label.removesuffix(" s").replace(",", "")) for tick in marks]
    assert values == sorted(values)
    assert marks[0].level == 0


def test_a_long_pause_does_not_push_milliseconds_together() -> None:
    scale = spread([0, MILLISECOND, 2 * MILLISECOND, 60_000 * MILLISECOND, 60_001 * MILLISECOND], 0)
    pause = scale.x(60_000 * MILLISECOND) - scale.x(2 * MILLISECOND)
    assert pause < 10 * scale.x(MILLISECOND)
    assert pause > scale.x(2 * MILLISECOND) - scale.x(MILLISECOND)


def test_names_with_numbers_are_in_the_order_of_the_numbers() -> None:
    assert sorted(["w10", "w9", "a", "w9.2", "9"], key=natural) == ["9", "a", "w9", "w9.2", "w10"]


def _seen(path: Path, violations: tuple[Violation, ...] = ()) -> tuple[History, Survey, Choice]:
    history = read(path)
    seen = survey(history, frozenset(violation.resource for violation in violations))
    return history, seen, choose(seen, violations)


def _excerpts(path: Path) -> list[Excerpt]:
    return look(*_seen(path))[0]


def _layout(script: Script, folder: Path) -> Layout:
    path = script.write(folder / "h.jsonl")
    history, seen, choice = _seen(path)
    (excerpt,) = look(history, seen, choice)[0]
    return lay_out(excerpt, seen.faults, {})


def test_a_hold_lasts_from_its_acquire_to_the_next_and_its_process_may_not_know(tmp_path: Path) -> None:
    (excerpt,) = _excerpts(paused_holder().write(tmp_path / "h.jsonl"))
    first, second = find_holds(excerpt.operations, 5217 * MILLISECOND)
    assert (first.process, first.tokens, first.start, first.end) == ("w1", "33", 12 * MILLISECOND, 5022 * MILLISECOND)
    assert first.passed_on
    assert first.last == 5207 * MILLISECOND, "w1 wrote after its hold was over"
    assert (second.process, second.tokens, second.end) == ("w2", "34", 5217 * MILLISECOND)
    assert not second.passed_on


def test_without_a_lock_a_hold_begins_with_the_first_accepted_token(tmp_path: Path) -> None:
    story = Script()
    story.did(0, 1, "a", "claim", "r", token=5)
    story.did(2, 3, "a", "write", "r", token=6, value="x")
    story.did(4, 5, "b", "write", "r", token=9, value="y")
    story.did(6, 7, "a", "write", "r", token=7, value="z", event="refused", answer_reason="stale")
    story.did(8, 9, "a", "write", "r", token=8, value="z")  # accepted, and stale: begins nothing
    (excerpt,) = _excerpts(story.write(tmp_path / "h.jsonl"))
    holds = find_holds(excerpt.operations, 9 * MILLISECOND)
    assert [(h.process, h.tokens, h.start // MILLISECOND, h.end // MILLISECOND) for h in holds] == [
        ("a", "5-6", 1, 5),
        ("b", "9", 5, 9),
    ]
    assert holds[0].last == 9 * MILLISECOND


def test_a_hold_whose_lease_expired_is_over_then(tmp_path: Path) -> None:
    story = Script()
    story.did(0, 1, "a", "acquire", "lock/r", answer_token=1, answer_expires=10 * MILLISECOND)
    story.did(20, 21, "b", "acquire", "lock/r", answer_token=2)
    story.did(22, 23, "a", "release", "lock/r", token=1)
    (excerpt,) = _excerpts(story.write(tmp_path / "h.jsonl"))
    first, _ = find_holds(excerpt.operations, 23 * MILLISECOND)
    assert (first.end, first.last, first.passed_on) == (10 * MILLISECOND, 23 * MILLISECOND, True)


def test_a_row_has_lanes_where_operations_of_a_process_overlap(tmp_path: Path) -> None:
    story = Script()
    story.did(0, 10, "a", "read", "r", answer_value=None)
    story.did(5, 12, "a", "read", "r", answer_value=None)
    story.did(11, 13, "a", "read", "r", answer_value=None)
    story.did(1, 2, "b", "read", "r", answer_value=None)
    layout = _layout(story, tmp_path)
    first, second = layout.rows
    assert (first.tracks, second.tracks) == (2, 1)
    assert second.top > first.top + first.height, "rows do not overlap"
    assert len({mark.y for mark in layout.marks if mark.operation.process == "a"}) == 2
    assert layout.height >= second.top + second.height


def test_processes_that_were_not_there_at_the_same_time_share_rows_when_there_are_many(tmp_path: Path) -> None:
    story = Script()
    for i in range(MOST_OWN_ROWS + 1):
        story.did(10 * i, 10 * i + 5, f"w{i}", "read", "r", answer_value=None)
    (excerpt,) = _excerpts(story.write(tmp_path / "h.jsonl"))
    assert len({id(row) for row in assign_rows(excerpt.operations).values()}) == 1
    assert len({id(row) for row in assign_rows(excerpt.operations[:-1]).values()}) == MOST_OWN_ROWS


@pytest.mark.parametrize("processes", [3, MOST_OWN_ROWS + 3])
def test_the_rows_of_a_violation_are_on_top(tmp_path: Path, processes: int) -> None:
    story = Script()
    for i in range(processes):
        story.did(i, 100 + i, f"w{i}", "read", "r", answer_value=None)
    (excerpt,) = _excerpts(story.write(tmp_path / "h.jsonl"))
    first = next(iter(assign_rows(excerpt.operations, {excerpt.operations[2].id}).values()))
    assert "w2" in first.processes


def test_a_lock_is_in_the_timeline_of_the_resource_that_its_name_ends_with(tmp_path: Path) -> None:
    story = Script()
    story.did(0, 1, "a", "acquire", "lock/orders/7", answer_token=1)
    story.did(2, 3, "a", "acquire", "lock/shop/orders/7", event="refused", answer_reason="held")
    story.did(4, 5, "a", "acquire", "lock/nightly", answer_token=2)
    story.did(6, 7, "a", "write", "orders/7", token=1, value="x")
    history, seen, choice = _seen(story.write(tmp_path / "h.jsonl"))
    assert {name: tally.operations for name, tally in seen.tallies.items()} == {"orders/7": 3, "nightly": 1}
    excerpts, overview = look(history, seen, choice)
    assert {e.drawn.subject: len(e.operations) for e in excerpts} == {"nightly": 1, "orders/7": 3}
    assert {row.label: sum(map(sum, row.cells.values())) for row in overview.rows} == {"nightly": 1, "orders/7": 3}


def test_a_fault_is_clipped_to_the_timeline_and_shades_the_rows_of_its_target(tmp_path: Path) -> None:
    story = Script()
    story.fault(0, 25, "paused", "w1")  # began before the resource was touched
    story.fault(22, None, "partitioned", "gateway")  # never healed
    story.fault(23, 24, "killed", "w9")
    story.did(1, 2, "w9", "read", "elsewhere", answer_value=None)
    for process in ("w1.0", "w1.1", "w2"):
        story.did(20, 30, process, "read", "r", answer_value=None)
    history, seen, choice = _seen(story.write(tmp_path / "h.jsonl"))
    excerpt = next(e for e in look(history, seen, choice)[0] if e.drawn.subject == "r")
    layout = lay_out(excerpt, seen.faults, {})
    paused, partitioned = layout.shades
    w10, w11, w2 = layout.rows
    assert paused.x == layout.scale.x(20 * MILLISECOND)
    assert paused.spans == ((w10.top, w10.height), (w11.top, w11.height))
    assert partitioned.end == layout.scale.width
    assert partitioned.spans == ((w10.top, w2.top + w2.height - w10.top),)
    assert paused.band != partitioned.band, "they overlap"
    assert layout.faults_elsewhere == 1


def test_the_first_view_has_the_whole_violation_and_is_inside_the_timeline(tmp_path: Path) -> None:
    history, seen, choice = _seen(large(tmp_path / "h.jsonl", 500, resources=1))
    (excerpt,) = look(history, seen, choice)[0]
    bad = [excerpt.operations[i].id for i in (100, 130)]
    layout = lay_out(excerpt, seen.faults, {bad[0]: ("A1",), bad[1]: ("A2", "B1")})
    x, width = first_view(layout, "A")
    own = [mark for mark in layout.marks if mark.badges]
    assert x <= min(mark.x for mark in own)
    assert max(mark.end for mark in own) <= x + width < layout.scale.width / 2
    assert first_view(layout, "B")[1] < width, "B is one operation of the two"


def test_a_large_resource_is_drawn_around_what_matters_and_the_rest_is_counted(tmp_path: Path) -> None:
    path = large(tmp_path / "h.jsonl", 5_000, resources=1)
    history, seen, _ = _seen(path)
    drawn = Drawn("orders/0", frozenset({1_000, 4_000}), 20)
    (excerpt,), _overview = look(history, seen, Choice((drawn,), 1, complete=True))
    ids = [operation.id for operation in excerpt.operations]
    assert ids == [*range(980, 1_021), *range(3_980, 4_021)]
    assert excerpt.not_drawn + len(ids) == 5_000
    assert [gap.operations for gap in excerpt.left_out] == [980, 2_959, 979]
    (gap,) = lay_out(excerpt, seen.faults, {}).gaps
    assert gap.operations == 2_959, "those at the edges are in the remark below the timeline"


@pytest.mark.parametrize("resources", [1, 20, 500])
def test_what_is_drawn_is_bounded(tmp_path: Path, resources: int) -> None:
    history, seen, choice = _seen(large(tmp_path / "h.jsonl", 8_000, resources=resources))
    excerpts, overview = look(history, seen, choice)
    assert len(excerpts) <= MOST_TIMELINES
    assert sum(len(e.operations) for e in excerpts) <= MOST_OPERATIONS * 1.1
    assert choice.complete == (resources <= MOST_TIMELINES)
    counts = [sum(row.cells[outcome]) for row in overview.rows for outcome in row.cells]
    assert [sum(counts[i::3]) for i in range(3)] == [seen.by_outcome[o] for o in ("ok", "refused", "unknown")]
    assert sum(counts) == 8_000, "the overview has every operation"
    assert sum(row.resources for row in overview.rows) == len(seen.tallies)
