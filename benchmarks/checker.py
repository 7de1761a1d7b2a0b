"""What `fencepost check` costs: a right history is made, and checked; CPU seconds and the most memory are printed.

    python -m benchmarks.checker                          # 1,000,000 operations, as in docs/checker.md: two minutes
    python -m benchmarks.checker --operations 100000

Half of the operations are writes, under tokens that rise, half are reads; a hundredth of the writes has an unknown
outcome, and those that newer ones have overtaken are refused as stale.
"""

import argparse
import heapq
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fencepost.testing.checker import check
from fencepost.testing.history import End, Event, Invoke, read
from fencepost.testing.history.events import event_line, header_line

_AT_ONCE: Final = 24
"""Operations under way."""
_RESOURCES: Final = 1000
_UNKNOWN: Final = 0.01


def made(operations: int) -> Iterator[Event]:
    """Make the events of a history: each operation has its moment when it ends."""
    dice = random.Random(1)  # noqa: S311 - must repeat
    rows: dict[str, tuple[int, str | None]] = {}
    under_way: list[tuple[int, int, Invoke]] = []
    for number in range(1, operations + 1):
        now = number * 1000
        while under_way and (under_way[0][0] < now):
            yield _ended(*heapq.heappop(under_way), rows, dice)
        name = f"orders/{dice.randrange(_RESOURCES)}"
        if dice.random() < 0.5:  # noqa: PLR2004 - half of them
            invoke = Invoke(now, number, f"w{number % _AT_ONCE}", "write", name, number, f"v{number}")
        else:
            invoke = Invoke(now, number, f"w{number % _AT_ONCE}", "read", name)
        yield invoke
        heapq.heappush(under_way, (now + 1 + dice.randrange(2 * _AT_ONCE * 1000), number, invoke))
    while under_way:
        yield _ended(*heapq.heappop(under_way), rows, dice)


def _ended(at: int, number: int, invoke: Invoke, rows: dict[str, tuple[int, str | None]], dice: random.Random) -> End:
    mark, value = rows.get(invoke.resource, (0, None))
    if invoke.token is None:
        return End(at, number, "ok", value, mark)
    lost = dice.random() < _UNKNOWN
    if invoke.token > mark and not (lost and dice.random() < 0.5):  # noqa: PLR2004 - as often as not
        rows[invoke.resource] = (invoke.token, invoke.value)
    if lost:
        return End(at, number, "unknown", why="no answer")
    return End(at, number, "ok") if invoke.token > mark else End(at, number, "refused", reason="stale", mark=mark)


def main() -> None:
    """Make it, check it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    operations = parser.parse_args().operations
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "history.jsonl")
        with path.open("wb") as file:
            file.write(header_line({}))
            file.writelines(event_line(event) for event in made(operations))
        before = time.process_time()
        verdict = check(read(path))
        seconds = time.process_time() - before
    if not verdict.valid:
        raise SystemExit(verdict.violations[0].words)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    of = f"{verdict.operations:,} operations ({verdict.unknown:,} unknown)"
    sys.stdout.write(f"{of}: {seconds:.1f} s of CPU, {most:.0f} MiB\n")


if __name__ == "__main__":
    main()
