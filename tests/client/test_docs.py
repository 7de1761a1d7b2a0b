"""The examples of docs/client.md and docs/elections.md run as they stand."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join((DOCS / page).read_text("utf-8") for page in ("client.md", "elections.md"))
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)


@pytest.mark.parametrize("number", range(7))
async def test_an_example_runs(gateway_url: str, number: int) -> None:
    assert len(EXAMPLES) == 7
    code = EXAMPLES[number].replace("http://127.0.0.1:8080", gateway_url)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "done\n")
