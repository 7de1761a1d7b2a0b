"""The story of docs/queues.md is run as it stands: a fresh demo, and `fencepost` from the command line."""

import asyncio
import os
import sys
from pathlib import Path

from tests.http.test_readme import run, story
from tests.support.serving import serving

from fencepost.embedded.server import embedded_bin_dir


async def test_the_story_in_the_page_is_true(short_dir: Path, tmp_path: Path) -> None:
    steps = story("docs/queues.md")
    assert len(steps) >= 8
    url = short_dir / "data" / "url"
    path = f"{Path(sys.executable).parent}:{embedded_bin_dir()}:{os.environ['PATH']}"
    async with serving(short_dir) as gateway:
        for command, expected in steps:
            here = command.replace("http://127.0.0.1:8080", gateway.url).replace(".fencepost/url", str(url))
            variables = f'cd {tmp_path}; export FENCEPOST_DATABASE_URL="$(cat {url})"'
            answer = await asyncio.to_thread(run, f"{variables}; {here}", path)
            assert answer.rstrip("\n") == expected.rstrip("\n"), command
