"""Each block of docs/testing.md runs, or is the text of a file of examples/orders."""

import re
from pathlib import Path

import pytest
from tests.testing.test_plugin import passed, run_pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text("utf-8")
COPIED = re.compile(r"<!-- from: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@pytest.mark.long("projects that use the plugin")
def test_each_example_runs(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", COPIED.sub("", PAGE), re.DOTALL)
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    output = run_pytest(tmp_path)
    assert "failed" not in output, output
    if "skipped" not in output:
        assert (
            passed(output) == sum(example.count("def test_") for example in examples) + 1
        )  # one has two lock services


def test_what_is_from_the_example_service_is_as_it_is_there() -> None:
    copied = COPIED.findall(PAGE)
    assert [name for name, _ in copied] == ["orders.py", "test_orders.py", "fix.diff"]
    for name, text in copied:
        assert text in (ROOT / "examples" / "orders" / name).read_text("utf-8")
