"""Bounds of how the code is cut (CONTRIBUTING.md, "How the code is laid out"): chapters do not fall apart again.

A bound is what the tree had when it was last made better. Who makes it better still lowers the bound; who cannot keep
one says why in the commit that raises it.
"""

import pytest
from tools import shape
from tools.shape import Shape


@pytest.mark.parametrize(
    ("found", "files", "lines", "pages"),
    [(shape.app(), 212, 67_800, 0), (shape.tests(), 519, 73_000, 9)],
    ids=["app", "tests"],
)
def test_it_is_cut_into_no_more_files_lines_and_pages(found: Shape, files: int, lines: int, pages: int) -> None:
    assert found.files <= files
    assert found.lines <= lines
    assert len(found.pages) <= pages, found.pages


def test_a_class_name_means_one_thing() -> None:
    assert len(shape.app().shared_names) <= 9, shape.app().shared_names
