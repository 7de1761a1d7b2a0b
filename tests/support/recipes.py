"""The recipes of docs: code blocks after `<!-- recipe: NAME -->`. The lines of a page are what runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "direct-sql.md"
_RECIPE = re.compile(
    r"^<!-- recipe: (?P<name>[\w-]+) -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


def recipe(name: str, page: Path = PAGE) -> str:
    return recipes(page)[name]


def recipes(page: Path = PAGE) -> dict[str, str]:
    return {found["name"]: found["code"] for found in _RECIPE.finditer(page.read_text("utf-8"))}


def run_recipe(name: str, page: Path = PAGE) -> dict[str, Any]:
    """Run a recipe in Python; returns the names that it defines."""
    names: dict[str, Any] = {}
    exec(compile(recipe(name, page), f"{page.name}:{name}", "exec"), names)
    return names


def steps(console: str) -> list[tuple[str, str]]:
    """Read (command, expected output) from a console block; `> ` continues a command."""
    found = []
    for step in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, *lines = step.splitlines()
        while lines and lines[0].startswith("> "):
            command += f"\n{lines.pop(0)[2:]}"
        found.append((command, "\n".join(lines)))
    return found


def surroundings(server: PostgresServer, url: str, **variables: str) -> dict[str, str]:
    """Give our environment without settings, and with psql and fencepost on its path."""
    path = f"{server.bin_dir}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FENCE", "PG"))}
    return kept | {"PATH": path, "DATABASE_URL": url, "LC_ALL": "C.UTF-8"} | variables


def run(command: str, server: PostgresServer, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command with psql and fencepost on its path."""
    return subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env=surroundings(server, url, **variables),
    )
