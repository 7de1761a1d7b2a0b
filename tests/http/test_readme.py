"""Stories in the docs are run as they stand: each `$ command` against a fresh demo, its answer compared."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.serving import serving

from fencepost.embedded.server import embedded_bin_dir

ROOT = Path(__file__).parents[2]


def story(page: str) -> list[tuple[str, str]]:
    """Read (command, expected output) from the page's console blocks."""
    steps = []
    for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            steps.append((command, expected))
    return steps


def run(command: str, path: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=os.environ | {"PATH": path}
    )
    return done.stdout


@pytest.mark.parametrize(("page", "at_least"), [("README.md", 6), ("docs/outcomes.md", 4)])
async def test_the_story_in_a_page_is_true(short_dir: Path, page: str, at_least: int) -> None:
    steps = story(page)
    assert len(steps) >= at_least
    path = f"{embedded_bin_dir()}:{os.environ['PATH']}"
    async with serving(short_dir) as gateway:
        for command, expected in steps:
            here = command.replace("http://127.0.0.1:8080", gateway.url)
            here = here.replace(".fencepost/url", str(short_dir / "data" / "url"))
            answer = await asyncio.to_thread(run, here, path)
            assert answer.rstrip("\n") == expected.rstrip("\n"), command


async def test_the_line_that_serve_prints_works(short_dir: Path) -> None:
    async with serving(short_dir) as gateway:
        line = next(line for line in gateway.greeting.splitlines() if line.startswith("  try"))
        answer = await asyncio.to_thread(run, line.removeprefix("  try").strip(), os.environ["PATH"])
        assert '"status":"shipped"' in answer
