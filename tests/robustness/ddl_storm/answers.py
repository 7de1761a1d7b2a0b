"""The writers' answers, against what was done: a success once, a refusal not at all, the rest at most once."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.robustness.ddl_storm.world import APART, Operation


def compare(
    operations: Iterable[Operation], applied: Mapping[str, Mapping[str, int]], bare: Mapping[str, int]
) -> list[str]:
    """List what is not true. `applied`: operation → how often it wrote each row; `bare`: how often each row was deleted
    by operations that did not record their name.
    """
    wrong: list[str] = []
    nameless: list[Operation] = []
    for operation in operations:
        done = applied.get(operation.id, {})
        if not operation.named:
            nameless.append(operation)
        elif operation.what not in ("claim", "lease", APART):
            wrong += [f"{operation}: {what}: {dict(done)}" for what in _amiss(operation, done)]
    return wrong + _amiss_together(nameless, bare)


def _amiss(operation: Operation, done: Mapping[str, int]) -> Iterable[str]:
    if any(times > 1 for times in done.values()):
        yield "it was done more than once"
    if operation.outcome == "refused" and done:
        yield "it was refused, and done"
    if operation.outcome == "done":
        if operation.rows is not None and operation.rows != set(done):
            yield "the rows that were written are not those of the answer"
        if operation.rows is None and len(done) != 1:
            yield f"the answer was about one row, and {len(done)} were written"


def _amiss_together(nameless: Iterable[Operation], bare: Mapping[str, int]) -> list[str]:
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for operation in nameless:
        everything = [f"{operation.line}:{number}" for number in operation.numbers]
        if operation.outcome == "done":
            most.update(everything if operation.rows is None else operation.rows)
            least.update(operation.rows or (everything if len(everything) == 1 else ()))
        elif operation.outcome == "maybe":
            most.update(everything)
    deleted: defaultdict[str, int] = defaultdict(int, bare)
    return [
        f"{lk} was deleted {deleted[lk]} times by HTTP without a key, and answered were {least[lk]} to {most[lk]}"
        for lk in sorted(most.keys() | deleted.keys())
        if not least[lk] <= deleted[lk] <= most[lk]
    ]
