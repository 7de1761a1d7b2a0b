"""Bounds of how many files a request passes, and how often it comes back to one: `python -m tools.walk`.

As in tests/unit/test_shape.py, a bound is what the tree had when it was last made better.
"""

from tools.walk import walk

BOUNDS = {"patch": (35, 174), "get": (31, 143), "lease": (34, 192), "batch": (39, 242)}
"""Files, returns. Before files were merged: 54 and 189, 42 and 156, 53 and 202, 68 and 285. Read by hand on that tree,
without the HTTP parser's callbacks and calls that return at once: 50 and 101, 39 and 84, 52 and 115, 56 and 122."""


async def test_a_request_passes_no_more_files_and_comes_back_no_more_often(database: str) -> None:
    for name, walked in (await walk(database, list(BOUNDS))).items():
        files, _, returns = walked.figures
        most_files, most_returns = BOUNDS[name]
        assert files <= most_files, (name, walked.stays)
        assert returns <= most_returns, (name, walked.stays)
