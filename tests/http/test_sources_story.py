"""The story of docs/sources.md is run as it stands: a real Redis, a fresh demo, `fencepost` from the command line."""

import asyncio
import os
import sys
from pathlib import Path

from tests.conformance.redis_bench import redis_server
from tests.http.test_readme import run, story
from tests.support.serving import serving

from fencepost.embedded.server import embedded_bin_dir
from fencepost.testing.servers.ports import free_port


async def test_the_story_in_the_page_is_true(short_dir: Path, tmp_path: Path) -> None:
    steps = story("docs/sources.md")
    assert len(steps) >= 12
    port, url = free_port(), short_dir / "data" / "url"
    path = f"{Path(sys.executable).parent}:{embedded_bin_dir()}:{os.environ['PATH']}"
    with redis_server(tmp_path / "redis", port):
        async with serving(short_dir, FENCEPOST_SOURCES=f"redis=redis://127.0.0.1:{port}") as gateway:
            for command, expected in steps:
                here = command.replace("http://127.0.0.1:8080", gateway.url).replace(".fencepost/url", str(url))
                variables = f'export FENCEPOST_DATABASE_URL="$(cat {url})"'
                answer = await asyncio.to_thread(run, f"{variables}; {here.replace('-p 6379', f'-p {port}')}", path)
                assert answer.rstrip("\n") == expected.rstrip("\n"), command
