"""The examples of docs/client.md run as they stand."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_an_example_runs(gateway_url: str, number: int) -> None:
    code = EXAMPLES[number].replace("http://127.0.0.1:8080", gateway_url)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "done\n")
