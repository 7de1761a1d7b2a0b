"""The README's story is run as it stands: each `$ command` against a fresh demo, its answer compared to the letter."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

from tests.serving import serving

from fencepost.storage.embedded import embedded_bin_dir

README = Path(__file__).parents[2] / "README.md"


def story() -> list[tuple[str, str]]:
    """Read (command, expected output) from the README's console blocks."""
    steps = []
    for block in re.findall(r"```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            steps.append((command, expected))
    return steps


def run(command: str, path: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=os.environ | {"PATH": path}
    )
    return done.stdout


async def test_the_story_in_the_readme_is_true(short_dir: Path) -> None:
    steps = story()
    assert len(steps) >= 6
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
