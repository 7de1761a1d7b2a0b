"""The story of docs/authentication.md is run as it stands."""

import asyncio
import os
import sys
from pathlib import Path

from tests.http.test_readme import ROOT, run, story
from tests.support.serving import serving


async def test_the_story_in_the_page_is_true(short_dir: Path, tmp_path: Path) -> None:
    steps = story("docs/authentication.md")
    assert len(steps) >= 6

    async def take(command: str, expected: str, url: str = "") -> None:
        here = command.replace("http://127.0.0.1:8080", url)
        here = here.replace(".venv/bin/python examples", f"{sys.executable} {ROOT}/examples")
        answer = await asyncio.to_thread(run, f"cd {tmp_path}; {here}", os.environ["PATH"])
        assert answer.rstrip("\n") == expected.rstrip("\n"), command

    await take(*steps[0])
    given = ("--jwt-secret-file", str(tmp_path / "jwt-secret"), "--jwt-role-claim-key", "")
    async with serving(short_dir, *given) as gateway:
        for command, expected in steps[1:]:
            await take(command, expected, gateway.url)
        assert 'Authorization: Bearer $JWT"' in gateway.greeting
